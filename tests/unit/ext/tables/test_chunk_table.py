"""Goal: a table of chunks reads no more than it has to, shows nothing that no commit names, and notices what was taken from it.

Method: chunks in a database in memory that notes what was read; the contract of all places is in tests/contract/test_table_storage.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.errors import ConfigurationError, RowTooLarge, TableAltered, Unavailable
from sqe_chain.ext.tables import Memtable, TableSchema, chunk_sets
from sqe_chain.ext.tables.addresses import MAX_KEY_BYTES
from sqe_chain.ext.tables.chunk import ChunkInfo, ChunkName
from sqe_chain.ext.tables.chunk_reading import Candidate, may_matter
from sqe_chain.ext.tables.chunk_rows import ChunkSet, IndexRow
from sqe_chain.ext.tables.chunk_table import PIECE_BYTES, ChunkTable
from sqe_chain.ext.tables.storage import packing_at
from tests.support.memory_chunks import MemoryChunkRows
from tests.support.written_tables import Row, WrittenTable, as_dict, claim_of


class Noted(msgspec.Struct):
    robot: str
    at: int
    bar: float = 0.0
    note: bytes = b""


def table_of(row: type = Row) -> tuple[MemoryChunkRows, WrittenTable]:
    rows = MemoryChunkRows("cassandra://memory/keyspace/t")
    return rows, WrittenTable(ChunkTable(rows), row).claim()


def hours(written: WrittenTable, flushes: int = 6) -> None:
    """Flushes of other times, each with larger values than the one before."""
    random = Random(2)
    for number in range(flushes):
        written.flush(*(Row(f"r{n % 6}", 100 * number + n, number + random.random() / 2) for n in range(30)))


def test_readers_side_by_side_are_refused_by_their_flow() -> None:
    """A state partition has one head: of two readers each would find the plans of the other."""
    _, written = table_of()
    before = written.storage.snapshot().heads("f", "t", [0])
    with pytest.raises(ConfigurationError, match="one writer: run flow 'f' without --partitions"):
        written.sink.claim(claim_of(7, flow="f.reader-0-3"))
    assert written.storage.snapshot().heads("f", "t", [0]) == before


# --- what is not read ----------------------------------------------------------------------------------------


def test_only_chunks_of_the_partition_key_and_the_row_keys_are_read() -> None:
    rows, written = table_of()
    hours(written)
    rows.asked.clear()
    scan = written.table.scan("r4", row_key=(200, 399), columns=["bar"])
    assert {(one.partition_key, one.chunk_set[:12]) for one in rows.asked} == {
        (b"r4", f"{3:012d}"),
        (b"r4", f"{4:012d}"),
    }
    assert {one.columns for one in rows.asked} == {("robot", "at", "bar", "_sqe_sequence")}
    assert scan.rows.num_rows == scan.rows_read == 10
    chunks = sum(
        json.loads(file.statistics)["chunks"] for file in written.storage.snapshot().files() if "r4" and file
    )
    assert scan.row_groups == 2
    assert chunks > 2 * 6 - 2


def test_a_filter_on_a_column_that_is_no_key_skips_chunks_that_replace_nothing() -> None:
    rows, written = table_of()
    hours(written)
    rows.asked.clear()
    found = written.table.read(where={"bar": (3.0, 3.6)})
    assert {one.chunk_set[:12] for one in rows.asked} == {f"{4:012d}"}
    assert as_dict(found) == {key: bar for key, bar in written.expected.items() if 3.0 <= bar <= 3.6}
    written.flush(Row("r0", 300, 99.0))  # replaces one of them
    assert as_dict(written.table.read(where={"bar": (3.0, 3.6)})) == {
        key: bar for key, bar in written.expected.items() if 3.0 <= bar <= 3.6
    }


spans = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 9), st.integers(0, 3)), max_size=8
)


@given(spans, st.integers(0, 9), st.integers(0, 5))
def test_no_row_is_found_by_an_older_version(
    found: list[tuple[int, int, int, int]], low: int, width: int
) -> None:
    """Each chunk has rows (key -> value); later chunks replace earlier ones. With and without skipping chunks: the same."""
    random = Random(repr(found))
    wanted = (low, low + width)
    chunks: list[tuple[Candidate, dict[int, int]]] = []
    for number, (start, length, least, more) in enumerate(found):
        content = {start: least, start + length: least + more}
        content |= {start + one: random.randint(least, least + more) for one in range(1, length)}
        values = content.values()
        info = ChunkInfo(
            ChunkName("t", 0, b"r1", str(number)),
            *((start,), (start + length,), len(content), 0, ""),
            {"v": min(values)},
            {"v": max(values)},
        )
        chunks.append((Candidate(IndexRow(b"r1", str(number), "", "", 0, 1), info, []), content))

    def latest(kept: Callable[[Candidate], bool]) -> dict[int, int]:
        rows: dict[int, int] = {}
        for one, content in chunks:
            if kept(one):
                rows |= content
        return {key: value for key, value in rows.items() if wanted[0] <= value <= wanted[1]}

    read = {one.row.chunk_set for one in may_matter([one for one, _ in chunks], {}, {"v": wanted})}
    assert latest(lambda one: one.row.chunk_set in read) == latest(lambda _: True)


def test_blocks_of_a_long_chunk_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_sets, "BLOCK_ROWS", 10)
    rows, written = table_of()
    written.flush(*(Row("r1", at, at / 2) for at in range(95)))
    rows.asked.clear()
    scan = written.table.scan("r1", row_key=(33, 52))
    assert [one.blocks for one in rows.asked] == [(3, 4, 5)]
    assert (scan.row_groups, scan.row_groups_left_out, scan.rows_read) == (3, 7, 30)
    assert scan.rows["at"].to_pylist() == list(range(33, 53))
    written.check()


# --- bytes ------------------------------------------------------------------------------------------------------


def test_no_row_of_the_database_is_large() -> None:
    rows, written = table_of(Noted)
    content = Random(1).randbytes(3 * PIECE_BYTES + 17)
    written.flush(Noted("r1", 1, 0.0, content), Noted("r1", 2))
    sizes = [len(piece.data) for pieces in rows.stored.values() for piece in pieces.values()]
    assert max(sizes) == PIECE_BYTES
    assert written.table.read(columns=["note"])["note"].to_pylist() == [content, b""]
    (index,) = (row for part in rows.indexed.values() for row in part.values())
    assert len(index.info) + len(index.blocks) < 1_000, "bounds of that length are not kept"


def test_the_same_rows_give_the_same_bytes() -> None:
    schema = TableSchema.of(Row, partition_key="robot", row_key="at")
    packed = []
    for _ in range(2):
        memtable = Memtable(schema, table="t")
        for number in range(300):
            memtable.ingest(Row(f"r{number % 7}", number % 50, number / 3))
        packed.append([one.packed() for one in packing_at("cassandra://a/b/t")(memtable.flush())])
    assert packed[0] == packed[1]


def test_keys_that_the_database_does_not_take_are_poison() -> None:
    schema = TableSchema.of(Row, partition_key="robot", row_key="at")
    memtable = Memtable(schema, max_key_bytes=MAX_KEY_BYTES)
    memtable.ingest(Row("r" * MAX_KEY_BYTES, 1))
    failed: list[int] = []
    memtable.ingest_all(
        [Row("r1", 1), Row("r" * (MAX_KEY_BYTES + 1), 1)], lambda index, _: failed.append(index)
    )
    assert (failed, memtable.rows) == ([1], 2)
    with pytest.raises(RowTooLarge, match="keys of 8193 bytes"):
        memtable.ingest(Row("r" * (MAX_KEY_BYTES + 1), 1))


def test_all_types_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    columns = {
        "robot": pa.array(["a", "b"]),
        "none": pa.array([None, None], pa.int64()),
        "list": pa.array([[1, None], []], pa.list_(pa.field("element", pa.int64()))),
        "flag": pa.array([True, None]),
        "at": pa.array([1, 2], pa.timestamp("us", tz="UTC")),
    }
    for name, cells in columns.items():
        for start in (0, 1):
            one = cells.slice(start)
            assert chunk_sets.decoded(chunk_sets.encoded(name, one)).equals(one)


# --- what nothing names, and what is missing ----------------------------------------------------------------------


def test_chunks_that_no_commit_names_are_seen_by_nobody() -> None:
    _, written = table_of()
    written.flush(Row("r1", 1, 1.0))
    (flush,) = written.flushes([Row("r1", 1, 7.0)], 2)
    from sqe_chain.ext.tables.files import TableFile  # noqa: PLC0415 - only here

    for _, content in flush.rows:
        assert content is not None
        file = TableFile.unpacked(content)
        path = written.storage.path(flush.part, "000000000000-0-00000", 0, file.digest)  # smaller than all
        written.storage.put(path, file, file.chunks)
    written.check()
    assert len(written.table.chunks()) == 1


@pytest.mark.parametrize("lost", ["pieces", "piece", "index"])
def test_rows_that_another_program_has_deleted_are_noticed(lost: str) -> None:
    rows, written = table_of()
    written.flush(Row("r1", 1), Row("r2", 1))
    if lost == "index":
        next(iter(rows.indexed.values())).popitem()
    elif lost == "pieces":
        next(iter(rows.stored.values())).clear()
    else:
        next(iter(rows.stored.values())).popitem()
    with pytest.raises(TableAltered, match="another program has deleted"):
        written.table.read()


def test_sets_that_are_older_than_their_head_are_read_again() -> None:
    """A node may not have heard of a commit yet; or it comes between one page and the next."""
    rows, written = table_of()
    written.flush(Row("r1", 1), Row("r2", 1))
    stale, fresh = rows.sets([0, 1]), rows.sets
    written.flush(Row("r1", 2), Row("r2", 2))
    answers = [stale, stale]

    def sets(parts: Sequence[int]) -> Any:
        if not answers:
            return fresh(parts)
        found = answers.pop()
        return [found[part] for part in parts]

    rows.sets = sets  # type: ignore[method-assign]
    written.check()
    assert not answers
    rows.sets = lambda parts: [stale[part] for part in parts]  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="changes faster"):
        written.table.read()


def test_rows_of_another_program_stop_the_service() -> None:
    rows, written = table_of()
    assert rows.compare_and_set(0, {}, {}, [ChunkSet("zzz", 1, "{}")])
    with pytest.raises(TableAltered, match="another program: chunk set 0/zzz"):
        WrittenTable(written.storage).claim(2)


def test_a_reader_that_a_vacuum_overtakes_reads_again() -> None:
    rows, written = table_of()
    hours(written, 3)
    table, read = written.table, rows.pieces
    acts: list[Callable[[], object]] = [lambda: overtake(written)]

    def slow(asked: Any) -> Any:
        if acts:
            acts.pop()()
        return read(asked)

    rows.pieces = slow  # type: ignore[method-assign]
    assert as_dict(table.read()) == written.expected
    assert not acts
    acts = [lambda: overtake(written)] * 20

    def flushed(asked: Any) -> Any:
        written.flush(*(Row(f"r{n}", 9_000) for n in range(6)))
        return slow(asked)

    rows.pieces = flushed  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="20 conflicts"):
        table.read()


def overtake(written: WrittenTable) -> None:
    """A compaction, and a vacuum that keeps nothing."""
    from sqe_chain.ext.tables import compacting  # noqa: PLC0415 - only here

    pieces = written.storage.rows.pieces  # type: ignore[attr-defined]
    del written.storage.rows.pieces  # type: ignore[attr-defined]
    compacting.compact(written.storage, written.table.schema(), 2)
    written.storage.rows.pieces = pieces  # type: ignore[attr-defined]
    written.storage.vacuum(-1)  # what was left an hour ahead of now, which is everything


def test_a_vacuum_that_crashes_is_finished_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, written = table_of()
    hours(written, 3)
    written.table.compact()
    drop, left = rows.drop, sum(map(len, rows.indexed.values()))

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rows, "drop", crash)
    with pytest.raises(KeyboardInterrupt):
        vacuum(written)
    written.check()
    monkeypatch.setattr(rows, "drop", drop)
    vacuum(written)
    assert sum(map(len, rows.indexed.values())) < left
    assert {name for _, name in rows.stored} == {
        one.name for part in rows.named.values() for one in part.values()
    }
    written.check()


def vacuum(written: WrittenTable) -> None:
    written.storage.vacuum(-1)  # what was left an hour ahead of now, which is everything


def test_names_go_up_with_each_commit() -> None:
    """So a vacuum may delete by names: what a failed compaction has written, too."""
    rows, written = table_of()
    hours(written, 2)
    storage, snapshot = written.storage, written.storage.snapshot()
    late = storage.merged_path(snapshot, 0, "f" * 16)
    written.table.compact()
    boundary = min(rows.named[0])
    hours(written, 1)
    assert late.partition("/")[2][:-17] == boundary[:-17], (
        "of the same compaction: only one of two was committed"
    )
    written.table.compact()
    assert min(rows.named[0]) > late.partition("/")[2]
    assert all(name >= min(rows.named[0]) for name in rows.named[0])


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["keyspace", "keyspace/", "keyspace/a/b", "Keyspace/t", "keyspace/t t"])
def test_addresses_without_keyspace_and_table_are_refused(path: str) -> None:
    from sqe_chain.ext.tables.cassandra import chunk_table_at  # noqa: PLC0415 - a driver

    with pytest.raises(ConfigurationError):
        chunk_table_at(f"cassandra://host/{path}", {})


def test_addresses_name_keyspace_table_and_version() -> None:
    from sqe_chain.ext.tables.cassandra import CassandraRows, chunk_table_at  # noqa: PLC0415 - a driver

    found = chunk_table_at(
        "cassandra://me:secret@one,two:9043/ks/readings.v2?datacenter=dc1", {"timeout_s": "3"}
    )
    rows = found.rows
    assert isinstance(rows, CassandraRows)
    assert (rows.name, rows.version, rows.settings.keyspace) == ("readings", 2, "ks")
    assert (rows.settings.datacenter, rows.settings.timeout_s) == ("dc1", 3.0)
    assert repr(found) == "table cassandra://me@one:9042,two:9043/ks/readings.v2"
    with pytest.raises(ConfigurationError, match="no option wrong"):
        chunk_table_at("cassandra://one/ks/t", {"wrong": "1"})
    assert replace(rows, version=0).address.endswith("/ks/readings")


def test_there_are_no_files() -> None:
    _, written = table_of()
    written.flush(Row("r1", 1))
    with pytest.raises(ConfigurationError, match="there are no files"):
        written.table.files()
    with pytest.raises(ConfigurationError, match="retain_hours"):
        written.table.vacuum(retain_hours=0)
