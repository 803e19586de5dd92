"""Goal: a table takes each flush once, from its owner only, and whatever does not fit together stops by its name.

Method: a sink on a Delta table on disk; runs, plans and state partitions are made up.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from sqe_chain.errors import ConfigurationError, Superseded, TableAltered, TableInconsistent, Unavailable
from sqe_chain.ext.tables import TableSchema, directory
from sqe_chain.ext.tables.delta_snapshot import DeltaSnapshot
from sqe_chain.ext.tables.directory import TableDirectory
from sqe_chain.ext.tables.files import files_of
from sqe_chain.ext.tables.memtable import Memtable
from sqe_chain.ext.tables.reading import open_table
from sqe_chain.ext.tables.sink import TableSink, files_in
from sqe_chain.ports import Flush, SinkState
from tests.support.written_tables import Narrower, Row, claim_of


class Otherwise(msgspec.Struct):
    robot: str
    at: int
    bar: str = ""


def sink_of(at: Path, row: type = Row, **keys: Any) -> TableSink:
    keys = {"partition_key": "robot", "row_key": "at"} | keys
    return TableSink(TableDirectory(str(at / "t")), TableSchema.of(row, **keys), "t")


def claimed(at: Path, epoch: int = 1, row: type = Row, **other: Any) -> TableSink:
    found = sink_of(at, row)
    found.claim(claim_of(epoch, **other))
    return found


def flush_of(
    sink: TableSink, number: int, *, epoch: int = 1, known: bytes | None = None, **other: Any
) -> Flush:
    memtable = Memtable(sink.schema, table="t")
    for at in range(4):
        memtable.ingest(sink.schema.payload("r1", at))  # type: ignore[misc]
    rows = [(b"0", file.packed()) for file in files_of(memtable.flush(number << 31))]
    given: dict[str, Any] = {"part": 0, "plan_id": f"{number:032x}", "run_id": f"run-{epoch}"} | other
    return Flush("f", "t", epoch=epoch, number=number, rows=rows, known=known, **given)


def test_a_flush_is_added_once(tmp_path: Path) -> None:
    sink = claimed(tmp_path)
    first = flush_of(sink, 3)
    added, known = sink.flush(first)
    assert (added, json.loads(known)["plan"]) == (4, 3)
    assert sink.flush(first)[0] == 0
    assert sink.look("f", "t", range(2)) == SinkState(1, frozenset({3}))
    assert sink.flush(flush_of(sink, 5, known=known))[0] == 4
    assert open_table(str(tmp_path / "t")).read().num_rows == 4
    assert len(open_table(str(tmp_path / "t")).files()) == 2


def test_an_older_run_adds_nothing(tmp_path: Path) -> None:
    sink = claimed(tmp_path)
    flush = flush_of(sink, 3)
    claimed(tmp_path, 2)
    with pytest.raises(Superseded):
        sink.flush(flush)
    with pytest.raises(Superseded):
        sink.claim(claim_of(1))
    with pytest.raises(Superseded):
        sink.claim(claim_of(2, run_id="another"))
    assert open_table(str(tmp_path / "t")).files() == []


def test_a_file_that_is_there_is_not_written_again_and_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = claimed(tmp_path)
    flush = flush_of(sink, 3)
    with monkeypatch.context() as patch:
        patch.setattr(sink.storage, "commit", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sink.flush(flush)
    (file,) = (tmp_path / "t").rglob("*.parquet")
    before = file.stat()
    sink.flush(flush)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_another_run_of_the_same_epoch_adds_nothing(tmp_path: Path) -> None:
    sink = claimed(tmp_path)
    with pytest.raises(Superseded):
        sink.flush(flush_of(sink, 3, run_id="another"))
    assert open_table(str(tmp_path / "t")).files() == []
    assert sink.flush(flush_of(sink, 3))[0] == 4


def test_a_table_that_went_back_in_time_stops(tmp_path: Path) -> None:
    sink = claimed(tmp_path)
    _, known = sink.flush(flush_of(sink, 3))
    shutil.copytree(tmp_path / "t", tmp_path / "backup")
    _, later = sink.flush(flush_of(sink, 4, known=known))
    shutil.rmtree(tmp_path / "t")
    shutil.copytree(tmp_path / "backup", tmp_path / "t")
    with pytest.raises(TableInconsistent, match="went back in time"):
        sink.flush(flush_of(sink, 5, known=later))
    with pytest.raises(TableInconsistent, match="went back in time"):
        sink.claim(claim_of(2, known={0: later, 1: None}))
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(TableInconsistent, match="table is gone"):
        sink.flush(flush_of(sink, 5, known=later))
    with pytest.raises(TableInconsistent, match="there is no table"):
        sink.claim(claim_of(2, known={0: later, 1: None}))
    sink.claim(claim_of(2))  # a new flow
    with pytest.raises(TableInconsistent, match="is another table than the one"):
        sink.flush(flush_of(sink, 5, epoch=2, known=later))


def append_elsewhere(at: Path) -> None:
    schema = pa.schema(DeltaTable(str(at / "t")).schema().to_arrow())
    rows = pa.Table.from_pylist([{"robot": "r9", "at": 1, "_sqe_partition": 0}], schema=schema)
    write_deltalake(str(at / "t"), rows, mode="append")


def test_rows_of_another_program_are_noticed_by_a_process_that_knows_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was flushed yet, so it knows no commit to start from: the files themselves show it."""
    sink = claimed(tmp_path)
    append_elsewhere(tmp_path)
    monkeypatch.setattr("sqe_chain.ext.tables.sink._checked", {})
    with pytest.raises(TableAltered, match="holds a file of another program"):
        sink.claim(claim_of(2))


