"""Values as Arrow arrays, and arrays as values: each is the same afterwards, or refused.

Arrow checks nearly all of that itself. But it rounds floats of fewer bits, and cuts off times of Python, without a word. So
values become arrays of what Python has, and those are cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Array = Any
"""A `pyarrow.Array`; published without types."""
DataType = Any
"""A `pyarrow.DataType`."""


def array_of(values: Sequence[Any], arrow: DataType) -> Array:
    """An array of scalars of Python's own types.

    Raises:
        pyarrow.ArrowException, ValueError, TypeError, OverflowError: it would not hold one of them unchanged.
    """
    if types.is_decimal(arrow):  # Arrow takes plain ints for some precisions only
        values = [Decimal(value) if type(value) is int else value for value in values]
    return cast(pa.array(values, _in_python(arrow)), arrow)


def values_of(array: Array) -> list[Any]:
    """The values of an array of scalars.

    Raises:
        pyarrow.ArrowException, ValueError, OverflowError: Python has no such value: a time of nanoseconds, one beyond the year 9999.
    """
    values: list[Any] = cast(array, _in_python(array.type)).to_pylist()
    return values


def map_of(keys: Sequence[Any], items: Sequence[Any]) -> dict[Any, Any]:
    """The dict of a map's keys and items.

    Raises:
        ValueError: it has a key twice: a dict keeps one entry. NaN is one key, as its text in JSON is.
    """
    made = dict(zip(keys, items, strict=True))
    if len(made) < len(keys) or sum(key != key for key in made) > 1:  # noqa: PLR0124 - NaN
        raise ValueError("a map has a key twice. Expected each key once. Give the map other keys, or lists")
    return made


def cast(array: Array, arrow: DataType) -> Array:
    """An array as one of another type.

    Raises:
        pyarrow.ArrowException: a value would not be the same.
    """
    if array.type == arrow:
        return array
    made = array.cast(arrow)
    floating = types.is_floating(array.type) and types.is_floating(arrow)
    if floating and arrow.bit_width < array.type.bit_width:
        was, now = array.cast(pa.float64()), made.cast(pa.float64())
        differs = pc.and_(pc.not_equal(was, now), pc.invert(pc.is_nan(was)))
        if pc.any(differs).as_py():
            raise pa.ArrowInvalid(
                f"{was.filter(differs)[0].as_py()!r} would be rounded. Expected what {arrow} holds. Round it yourself, or declare float64."
            )
    return made


def _in_python(arrow: DataType) -> DataType:
    """The type that holds what Python holds: floats of 64 bits, times in microseconds, dates in days."""
    if types.is_floating(arrow):
        return pa.float64()
    if types.is_timestamp(arrow):
        return pa.timestamp("us", arrow.tz)
    if types.is_time(arrow):
        return pa.time64("us")
    if types.is_duration(arrow):
        return pa.duration("us")
    return pa.date32() if types.is_date(arrow) else arrow
