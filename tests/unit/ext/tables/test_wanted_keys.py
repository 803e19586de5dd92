"""Goal: a key of any type of number, text or time finds its rows or is refused; it never finds none by mistake.

Method: for each type that keys may have, tables of many keys over several state partitions; and each column type with values of others.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.tables import Column, Table, open_table
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal

NOW = dt.datetime(2026, 11, 26, 1, 2, 3, 4, tzinfo=dt.UTC)
HOURS = [NOW + dt.timedelta(hours=hour) for hour in range(12)]
ZONE = dt.timezone(dt.timedelta(hours=2))
WRITTEN_AS: dict[str, tuple[Sequence[Any], list[Any]]] = {  # the type of a key: its values, and how programs write them
    "int64": (range(-3, 9), [int, np.int64, np.int16, float, np.float32, Decimal, lambda n: pd.Series([n])[0]]),
    "int32": (range(-3, 9), [int, np.int64, np.int8]),
    "bool": ([True, False], [bool, np.bool_]),
    "string": (["", *"abcdefghij", "ä", "x" * 300], [str, np.str_, lambda text: pd.unique(pd.Series([text]))[0]]),
    "binary": ([b"", b"\0\xff", b"abc"], [bytes, np.bytes_, bytearray, memoryview]),
    "timestamp": (HOURS, [lambda at: at, lambda at: at.astimezone(ZONE), pd.Timestamp, lambda at: pd.Series([at]).unique()[0]]),
    "date": ([NOW.date() + dt.timedelta(days=day) for day in range(9)], [lambda day: day]),
}  # fmt: skip


def _same(cell: Any, _: object) -> Any:
    return cell


def table_of(
    kind: str, values: Sequence[Any], at: str, more: dict[str, tuple[str, Any]] | None = None
) -> Table:
    """A table of a row for each value, whose key it is."""
    columns = [
        Column("key", kind, of=lambda number: values[int(number)]),
        Column("n", "int64", of=int),
        *(Column(name, of, partial(_same, cell)) for name, (of, cell) in (more or {}).items()),
    ]
    flow = Flow("f", state_partitions=5)
    source = flow.source("in", bytes, raw=True)
    source.ingest("t", partition_key="key", row_key="n", columns=columns, at=at)
    service = Rehearsal(flow)
    for number in range(len(values)):
        service.feed("in", str(number).encode())
    service.run_until_caught_up()
    return open_table(f"{at}/t")


@pytest.mark.parametrize("place", ["disk", "memory"])
@pytest.mark.parametrize("kind", WRITTEN_AS)
def test_a_key_of_any_python_type_finds_its_rows(tmp_path: Path, place: str, kind: str) -> None:
    values, ways = WRITTEN_AS[kind]
    at = str(tmp_path) if place == "disk" else f"memory://keys-{kind}"
    table = table_of(kind, values, at)
    for (number, value), way in itertools.product(enumerate(values), ways):
        if way is np.bytes_ and value.endswith(b"\0"):
            continue
        key = way(value)
        assert table.read(key)["n"].to_pylist() == [number], (value, type(key))
        assert table.read(where={"key": (key, key)})["n"].to_pylist() == [number]
        assert [chunk.rows for chunk in table.chunks(key)] == [1]


WRONG: dict[str, list[Any]] = {
    "int64": [3.5, "3", b"3", True, np.bool_(1), 1 << 63, NOW, np.datetime64("2026-11-26", "ns"), [3], float("nan"), object()],
    "int32": [1 << 31, 0.1, Decimal("1.5"), pd.NA],
    "bool": [1, 0, np.int8(1), "true", 1.0],
    "string": [3, b"a", np.bytes_(b"a"), None.__class__, ["a"]],
    "binary": ["a", np.str_("a"), 3],
    "timestamp": [
        NOW.replace(tzinfo=None), pd.Timestamp("2026-11-26"), np.datetime64("2026-11-26T00:00:00", "us"), NOW.date(), "2026-11-26", 3,
        pd.Timestamp("2026-11-26 00:00:00.000000001", tz="UTC"), pd.NaT,
    ],
    "date": [NOW, NOW.replace(tzinfo=None), pd.Timestamp("2026-11-26"), "2026-11-26", 3, pd.NaT],
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_value_of_the_column_is_refused(tmp_path: Path, kind: str) -> None:
    values, _ = WRITTEN_AS[kind]
    table = table_of(kind, values, str(tmp_path))
    for wrong in WRONG[kind]:
        for ask in (
            lambda: table.read(wrong),  # noqa: B023 - called at once
            lambda: table.chunks(wrong),  # noqa: B023
            lambda: table.read(where={"key": (None, wrong)}),  # noqa: B023
        ):
            with pytest.raises(
                ConfigurationError, match=f"column 'key' is {kind}, and .* is none of its values"
            ):
                ask()


def test_bounds_of_all_columns_are_values_of_theirs(tmp_path: Path) -> None:
    more = {
        "f32": ("float32", 0.5),
        "f64": ("float64", 0.1),
        "money": ("decimal(10,2)", Decimal("1.50")),
        "several": ("list<int64>", [1]),
    }
    table = table_of("int64", [1], str(tmp_path), more)
    for name, said in {"f32": np.float32(0.5), "f64": np.float64(0.1), "money": Decimal("1.5")}.items():
        assert table.read(where={name: (said, said)}).num_rows == 1
    assert table.read(row_key=(np.int64(0), np.float64(0.0))).num_rows == 1
    wrong: dict[str, list[Any]] = {
        "f32": ["0.5", True, Decimal("0.5"), float("nan")],
        "f64": ["0.1", NOW, 1 << 60 | 1],
        "money": [1.5, "1.50", Decimal("1.505")],
        "several": [[1], 1],
    }
    for name, several in wrong.items():
        for one in several:
            with pytest.raises(ConfigurationError, match="is none of its values"):
                table.read(where={name: (one, None)})
    for bounds in (3, (1, 2, 3), None):
        with pytest.raises(ConfigurationError, match="Expected a pair"):
            table.read(where={"n": bounds})  # type: ignore[dict-item]
