"""A memtable: the rows of one state partition that wait for the end of the batch, by columns, in the order in which they came."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from sqe_chain.errors import PoisonError, RowTooLarge
from sqe_chain.ext.tables.arrow import ROWS_OF_A_PLAN, SEQUENCE, Array, ArrowTable
from sqe_chain.ext.tables.chunk import ChunkInfo
from sqe_chain.ext.tables.contents import changes_in, chunks_of
from sqe_chain.ext.tables.schema import TableSchema

MAX_ROW_BYTES: Final = 16 * 1024 * 1024
"""Of one row, by default."""
_MOST_BLOCKS: Final = 1_000
"""Small blocks of rows that become one."""
_STATE: Final = b"sqe-chain.memtable"

Failed = Callable[[int, PoisonError], None]


@dataclass(frozen=True, slots=True)
class Flushed:
    """What a flush gives.

    Attributes:
        data: the rows as an Arrow table, in the order (partition key, row key); of rows with the same keys the last one.
        chunks: one for each partition key, in the order of their rows; without chunk id.
        replaced: rows that are not there because a later one has the same keys.
    """

    data: ArrowTable
    chunks: list[ChunkInfo]
    replaced: int


class Memtable:
    """Gathers rows, and gives them sorted, with what is known of each chunk.

    A plain object: no clock, no store, no engine. The same rows in the same order give the same chunks, byte for byte.

        >>> schema = TableSchema.of(None, partition_key="robot", row_key="at", columns={"robot": "string", "at": "int64"})
        >>> memtable = Memtable(schema, table="readings")
        >>> for offset, at in enumerate((20, 10, 20)):
        ...     memtable.ingest({"robot": "r1", "at": at}, offset=offset)
        >>> memtable.rows, memtable.min_offset
        (3, 0)
        >>> flushed = memtable.flush()
        >>> flushed.data["at"].to_pylist(), flushed.replaced
        ([10, 20], 1)
        >>> [(chunk.name.partition_key, chunk.start_key, chunk.end_key) for chunk in flushed.chunks]
        [(b'r1', (10,), (20,))]

    Args:
        schema: of the table.
        table: name of the table, for the names of chunks.
        version: of the table, from 0.
        max_row_bytes: largest row, in bytes of its cells. A text, bytes or a list takes 4 bytes more, a null 1 byte.
        max_key_bytes: longest keys of a row together, in bytes of texts and bytes; None: no limit of their own.

    Attributes:
        min_offset: smallest offset of a row that is here; None: no row had one.
        max_offset: largest one.
    """

    def __init__(
        self,
        schema: TableSchema,
        *,
        table: str = "",
        version: int = 0,
        max_row_bytes: int = MAX_ROW_BYTES,
        max_key_bytes: int | None = None,
    ) -> None:
        self.schema = schema
        self._max_key_bytes = max_key_bytes
        self._table, self._version = table, version
        self._max_row_bytes = max_row_bytes
        self._blocks: list[ArrowTable] = []
        self._whole = 0  # of the blocks, those that are large
        self.min_offset: int | None = None
        self.max_offset: int | None = None

    @property
    def rows(self) -> int:
        """How many rows are here, replaced ones included."""
        return sum(block.num_rows for block in self._blocks)

    @property
    def nbytes(self) -> int:
        """Memory of the columns, in bytes."""
        return sum(block.nbytes for block in self._blocks)

    def ingest(self, value: object, *, offset: int | None = None) -> None:
        """Add the row of one value, or nothing.

        Args:
            value: of the type of the schema.
            offset: where it came from, for `min_offset`.

        Raises:
            RowOfAnotherType: the value, or a cell, is not of the type of the table.
            RowWithoutKey: a cell of its keys is null.
            RowTooLarge: it is larger than `max_row_bytes`.
        """
        self._append(self._block_of([value]))
        if offset is not None:
            self.min_offset = offset if self.min_offset is None else min(self.min_offset, offset)
            self.max_offset = offset if self.max_offset is None else max(self.max_offset, offset)

    def ingest_all(self, values: Sequence[object], failed: Failed, first: int = 0) -> None:
        """Add the rows of values. A block with a value that is no row is divided until that one is alone.

        Args:
            values: of the type of the schema.
            failed: called with the index of each value that is not added, and why.
            first: index of the first value.
        """
        if not values:
            return
        try:
            block = self._block_of(values)
        except PoisonError as error:
            if len(values) == 1:
                failed(first, error)
                return
            half = len(values) // 2
            self.ingest_all(values[:half], failed, first)
            self.ingest_all(values[half:], failed, first + half)
        else:
            self._append(block)

    def flush(self, first_sequence: int = 0) -> Flushed:
        """The rows, sorted, and their chunks. The memtable stays as it is; `clear` empties it.

        Args:
            first_sequence: number of the first row, for the column that marks the latest of several rows.
        """
        rows = self.rows
        if rows >= ROWS_OF_A_PLAN:
            raise RowTooLarge(f"{rows} rows in one flush; {ROWS_OF_A_PLAN - 1} at most")
        latest = newest(self._sorted(first_sequence), self.schema)
        chunks = chunks_of(latest, self.schema, self._table, self._version)
        return Flushed(latest, chunks, rows - latest.num_rows)

    def clear(self) -> None:
        """Forget all rows, after a flush."""
        self._blocks, self._whole = [], 0
        self.min_offset = self.max_offset = None

    def state(self) -> bytes:
        """All of it as bytes; see `load`."""
        described = self.schema.described() | {"offsets": [self.min_offset, self.max_offset]}
        schema = self.schema.arrow.with_metadata({_STATE: json.dumps(described)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for block in self._blocks:
                writer.write_batch(block)
        state: bytes = sink.getvalue().to_pybytes()
        return state

    @classmethod
    def load(
        cls,
        schema: TableSchema,
        state: bytes,
        *,
        table: str = "",
        version: int = 0,
        max_row_bytes: int = MAX_ROW_BYTES,
        max_key_bytes: int | None = None,
    ) -> Self:
        """A memtable with the rows of another one's `state`.

        Args:
            schema: the same as of the other one.
            state: its state.
            table: see the class.
            version: see the class.
            max_row_bytes: see the class; rows of the state are not looked at again.
            max_key_bytes: see the class.

        Raises:
            ValueError: these bytes are no state, or of another schema.
        """
        try:
            with pa.ipc.open_stream(state) as reader:
                described = json.loads((reader.schema.metadata or {})[_STATE])
                offsets = described.pop("offsets")
                blocks = list(reader)
        except (pa.ArrowException, KeyError, ValueError, OSError) as error:
            raise ValueError(f"these bytes are not the state of a memtable: {error!r}") from error
        if described != schema.described():
            raise ValueError(f"the state of a memtable of {described}, not of {schema.described()}")
        memtable = cls(
            schema, table=table, version=version, max_row_bytes=max_row_bytes, max_key_bytes=max_key_bytes
        )
        for block in blocks:
            memtable._append(block.replace_schema_metadata(None))
        memtable.min_offset, memtable.max_offset = offsets
        return memtable

    def _sorted(self, first_sequence: int) -> ArrowTable:
        """All rows in the order of their keys, of the same keys in the order in which they came, and their sequence numbers.

        One column after the other: new memory costs as much as sorting, and each column reuses that of the one before.
        """
        everything = pa.Table.from_batches(self._blocks, self.schema.arrow)
        order = _order_of(everything, self.schema.keys)
        columns = [column.combine_chunks().take(order) for column in everything.itercolumns()]
        columns.append(pc.add(order.cast(pa.int64(), safe=False), first_sequence))
        return pa.Table.from_arrays(columns, schema=self.schema.in_files)

    def _block_of(self, values: Sequence[object]) -> ArrowTable:
        """The rows of values, after a check of their sizes."""
        block = self.schema.batch(values)
        if block.nbytes > self._max_row_bytes:
            sizes = {
                name: column.nbytes for name, column in zip(self.schema.names, block.columns, strict=True)
            }
            largest = max(sizes, key=lambda name: sizes[name])
            raise RowTooLarge(
                f"a row of {block.nbytes} bytes; the table takes {self._max_row_bytes} (column {largest!r} has {sizes[largest]})"
            )
        if self._max_key_bytes is not None and (longest := self._longest_key(block)) > self._max_key_bytes:
            raise RowTooLarge(f"a row with keys of {longest} bytes; the table takes {self._max_key_bytes}")
        return block

    def _longest_key(self, block: ArrowTable) -> int:
        """Of rows: the longest texts and bytes of their keys."""
        cells = [block.column(name) for name in self.schema.keys]
        texts = [cell for cell in cells if pa.types.is_string(cell.type) or pa.types.is_binary(cell.type)]
        lengths = [pc.binary_length(text) for text in texts]
        return int(pc.max(functools.reduce(pc.add, lengths)).as_py() or 0) if lengths else 0

    def _append(self, block: ArrowTable) -> None:
        self._blocks.append(block)
        if len(self._blocks) - self._whole >= _MOST_BLOCKS:
            self._blocks[self._whole :] = [pa.concat_batches(self._blocks[self._whole :])]
            self._whole += 1


def _order_of(rows: ArrowTable, keys: Sequence[str]) -> Array:
    """The order of rows by their keys, without nulls, as row numbers; rows with the same keys stay in their order.

    One stable sort for each column, the last key first. Arrow sorts one column much faster than several together. It sorts numbers
    of a small range, such as ranks of repeated texts, by counting.
    """
    order: Array = None
    for name in reversed(keys):
        cells = ranks(rows[name].combine_chunks())
        step = pc.array_sort_indices(cells if order is None else cells.take(order))
        order = step if order is None else order.take(step)
    return order


def ranks(cells: Array) -> Array:
    """Texts and bytes as numbers of the same order; other cells as they are."""
    if not (pa.types.is_string(cells.type) or pa.types.is_binary(cells.type)):
        return cells
    encoded = pc.dictionary_encode(cells)
    rank_of = pc.sort_indices(pc.sort_indices(encoded.dictionary)).cast(pa.int32())
    return rank_of.take(encoded.indices)


def latest_of(rows: ArrowTable, schema: TableSchema) -> ArrowTable:
    """Of rows with a sequence number: the latest of each key, in the order of keys."""
    keys = [(name, "ascending") for name in (*schema.keys, SEQUENCE)]
    return newest(rows.take(pc.sort_indices(rows, sort_keys=keys)).combine_chunks(), schema)


def newest(rows: ArrowTable, schema: TableSchema) -> ArrowTable:
    """Of sorted rows, where the later one of two with the same keys comes last: the last of each."""
    if rows.num_rows <= 1:
        return rows
    keep = pa.chunked_array([*changes_in(rows, schema.keys).chunks, pa.array([True])])
    if pc.all(keep).as_py():
        return rows
    return rows.filter(keep).combine_chunks()
