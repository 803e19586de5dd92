"""Goal: whatever a column holds, each program that reads a table finds the rows that its filter asks for, and the log is JSON.

Method: for each type of a column, odd values in one flush and an ordinary one in another. All programs that are installed filter by
each value, by the log alone, from a checkpoint, and after a compaction.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from sqe_chain.errors import TableAltered
from sqe_chain.ext.tables import Column, open_table
from sqe_chain.ext.tables.chunk_sets import files_of
from sqe_chain.ext.tables.files import statistics_of
from sqe_chain.ext.tables.memtable import Memtable
from sqe_chain.ext.tables.schema import TableSchema
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal

NAN = math.nan
FLOATS: list[list[Any]] = [
    [NAN, 1.0],
    [NAN, NAN],
    [math.inf, 1.5, -math.inf],
    [math.inf, NAN, None, -0.0],
    [5e-324, -1.7976931348623157e308],
]
ODD: dict[str, list[list[Any]]] = {
    "bool": [[True, False], [True, True], [None, False]],
    "int32": [[-(2**31), 2**31 - 1], [None, 0]],
    "int64": [[-(2**63), 2**63 - 1], [None, None], [None, 7]],
    "float32": [values for values in FLOATS if 5e-324 not in values],
    "float64": FLOATS,
    "string": [
        ["x" * 300, "a"],
        ["x" * 300, "x" * 299 + "y", "x" * 200],
        ["\ud7ff" * 201, ""],
        ["\U0010ffff" * 201, "\U0010ffff" * 200],
        ["a" * 199 + "\U0010ffff" * 9, "a"],
        ["\0\n\"'\\", "\u2028 ä"],
        ["\U00020bb7\u7530", "\U0001f600"],
        ["a\U0010ffff", "a\U00020bb7", "a"],
        [None, "", None],
    ],
    "binary": [[b"", b"\0\xff"], [None, b"a"]],
    "timestamp": [
        [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=dt.UTC)],
        [dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC), None],
    ],
    "date": [[dt.date(1, 1, 1), dt.date(9999, 12, 31)], [None, dt.date(1969, 12, 31)]],
    "decimal(10,2)": [[Decimal("1.00"), Decimal("2.00")], [None, Decimal("-0.01")]],
    "decimal(38,3)": [[Decimal("-" + "9" * 35 + ".999"), Decimal("9" * 35 + ".999")]],
    "decimal(38,37)": [[Decimal(0), Decimal("1e-37")]],
}
ORDINARY: dict[str, Any] = {
    "bool": True,
    "string": "b",
    "binary": b"b",
    "timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "date": dt.date(2026, 1, 1),
}
CASES = [(kind, values) for kind, several in ODD.items() for values in several]


def written(kind: str, values: list[Any], at: str) -> str:
    """A table of two flushes: odd values, then an ordinary one; the row key is the number of the value."""
    flow = Flow("f", state_partitions=1)
    columns = [
        Column("p", "string", of=lambda _: "all"),
        Column("n", "int64", of=int),
        Column("c", kind, of=lambda number: values[int(number)]),
        Column(
            "several",
            f"list<{kind}>",
            of=lambda number: [value for value in [values[int(number)]] if value is not None],
        ),
    ]
    flow.source("in", bytes, raw=True).ingest("t", partition_key="p", row_key="n", columns=columns, at=at)
    service = Rehearsal(flow)
    for number in range(len(values)):
        service.feed("in", str(number).encode())
        if number >= len(values) - 2:
            service.run_until_caught_up()
    return f"{at}/t"


def product(path: str, kind: str, wanted: Any) -> list[int]:
    del kind
    rows = open_table(path).read("all", where=None if wanted is None else {"c": (wanted, wanted)})
    if wanted is None:
        rows = rows.filter(ds.field("c").is_null())
    found: list[int] = rows["n"].to_pylist()
    return found


def in_pyarrow(path: str, kind: str, wanted: Any) -> list[int]:
    field, of = ds.field("c"), Column("c", kind).arrow
    asked = field.is_null() if wanted is None else field == pa.scalar(wanted, of)
    found: list[int] = DeltaTable(path).to_pyarrow_table(filters=asked)["n"].to_pylist()
    return found


def in_duckdb(path: str, kind: str, wanted: Any) -> list[int]:
    del kind
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        everything = DeltaTable(path).to_pyarrow_dataset()
        connection.register("everything", everything)
        if wanted is None:
            return [n for (n,) in connection.execute("SELECT n FROM everything WHERE c IS NULL").fetchall()]
        return [n for (n,) in connection.execute("SELECT n FROM everything WHERE c = ?", [wanted]).fetchall()]


def in_pandas(path: str, kind: str, wanted: Any) -> list[int]:
    if wanted is None:
        return in_pyarrow(path, kind, wanted)
    found = DeltaTable(path).to_pyarrow_table(filters=[("c", ">=", wanted), ("c", "<=", wanted)]).to_pandas()
    return list(found["n"])


def in_polars(path: str, kind: str, wanted: Any) -> list[int]:
    asked = pl.col("c").is_null()
    if isinstance(wanted, float) and math.isnan(wanted):
        asked = pl.col("c").is_nan()
    elif wanted is not None:
        cell = pl.from_arrow(pa.table({"c": pa.array([wanted], Column("c", kind).arrow)}))
        assert isinstance(cell, pl.DataFrame)
        asked = pl.col("c") == pl.lit(wanted, dtype=cell.schema["c"])
    return list(pl.scan_delta(path).filter(asked).collect()["n"])


def in_datafusion(path: str, kind: str, wanted: Any) -> list[int]:
    names = {"float64": "Float64", "float32": "Float32", "date": "Date32"}
    asked = "IS NULL"
    if kind in names:
        asked = f"= arrow_cast('{wanted}', '{names[kind]}')"
    elif kind in {"int32", "int64", "bool"}:
        asked = f"= {wanted}"
    elif kind == "string":
        asked = "= '" + str(wanted).replace("'", "''") + "'"
    found = QueryBuilder().register("t", DeltaTable(path))
    rows = found.execute(f"SELECT n FROM t WHERE c {'IS NULL' if wanted is None else asked}").read_all()  # noqa: S608 - a test
    return list(pa.table(rows)["n"].to_pylist())


PROGRAMS: list[Callable[[str, str, Any], list[int]]] = [
    product,
    in_pyarrow,
    in_duckdb,
    in_pandas,
    in_polars,
    in_datafusion,
]
ORDERS_NAN = (in_duckdb, in_polars, in_datafusion)
"""Programs in which NaN equals itself."""
NO_LITERAL = ("binary", "timestamp", "decimal(10,2)", "decimal(38,3)", "decimal(38,37)")
"""Types for which DataFusion has no literal that it takes over their whole range."""


def expected(values: list[Any], wanted: Any) -> list[int]:
    if isinstance(wanted, float) and math.isnan(wanted):
        return [n for n, value in enumerate(values) if isinstance(value, float) and math.isnan(value)]
    return [n for n, value in enumerate(values) if value == wanted]


def check(path: str, kind: str, values: list[Any]) -> None:
    asked = [value for number, value in enumerate(values) if value not in values[:number]]
    for wanted in asked:
        is_nan = isinstance(wanted, float) and math.isnan(wanted)
        for program in PROGRAMS:
            if (is_nan and program not in ORDERS_NAN) or (
                program is in_datafusion and kind in NO_LITERAL and wanted is not None
            ):
                continue
            found = program(path, kind, wanted)
            assert sorted(found) == expected(values, wanted), (program.__name__, wanted)


def strict(text: str | bytes) -> Any:
    def refuse(name: str) -> NoReturn:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def statistics_in(path: str) -> Iterator[Any]:
    for entry in sorted(Path(path, "_delta_log").glob("*.json")):
        for line in entry.read_text().strip("\n").split("\n"):
            action = strict(line)
            if "add" in action:
                yield strict(action["add"]["stats"])


@pytest.mark.parametrize(("kind", "values"), CASES)
def test_each_program_finds_the_rows_that_it_asks_for(tmp_path: Path, kind: str, values: list[Any]) -> None:
    values = [*values, ORDINARY.get(kind, 1)]
    if "decimal" in kind:
        values[-1] = Decimal(1)
    path = written(kind, values, str(tmp_path))
    assert len(list(statistics_in(path))) == 2, "files"
    check(path, kind, values)
    for file in open_table(path).files():
        strict(pq.read_metadata(file).metadata[b"sqe-chain.chunks"])
    DeltaTable(path).create_checkpoint()
    check(path, kind, values)
    open_table(path).compact()
    assert len(open_table(path).files()) == 1
    check(path, kind, values)
    list(statistics_in(path))


@pytest.mark.parametrize(("kind", "values"), CASES)
def test_chunks_that_are_kept_one_by_one_are_described_in_json_too(kind: str, values: list[Any]) -> None:
    schema = TableSchema.of(
        dict, partition_key="p", row_key="n", columns={"p": "string", "n": "int64", "c": kind}
    )
    memtable = Memtable(schema)
    for number, value in enumerate(values):
        memtable.ingest({"p": "all", "n": number, "c": value})
    (file,) = files_of(memtable.flush(0))
    assert strict(file.statistics)["chunks"] == 1
    head = bytes(file.data[8 : 8 + int.from_bytes(file.data[:8], "big")])
    assert strict(head)
    assert strict(json.dumps([chunk.to_plain() for chunk in file.chunks]))


@pytest.mark.parametrize(("kind", "values"), CASES)
def test_a_file_has_bounds_of_all_columns_or_of_none(kind: str, values: list[Any]) -> None:
    rows = pa.table({"n": range(len(values)), "c": pa.array(values, Column("c", kind).arrow)})
    statistics = strict(statistics_of(rows))
    assert statistics["nullCount"] == {"n": 0, "c": values.count(None)}
    bounded = [] if kind == "binary" or values.count(None) == len(values) else ["c"]
    for end in ("minValues", "maxValues"):
        assert end not in statistics or sorted(statistics[end]) == sorted(["n", *bounded])
        assert (end in statistics) == ("maxValues" in statistics)


def test_what_an_earlier_version_escaped_in_the_log_is_found_and_a_compaction_puts_it_right(
    tmp_path: Path,
) -> None:
    """delta-rs reads an escape of two surrogates wrongly, so that the largest text of a file seems smaller than it is."""
    path = written("string", ["\U00020bb7", "b"], str(tmp_path))
    for entry in Path(path, "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().strip("\n").split("\n")]
        for action in actions:
            if "add" in action:
                action["add"]["stats"] = json.dumps(json.loads(action["add"]["stats"]))
        entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    assert in_duckdb(path, "string", "\U00020bb7") == [], "as other programs read it"
    assert product(path, "string", "\U00020bb7") == [0]
    open_table(path).compact()
    check(path, "string", ["\U00020bb7", "b"])


def test_a_log_with_infinity_in_its_json_is_named_with_what_to_do(tmp_path: Path) -> None:
    """An earlier version wrote it, and delta-rs cannot open such a table if it has certain other columns."""
    path = written("bool", [True, False], str(tmp_path))
    entry = max(Path(path, "_delta_log").glob("*.json"))
    text = entry.read_text()
    entry.write_text(text.replace(r"\"maxValues\": {", r"\"maxValues\": {\"x\": -Infinity, ", 1))
    assert entry.read_text() != text
    with pytest.raises(TableAltered, match=r"Infinity .* replace .* by null"):
        open_table(path)
    entry.write_text(entry.read_text().replace("-Infinity", "null"))
    assert open_table(path).read().num_rows == 2
