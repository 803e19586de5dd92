"""Goal: what somebody else does to a table stops its service, its readers or its compactions by name, and nothing of it is guessed.

Method: tables of two flushes, altered as another program would do it: on disk by delta-rs and by hand, in a real Cassandra by CQL.
Then each of what may come next: a reader, a list of chunks, a flush, a start, a compaction.
"""

# ruff: noqa: S608 - statements of this test alone

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cassandra.cluster import Cluster
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from sqe_chain.adapters import open_store
from sqe_chain.errors import ChainError
from sqe_chain.ext.tables.opening import storage_at
from tests.support.written_tables import Row, WrittenTable

NEXT = ("read", "chunks", "flush", "start", "compact")
OK = "goes on"
ALTERED, INCONSISTENT, SETTINGS = "TableAltered", "TableInconsistent", "ConfigurationError"


def filled(address: str) -> WrittenTable:
    found = WrittenTable(storage_at(address)).claim()
    found.flush(*(Row(f"r{robot}", at, 1.0) for robot in range(6) for at in range(5)))
    found.flush(*(Row(f"r{robot}", at, 2.0) for robot in range(6) for at in range(5, 9)))
    return found


def what_comes(written: WrittenTable, following: str) -> tuple[str, str]:
    """The name of the error and its text, or that it goes on."""
    calls: dict[str, Callable[[], object]] = {
        "read": written.table.read,
        "chunks": written.table.chunks,
        "flush": lambda: written.flush(Row("r1", 100)),
        "start": lambda: written.claim(2),
        "compact": written.table.compact,
    }
    try:
        calls[following]()
    except ChainError as error:
        return type(error).__name__, str(error)
    return OK, ""


def row(at: str, **cells: Any) -> Any:
    schema = pa.schema(DeltaTable(at).schema().to_arrow())
    return pa.Table.from_pylist([{"robot": "r9", "at": 1, "_sqe_partition": 0, **cells}], schema=schema)


def files(at: str) -> list[Path]:
    return sorted(Path(at).glob("_sqe*/*.parquet"))


def other_table(at: str) -> None:
    shutil.rmtree(at)
    write_deltalake(at, pa.table({"x": [1]}))


def other_schema(at: str) -> None:
    table = pa.table({"robot": [1], "_sqe_partition": pa.array([0], pa.int32())})
    write_deltalake(at, table, mode="overwrite", schema_mode="overwrite")


def merge(at: str) -> None:
    merging = DeltaTable(at).merge(
        row(at), "t.robot = s.robot and t.at = s.at", source_alias="s", target_alias="t"
    )
    merging.when_not_matched_insert_all().execute()


ON_DISK: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "append": (lambda at: write_deltalake(at, row(at), mode="append"), (OK, ALTERED, ALTERED, ALTERED, ALTERED)),
    "append elsewhere": (
        lambda at: write_deltalake(at, row(at, _sqe_partition=77), mode="append"), (OK, ALTERED, ALTERED, ALTERED, OK)),
    "overwrite": (lambda at: write_deltalake(at, row(at), mode="overwrite"), (OK, ALTERED, ALTERED, ALTERED, OK)),
    "other columns": (other_schema, (ALTERED, ALTERED, ALTERED, ALTERED, ALTERED)),
    "update": (lambda at: DeltaTable(at).update(updates={"bar": "9.0"}, predicate="at = 1"), (OK, ALTERED, ALTERED, ALTERED, ALTERED)),
    "merge": (merge, (OK, ALTERED, ALTERED, ALTERED, ALTERED)),
    "delete": (lambda at: DeltaTable(at).delete("at = 1"), (OK, ALTERED, ALTERED, ALTERED, ALTERED)),
    "delete all": (lambda at: DeltaTable(at).delete(), (OK, OK, ALTERED, ALTERED, OK)),
    "OPTIMIZE": (lambda at: DeltaTable(at).optimize.compact(), (OK, ALTERED, ALTERED, ALTERED, OK)),
    "ZORDER": (lambda at: DeltaTable(at).optimize.z_order(["at"]), (OK, ALTERED, ALTERED, ALTERED, OK)),
    "a column more": (
        lambda at: DeltaTable(at).alter.add_columns([Field("other", PrimitiveType("string"))]), (OK, OK, ALTERED, ALTERED, OK)),
    "a property": (
        lambda at: DeltaTable(at).alter.set_table_properties({"delta.appendOnly": "true"}), (OK, OK, ALTERED, ALTERED, OK)),
    "its description": (
        lambda at: DeltaTable(at).alter.set_table_description("x"), (SETTINGS, SETTINGS, ALTERED, ALTERED, SETTINGS)),
    "RESTORE": (lambda at: DeltaTable(at).restore(2), (OK, OK, ALTERED, ALTERED, OK)),
    "VACUUM": (
        lambda at: DeltaTable(at).vacuum(0, dry_run=False, enforce_retention_duration=False), (OK, OK, OK, OK, OK)),
    "its directory deleted": (shutil.rmtree, (SETTINGS, SETTINGS, INCONSISTENT, INCONSISTENT, SETTINGS)),
    "its log deleted": (
        lambda at: shutil.rmtree(f"{at}/_delta_log"), (SETTINGS, SETTINGS, INCONSISTENT, INCONSISTENT, SETTINGS)),
    "a state partition deleted": (
        lambda at: shutil.rmtree(f"{at}/_sqe_partition=0"), (ALTERED, ALTERED, OK, ALTERED, ALTERED)),
    "another table in its place": (other_table, (SETTINGS, SETTINGS, INCONSISTENT, ALTERED, SETTINGS)),
    "a file that no version names": (
        lambda at: pq.write_table(pa.table({"x": [1]}), f"{at}/_sqe_partition=0/other.parquet"), (OK, OK, OK, OK, OK)),
    "one file in the place of another": (lambda at: shutil.copy(files(at)[0], files(at)[1]), (ALTERED, ALTERED, OK, ALTERED, ALTERED)),
    "another program's file in the place of one": (
        lambda at: pq.write_table(pa.table({"x": [1]}), files(at)[0]), (ALTERED, ALTERED, OK, ALTERED, ALTERED)),
}  # fmt: skip