def test_maintenance_of_our_own_and_vacuum_are_no_alteration(tmp_path: Path) -> None:
    sink = claimed(tmp_path)
    _, known = sink.flush(flush_of(sink, 3))
    _, known = sink.flush(flush_of(sink, 4, known=known))
    table = open_table(str(tmp_path / "t"))
    assert table.compact().files_after == 1
    DeltaTable(str(tmp_path / "t")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    table.vacuum()
    sink.flush(flush_of(sink, 5, known=known))
    assert table.read().num_rows == 4


def test_two_stages_do_not_share_a_table(tmp_path: Path) -> None:
    claimed(tmp_path)
    with pytest.raises(TableAltered, match="directory of its own"):
        claimed(tmp_path, flow="another")


@pytest.mark.parametrize(
    ("row", "what"), [(Narrower, "does not declare: bar"), (Otherwise, "column 'bar' is double")]
)
def test_columns_keep_their_type_and_are_not_taken_away(tmp_path: Path, row: type, what: str) -> None:
    claimed(tmp_path)
    with pytest.raises(TableAltered, match=what):
        claimed(tmp_path, 2, row)


def test_keys_are_permanent(tmp_path: Path) -> None:
    claimed(tmp_path)
    with pytest.raises(TableAltered, match="Keys are permanent"):
        sink_of(tmp_path, partition_key="at", row_key="robot").claim(claim_of(2))


def test_a_half_written_file_is_no_file(tmp_path: Path) -> None:
    sink = claimed(tmp_path)
    flush = flush_of(sink, 3)
    (file,) = files_in(flush)
    assert sink.storage.written("_sqe_partition=0/nothing.parquet", file) is None
    torn = tmp_path / "t" / "_sqe_partition=0" / "torn.parquet"
    torn.parent.mkdir()
    torn.write_bytes(file.data[:-20])
    assert sink.storage.written("_sqe_partition=0/torn.parquet", file) is None


def entry_of(at: Path, number: int = -1) -> Path:
    return sorted((at / "t" / "_delta_log").glob("*.json"))[number]


def cut_off(at: Path) -> None:
    """What a loss of power may leave of a commit."""
    last = entry_of(at)
    torn = last.with_name(f"{int(last.stem) + 1:020d}.json")
    torn.write_bytes(last.read_bytes()[:60])


def damage_an_older_one(at: Path) -> None:
    entry_of(at, 1).write_bytes(entry_of(at, 1).read_bytes()[:60])


def remove_one_between(at: Path) -> None:
    entry_of(at, 1).unlink()


def remove_the_first(at: Path) -> None:
    entry_of(at, 0).unlink()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (cut_off, "json is not whole: if power was lost .* move it away, and start again"),
        (damage_an_older_one, "json is damaged, and later versions build on it: restore"),
        (remove_one_between, "json is missing: restore"),
        (remove_the_first, "json is missing: restore"),
    ],
)
def test_a_damaged_log_stops_by_its_name(tmp_path: Path, damage: Callable[[Path], None], text: str) -> None:
    """Waiting would not repair it. The error shows nothing of the insides of delta-rs."""
    sink = claimed(tmp_path)
    _, known = sink.flush(flush_of(sink, 3))
    damage(tmp_path)
    with pytest.raises(TableAltered, match=text):
        sink.claim(claim_of(2, known={0: known, 1: None}))
    if damage is cut_off:
        entry_of(tmp_path).unlink()
        sink.claim(claim_of(2, known={0: known, 1: None}))


