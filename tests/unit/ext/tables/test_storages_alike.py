"""Goal: a table in memory commits as Delta Lake does, so what is shown with one holds for the other.

Method: random calls, the same ones for both, on snapshots of any age. Each must give the same version or the same refusal, and
both tables must then hold the same. And the cases that matter most by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pyarrow as pa
import pytest

from sqe_chain.ext.tables.arrow import PARTITION, SEQUENCE
from sqe_chain.ext.tables.directory import TableDirectory
from sqe_chain.ext.tables.files import TableFile, compacted_name, files_of, name_of
from sqe_chain.ext.tables.memory import MemoryStorage
from sqe_chain.ext.tables.memtable import Memtable
from sqe_chain.ext.tables.schema import TableSchema
from sqe_chain.ext.tables.storage import Conflict, Storage, StoredFile, TableChange, TableDeclaration, Written

SCHEMA = TableSchema.of(None, partition_key="robot", row_key="at", columns={"robot": "string", "at": "int64"})
MARKERS = ("a", "b", "c")


class MarkedTable(Storage, Protocol):
    """A table of Parquet files, whose commits set markers."""

    def commit_markers(self, snapshot: Any, markers: Mapping[str, int], change: TableChange) -> None: ...

    def written(self, path: str, file: TableFile | None = None) -> Written | None: ...


DESCRIPTION = TableDeclaration("f", "t", 0, 2, ["robot"], ["at"]).to_text()


def both(at: Path) -> list[MarkedTable]:
    memory = MemoryStorage(f"memory://alike/{at.name}")
    memory.restore_all()
    return [TableDirectory(str(at / "t")), memory]


@pytest.fixture(params=["delta", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> MarkedTable:
    delta, memory = both(tmp_path)
    return delta if request.param == "delta" else memory


def created(storage: MarkedTable) -> MarkedTable:
    storage.create(SCHEMA.for_readers, "t", DESCRIPTION)
    return storage


def put(storage: MarkedTable, number: int, part: int = 0) -> StoredFile:
    memtable = Memtable(SCHEMA, table="t")
    for at in range(3):
        memtable.ingest({"robot": f"r{number}", "at": at})
    (file,) = files_of(memtable.flush(number << 31))
    path = f"{PARTITION}={part}/{name_of(f'{number:012d}-{number:016x}-{part:05d}', 0, file.digest)}"
    storage.put(path, file, file.chunks)
    return StoredFile(path, len(file.data), part, file.statistics)


def outcome(call: Callable[[], Any]) -> str:
    try:
        return f"{call()}"
    except Conflict:
        return "conflict"


def content(storage: MarkedTable) -> Any:
    snapshot = storage.snapshot()
    assert snapshot is not None
    markers = {name: snapshot.marker(name) for name in MARKERS}
    files = [(file.path, file.size, file.part, file.rows) for file in snapshot.files()]
    names = snapshot.schema.names
    return snapshot.version, snapshot.description, markers, files, names, snapshot.foreign_file()


@pytest.mark.parametrize("seed", range(12))
def test_random_commits_give_the_same(tmp_path: Path, seed: int) -> None:
    draw, tables = Random(seed), both(tmp_path)
    for table in tables:
        created(table)
    ages: list[list[Any]] = [[table.snapshot()] for table in tables]
    refused = 0
    for number in range(14):
        age, kind = draw.randrange(len(ages[0])), draw.random()
        names = draw.sample(MARKERS, draw.choice([1, 1, 2]))
        markers = {name: draw.randrange(5) for name in names}
        removed = draw.random()
        told = []
        for table, known in zip(tables, ages, strict=True):
            old = known[age]
            gone = [file for file in old.files() if removed < 0.3][:2]
            if kind < 0.1:
                call = _adding_columns(table, old, number)
            else:
                added = [put(table, number)] if kind < 0.7 else []
                call = _committing(table, old, markers, added, gone)
            told.append(outcome(call))
            known.append(table.snapshot())
        assert told[0] == told[1], (seed, number)
        assert content(tables[0]) == content(tables[1]), (seed, number)
        refused += told[0] == "conflict"
    assert refused > 0


def _adding_columns(table: MarkedTable, old: Any, number: int) -> Callable[[], Any]:
    return lambda: table.add_columns(old, [pa.field(f"more{number}", pa.string())])


def _committing(
    table: MarkedTable, old: Any, markers: dict[str, int], added: list[StoredFile], gone: list[StoredFile]
) -> Callable[[], Any]:
    return lambda: table.commit_markers(old, markers, TableChange("one of many", added=added, removed=gone))


def test_a_marker_that_was_set_since_is_a_conflict_even_with_a_smaller_number(storage: MarkedTable) -> None:
    old = created(storage).snapshot()
    storage.commit_markers(old, {"a": 5}, TableChange("first"))
    with pytest.raises(Conflict):
        storage.commit_markers(old, {"a": 9}, TableChange("second", added=[put(storage, 1)]))
    assert storage.snapshot().files() == []
    storage.commit_markers(storage.snapshot(), {"a": 3}, TableChange("a smaller number, on what is there"))
    assert storage.snapshot().marker("a") == 3


def test_other_markers_are_no_conflict(storage: MarkedTable) -> None:
    old = created(storage).snapshot()
    storage.commit_markers(old, {"a": 5}, TableChange("first", added=[put(storage, 1)]))
    storage.commit_markers(old, {"b": 5}, TableChange("second", added=[put(storage, 2)]))
    assert storage.snapshot().version == 2
    assert len(storage.snapshot().files()) == 2


def test_of_two_that_remove_a_file_only_a_marker_makes_the_second_fail(storage: MarkedTable) -> None:
    """Why compactions have a marker: else the second would bring replaced files back."""
    storage = created(storage)
    storage.commit_markers(storage.snapshot(), {"a": 1}, TableChange("a file", added=[put(storage, 1)]))
    old = storage.snapshot()
    storage.commit_markers(old, {"b": 1}, TableChange("first", removed=old.files()))
    with pytest.raises(Conflict):
        storage.commit_markers(
            old, {"b": 1}, TableChange("second", added=[put(storage, 2)], removed=old.files())
        )
    assert storage.snapshot().files() == []
    storage.commit_markers(
        old, {"c": 1}, TableChange("without it", added=[put(storage, 2)], removed=old.files())
    )
    assert len(storage.snapshot().files()) == 1


def test_changed_columns_are_a_conflict(storage: MarkedTable) -> None:
    old = created(storage).snapshot()
    storage.add_columns(old, [pa.field("more", pa.string())])
    with pytest.raises(Conflict):
        storage.commit_markers(old, {"a": 1}, TableChange("on other columns"))
    with pytest.raises(Conflict):
        storage.add_columns(old, [pa.field("other", pa.string())])
    assert storage.snapshot().schema.names == ["robot", "at", SEQUENCE, PARTITION, "more"]


def test_a_file_that_is_there_stays(storage: MarkedTable) -> None:
    file = put(created(storage), 1)
    before = storage.written(file.path)
    storage.put(file.path, TableFile(memoryview(b"something else"), 0, [], "{}"), ())
    assert storage.written(file.path) == before
    storage.put(f"{PARTITION}=0/torn.parquet", TableFile(memoryview(b"PAR1 and no more"), 0, [], "{}"), ())
    assert storage.written(f"{PARTITION}=0/torn.parquet") is None
    assert storage.written(f"{PARTITION}=0/nothing.parquet") is None


def test_creating_it_again_changes_nothing(storage: MarkedTable) -> None:
    assert storage.snapshot() is None
    first = created(storage).snapshot()
    storage.create(SCHEMA.for_readers, "t", "something else")
    again = storage.snapshot()
    assert (again.version, again.table_id, again.description) == (0, first.table_id, DESCRIPTION)


def test_vacuum_keeps_what_is_needed_and_what_is_young(storage: MarkedTable) -> None:
    storage = created(storage)
    kept, young = put(storage, 1), put(storage, 2)
    storage.commit_markers(storage.snapshot(), {"a": 1}, TableChange("a file", added=[kept]))
    storage.vacuum(1)
    assert storage.written(kept.path) is not None
    assert storage.written(young.path) is not None


def test_a_table_in_memory_vacuums_by_its_clock() -> None:
    now = 0.0
    table = MemoryStorage("memory://alike/vacuum", lambda: now)
    table.restore_all()
    created(table)
    kept, left = put(table, 1), put(table, 2)
    snapshot = table.snapshot()
    assert snapshot is not None
    table.commit_markers(snapshot, {"a": 1}, TableChange("a file", added=[kept]))
    now = 7_200.0
    assert table.vacuum(1) == [left.path]
    assert table.written(kept.path) is not None


def test_what_compactions_write_is_known_and_other_files_are_not(storage: MarkedTable) -> None:
    storage = created(storage)
    file = put(storage, 1)
    own = StoredFile(f"{PARTITION}=0/{compacted_name(0, '0' * 16)}", file.size, 0, file.statistics)
    storage.commit_markers(storage.snapshot(), {"a": 1}, TableChange("compaction", added=[own]))
    assert storage.snapshot().foreign_file() is None
    other = StoredFile(f"{PARTITION}=0/part-0.parquet", file.size, 0, file.statistics)
    storage.commit_markers(storage.snapshot(), {"a": 2}, TableChange("another program", added=[other]))
    assert storage.snapshot().foreign_file() == other.path


def test_a_table_that_was_dropped_and_created_again_is_another_one() -> None:
    table = MemoryStorage("memory://alike/dropped")
    first = created(table).snapshot().table_id
    table.drop()
    assert table.snapshot() is None
    assert created(table).snapshot().table_id != first
