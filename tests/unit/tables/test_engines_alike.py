"""Goal: a table in memory commits as Delta Lake does, so what is shown with one holds for the other.

Method: random calls, the same ones for both, on snapshots of any age: each must give the same version or the same refusal, and
both tables must then hold the same. And the cases that matter most by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.tables.addresses import directory_at
from sqe_chain.tables.arrow import PARTITION, SEQUENCE, table_schema
from sqe_chain.tables.engine import Conflict, Directory, StoredFile
from sqe_chain.tables.files import compacted_name, files_of, name_of
from sqe_chain.tables.memory import MemoryTable
from sqe_chain.tables.memtable import Memtable
from sqe_chain.tables.schema import TableSchema

SCHEMA = TableSchema.of(None, partition_key="robot", row_key="at", columns={"robot": "string", "at": "int64"})
MARKERS = ("a", "b", "c")


def both(at: Path) -> list[Directory]:
    memory = MemoryTable(f"memory://alike/{at.name}")
    memory.restore_all()
    return [directory_at(str(at / "t")), memory]


@pytest.fixture(params=["delta", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    delta, memory = both(tmp_path)
    return delta if request.param == "delta" else memory


def created(directory: Directory) -> Directory:
    directory.create(table_schema(SCHEMA), "t", "what it is")
    return directory


def put(directory: Directory, number: int, part: int = 0) -> StoredFile:
    memtable = Memtable(SCHEMA, table="t")
    for at in range(3):
        memtable.ingest({"robot": f"r{number}", "at": at})
    (file,) = files_of(memtable.flush(number << 31))
    path = f"{PARTITION}={part}/{name_of(f'{number:012d}-{number:016x}-{part:05d}', 0, file.digest)}"
    directory.put(path, file.data)
    return StoredFile(path, len(file.data), part, file.statistics)


def outcome(call: Callable[[], Any]) -> str:
    try:
        return f"{call()}"
    except Conflict:
        return "conflict"


def content(directory: Directory) -> Any:
    snapshot = directory.snapshot()
    assert snapshot is not None
    markers = {name: snapshot.marker(name) for name in MARKERS}
    files = [(one.path, one.size, one.part, one.rows) for one in snapshot.files()]
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
            gone = [one for one in old.files() if removed < 0.3][:2]
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


def _adding_columns(table: Directory, old: Any, number: int) -> Callable[[], Any]:
    return lambda: table.add_columns(old, [pa.field(f"more{number}", pa.string())])


def _committing(
    table: Directory, old: Any, markers: dict[str, int], added: list[StoredFile], gone: list[StoredFile]
) -> Callable[[], Any]:
    return lambda: table.commit(old, markers, added, gone, what="one of many")


def test_a_marker_that_was_set_since_is_a_conflict_even_with_a_smaller_number(directory: Directory) -> None:
    old = created(directory).snapshot()
    directory.commit(old, {"a": 5}, what="first")
    with pytest.raises(Conflict):
        directory.commit(old, {"a": 9}, [put(directory, 1)], what="second")
    assert directory.snapshot().files() == []
    directory.commit(directory.snapshot(), {"a": 3}, what="a smaller number, on what is there")
    assert directory.snapshot().marker("a") == 3


def test_other_markers_are_no_conflict(directory: Directory) -> None:
    old = created(directory).snapshot()
    directory.commit(old, {"a": 5}, [put(directory, 1)], what="first")
    directory.commit(old, {"b": 5}, [put(directory, 2)], what="second")
    assert directory.snapshot().version == 2
    assert len(directory.snapshot().files()) == 2


def test_of_two_that_remove_a_file_only_a_marker_makes_the_second_fail(directory: Directory) -> None:
    """Why compactions have a marker: else the second would bring replaced files back."""
    directory = created(directory)
    directory.commit(directory.snapshot(), {"a": 1}, [put(directory, 1)], what="a file")
    old = directory.snapshot()
    directory.commit(old, {"b": 1}, [], old.files(), what="first")
    with pytest.raises(Conflict):
        directory.commit(old, {"b": 1}, [put(directory, 2)], old.files(), what="second")
    assert directory.snapshot().files() == []
    directory.commit(old, {"c": 1}, [put(directory, 2)], old.files(), what="without it")
    assert len(directory.snapshot().files()) == 1


def test_changed_columns_are_a_conflict(directory: Directory) -> None:
    old = created(directory).snapshot()
    directory.add_columns(old, [pa.field("more", pa.string())])
    with pytest.raises(Conflict):
        directory.commit(old, {"a": 1}, what="on other columns")
    with pytest.raises(Conflict):
        directory.add_columns(old, [pa.field("other", pa.string())])
    assert directory.snapshot().schema.names == ["robot", "at", SEQUENCE, PARTITION, "more"]


def test_a_file_that_is_there_stays(directory: Directory) -> None:
    file = put(created(directory), 1)
    before = directory.chunks(file.path)
    directory.put(file.path, b"something else")
    assert directory.chunks(file.path) == before
    directory.put(f"{PARTITION}=0/torn.parquet", b"PAR1 and no more")
    assert directory.chunks(f"{PARTITION}=0/torn.parquet") is None
    assert directory.chunks(f"{PARTITION}=0/nothing.parquet") is None


def test_creating_it_again_changes_nothing(directory: Directory) -> None:
    assert directory.snapshot() is None
    first = created(directory).snapshot()
    directory.create(table_schema(SCHEMA), "t", "something else")
    again = directory.snapshot()
    assert (again.version, again.table_id, again.description) == (0, first.table_id, "what it is")


def test_vacuum_keeps_what_is_needed_and_what_is_young(directory: Directory) -> None:
    directory = created(directory)
    kept, young = put(directory, 1), put(directory, 2)
    directory.commit(directory.snapshot(), {"a": 1}, [kept], what="a file")
    directory.vacuum(1)
    assert directory.chunks(kept.path) is not None
    assert directory.chunks(young.path) is not None
    with pytest.raises(ConfigurationError, match="retain_hours"):
        directory.vacuum(0)


def test_a_table_in_memory_vacuums_by_its_clock() -> None:
    now = 0.0
    table = MemoryTable("memory://alike/vacuum", lambda: now)
    table.restore_all()
    created(table)
    kept, left = put(table, 1), put(table, 2)
    snapshot = table.snapshot()
    assert snapshot is not None
    table.commit(snapshot, {"a": 1}, [kept], what="a file")
    now = 7_200.0
    assert table.vacuum(1) == [left.path]
    assert table.chunks(kept.path) is not None


def test_what_compactions_write_is_known_and_other_files_are_not(directory: Directory) -> None:
    directory = created(directory)
    file = put(directory, 1)
    own = StoredFile(f"{PARTITION}=0/{compacted_name(0, '0' * 16)}", file.size, 0, file.statistics)
    directory.commit(directory.snapshot(), {"a": 1}, [own], what="compaction")
    assert directory.snapshot().foreign_file() is None
    other = StoredFile(f"{PARTITION}=0/part-0.parquet", file.size, 0, file.statistics)
    directory.commit(directory.snapshot(), {"a": 2}, [other], what="another program")
    assert directory.snapshot().foreign_file() == other.path


def test_a_table_that_was_dropped_and_created_again_is_another_one() -> None:
    table = MemoryTable("memory://alike/dropped")
    first = created(table).snapshot().table_id
    table.drop()
    assert table.snapshot() is None
    assert created(table).snapshot().table_id != first
