"""Goal: a table stays open between flushes, which misses nothing, and its log does not grow without bound.

Method: a sink on a Delta table on disk; what happens to the table between two flushes comes from a second handle, or from the disk.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from sqe_chain.ext.tables import delta_snapshot, directory
from sqe_chain.ext.tables.directory import TableDirectory
from sqe_chain.ext.tables.reading import open_table
from sqe_chain.ext.tables.storage import Conflict, TableChange
from tests.support.written_tables import Row, WrittenTable, claim_of

Opened = list[str]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """The tables that were opened, one after the other."""
    found: Opened = []

    class Counted(DeltaTable):
        def __init__(self, table_uri: str, **options: Any) -> None:
            found.append(table_uri)
            super().__init__(table_uri, **options)

    monkeypatch.setattr(directory, "DeltaTable", Counted)
    return found


def rows_of(number: int) -> list[Row]:
    return [Row(f"r{one % 5}", number, float(number)) for one in range(9)]


def elsewhere(written: WrittenTable) -> WrittenTable:
    """The same table, as another process has it: nothing is kept under this address."""
    return WrittenTable(TableDirectory(f"{written.sink.storage.address}/"))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_only_the_first_flush_opens_the_table(tmp_path: Path, opened: Opened, scheme: str) -> None:
    written = WrittenTable(TableDirectory(f"{scheme}{tmp_path}/t")).claim()
    written.flush(*rows_of(0))
    opened.clear()
    for number in range(1, 6):
        written.flush(*rows_of(number))
    assert opened == []
    written.check()


def test_a_snapshot_that_is_held_is_not_moved_on(tmp_path: Path) -> None:
    place = TableDirectory(f"{tmp_path}/t")
    WrittenTable(place).claim()
    held = place.snapshot_again()
    assert held is not None
    place.commit_markers(held, {"m": 1}, TableChange("a test"))
    version = held.version
    newer = place.snapshot_again()
    assert newer is not None
    assert (held.version, held.marker("m")) == (version, None)
    assert (newer.version, newer.marker("m")) == (version + 1, 1)
    place.commit_markers(newer, {"m": 2}, TableChange("a test"))
    with pytest.raises(Conflict):
        place.commit_markers(held, {"m": 3}, TableChange("a test"))


def test_few_handles_are_kept(tmp_path: Path) -> None:
    for number in range(12):
        WrittenTable(TableDirectory(f"{tmp_path}/{number}")).claim().flush(*rows_of(0))
    assert len(delta_snapshot._kept) <= delta_snapshot._MOST


def test_entries_that_have_expired_are_deleted_and_nothing_is_lost(tmp_path: Path) -> None:
    written = WrittenTable(TableDirectory(f"{tmp_path}/t")).claim()
    for number in range(3):
        written.flush(*rows_of(number))
    place = TableDirectory(f"{tmp_path}/t")
    log = tmp_path / "t/_delta_log"
    number = 0
    while not list(log.glob("*.checkpoint.parquet")):
        snapshot = place.snapshot()
        assert snapshot is not None
        place.commit_markers(snapshot, {"m": number}, TableChange("a test"))
        number += 1
    assert (log / f"{0:020d}.json").exists(), "they have not expired"
    for entry in log.glob("*.json"):
        os.utime(entry, (time.time() - 3 * 86_400,) * 2)
    snapshot = place.snapshot()
    while snapshot is not None and (log / f"{0:020d}.json").exists():
        assert number < 300, "they are never deleted"
        place.commit_markers(snapshot, {"m": number}, TableChange("a test"))
        number += 1
        snapshot = place.snapshot()
    assert len(list(log.glob("*.json"))) < 10
    written.flush(*rows_of(3))
    written.check()
    assert open_table(tmp_path / "t").read().num_rows == len(written.expected)
    again = elsewhere(written)
    again.sink.claim(claim_of(2, known=dict(written.known)))