def test_an_acknowledged_commit_that_was_moved_away_is_missed(tmp_path: Path) -> None:
    sink = claimed(tmp_path)
    _, known = sink.flush(flush_of(sink, 3))
    entry_of(tmp_path).write_bytes(b"{")
    with pytest.raises(TableAltered, match="move it away"):
        sink.claim(claim_of(2, known={0: known, 1: None}))
    entry_of(tmp_path).unlink()
    with pytest.raises(TableInconsistent, match="went back in time"):
        sink.claim(claim_of(2, known={0: known, 1: None}))


def test_a_file_in_the_place_of_a_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("no table")
    with pytest.raises(ConfigurationError, match="is a file"):
        claimed(tmp_path)


@pytest.mark.parametrize("place", ["file/below", "loop/below", "dangling", "dangling/below", "n" * 300])
def test_a_place_where_no_directory_can_be_is_refused(tmp_path: Path, place: str) -> None:
    """To wait would not help."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match=place.partition("/")[0]):
        claimed(tmp_path / place)


@pytest.mark.parametrize("kind", [PermissionError, OSError, DeltaError])
def test_a_directory_that_may_not_be_read_stops_whatever_delta_rs_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """To wait would not help; nor is it taken for a table that is not there."""

    def refused(*_: object, **__: object) -> None:
        raise kind("Generic LocalFileSystem error\n\nCaused by:\n    Permission denied (os error 13)")

    storage = claimed(tmp_path).storage
    for where in ("sqe_chain.ext.tables.directory.DeltaTable", "pathlib.Path.exists"):
        with monkeypatch.context() as patch:
            patch.setattr(where, refused)
            with pytest.raises(ConfigurationError, match="Permission denied"):
                storage.snapshot()
    assert storage.snapshot() is not None


def test_what_a_flush_has_looked_at_is_kept_not_what_it_has_made(tmp_path: Path) -> None:
    """Between them another program may have written, and a new process has to look at that."""
    sink = claimed(tmp_path)
    snapshot = sink.storage.snapshot()
    _, known = sink.flush(flush_of(sink, 3))
    assert json.loads(known)["version"] == snapshot.version


class Unreadable:
    """A table of delta-rs whose log cannot be read any more; it is read when it is asked for more."""

    def __getattr__(self, name: str) -> Any:
        def failing(*_: object, **__: object) -> None:
            raise DeltaError(f"{name}: the log cannot be read")

        return (lambda: 3) if name == "version" else failing


def test_errors_of_a_log_that_is_read_after_the_snapshot_was_taken_are_mapped(tmp_path: Path) -> None:
    storage = TableDirectory(str(tmp_path / "t"))
    snapshot = DeltaSnapshot(Unreadable(), storage._mapped)
    calls: list[Callable[[], object]] = [
        lambda: snapshot.marker("m"),
        lambda: snapshot.heads("f", "t", [0]),
        snapshot.files,
        snapshot.foreign_file,
        lambda: snapshot.foreign_commit(0),
    ]
    for call in calls:
        with pytest.raises(Unavailable, match="the log cannot be read"):
            call()


def test_a_table_in_new_directories_syncs_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(directory, "_sync_directory", synced.append)
    claimed(tmp_path / "years" / "2026")
    table = tmp_path / "years" / "2026" / "t"
    assert {table, table.parent, table.parent.parent, tmp_path} <= set(synced)


def test_a_table_of_another_program_is_not_touched(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"x": [1]}))
    with pytest.raises(TableAltered, match="has not created"):
        claimed(tmp_path)
    with pytest.raises(ConfigurationError, match="has not created"):
        open_table(str(tmp_path / "t")).describe()