@pytest.mark.parametrize("act", ON_DISK)
def test_on_disk(tmp_path: Path, act: str) -> None:
    alter, expected = ON_DISK[act]
    found = []
    for following in NEXT:
        written = filled(str(tmp_path / following / "t"))
        alter(str(tmp_path / following / "t"))
        name, text = what_comes(written, following)
        found.append(name)
        assert name == OK or str(tmp_path / following / "t") in text
        if name != OK:
            assert not list(Path(written.storage.address).rglob("000000000003-*")), "nothing was written"
    assert tuple(found) == expected


COMMITS = (
    "append", "append elsewhere", "overwrite", "other columns", "update", "merge", "delete", "delete all", "OPTIMIZE", "ZORDER", "a column more",
    "a property", "its description",
)  # fmt: skip


@pytest.mark.parametrize("following", ["flush", "start"])
@pytest.mark.parametrize("act", COMMITS)
def test_a_table_that_is_restored_to_the_version_before_goes_on(
    tmp_path: Path, act: str, following: str
) -> None:
    """The fix that the error names: nothing was added meanwhile, and nothing is missing."""
    at = str(tmp_path / "t")
    written = filled(at)
    version = DeltaTable(at).version()
    ON_DISK[act][0](at)
    assert what_comes(written, following)[0] == ALTERED
    DeltaTable(at).restore(version)
    for _ in range(2):
        assert what_comes(written, following) == (OK, "")
    written.claim(3)
    written.flush(Row("r2", 200))
    written.check()


def test_a_restore_that_takes_back_a_flush_does_not_help(tmp_path: Path) -> None:
    at = str(tmp_path / "t")
    written = filled(at)
    version = DeltaTable(at).version()
    written.flush(Row("r1", 100))
    DeltaTable(at).optimize.compact()
    DeltaTable(at).restore(version)
    for following in ("flush", "start"):
        kind, text = what_comes(written, following)
        assert kind == ALTERED
        assert "RESTORE by" in text


