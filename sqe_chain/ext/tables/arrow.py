"""Columns as Arrow has them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from sqe_chain.codecs import arrow_values as arrow
from sqe_chain.ext.tables.chunk import Plain
from sqe_chain.ext.tables.columns import Column
from sqe_chain.ext.tables.schema import TableSchema

SEQUENCE: Final = "_sqe_sequence"
"""Of the rows with the same keys the one with the largest number holds: number of the plan, then of the row in it."""
PARTITION: Final = "_sqe_partition"
"""The state partition; a partition column of the Delta table, so it is not in its files."""
ROWS_OF_A_PLAN: Final = 1 << 31
OWN: Final = (SEQUENCE, PARTITION)
"""Columns of the framework."""
OWN_FIELDS: Final = (pa.field(SEQUENCE, pa.int64()), pa.field(PARTITION, pa.int32()))

_TIMES: Final = {"timestamp": pa.timestamp("us", tz="UTC"), "date": pa.date32()}


def arrow_type(column: Column) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The type of a column."""
    element = column.element
    if element.startswith("decimal"):
        precision, scale = element[len("decimal(") : -1].split(",")
        found = pa.decimal128(int(precision), int(scale))
    else:
        found = _TIMES.get(element) or pa.type_for_alias(element)
    return pa.list_(pa.field("element", found)) if column.is_list else found


def type_name(found: Any) -> str:  # noqa: ANN401 - an Arrow type
    """The type of a column of an Arrow type, as `Column` names it."""
    if pa.types.is_list(found):
        return f"list<{type_name(found.value_type)}>"
    if pa.types.is_decimal(found):
        return f"decimal({found.precision},{found.scale})"
    if pa.types.is_timestamp(found):
        return "timestamp"
    names = {pa.float32(): "float32", pa.float64(): "float64", pa.date32(): "date"}
    return names.get(found) or str(found)


def arrow_schema(schema: TableSchema) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The columns of a table, without those of the framework."""
    return pa.schema([(column.name, arrow_type(column)) for column in schema.columns])


def file_schema(schema: TableSchema) -> Any:  # noqa: ANN401 - pyarrow has no types
    """What stands in its files."""
    return arrow_schema(schema).append(OWN_FIELDS[0])


def table_schema(schema: TableSchema) -> Any:  # noqa: ANN401 - pyarrow has no types
    """What readers see."""
    return file_schema(schema).append(OWN_FIELDS[1])


def array_of(column: Column, cells: Sequence[object], of: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Cells as an array, as `conversions.arrow.array_of`, where `Column.refusal` is None."""
    if "decimal" in column.type:
        cells = [_exact(cell) for cell in cells]
    return arrow.array_of(cells, of)


def _exact(cell: object) -> object:
    """A cell of decimals, without plain integers, which Arrow takes for some precisions only."""
    if isinstance(cell, list | tuple):
        return [_exact(one) for one in cell]
    return Decimal(cell) if type(cell) is int else cell


def plain(scalar: Any) -> Plain:  # noqa: ANN401, PLR0911 - pyarrow has no types; a case for each type
    """A scalar as JSON holds it; None for null, for lists, and for NaN and infinity, which JSON has not."""
    if not scalar.is_valid or pa.types.is_nested(scalar.type):
        return None
    if pa.types.is_timestamp(scalar.type):
        return int(scalar.value)
    found = scalar.as_py()
    if isinstance(found, bytes):
        return found.hex()
    if isinstance(found, Decimal):
        return str(found)
    if isinstance(found, dt.date):
        return found.isoformat()
    if isinstance(found, float) and not math.isfinite(found):
        return None
    known: Plain = found
    return known
