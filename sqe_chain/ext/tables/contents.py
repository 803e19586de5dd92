"""The chunks in sorted rows: where they begin and end, their keys, checksums, and the bounds of each column."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sqe_chain.ext.tables.arrow import plain
from sqe_chain.ext.tables.chunk import ChunkInfo, ChunkName, Plain
from sqe_chain.ext.tables.schema import TableSchema

_HASH_BYTES = 16


def chunks_of(rows: Any, schema: TableSchema, table: str, version: int) -> list[ChunkInfo]:  # noqa: ANN401 - an Arrow table
    """The chunks of rows in the order (partition key, row key)."""
    batches = rows.to_batches()
    if not batches:
        return []
    (whole,) = batches
    content = whole.select(schema.names)
    bounds = [*_starts(whole, schema), whole.num_rows]
    return [
        _info(content.slice(start, stop - start), schema, table, version) for start, stop in pairwise(bounds)
    ]


def _starts(rows: Any, schema: TableSchema) -> list[int]:  # noqa: ANN401 - an Arrow record batch
    """Where another partition key begins."""
    differs = changes_in(rows, schema.partition_key)
    return [0, *(index + 1 for index in pc.indices_nonzero(differs).to_pylist())]


def changes_in(rows: Any, names: Sequence[str]) -> Any:  # noqa: ANN401 - an Arrow table or record batch
    """For each row but the last one: whether the next one differs from it in some columns."""
    before, after = rows.slice(0, rows.num_rows - 1), rows.slice(1)
    return reduce(pc.or_, (pc.not_equal(before[name], after[name]) for name in names))


def _info(chunk: Any, schema: TableSchema, table: str, version: int) -> ChunkInfo:  # noqa: ANN401 - an Arrow record batch
    content = memoryview(_alone(chunk).serialize())
    start = {name: plain(chunk[name][0]) for name in schema.keys}
    end = {name: plain(chunk[name][chunk.num_rows - 1]) for name in schema.keys}
    minimum: dict[str, Plain] = {}
    maximum: dict[str, Plain] = {}
    ordered = {*schema.partition_key, schema.row_key[0]}
    for column, cells in zip(schema.columns, chunk.columns, strict=True):
        name = column.name
        bounds = (start[name], end[name]) if name in ordered else bounds_of(cells)
        if bounds is not None:
            minimum[name], maximum[name] = bounds
    return ChunkInfo(
        ChunkName(
            table, version, schema.key_bytes([chunk[name][0].as_py() for name in schema.partition_key])
        ),
        tuple(start[name] for name in schema.row_key),
        tuple(end[name] for name in schema.row_key),
        chunk.num_rows,
        zlib.crc32(content),
        hashlib.blake2b(content, digest_size=_HASH_BYTES).hexdigest(),
        minimum,
        maximum,
    )


def _alone(chunk: Any) -> Any:  # noqa: ANN401 - an Arrow record batch
    """A copy of the rows. A slice keeps bits, offsets and padding of the rows beside it, which would change the hash."""
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays([column]) for column in chunk.columns], schema=chunk.schema
    )


def bounds_of(cells: Any) -> tuple[Plain, Plain] | None:  # noqa: ANN401 - an Arrow array
    """Smallest and largest value of a column; None where JSON has none: a list, or null or NaN throughout, or infinity."""
    if pa.types.is_nested(cells.type):
        return None
    ends = pc.min_max(cells)
    least, most = plain(ends["min"]), plain(ends["max"])
    return None if least is None or most is None else (least, most)