AT = "WHERE name = 't' AND version = 0"
IN_CASSANDRA: dict[str, tuple[str, tuple[str, ...]]] = {
    "the index of a state partition deleted": (f"DELETE FROM sqe_chunk_index {AT} AND part = 0", (ALTERED, ALTERED, OK, OK, ALTERED)),
    "chunks truncated": ("TRUNCATE sqe_chunks", (ALTERED, OK, OK, OK, ALTERED)),
    "the index truncated": ("TRUNCATE sqe_chunk_index", (ALTERED, ALTERED, OK, OK, ALTERED)),
    "heads truncated": ("TRUNCATE sqe_table_heads", (OK, OK, INCONSISTENT, INCONSISTENT, OK)),
    "its row deleted": (f"DELETE FROM sqe_tables {AT}", (SETTINGS, SETTINGS, INCONSISTENT, INCONSISTENT, SETTINGS)),
    "a column of another type": (
        f"UPDATE sqe_tables SET columns = 'robot string\nat string\nbar float64' {AT}", (OK, OK, ALTERED, ALTERED, OK)),
    "a column of no type": (
        f"UPDATE sqe_tables SET columns = 'robot nonsense\nat int64' {AT}", (ALTERED, ALTERED, ALTERED, ALTERED, ALTERED)),
    "no columns": (f"UPDATE sqe_tables SET columns = null {AT}", (ALTERED, ALTERED, ALTERED, ALTERED, ALTERED)),
    "another id": (f"UPDATE sqe_tables SET table_id = 'x' {AT}", (OK, OK, INCONSISTENT, INCONSISTENT, OK)),
    "another description": (
        f"UPDATE sqe_tables SET description = 'x' {AT}", (SETTINGS, SETTINGS, ALTERED, ALTERED, SETTINGS)),
    "a chunk set of its own": (
        "INSERT INTO sqe_table_heads (name, version, part, chunk_set, size, statistics) VALUES ('t', 0, 0, 'zzz', 1, 'x')",
        (ALTERED, ALTERED, OK, ALTERED, ALTERED)),
    "an index of its own": (
        f"UPDATE sqe_chunk_index SET info = 'x' {AT} AND part = 0 AND partition_key = 0x7230 AND chunk_set = '%s'",
        (ALTERED, ALTERED, OK, OK, ALTERED)),
    "an epoch taken away": (f"UPDATE sqe_table_heads SET epoch = null {AT} AND part = 0", (OK, OK, INCONSISTENT, OK, OK)),
    "a lower plan": (f"UPDATE sqe_table_heads SET number = 0 {AT} AND part = 0", (OK, OK, INCONSISTENT, INCONSISTENT, OK)),
    "what was replaced": (f"UPDATE sqe_table_heads SET removed = 'x' {AT} AND part = 0", (OK, OK, OK, OK, ALTERED)),
    "a column of chunks dropped": ("ALTER TABLE sqe_chunks DROP data", (SETTINGS, OK, SETTINGS, OK, SETTINGS)),
    "a column of chunks added": ("ALTER TABLE sqe_chunks ADD other text", (OK, OK, OK, OK, OK)),
    "a column of heads dropped": ("ALTER TABLE sqe_table_heads DROP plan", (SETTINGS, SETTINGS, SETTINGS, SETTINGS, SETTINGS)),
    "the table of chunks dropped": ("DROP TABLE sqe_chunks", (SETTINGS, OK, SETTINGS, OK, SETTINGS)),
    "the keyspace dropped": ("DROP KEYSPACE %k", (SETTINGS, SETTINGS, SETTINGS, SETTINGS, SETTINGS)),
}  # fmt: skip


class Keyspaces:
    """Another program: it has a session of its own, and a new keyspace for each table."""

    def __init__(self, url: str) -> None:
        self.base = url.rpartition("/")[0]
        host, _, port = self.base.partition("//")[2].partition(":")
        self.cluster = Cluster([host], port=int(port))
        self.session = self.cluster.connect()

    def table(self) -> tuple[str, WrittenTable]:
        name = f"k{uuid.uuid4().hex[:12]}"
        store: Any = open_store(f"{self.base}/{name}")
        store.make_schema({"": 1})
        return name, filled(f"{self.base}/{name}/t")

    def alter(self, name: str, written: WrittenTable, statement: str) -> None:
        first = written.storage.snapshot().files(0)[0].path.partition("/")[2]
        if "%k" not in statement:
            self.session.execute(f"USE {name}")
        self.session.execute(statement.replace("%k", name).replace("%s", first), timeout=60)


@pytest.fixture(scope="module")
def keyspaces(cassandra_url: str) -> Iterator[Keyspaces]:
    found = Keyspaces(cassandra_url)
    yield found
    found.cluster.shutdown()


@pytest.mark.few(4)
@pytest.mark.parametrize("act", IN_CASSANDRA)
def test_in_cassandra(keyspaces: Keyspaces, act: str) -> None:
    statement, expected = IN_CASSANDRA[act]
    name, written = keyspaces.table()
    keyspaces.alter(name, written, statement)
    found = []
    for following in ("read", "chunks", "compact", "flush", "start"):
        error, text = what_comes(written, following)
        found.append(error)
        assert error == OK or name in text
        if error == SETTINGS and "does not exist" in text:
            assert "restore it" in text
    read, chunks, compact, flush, start = found
    assert (read, chunks, flush, start, compact) == expected
