"""Goal: a memtable gives the same chunks for the same rows, whatever way they came, and takes nothing that is not a row.

Method: plain objects, one record at a time with explicit offsets, and in blocks; against sorted dicts.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from decimal import Decimal
from random import Random
from typing import Any

import msgspec
import pytest

from sqe_chain.errors import FlowError, PoisonError, RowOfAnotherType, RowTooLarge, RowWithoutKey
from sqe_chain.ext.tables import Column, TableSchema
from sqe_chain.ext.tables.files import TableFile, chunk_id_in, chunks_in, file_of, files_of, name_of
from sqe_chain.ext.tables.memtable import Memtable


class Row(msgspec.Struct):
    robot: str | None
    at: int | None
    bar: float | None = None
    note: str | None = None
    good: bool = True


SCHEMA = TableSchema.of(Row, partition_key="robot", row_key="at")


def rows(seed: int, count: int = 3_000) -> list[Row]:
    random = Random(seed)
    return [
        Row(
            f"r{random.randrange(7)}",
            random.randrange(400),
            random.choice([None, random.random()]),
            random.choice([None, "é", "x" * 9]),
            random.random() < 0.5,
        )
        for _ in range(count)
    ]


def raise_it(index: int, error: PoisonError) -> None:
    raise AssertionError(index) from error


def test_the_last_row_of_each_key_is_kept_in_the_order_of_keys() -> None:
    memtable = Memtable(SCHEMA)
    expected: dict[Any, Any] = {}
    for offset, row in enumerate(rows(1)):
        memtable.ingest(row, offset=offset + 100)
        expected[row.robot, row.at] = (row.bar, row.note, row.good, offset)
    flushed = memtable.flush(first_sequence=0)
    got = [tuple(one.values()) for one in flushed.data.to_pylist()]
    assert got == [(*key, *expected[key]) for key in sorted(expected)]
    assert (memtable.min_offset, memtable.max_offset) == (100, 3_099)
    assert flushed.replaced == 3_000 - len(expected)
    starts = [
        (chunk.name.partition_key, chunk.start_key, chunk.end_key, chunk.rows) for chunk in flushed.chunks
    ]
    for key, start, end, count in starts:
        own = sorted(at for robot, at in expected if robot == key.decode())
        assert (start, end, count) == ((own[0],), (own[-1],), len(own))


@pytest.mark.parametrize("size", [1, 7, 1_000, 3_000])
def test_blocks_and_single_rows_give_the_same_chunks_and_the_same_bytes(size: int) -> None:
    single, blocks = Memtable(SCHEMA, table="t"), Memtable(SCHEMA, table="t")
    values = rows(2)
    for value in values:
        single.ingest(value)
    for begin in range(0, len(values), size):
        blocks.ingest_all(values[begin : begin + size], raise_it)
    one, other = single.flush(5), blocks.flush(5)
    assert one.chunks == other.chunks
    assert [file.data for file in files_of(one)] == [file.data for file in files_of(other)]


def test_a_chunk_is_the_same_whatever_lies_beside_it() -> None:
    values = rows(3)
    everything, alone = Memtable(SCHEMA), Memtable(SCHEMA)
    everything.ingest_all(values, raise_it)
    alone.ingest_all([value for value in values if value.robot == "r4"], raise_it)
    (chunk,) = alone.flush().chunks
    assert chunk in everything.flush().chunks


KEY_CELLS: dict[str, Any] = {
    "string": lambda random: random.choice(["", "a", "é", "b\0", "zz"]) + str(random.randrange(3)),
    "binary": lambda random: random.randbytes(random.randrange(3)),
    "bool": lambda random: random.random() < 0.5,
    "int64": lambda random: random.choice([random.randrange(-5, 5), random.randrange(-(2**63), 2**63)]),
    "int32": lambda random: random.randrange(-9, 9),
    "timestamp": lambda random: dt.datetime.fromtimestamp(random.randrange(-9, 9), dt.UTC),
    "date": lambda random: dt.date(2020, 1, 1) + dt.timedelta(days=random.randrange(-99_999, 99)),
}


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_sorted_by_keys_of_every_type_and_the_later_one_of_two_comes_last(seed: int) -> None:
    random = Random(seed)
    kinds = random.choices(list(KEY_CELLS), k=random.randrange(2, 5))
    names = [f"k{number}" for number in range(len(kinds))]
    values = [
        {name: KEY_CELLS[kind](random) for name, kind in zip(names, kinds, strict=True)} | {"n": number}
        for number in range(random.choice([0, 1, 2, 60]))
    ]
    columns = dict(zip(names, kinds, strict=True)) | {"n": "int64"}
    schema = TableSchema.of(None, partition_key=names[0], row_key=names[1:], columns=columns)
    memtable = Memtable(schema)
    memtable.ingest_all(values, raise_it)
    expected = {tuple(value[name] for name in names): value["n"] for value in values}

    def in_order(key: tuple[Any, ...]) -> list[Any]:
        return [cell.encode() if isinstance(cell, str) else cell for cell in key]

    flushed = memtable.flush(first_sequence=1 << 40)
    assert flushed.data["n"].to_pylist() == [expected[key] for key in sorted(expected, key=in_order)]
    assert [number - (1 << 40) for number in flushed.data["_sqe_sequence"].to_pylist()] == flushed.data[
        "n"
    ].to_pylist()
    assert flushed.replaced == len(values) - len(expected)


EVERY_TYPE = {
    "robot": "string",
    "at": "int64",
    "axis": "int32",
    "good": "bool",
    "bar": "float64",
    "celsius": "float32",
    "note": "string",
    "raw": "binary",
    "seen": "timestamp",
    "day": "date",
    "price": "decimal(9,2)",
    "parts": "list<int32>",
    "names": "list<string>",
}


def every_type(seed: int, *, nulls: bool) -> list[dict[str, Any]]:
    random = Random(seed)

    def cell(value: Any) -> Any:
        return None if nulls and random.random() < 0.2 else value

    return [
        {
            "robot": f"r{random.randrange(5)}",
            "at": at // 3,
            "axis": at % 3,
            "good": cell(random.random() < 0.5),
            "bar": cell(random.random()),
            "celsius": cell(float(random.randrange(99))),
            "note": cell("é" * random.randrange(3)),
            "raw": cell(random.randbytes(random.randrange(3))),
            "seen": cell(
                dt.datetime(2026, 11, 23, tzinfo=dt.UTC) + dt.timedelta(seconds=random.randrange(99))
            ),
            "day": cell(dt.date(2026, 1, 1) + dt.timedelta(days=random.randrange(99))),
            "price": cell(Decimal(random.randrange(99)) / 4),
            "parts": cell([random.randrange(9)] * random.randrange(3)),
            "names": cell(["é"] * random.randrange(3)),
        }
        for at in random.sample(range(200), 90)
    ]


@pytest.mark.parametrize("nulls", [False, True])
def test_what_is_known_of_a_chunk_is_of_its_own_rows_alone(*, nulls: bool) -> None:
    """Compared with columns that were made of the rows of the chunk and nothing else, for each type."""
    import zlib  # noqa: PLC0415 - only here

    import pyarrow as pa  # noqa: PLC0415 - only here

    schema = TableSchema.of(None, partition_key="robot", row_key=("at", "axis"), columns=EVERY_TYPE)
    for seed in range(20):
        memtable = Memtable(schema)
        values = every_type(seed, nulls=nulls)
        memtable.ingest_all(values, raise_it)
        flushed = memtable.flush()
        for chunk in flushed.chunks:
            own = sorted(
                (value for value in values if value["robot"].encode() == chunk.name.partition_key),
                key=lambda one: (one["at"], one["axis"]),
            )
            alone = pa.RecordBatch.from_pylist(own, flushed.data.select(schema.names).schema)
            assert zlib.crc32(alone.serialize()) == chunk.crc32
            assert chunk.rows == len(own)
            assert (chunk.start_key, chunk.end_key) == (
                (own[0]["at"], own[0]["axis"]),
                (own[-1]["at"], own[-1]["axis"]),
            )
            for name in ("robot", "at", "axis", "note"):
                cells = [one[name] for one in own if one[name] is not None]
                assert (chunk.minimum.get(name), chunk.maximum.get(name)) == (
                    (min(cells), max(cells)) if cells else (None, None)
                )


def test_dictionaries_are_written_where_values_repeat_and_every_cell_comes_back() -> None:
    import pyarrow as pa  # noqa: PLC0415 - only here
    import pyarrow.parquet as pq  # noqa: PLC0415 - only here

    schema = TableSchema.of(None, partition_key="robot", row_key=("at", "axis"), columns=EVERY_TYPE)
    memtable = Memtable(schema)
    values = every_type(1, nulls=True)
    memtable.ingest_all(values, raise_it)
    flushed = memtable.flush()
    (file,) = files_of(flushed)
    parquet = pq.ParquetFile(pa.py_buffer(file.data))
    assert parquet.read().equals(flushed.data.replace_schema_metadata(None))
    group = parquet.metadata.row_group(0)
    columns = {
        group.column(number).path_in_schema: group.column(number).encodings
        for number in range(group.num_columns)
    }
    repeated = {name for name, encodings in columns.items() if "RLE_DICTIONARY" in encodings}
    assert {"robot", "axis", "note", "parts.list.element", "names.list.element"} <= repeated
    assert not {"bar", "_sqe_sequence"} & repeated


def test_a_state_of_another_schema_and_other_bytes_are_refused() -> None:
    other = TableSchema.of(Row, partition_key="robot", row_key="at", columns=["robot", "at"])
    for state in (Memtable(other).state(), b"", b"nothing", Memtable(SCHEMA).state()[:40]):
        with pytest.raises(ValueError, match="state"):
            Memtable.load(SCHEMA, state)


@dataclasses.dataclass
class Everything:
    key: bytes
    day: dt.date
    at: dt.datetime
    flag: bool
    small: int
    exact: Decimal
    many: list[int]
    texts: list[str] | None


EVERYTHING = TableSchema.of(
    Everything,
    partition_key="key",
    row_key=("day", "at"),
    columns=[
        "key",
        "day",
        "at",
        "flag",
        Column("small", "int32"),
        Column("exact", "decimal(10,2)"),
        "many",
        "texts",
    ],
)


def everything(**other: Any) -> Everything:
    noon = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
    cells: dict[str, Any] = {"key": b"k", "day": noon.date(), "at": noon, "flag": True, "small": 1}
    cells |= {"exact": Decimal("1.25"), "many": [1], "texts": None}
    return Everything(**(cells | other))


def test_all_types_of_columns_come_back_as_they_were() -> None:
    memtable = Memtable(EVERYTHING)
    values = [everything(), everything(key=b"l", texts=["a", "b"], many=[])]
    memtable.ingest_all(values, raise_it)
    flushed = memtable.flush()
    got = [{k: v for k, v in one.items() if k != "_sqe_sequence"} for one in flushed.data.to_pylist()]
    assert [Everything(**one) for one in got] == values
    assert flushed.chunks[0].start_key == ("2026-01-02", 1_767_355_200_000_000)
    assert flushed.chunks[0].minimum["exact"] == "1.25"


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"key": None}, RowWithoutKey),
        ({"at": None}, RowWithoutKey),
        ({"key": "text"}, RowOfAnotherType),
        ({"flag": 1}, RowOfAnotherType),
        ({"small": True}, RowOfAnotherType),
        ({"small": 1.0}, RowOfAnotherType),
        ({"small": 2**31}, RowOfAnotherType),
        ({"exact": Decimal("1.255")}, RowOfAnotherType),
        ({"exact": 1.5}, RowOfAnotherType),
        ({"many": [1, "2"]}, RowOfAnotherType),
        ({"many": "12"}, RowOfAnotherType),
        ({"texts": ["\ud800"]}, RowOfAnotherType),
        ({"at": dt.datetime(2026, 1, 2)}, RowOfAnotherType),  # noqa: DTZ001 - that is the point
        ({"day": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)}, RowOfAnotherType),
        ({"texts": ["x" * 2_000]}, RowTooLarge),
    ],
)
def test_what_is_no_row_is_refused_by_its_name_and_leaves_nothing_behind(
    wrong: dict[str, object], name: type[PoisonError]
) -> None:
    single, blocks = Memtable(EVERYTHING, max_row_bytes=1_000), Memtable(EVERYTHING, max_row_bytes=1_000)
    bad = everything(**wrong)
    with pytest.raises(name) as raised:
        single.ingest(bad)
    (column,) = wrong
    assert repr(column) in str(raised.value)
    failed: list[tuple[int, PoisonError]] = []
    blocks.ingest_all(
        [everything(), bad, everything(key=b"z")], lambda index, error: failed.append((index, error))
    )
    assert [(index, type(error)) for index, error in failed] == [(1, name)]
    assert (single.rows, blocks.rows) == (0, 2)


def test_values_of_another_type_are_refused() -> None:
    failed: list[int] = []
    memtable = Memtable(SCHEMA)
    memtable.ingest_all([Row("r", 1), everything()], lambda index, _error: failed.append(index))
    assert failed == [1]


def test_nan_has_no_bounds_and_equals_itself() -> None:
    first, second = Memtable(SCHEMA), Memtable(SCHEMA)
    for found in (first, second):
        found.ingest(Row("r", 1, math.nan))
    assert first.flush().chunks == second.flush().chunks
    assert "bar" not in first.flush().chunks[0].minimum


@pytest.mark.parametrize(
    "settings",
    [
        {"partition_key": "nothing", "row_key": "at"},
        {"partition_key": "robot", "row_key": ()},
        {"partition_key": "robot", "row_key": "robot"},
        {"partition_key": "bar", "row_key": "at"},
        {"partition_key": "robot", "row_key": "at", "columns": ["robot"]},
        {"partition_key": "robot", "row_key": "at", "columns": {"robot": "string", "at": "int63"}},
        {
            "partition_key": "robot",
            "row_key": "at",
            "columns": {"robot": "string", "at": "int64", "_sqe_x": "int64"},
        },
        {
            "partition_key": "robot",
            "row_key": "at",
            "columns": {"robot": "string", "at": "int64", "AT": "int64"},
        },
        {"partition_key": "robot", "row_key": "at", "columns": []},
    ],
)
def test_schemas_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(FlowError):
        TableSchema.of(Row, **settings)


def test_files_describe_their_content() -> None:
    import io  # noqa: PLC0415 - only here

    import pyarrow.parquet as pq  # noqa: PLC0415 - only here

    memtable = Memtable(SCHEMA)
    memtable.ingest_all(rows(5), raise_it)
    flushed = memtable.flush()
    (file,) = files_of(flushed)
    assert TableFile.unpacked(file.packed()) == file
    assert chunks_in(pq.read_metadata(io.BytesIO(file.data))) == flushed.chunks
    assert file_of(flushed.data, flushed.chunks).data == file.data
    several = files_of(flushed, rows_of_a_file=800)
    assert len(several) > 1
    assert sum(one.rows for one in several) == flushed.data.num_rows
    assert [chunk for one in several for chunk in one.chunks] == flushed.chunks
    own = "000000000007-9c1185a5c5e9fc54-00003"
    assert chunk_id_in(f"_sqe_partition=3/{name_of(own, 2, file.digest)}") == own
    with pytest.raises(ValueError, match="part-0"):
        chunk_id_in("part-00000-uuid.parquet")
