"""Arrow tables as tables have them: the framework's own columns, and cells as JSON."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from sqe_chain.codecs.arrow_values import Array, DataType
from sqe_chain.ext.tables.chunk import Plain

__all__ = ["Array", "ArrowSchema", "ArrowTable", "DataType"]

ArrowTable = Any
"""A `pyarrow.Table`, or a `pyarrow.RecordBatch`; published without types."""
ArrowSchema = Any
"""A `pyarrow.Schema`."""
SEQUENCE: Final = "_sqe_sequence"
"""The largest number marks the latest of the rows with the same keys: number of the plan, then of the row in it."""
PARTITION: Final = "_sqe_partition"
"""The state partition; a partition column of the Delta table, so its files do not have it."""
ROWS_OF_A_PLAN: Final = 1 << 31
OWN: Final = (SEQUENCE, PARTITION)
"""Columns of the framework."""
OWN_FIELDS: Final = (pa.field(SEQUENCE, pa.int64()), pa.field(PARTITION, pa.int32()))


def plain(scalar: Any) -> Plain:  # noqa: ANN401, PLR0911 - pyarrow has no types; a case for each type
    """A scalar as JSON holds it; None for null, for lists, and for NaN and infinity, which JSON does not have."""
    if not scalar.is_valid or pa.types.is_nested(scalar.type):
        return None
    if pa.types.is_timestamp(scalar.type):
        return int(scalar.value)
    cell = scalar.as_py()
    if isinstance(cell, bytes):
        return cell.hex()
    if isinstance(cell, Decimal):
        return str(cell)
    if isinstance(cell, dt.date):
        return cell.isoformat()
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    known: Plain = cell
    return known
