"""Goal: a user who has read its reference alone can use a memtable: one record at a time, with offsets, without engine or store.

Method: vectors of steps and what must come out, written down by hand. Each is run as it is, with its state dumped and loaded
before and after each step, and in blocks. All ways give the same rows, the same chunks and the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from sqe_chain import errors
from sqe_chain.ext.tables import Memtable, TableSchema

Cells = tuple[Any, ...]


@dataclass(frozen=True)
class Row:
    """A step: take this row, which came from this offset."""

    cells: Cells
    offset: int | None = None
    refused: str = ""


class Clear:
    """A step: forget everything, after a flush."""


@dataclass(frozen=True)
class Vector:
    """Steps, and what a flush after them must give.

    Attributes:
        name: what it shows.
        steps: in their order.
        rows: the rows of the flush, in their order, each with its sequence number.
        chunks: partition key, first and last row key, and number of rows of each chunk.
        offsets: smallest and largest offset.
        replaced: rows that a later one has replaced.
        columns: name -> type.
        keys: partition key, and row key.
        first: sequence number of the first row.
        bounds: `max_row_bytes`, `max_key_bytes`.
    """

    name: str
    steps: list[Row | Clear]
    rows: list[Cells]
    chunks: list[tuple[bytes, Cells, Cells, int]]
    offsets: tuple[int | None, int | None] = (None, None)
    replaced: int = 0
    columns: dict[str, str] = field(
        default_factory=lambda: {"robot": "string", "at": "int64", "bar": "float64"}
    )
    keys: tuple[Any, Any] = ("robot", "at")
    first: int = 0
    bounds: dict[str, int] = field(default_factory=dict)


def plain(*cells: Cells) -> list[Row | Clear]:
    """Rows from offset 0 on."""
    return [Row(one, offset) for offset, one in enumerate(cells)]


TWO = {"columns": {"line": "string", "robot": "int64", "axis": "int32", "at": "int64", "n": "int64"}}
PAIRS: dict[str, Any] = {**TWO, "keys": (("line", "robot"), ("axis", "at"))}
TEXT_KEYS: dict[str, Any] = {"columns": {"robot": "string", "at": "string"}}
BYTE_KEYS: dict[str, Any] = {"columns": {"robot": "binary", "at": "int64"}}
BOOL_KEYS: dict[str, Any] = {"columns": {"robot": "bool", "at": "int64"}}
LISTS: dict[str, Any] = {"columns": {"robot": "string", "at": "int64", "axes": "list<int32>"}}

VECTORS = [
    Vector("nothing at all", [], [], []),
    Vector("one row", plain(("a", 1, 0.5)), [("a", 1, 0.5, 0)], [(b"a", (1,), (1,), 1)], (0, 0)),
    Vector(
        "rows are sorted by their row key",
        plain(("a", 3, 0.1), ("a", 1, 0.2), ("a", 2, 0.3)),
        [("a", 1, 0.2, 1), ("a", 2, 0.3, 2), ("a", 3, 0.1, 0)],
        [(b"a", (1,), (3,), 3)],
        (0, 2),
    ),
    Vector(
        "and first by their partition key, each a chunk",
        plain(("b", 1, 0.1), ("a", 2, 0.2), ("b", 0, 0.3), ("a", 9, 0.4)),
        [("a", 2, 0.2, 1), ("a", 9, 0.4, 3), ("b", 0, 0.3, 2), ("b", 1, 0.1, 0)],
        [(b"a", (2,), (9,), 2), (b"b", (0,), (1,), 2)],
        (0, 3),
    ),
    Vector(
        "a later row with the same keys replaces",
        plain(("a", 1, 0.1), ("a", 1, 0.2)),
        [("a", 1, 0.2, 1)],
        [(b"a", (1,), (1,), 1)],
        (0, 1),
        replaced=1,
    ),
    Vector(
        "the last of many holds",
        plain(*(("a", 1, float(number)) for number in range(50))),
        [("a", 1, 49.0, 49)],
        [(b"a", (1,), (1,), 1)],
        (0, 49),
        replaced=49,
    ),
    Vector(
        "the same row again is a replacement, too",
        plain(("a", 1, 0.1), ("a", 1, 0.1)),
        [("a", 1, 0.1, 1)],
        [(b"a", (1,), (1,), 1)],
        (0, 1),
        replaced=1,
    ),
    Vector(
        "a null replaces a value",
        plain(("a", 1, 0.1), ("a", 1, None)),
        [("a", 1, None, 1)],
        [(b"a", (1,), (1,), 1)],
        (0, 1),
        replaced=1,
    ),
    Vector(
        "other rows of the key stay as they are",
        plain(("a", 1, 0.1), ("a", 2, 0.2), ("a", 1, 0.3), ("a", 3, 0.4)),
        [("a", 1, 0.3, 2), ("a", 2, 0.2, 1), ("a", 3, 0.4, 3)],
        [(b"a", (1,), (3,), 3)],
        (0, 3),
        replaced=1,
    ),
    Vector(
        "the same row key under another partition key is another row",
        plain(("a", 1, 0.1), ("b", 1, 0.2)),
        [("a", 1, 0.1, 0), ("b", 1, 0.2, 1)],
        [(b"a", (1,), (1,), 1), (b"b", (1,), (1,), 1)],
        (0, 1),
    ),
    Vector(
        "order is that of taking, not of offsets",
        [Row(("a", 1, 0.1), 9), Row(("a", 1, 0.2), 4)],
        [("a", 1, 0.2, 1)],
        [(b"a", (1,), (1,), 1)],
        (4, 9),
        replaced=1,
    ),
    Vector("offsets may have holes", [Row(("a", 1, 0.1), 7), Row(("a", 2, 0.1), 70)],
           [("a", 1, 0.1, 0), ("a", 2, 0.1, 1)], [(b"a", (1,), (2,), 2)], (7, 70)),
    Vector("a row may have no offset", [Row(("a", 1, 0.1)), Row(("a", 2, 0.1), 5), Row(("a", 3, 0.1))],
           [("a", 1, 0.1, 0), ("a", 2, 0.1, 1), ("a", 3, 0.1, 2)], [(b"a", (1,), (3,), 3)], (5, 5)),
    Vector("one offset may give several rows", [Row(("a", 1, 0.1), 5), Row(("a", 2, 0.2), 5)],
           [("a", 1, 0.1, 0), ("a", 2, 0.2, 1)], [(b"a", (1,), (2,), 2)], (5, 5)),
    Vector("large offsets", [Row(("a", 1, 0.1), 2**62)], [("a", 1, 0.1, 0)], [(b"a", (1,), (1,), 1)], (2**62, 2**62)),
    Vector("sequence numbers go on from the one given", plain(("a", 2, 0.1), ("a", 1, 0.2)),
           [("a", 1, 0.2, 1_000_001), ("a", 2, 0.1, 1_000_000)], [(b"a", (1,), (2,), 2)], (0, 1), first=1_000_000),
    Vector("cleared: nothing is left", [*plain(("a", 1, 0.1), ("a", 2, 0.2)), Clear()], [], []),
    Vector("cleared, and filled again: numbers begin again", [*plain(("a", 1, 0.1)), Clear(), Row(("b", 7, 0.2), 3)],
           [("b", 7, 0.2, 0)], [(b"b", (7,), (7,), 1)], (3, 3)),
    Vector("negative keys", plain(("a", 0, 0.0), ("a", -5, 0.1), ("a", 5, 0.2), ("a", -(2**63), 0.3)),
           [("a", -(2**63), 0.3, 3), ("a", -5, 0.1, 1), ("a", 0, 0.0, 0), ("a", 5, 0.2, 2)],
           [(b"a", (-(2**63),), (5,), 4)], (0, 3)),
    Vector("the largest whole number is a key", plain(("a", 2**63 - 1, 0.1)),
           [("a", 2**63 - 1, 0.1, 0)], [(b"a", (2**63 - 1,), (2**63 - 1,), 1)], (0, 0)),
    Vector("an empty text is a key", plain(("", 1, 0.1), ("a", 1, 0.2)),
           [("", 1, 0.1, 0), ("a", 1, 0.2, 1)], [(b"", (1,), (1,), 1), (b"a", (1,), (1,), 1)], (0, 1)),
    Vector("texts are in the order of their bytes", plain(("é", 1, 0.1), ("z", 1, 0.2), ("Z", 1, 0.3)),
           [("Z", 1, 0.3, 2), ("z", 1, 0.2, 1), ("é", 1, 0.1, 0)],
           [(b"Z", (1,), (1,), 1), (b"z", (1,), (1,), 1), ("é".encode(), (1,), (1,), 1)], (0, 2)),
    Vector("texts as row keys", plain(("a", "10"), ("a", "9"), ("a", "")),
           [("a", "", 2), ("a", "10", 0), ("a", "9", 1)], [(b"a", ("",), ("9",), 3)], (0, 2), **TEXT_KEYS),
    Vector("a text that another one begins with comes first", plain(("a", "bb"), ("a", "b"), ("a", "b\0")),
           [("a", "b", 1), ("a", "b\0", 2), ("a", "bb", 0)], [(b"a", ("b",), ("bb",), 3)], (0, 2), **TEXT_KEYS),
    Vector("bytes as a partition key", plain((b"\xff", 1), (b"\x00", 1), (b"", 1)),
           [(b"", 1, 2), (b"\x00", 1, 1), (b"\xff", 1, 0)],
           [(b"", (1,), (1,), 1), (b"\x00", (1,), (1,), 1), (b"\xff", (1,), (1,), 1)], (0, 2), **BYTE_KEYS),
    Vector("a partition key that is no text is named as JSON", plain((True, 1), (False, 1)),
           [(False, 1, 1), (True, 1, 0)], [(b"[false]", (1,), (1,), 1), (b"[true]", (1,), (1,), 1)], (0, 1), **BOOL_KEYS),
    Vector("keys of several columns",
           plain(("x", 2, 1, 5, 0), ("x", 1, 2, 4, 1), ("x", 1, 1, 9, 2), ("w", 7, 0, 0, 3), ("x", 1, 1, 3, 4)),
           [("w", 7, 0, 0, 3, 3), ("x", 1, 1, 3, 4, 4), ("x", 1, 1, 9, 2, 2), ("x", 1, 2, 4, 1, 1), ("x", 2, 1, 5, 0, 0)],
           [(b'["w",7]', (0, 0), (0, 0), 1), (b'["x",1]', (1, 3), (2, 4), 3), (b'["x",2]', (1, 5), (1, 5), 1)],
           (0, 4), **PAIRS),
    Vector("all columns of both keys decide", plain(("x", 1, 1, 1, 0), ("x", 1, 1, 2, 1), ("x", 1, 2, 1, 2), ("x", 1, 1, 1, 3)),
           [("x", 1, 1, 1, 3, 3), ("x", 1, 1, 2, 1, 1), ("x", 1, 2, 1, 2, 2)],
           [(b'["x",1]', (1, 1), (2, 1), 3)], (0, 3), replaced=1, **PAIRS),
    Vector("lists are cells, empty and null ones differ", plain(("a", 1, [1, 2]), ("a", 2, []), ("a", 3, None)),
           [("a", 1, [1, 2], 0), ("a", 2, [], 1), ("a", 3, None, 2)], [(b"a", (1,), (3,), 3)], (0, 2), **LISTS),
    Vector("without a partition key: refused, nothing stays", [Row((None, 1, 0.1), 0, "RowWithoutKey"), Row(("a", 1, 0.1), 1)],
           [("a", 1, 0.1, 0)], [(b"a", (1,), (1,), 1)], (1, 1)),
    Vector("without a row key: refused", [Row(("a", 1, 0.1), 0), Row(("a", None, 0.2), 1, "RowWithoutKey")],
           [("a", 1, 0.1, 0)], [(b"a", (1,), (1,), 1)], (0, 0)),
    Vector("a text where a number belongs: refused", [Row(("a", "1", 0.1), 0, "RowOfAnotherType")], [], []),
    Vector("true is no number: refused", [Row(("a", True, 0.1), 0, "RowOfAnotherType")], [], []),
    Vector("a number beyond 64 bits: refused", [Row(("a", 2**63, 0.1), 0, "RowOfAnotherType")], [], []),
    Vector("bytes are no text: refused", [Row((b"a", 1, 0.1), 0, "RowOfAnotherType")], [], []),
    Vector("text that is no UTF-8: refused", [Row(("\ud800", 1, 0.1), 0, "RowOfAnotherType")], [], []),
    Vector("a whole number is a decimal one", plain(("a", 1, 2)), [("a", 1, 2.0, 0)], [(b"a", (1,), (1,), 1)], (0, 0)),
    Vector("a refused row replaces nothing", [Row(("a", 1, 0.1), 0), Row(("a", 1, "x"), 1, "RowOfAnotherType")],
           [("a", 1, 0.1, 0)], [(b"a", (1,), (1,), 1)], (0, 0)),
    Vector("a row as large as may be is taken", [Row(("a" * 80, 1, 0.1), 0)],
           [("a" * 80, 1, 0.1, 0)], [(b"a" * 80, (1,), (1,), 1)], (0, 0), bounds={"max_row_bytes": 100}),
    Vector("a row too large: refused", [Row(("a" * 81, 1, 0.1), 0, "RowTooLarge"), Row(("a", 1, 0.1), 1)],
           [("a", 1, 0.1, 0)], [(b"a", (1,), (1,), 1)], (1, 1), bounds={"max_row_bytes": 100}),
    Vector("the limit is of each row, not of all", plain(*(("a" * 80, at, 0.1) for at in range(3))),
           [("a" * 80, at, 0.1, at) for at in range(3)], [(b"a" * 80, (0,), (2,), 3)], (0, 2), bounds={"max_row_bytes": 100}),
    Vector("keys as long as may be are taken", [Row(("a" * 5, "b" * 5), 0)],
           [("a" * 5, "b" * 5, 0)], [(b"aaaaa", ("bbbbb",), ("bbbbb",), 1)], (0, 0), bounds={"max_key_bytes": 10}, **TEXT_KEYS),
    Vector("keys too long together: refused", [Row(("a" * 5, "b" * 6), 0, "RowTooLarge")], [], [],
           bounds={"max_key_bytes": 10}, **TEXT_KEYS),
    Vector("keys are measured in bytes", [Row(("é" * 3, "b" * 5), 0, "RowTooLarge"), Row(("é" * 3, "b" * 4), 1)],
           [("é" * 3, "b" * 4, 0)], [("é".encode() * 3, ("bbbb",), ("bbbb",), 1)], (1, 1), bounds={"max_key_bytes": 10}, **TEXT_KEYS),
]  # fmt: skip


def schema_of(vector: Vector) -> TableSchema:
    partition_key, row_key = vector.keys
    return TableSchema.of(None, partition_key=partition_key, row_key=row_key, columns=vector.columns)


def value_of(vector: Vector, row: Row) -> dict[str, Any]:
    return dict(zip(vector.columns, row.cells, strict=True))


def one_by_one(vector: Vector, *, dumping: bool) -> Memtable:
    schema = schema_of(vector)
    found = Memtable(schema, table="t", **vector.bounds)
    for step in [None, *vector.steps]:
        if isinstance(step, Clear):
            found.clear()
        elif step is not None and step.refused:
            with pytest.raises(getattr(errors, step.refused)):
                found.ingest(value_of(vector, step), offset=step.offset)
        elif step is not None:
            found.ingest(value_of(vector, step), offset=step.offset)
        if dumping:
            found = Memtable.load(schema, found.state(), table="t", **vector.bounds)
    return found


def in_blocks(vector: Vector) -> Memtable:
    """All rows up to the next `Clear` at once."""
    memtable = Memtable(schema_of(vector), table="t", **vector.bounds)
    steps: list[Row] = []

    def take() -> None:
        failed: dict[int, str] = {}
        memtable.ingest_all(
            [value_of(vector, one) for one in steps],
            lambda index, error: failed.update({index: type(error).__name__}),
        )
        assert failed == {index: one.refused for index, one in enumerate(steps) if one.refused}
        steps.clear()

    for step in vector.steps:
        if isinstance(step, Row):
            steps.append(step)
        else:
            take()
            memtable.clear()
    take()
    return memtable


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_vectors(vector: Vector) -> None:
    memtable = one_by_one(vector, dumping=False)
    assert (memtable.min_offset, memtable.max_offset) == vector.offsets
    assert memtable.rows == len(vector.rows) + vector.replaced
    flushed = memtable.flush(vector.first)
    assert [tuple(row.values()) for row in flushed.data.to_pylist()] == vector.rows
    assert flushed.replaced == vector.replaced
    told = [
        (chunk.name.partition_key, chunk.start_key, chunk.end_key, chunk.rows) for chunk in flushed.chunks
    ]
    assert told == vector.chunks
    assert memtable.flush(vector.first).chunks == flushed.chunks, "a flush changes nothing"

    dumped = one_by_one(vector, dumping=True)
    assert (dumped.min_offset, dumped.max_offset) == vector.offsets
    for other in (dumped, in_blocks(vector)):
        again = other.flush(vector.first)
        assert again.chunks == flushed.chunks
        assert again.data.equals(flushed.data)
