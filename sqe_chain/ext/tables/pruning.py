"""What a read can skip: rows, row groups and files outside the wanted bounds."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sqe_chain.codecs.arrow_values import array_of
from sqe_chain.ext.tables.columns import Column

_BASIC = 0xFFFF
"""The last character of Unicode's basic plane: JSON escapes those beyond it as two surrogates."""

Bounds = tuple[Any, Any]
"""Smallest and largest value wanted, both included; None: no limit."""


def cell_of(column: Column, given: object) -> Any:  # noqa: ANN401 - of the column's type
    """A wanted value in the type of a column's cells; it may be of numpy or pandas.

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
    inside = pc.is_valid(cells)
    if low is not None:
        inside = pc.and_(inside, pc.greater_equal(cells, pa.scalar(low, cells.type)))
    if high is not None:
        inside = pc.and_(inside, pc.less_equal(cells, pa.scalar(high, cells.type)))
    return pc.fill_null(inside, False)  # noqa: FBT003 - a value of the array


def narrowed(bounds: Bounds, other: Bounds) -> Bounds:
    """The bounds of what lies within both; values are of one type."""
    low, high = ([bound for bound in ends if bound is not None] for ends in zip(bounds, other, strict=True))
    return max(low, default=None), min(high, default=None)


def may_hold(known: Mapping[str, tuple[Any, Any]], wanted: Mapping[str, Bounds]) -> bool:
    """Whether rows may hold a wanted one, by what is known of the bounds of their columns."""
    return all(overlap(*bounds, *known[name]) for name, bounds in wanted.items() if name in known)


def bounds_in(statistics: str) -> dict[str, tuple[Any, Any]]:
    """The bounds of the columns of a file, by the table's log."""
    known = json.loads(statistics)
    most = {name: None if _is_misread(it) else it for name, it in known.get("maxValues", {}).items()}
    return {name: (least, most.get(name)) for name, least in known.get("minValues", {}).items()}


def _is_misread(largest: object) -> bool:
    """Whether a largest text may be larger than the log's reader gives it.

    Version 0.2 escaped texts in the log. There delta-rs reads U+20BB7 as U+10BB7, and the difference is lost.
    """
    return isinstance(largest, str) and any(ord(letter) > _BASIC for letter in largest)


def group_may_hold(group: Any, wanted: Mapping[str, Bounds]) -> bool:  # noqa: ANN401 - Parquet metadata
    """Whether a row group may hold a wanted row, by the file's footer."""
    columns = (group.column(number) for number in range(group.num_columns))
    known = {
        column.path_in_schema: column.statistics for column in columns if column.path_in_schema in wanted
    }
    bounds = {
        name: (each.min, each.max) for name, each in known.items() if each is not None and each.has_min_max
    }
    return may_hold(bounds, wanted)


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
        meet = (high is None or least <= high) and (low is None or most >= low)
    except (TypeError, ValueError):
        return True
    return bool(meet)


def _alike(told: Any, *bounds: Any) -> Any:  # noqa: ANN401 - values of any type
    """A bound of a statistic in the type of the wanted bounds: the log has times as texts."""
    like = next((bound for bound in bounds if bound is not None), None)
    if isinstance(told, str) and isinstance(like, dt.datetime):
        return dt.datetime.fromisoformat(told)
    if isinstance(told, str) and isinstance(like, dt.date):
        return dt.date.fromisoformat(told)
    if isinstance(told, dt.datetime) and told.tzinfo is None:
        return told.replace(tzinfo=dt.UTC)
    return Decimal(told) if isinstance(like, Decimal) else told
