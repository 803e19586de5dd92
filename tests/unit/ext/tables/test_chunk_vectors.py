"""Goal: a user who has read the reference alone can ask which chunks are written already, one chunk at a time.

Method: vectors written down by hand: the chunks that are there, the one that is to be written, and whether it may be skipped. A rule of
three lines decides them a second time. Then the same with chunks as memtables make them: of the same rows, and of rows that differ in one cell.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sqe_chain.ext.tables import ChunkIndex, ChunkInfo, ChunkName, Memtable, TableSchema, chunk_id

PLAN = "9c1185a5c5e9fc54612808977ee8f548"
OTHER_PLAN = "ffff85a5c5e9fc54612808977ee8f548"


def at(number: int, part: int = 0, plan: str = PLAN) -> str:
    return chunk_id(number, plan, part)


def chunk(number: int = 7, **changed: Any) -> ChunkInfo:
    """A chunk of five rows of robot r1, of plan 7, with something changed."""
    name: dict[str, Any] = {
        "table": "readings",
        "version": 0,
        "partition_key": b"r1",
        "chunk_id": at(number),
    }
    known: dict[str, Any] = {
        "start_key": (1,),
        "end_key": (9,),
        "rows": 5,
        "crc32": 77,
        "content_hash": "ab" * 16,
    }
    named = {key: changed.pop(key) for key in list(changed) if key in name}
    return ChunkInfo(ChunkName(**(name | named)), **(known | changed))


@dataclass(frozen=True)
class Vector:
    """What is there, what is to be written, and whether it is skipped.

    Attributes:
        name: what it shows.
        there: chunks that are known.
        wanted: the chunk that is to be written.
        skipped: whether it is there already.
        minimum: the smallest chunk id of the flush.
        replaces: rows are meant to replace.
    """

    name: str
    there: list[ChunkInfo]
    wanted: ChunkInfo
    skipped: bool
    minimum: str = field(default_factory=lambda: at(7))
    replaces: bool = False


MERGED = chunk(9, compacted=(at(5), at(9)), rows=20, content_hash="cd" * 16)
VECTORS = [
    Vector("nothing is there", [], chunk(), skipped=False),
    Vector("the same", [chunk()], chunk(), skipped=True),
    Vector("the same among others of its key", [chunk(6), chunk(7), chunk(8)], chunk(), skipped=True),
    Vector("an inner row differs: the hash", [chunk(content_hash="cd" * 16)], chunk(), skipped=False),
    Vector("an inner row differs: the checksum", [chunk(crc32=78)], chunk(), skipped=False),
    Vector("a row more", [chunk(rows=6)], chunk(), skipped=False),
    Vector("a row less", [chunk(rows=4)], chunk(), skipped=False),
    Vector("another first key", [chunk(start_key=(0,))], chunk(), skipped=False),
    Vector("another last key", [chunk(end_key=(10,))], chunk(), skipped=False),
    Vector("keys of another type", [chunk(start_key=("1",))], chunk(), skipped=False),
    Vector("keys with a column more", [chunk(start_key=(1, None))], chunk(), skipped=False),
    Vector("another partition key", [chunk(partition_key=b"r2")], chunk(), skipped=False),
    Vector(
        "a partition key that another begins with", [chunk(partition_key=b"r")], chunk(), skipped=False
    ),
    Vector("an empty partition key", [chunk(partition_key=b"")], chunk(partition_key=b""), skipped=True),
    Vector("another table", [chunk(table="others")], chunk(), skipped=False),
    Vector("another version of the table", [chunk(version=1)], chunk(), skipped=False),
    Vector("another plan of the same number", [chunk(chunk_id=at(7, plan=OTHER_PLAN))], chunk(), skipped=False),
    Vector("another state partition", [chunk(chunk_id=at(7, 1))], chunk(), skipped=False),
    Vector("the same rows in an earlier flush", [chunk(6)], chunk(), skipped=False),
    Vector("the same rows in a later flush", [chunk(8)], chunk(), skipped=False),
    Vector("it is older than the flush", [chunk(6)], chunk(6), skipped=False),
    Vector("the flush began before it", [chunk(7)], chunk(7), skipped=True, minimum=at(6)),
    Vector("the flush began before all", [chunk(7)], chunk(7), skipped=True, minimum=""),
    Vector("the minimum is its own id", [chunk(7)], chunk(7), skipped=True, minimum=at(7)),
    Vector("the minimum is the next state partition's", [chunk(7)], chunk(7), skipped=False, minimum=at(7, 1)),
    Vector("the minimum is a later plan's", [chunk(7)], chunk(7), skipped=False, minimum=at(8)),
    Vector("ids are compared as numbers", [chunk(10)], chunk(10), skipped=True, minimum=at(9)),
    Vector("also large ones", [chunk(10**11)], chunk(10**11), skipped=True, minimum=at(10**11 - 1)),
    Vector("a chunk without id is no other one", [chunk(chunk_id="")], chunk(), skipped=False),
    Vector("known without id, asked without id", [chunk(chunk_id="")], chunk(chunk_id=""), skipped=True, minimum=""),
    Vector("rows that replace", [chunk()], chunk(), skipped=False, replaces=True),
    Vector("rows that replace, nothing there", [], chunk(), skipped=False, replaces=True),
    Vector("within what was compacted", [MERGED], chunk(7), skipped=False),
    Vector("within it, though it is there, too", [chunk(7), MERGED], chunk(7), skipped=False),
    Vector("the first of what was compacted", [chunk(5), MERGED], chunk(5), skipped=False, minimum=at(5)),
    Vector("the last of it", [MERGED], chunk(9), skipped=False, minimum=at(9)),
    Vector("the merged chunk itself", [MERGED], MERGED, skipped=False, minimum=at(5)),
    Vector("after what was compacted", [MERGED, chunk(10)], chunk(10), skipped=True),
    Vector("before what was compacted", [chunk(4), MERGED], chunk(4), skipped=True, minimum=at(4)),
    Vector("another key was compacted", [chunk(7), replace(MERGED, name=replace(MERGED.name, partition_key=b"r2"))],
           chunk(7), skipped=True),
    Vector("another table was compacted", [chunk(7), replace(MERGED, name=replace(MERGED.name, table="others"))],
           chunk(7), skipped=True),
    Vector("between two compacted ranges",
           [chunk(3, compacted=(at(1), at(3))), chunk(5), chunk(9, compacted=(at(7), at(9)))], chunk(5), skipped=True, minimum=at(5)),
    Vector("in the second of two ranges",
           [chunk(3, compacted=(at(1), at(3))), chunk(8), chunk(9, compacted=(at(7), at(9)))], chunk(8), skipped=False, minimum=at(8)),
    Vector("bounds of columns say nothing", [chunk(minimum={"bar": 0.1}, maximum={"bar": 0.2})], chunk(), skipped=True),
    Vector("the later one of two with its id holds", [chunk(), chunk(content_hash="cd" * 16)], chunk(), skipped=False),
    Vector("also if it is the right one", [chunk(content_hash="cd" * 16), chunk()], chunk(), skipped=True),
]  # fmt: skip


def by_the_rule(vector: Vector) -> bool:
    """The rule as docs/tables.md has it."""
    wanted = vector.wanted
    own = {one.name: one for one in vector.there}.get(wanted.name)
    key = replace(wanted.name, chunk_id="")
    ranges = [
        one.compacted for one in vector.there if one.compacted and replace(one.name, chunk_id="") == key
    ]
    merged = any(first <= wanted.name.chunk_id <= last for first, last in ranges)
    same = own is not None and replace(own, minimum={}, maximum={}) == replace(wanted, minimum={}, maximum={})
    return same and wanted.name.chunk_id >= vector.minimum and not merged and not vector.replaces


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_vectors(vector: Vector) -> None:
    assert by_the_rule(vector) is vector.skipped
    index = ChunkIndex()
    for one in vector.there:
        index.add(one)
        index = ChunkIndex.from_plain(json.loads(json.dumps(index.to_plain())))  # a restart
    for found in (index, ChunkIndex(vector.there)):
        assert found.has(vector.wanted, vector.minimum, replaces=vector.replaces) is vector.skipped


SCHEMA = TableSchema.of(
    None,
    partition_key="robot",
    row_key="at",
    columns={"robot": "string", "at": "int64", "bar": "float64", "note": "string", "axes": "list<int32>"},
)
ROWS: list[dict[str, Any]] = [
    {"robot": "r1", "at": number, "bar": number / 4, "note": f"n{number}", "axes": [number, 1]}
    for number in range(5)
]
INNER = 2
CHANGES: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "the same rows": (ROWS, True),
    "the same rows in another order": (ROWS[::-1], True),
    "one of them twice": ([*ROWS, ROWS[INNER]], True),
    "an earlier version of one before it": ([ROWS[INNER] | {"bar": 9.0}, *ROWS], True),
    "a later version of an inner one": ([*ROWS, ROWS[INNER] | {"bar": 9.0}], False),
    "a number of an inner row": ([*ROWS[:INNER], ROWS[INNER] | {"bar": 0.50001}, *ROWS[INNER + 1 :]], False),
    "a text of an inner row": ([*ROWS[:INNER], ROWS[INNER] | {"note": "N2"}, *ROWS[INNER + 1 :]], False),
    "a null in an inner row": ([*ROWS[:INNER], ROWS[INNER] | {"note": None}, *ROWS[INNER + 1 :]], False),
    "an empty text in an inner row": ([*ROWS[:INNER], ROWS[INNER] | {"note": ""}, *ROWS[INNER + 1 :]], False),
    "an element of a list of an inner row": (
        [*ROWS[:INNER], ROWS[INNER] | {"axes": [2, 2]}, *ROWS[INNER + 1 :]],
        False,
    ),
    "an inner row less": ([*ROWS[:INNER], *ROWS[INNER + 1 :]], False),
    "a row at the end": ([*ROWS, ROWS[INNER] | {"at": 99}], False),
    "rows of another robot beside them": ([*ROWS, ROWS[INNER] | {"robot": "r0"}], True),
}


def chunks_of(rows: list[dict[str, Any]], first: int = 0) -> list[ChunkInfo]:
    memtable = Memtable(SCHEMA, table="readings")
    for offset, row in enumerate(rows):
        memtable.ingest(row, offset=offset)
    return [one.with_id(at(7)) for one in memtable.flush(first).chunks]


@pytest.mark.parametrize("change", CHANGES)
def test_what_memtables_make_of_rows(change: str) -> None:
    rows, skipped = CHANGES[change]
    index = ChunkIndex(chunks_of(ROWS))
    (wanted,) = (one for one in chunks_of(rows) if one.name.partition_key == b"r1")
    assert index.has(wanted, minimum=at(7)) is skipped


def test_sequence_numbers_are_no_content() -> None:
    assert chunks_of(ROWS) == chunks_of(ROWS, first=1_000_000)
