"""A memtable: the rows of one state partition that wait for the end of the batch, by columns, in the order in which they came."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import countOf
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from sqe_chain.errors import PoisonError, RowOfAnotherType, RowTooLarge
from sqe_chain.ext.tables.arrow import ROWS_OF_A_PLAN, SEQUENCE, array_of, arrow_schema
from sqe_chain.ext.tables.chunk import ChunkInfo
from sqe_chain.ext.tables.columns import Column
from sqe_chain.ext.tables.contents import changes_in, chunks_of
from sqe_chain.ext.tables.schema import TableSchema

MAX_ROW_BYTES: Final = 16 * 1024 * 1024
"""Of one row, by default."""
_PENDING: Final = 1_000
"""Rows that wait as objects, before they become columns."""
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

    data: Any
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
        max_row_bytes: largest row, in bytes of its cells: those of a text, of bytes or of a list have 4 more than is in them, a null has 1 more.
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
        self._arrow = arrow_schema(schema)
        self._types = [_plain_types(column) for column in schema.columns]
        self._keys = [schema.number(name) for name in schema.keys]
        self._blocks: list[Any] = []
        self._pending: list[tuple[object, ...]] = []
        self._settled = 0
        self.min_offset: int | None = None
        self.max_offset: int | None = None

    @property
    def rows(self) -> int:
        """How many rows are here, replaced ones included."""
        return self._settled + len(self._pending)

    @property
    def nbytes(self) -> int:
        """Memory of the columns, in bytes; without the last rows, at most 1,000."""
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
        cells = self.schema.row(value)
        self._check_fits(self._block_of([[cell] for cell in cells]))
        self._pending.append(cells)
        self._note(offset)
        if len(self._pending) >= _PENDING:
            self._settle()

    def ingest_all(self, values: Sequence[object], failed: Failed) -> None:
        """Add the rows of values; fast where all are as they should be.

        Args:
            values: of the type of the schema.
            failed: called with the index of each value that is not added, and why.
        """
        self._settle()
        block = self._fast(values)
        if block is not None:
            self._take(block)
            return
        for index, value in enumerate(values):
            try:
                self.ingest(value)
            except PoisonError as error:
                failed(index, error)

    def flush(self, first_sequence: int = 0) -> Flushed:
        """The rows, sorted, and their chunks. The memtable stays as it is; `clear` empties it.

        Args:
            first_sequence: number of the first row, for the column by which readers tell which of several rows is the latest.
        """
        self._settle()
        if self._settled >= ROWS_OF_A_PLAN:
            raise RowTooLarge(f"{self._settled} rows in one flush; {ROWS_OF_A_PLAN - 1} at most")
        latest = newest(self._sorted(first_sequence), self.schema)
        return Flushed(
            latest,
            chunks_of(latest, self.schema, self._table, self._version),
            self._settled - latest.num_rows,
        )

    def clear(self) -> None:
        """Forget all rows, after a flush."""
        self._blocks, self._pending, self._settled = [], [], 0
        self.min_offset = self.max_offset = None

    def state(self) -> bytes:
        """All of it as bytes; see `load`."""
        self._settle()
        described = self.schema.described() | {"offsets": [self.min_offset, self.max_offset]}
        schema = self._arrow.with_metadata({_STATE: json.dumps(described)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for block in self._blocks:
                writer.write_batch(block)
        found: bytes = sink.getvalue().to_pybytes()
        return found

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
        found = cls(
            schema, table=table, version=version, max_row_bytes=max_row_bytes, max_key_bytes=max_key_bytes
        )
        for block in blocks:
            found._take(block.replace_schema_metadata(None))
        found.min_offset, found.max_offset = offsets
        return found

    # ------------------------------------------------------------------ small parts

    def _sorted(self, first_sequence: int) -> Any:  # noqa: ANN401 - pyarrow has no types
        """All rows in the order of their keys, of the same keys in the order in which they came, and their sequence numbers.

        Column after column: memory that was never touched costs as much as sorting, so what one column needs for a moment is
        what the next one needs.
        """
        everything = pa.Table.from_batches(self._blocks, self._arrow)
        order = order_of(everything, self.schema.keys)
        columns = [column.combine_chunks().take(order) for column in everything.itercolumns()]
        columns.append(pc.add(order.cast(pa.int64(), safe=False), first_sequence))
        return pa.Table.from_arrays(columns, schema=self._arrow.append(pa.field(SEQUENCE, pa.int64())))

    def _fast(self, values: Sequence[object]) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The rows of values as a block; None where one of them may be wrong."""
        schema = self.schema
        if not values:
            return None
        payload = schema.payload
        if payload is not None and not all(issubclass(kind, payload) for kind in set(map(type, values))):
            return None
        try:
            cells = [
                [read(value) for value in values] for read in schema.readers
            ]  # Arrow reads lists thrice as fast as tuples
        except Exception:  # noqa: BLE001 - attributes of a user's class may raise anything; the slow way tells which value it is
            return None
        for column, types, own in zip(schema.columns, self._types, cells, strict=True):
            if not _all_of(types, own) and not _takes_all(column, types, own):
                return None
        try:
            block = self._block_of(cells)
        except RowOfAnotherType:
            return None
        keyed = not any(block.column(number).null_count for number in self._keys)
        fits = block.nbytes <= self._max_row_bytes and self._longest_key(block) <= (self._max_key_bytes or 0)
        return block if keyed and fits else None

    def _block_of(self, cells: Iterable[Sequence[object]]) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The rows that have these cells in each column."""
        arrays = []
        for column, own, kind in zip(self.schema.columns, cells, self._arrow.types, strict=True):
            try:
                arrays.append(array_of(column, own, kind))
            except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
                raise RowOfAnotherType(
                    f"column {column.name!r}: {column.type} does not take this value: {error}"
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _check_fits(self, block: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        if block.nbytes > self._max_row_bytes:
            sizes = {
                column.name: block.column(number).nbytes for number, column in enumerate(self.schema.columns)
            }
            largest = max(sizes, key=lambda name: sizes[name])
            raise RowTooLarge(
                f"a row of {block.nbytes} bytes; the table takes {self._max_row_bytes} (column {largest!r} has {sizes[largest]})"
            )

        longest = self._longest_key(block)
        if longest > (self._max_key_bytes or 0):
            raise RowTooLarge(f"a row with keys of {longest} bytes; the table takes {self._max_key_bytes}")

    def _longest_key(self, block: Any) -> int:  # noqa: ANN401 - pyarrow has no types
        """Of rows: the longest texts and bytes of their keys; 0 where there is no limit."""
        cells = [block.column(number) for number in self._keys]
        texts = [one for one in cells if pa.types.is_string(one.type) or pa.types.is_binary(one.type)]
        if self._max_key_bytes is None or not texts:
            return 0
        lengths = functools.reduce(pc.add, (pc.binary_length(one) for one in texts))
        return int(pc.max(lengths).as_py() or 0)

    def _note(self, offset: int | None) -> None:
        if offset is not None:
            self.min_offset = offset if self.min_offset is None else min(self.min_offset, offset)
            self.max_offset = offset if self.max_offset is None else max(self.max_offset, offset)

    def _settle(self) -> None:
        if self._pending:
            rows, self._pending = self._pending, []
            self._take(self._block_of(map(list, zip(*rows, strict=True))))

    def _take(self, block: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        self._blocks.append(block)
        self._settled += block.num_rows


def _plain_types(column: Column) -> frozenset[type]:
    """The Python types of cells that the column takes whatever they are; empty where each has to be looked at."""
    looked_at = column.element == "timestamp" or column.is_list
    return frozenset() if looked_at else column.takes | {type(None)}


def _all_of(types: frozenset[type], cells: Sequence[object]) -> bool:
    """Whether the cells, at least one, are of these types. Mostly all are of one, and counting that is faster than looking each up."""
    kind = type(cells[0])
    alike = kind in types and countOf(map(type, cells), kind) == len(cells)
    return alike or types.issuperset(map(type, cells))


def _takes_all(column: Column, types: frozenset[type], cells: Sequence[object]) -> bool:
    return not types and all(column.refusal(cell) is None for cell in cells)


def order_of(rows: Any, keys: Sequence[str]) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The order of rows by their keys, without nulls, as row numbers; rows with the same keys stay in their order.

    Column after column, the last key first, each time a stable sort of one column: Arrow sorts one much faster than several
    together, and numbers of a small range, as the ranks of texts are where they repeat, by counting.
    """
    order: Any = None
    for name in reversed(keys):
        cells = ranks(rows[name].combine_chunks())
        step = pc.array_sort_indices(cells if order is None else cells.take(order))
        order = step if order is None else order.take(step)
    return order


def ranks(cells: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Texts and bytes as numbers of the same order; other cells as they are."""
    if not (pa.types.is_string(cells.type) or pa.types.is_binary(cells.type)):
        return cells
    encoded = pc.dictionary_encode(cells)
    rank_of = pc.sort_indices(pc.sort_indices(encoded.dictionary)).cast(pa.int32())
    return rank_of.take(encoded.indices)


def latest_of(found: Any, schema: TableSchema) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Of rows with a sequence number: the latest of each key, in the order of keys."""
    keys = [(name, "ascending") for name in (*schema.keys, SEQUENCE)]
    return newest(found.take(pc.sort_indices(found, sort_keys=keys)).combine_chunks(), schema)


def newest(found: Any, schema: TableSchema) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Of sorted rows, where the later one of two with the same keys comes last: the last of each."""
    if found.num_rows <= 1:
        return found
    keep = pa.chunked_array([*changes_in(found, schema.keys).chunks, pa.array([True])])
    if pc.all(keep).as_py():
        return found
    return found.filter(keep).combine_chunks()
