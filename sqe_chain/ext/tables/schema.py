"""The schema of a table: its columns, and which of them are the partition key and the row key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, Final, Self

import pyarrow as pa

from sqe_chain.errors import FlowError, PoisonError, RowOfAnotherType, RowWithoutKey
from sqe_chain.ext.tables.arrow import OWN_FIELDS, Array, ArrowSchema, ArrowTable
from sqe_chain.ext.tables.columns import Column, columns_of, reader_of


@dataclass(frozen=True)
class TableSchema:
    """What the rows of a table are, and how they are made of values. (partition key, row key) names a row.

    Attributes:
        columns: all columns.
        partition_key: names of those by which rows are spread over state partitions, and gathered in chunks.
        row_key: names of those that name a row of a partition key, and sort its rows.
        payload: type of the values; None: any.
    """

    columns: tuple[Column, ...]
    partition_key: tuple[str, ...]
    row_key: tuple[str, ...]
    payload: type | None = None

    def __post_init__(self) -> None:
        """Check the keys. Raises FlowError."""
        if not self.partition_key or not self.row_key:
            raise FlowError(
                "a table needs a partition_key and a row_key: one column, or a tuple of them, for each"
            )
        if len({*self.partition_key, *self.row_key}) != len(self.keys):
            raise FlowError(f"partition_key={self.partition_key}, row_key={self.row_key}: each column once")
        for name in self.keys:
            if name not in self.names:
                raise FlowError(f"key column {name!r} is none of the columns: {', '.join(self.names)}")
            column = self.columns[self.number(name)]
            if not column.may_be_key:
                raise FlowError(
                    f"key column {name!r} is {column.type}; keys are bool, int32, int64, string, binary, timestamp or date"
                )

    @classmethod
    def of(
        cls,
        payload: type | None,
        *,
        partition_key: str | Sequence[str],
        row_key: str | Sequence[str],
        columns: Mapping[str, str] | Sequence[str | Column] | None = None,
    ) -> Self:
        """The schema of the rows that values of a type become.

        Args:
            payload: type of the values: a protobuf message, a msgspec Struct or a dataclass; None: it is not known.
            partition_key: a column, or several.
            row_key: a column, or several.
            columns: see `columns_of`.

        Raises:
            FlowError: a type cannot be a column, or a key is none.
        """
        return cls(columns_of(payload, columns), _names(partition_key), _names(row_key), payload)

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns of the partition key and of the row key."""
        return self.partition_key + self.row_key

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        return [column.name for column in self.columns]

    def number(self, name: str) -> int:
        """Which column it is."""
        return self._numbers[name]

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {column.name: number for number, column in enumerate(self.columns)}

    @cached_property
    def arrow(self) -> ArrowSchema:
        """Its columns, without those of the framework."""
        return pa.schema([(column.name, column.arrow) for column in self.columns])

    @cached_property
    def in_files(self) -> ArrowSchema:
        """The columns of its files: with the sequence numbers."""
        return self.arrow.append(OWN_FIELDS[0])

    @cached_property
    def for_readers(self) -> ArrowSchema:
        """All columns: with those of the framework."""
        return self.in_files.append(OWN_FIELDS[1])

    @cached_property
    def _readers(self) -> list[tuple[Column, Callable[[Any], Any]]]:
        return [(column, reader_of(self.payload, column)) for column in self.columns]

    @cached_property
    def _key_readers(self) -> list[tuple[Column, Callable[[Any], Any], type | None]]:
        keys = [self._readers[self.number(name)] for name in self.partition_key]
        return [(column, read, _EXACT.get(column.type)) for column, read in keys]

    def batch(self, values: Sequence[Any]) -> ArrowTable:
        """The rows of values, as a record batch.

        Raises:
            RowOfAnotherType: a value, or a cell, is not of the type of the table.
            RowWithoutKey: a cell of the keys is null.
        """
        for kind in set(map(type, values)):
            self._check_kind(kind)
        arrays = [_array(column, read, values) for column, read in self._readers]
        for name in self.keys:
            if arrays[self.number(name)].null_count:
                raise self._without_key(name)
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def _check_kind(self, kind: type) -> None:
        if self.payload is not None and not issubclass(kind, self.payload):
            raise RowOfAnotherType(
                f"a row of type {kind.__qualname__}; the table takes {self.payload.__qualname__}"
            )

    def _without_key(self, name: str) -> RowWithoutKey:
        kind = "partition key" if name in self.partition_key else "row key"
        return RowWithoutKey(f"a row without {kind}: column {name!r} is null")

    def partition_key_of(self, value: object) -> bytes:
        """The partition key of a value; see `key_bytes`. Errors as `batch`."""
        self._check_kind(type(value))
        return self.key_bytes([self._key_cell(*key, value) for key in self._key_readers])

    def _key_cell(
        self, column: Column, read: Callable[[Any], Any], exact: type | None, value: object
    ) -> object:
        with suppress(Exception):  # the array raises the real error
            cell = read(value)
            if type(cell) is exact:
                return cell
        cell = _array(column, read, [value])[0].as_py()
        if cell is None:
            raise self._without_key(column.name)
        return cell

    def key_bytes(self, cells: Sequence[object]) -> bytes:
        """The cells of a partition key as bytes: what decides the state partition.

        Of one text column it is the text as UTF-8, of one of bytes the bytes: as keys of messages are. Else it is JSON.
        """
        if len(cells) == 1:
            if isinstance(cells[0], str):
                return cells[0].encode("utf-8", "surrogatepass")
            if isinstance(cells[0], bytes):
                return cells[0]
        texts = [_key_text(cell) for cell in cells]
        return json.dumps(texts, default=str, separators=(",", ":")).encode()

    def described(self) -> dict[str, object]:
        """As plain data, for the table's metadata and a memtable's state."""
        return {
            "columns": {column.name: column.type for column in self.columns},
            "partition_key": list(self.partition_key),
            "row_key": list(self.row_key),
        }


_EXACT: Final = {"bool": bool, "int32": int, "int64": int, "string": str, "binary": bytes, "date": date}
"""Type of a key column -> of cells that are taken as they are."""


def _array(column: Column, read: Callable[[Any], Any], values: Sequence[Any]) -> Array:
    try:
        return column.cells.array([read(value) for value in values])
    except PoisonError:
        raise
    except Exception as error:  # what reads a cell may be a function or a property of the user's
        raise RowOfAnotherType(f"column {column.name!r}: {type(error).__name__}: {error}") from error


def _key_text(cell: object) -> object:
    """A cell as JSON, different for different cells; a moment is the same in all time zones."""
    if isinstance(cell, datetime):
        return str(cell.astimezone(UTC))
    return cell.hex() if isinstance(cell, bytes) else cell


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else (given,)
    if not all(isinstance(name, str) for name in names):
        raise FlowError(f"a key of a table is a column's name, or several; got {given!r}")
    return names
