"""What a read can leave out: rows, row groups and files outside the bounds that are wanted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sqe_chain.codecs.arrow_values import array_of
from sqe_chain.ext.tables.columns import Column

Bounds = tuple[Any, Any]
"""Smallest and largest value wanted, both included; None: no limit."""


def cell_of(column: Column, given: object) -> Any:  # noqa: ANN401 - of the column's type
    """What is wanted of a column as its cells are: the same value, whatever type says it, such as one of numpy or pandas.

    Raises:
        ValueError: it is no value of the column, or would be rounded; or the column has lists, which have no order.
    """
    of = pa.float64() if column.type == "float32" else column.arrow
    is_flag = type(given).__name__ in {"bool", "bool_"}
    cell = None
    try:
        cell = array_of([given], of)[0].as_py()
        same = not column.is_list and is_flag == (column.type == "bool") and bool(cell == given)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        same = False
    if not same:
        raise ValueError(
            f"column {column.name!r} is {column.type}, and {given!r} ({type(given).__qualname__}) is none of its values"
        )
    return cell


def within(cells: Any, bounds: Bounds) -> Any:  # noqa: ANN401 - Arrow arrays
    """Which cells lie within bounds; null does not."""
    low, high = bounds
    found = pc.is_valid(cells)
    if low is not None:
        found = pc.and_(found, pc.greater_equal(cells, pa.scalar(low, cells.type)))
    if high is not None:
        found = pc.and_(found, pc.less_equal(cells, pa.scalar(high, cells.type)))
    return pc.fill_null(found, False)  # noqa: FBT003 - a value of the array


def may_hold(statistics: Mapping[str, Any], wanted: Mapping[str, Bounds]) -> bool:
    """Whether a file may hold a wanted row, by the table's log."""
    least, most = statistics.get("minValues", {}), statistics.get("maxValues", {})
    for name, (low, high) in wanted.items():
        if least.get(name) is None or most.get(name) is None:
            continue
        if not overlap(low, high, least[name], most[name]):
            return False
    return True


def group_may_hold(group: Any, names: Sequence[str], wanted: Mapping[str, Bounds]) -> bool:  # noqa: ANN401 - Parquet metadata
    """Whether a row group may hold a wanted row, by the file's footer."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema not in wanted or column.path_in_schema not in names:
            continue
        found = column.statistics
        if found is None or not found.has_min_max:
            continue
        low, high = wanted[column.path_in_schema]
        if not overlap(low, high, found.min, found.max):
            return False
    return True


def overlap(low: Any, high: Any, least: Any, most: Any) -> bool:  # noqa: ANN401 - values of any type
    """Whether bounds meet; True where they cannot be compared.

    Args:
        low: wanted; None: no limit.
        high: wanted; None: no limit.
        least: smallest value that is known of.
        most: largest one.
    """
    try:
        least, most = _alike(least, low, high), _alike(most, low, high)
        found = (high is None or least <= high) and (low is None or most >= low)
    except (TypeError, ValueError):
        return True
    return bool(found)


def _alike(told: Any, *bounds: Any) -> Any:  # noqa: ANN401 - values of any type
    """A bound of a statistic in the type of the wanted bounds: the log has times as texts."""
    like = next((one for one in bounds if one is not None), None)
    if isinstance(told, str) and isinstance(like, dt.datetime):
        return dt.datetime.fromisoformat(told)
    if isinstance(told, str) and isinstance(like, dt.date):
        return dt.date.fromisoformat(told)
    if isinstance(told, dt.datetime) and told.tzinfo is None:
        return told.replace(tzinfo=dt.UTC)
    return Decimal(told) if isinstance(like, Decimal) else told
