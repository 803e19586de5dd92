"""The schema of a table: its columns, and which of them are the partition key and the row key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

from sqe_chain.errors import FlowError, PoisonError, RowOfAnotherType, RowWithoutKey
from sqe_chain.ext.tables.columns import Column, cell_readers, columns_of, reader_of


@dataclass(frozen=True)
class TableSchema:
    """What the rows of a table are, and how they are made of values. Rows are told apart by (partition key, row key).

    Attributes:
        columns: all columns.
        partition_key: names of those by which rows are spread over state partitions, and gathered in chunks.
        row_key: names of those that tell the rows of a partition key apart, and by which they are sorted.
        payload: type of the values; None: any.
    """

    columns: tuple[Column, ...]
    partition_key: tuple[str, ...]
    row_key: tuple[str, ...]
    payload: type | None = None
    _numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the keys. Raises FlowError."""
        numbers = {column.name: number for number, column in enumerate(self.columns)}
        object.__setattr__(self, "_numbers", numbers)
        if not self.partition_key or not self.row_key:
            raise FlowError(
                "a table needs a partition_key and a row_key: one column, or a tuple of them, for each"
            )
        if len({*self.partition_key, *self.row_key}) != len(self.keys):
            raise FlowError(f"partition_key={self.partition_key}, row_key={self.row_key}: each column once")
        for name in self.keys:
            if name not in numbers:
                raise FlowError(f"key column {name!r} is none of the columns: {', '.join(numbers)}")
            column = self.columns[numbers[name]]
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
    def readers(self) -> list[Callable[[Any], object]]:
        """For each column the function that gives the cell of a value, unchecked."""
        return cell_readers(self.payload, self.columns)

    @cached_property
    def read(self) -> Callable[[Any], tuple[object, ...]]:
        """The function that gives the cells of a value, unchecked."""
        return reader_of(self.payload, self.columns)

    def cells(self, value: object, read: Callable[[Any], tuple[object, ...]]) -> tuple[object, ...]:
        """What is read of a value, unchecked.

        Raises:
            RowOfAnotherType: the value is not of the type of the table, or cannot be read.
        """
        if self.payload is not None and not isinstance(value, self.payload):
            raise RowOfAnotherType(
                f"a row of type {type(value).__qualname__}; the table takes {self.payload.__qualname__}"
            )
        try:
            return read(value)
        except PoisonError:
            raise
        except Exception as error:  # what a cell is read by may be a function or a property of the user's
            raise RowOfAnotherType(f"a row of type {type(value).__qualname__}: {error!r}") from error

    def row(self, value: object) -> tuple[object, ...]:
        """The cells of a value, checked.

        Raises:
            RowOfAnotherType: the value, or a cell, is not of the type of the table.
            RowWithoutKey: a cell of its keys is null.
        """
        cells = self.cells(value, self.read)
        self.check(cells)
        return cells

    def check(self, cells: Sequence[object]) -> None:
        """Check the cells of a row; errors as `row`."""
        for column, cell in zip(self.columns, cells, strict=True):
            why = column.refusal(cell)
            if why is not None:
                raise RowOfAnotherType(f"column {column.name!r}: {why}")
        for name in self.keys:
            if cells[self._numbers[name]] is None:
                kind = "partition key" if name in self.partition_key else "row key"
                raise RowWithoutKey(f"a row without {kind}: column {name!r} is null")

    def partition_key_in(self, cells: Sequence[object]) -> bytes:
        """The partition key of a row, as bytes: what decides its state partition.

        Of one text column it is the text as UTF-8, of one of bytes the bytes: as keys of messages are. Else it is JSON.
        """
        return self.key_bytes([cells[self._numbers[name]] for name in self.partition_key])

    def key_bytes(self, found: Sequence[object]) -> bytes:
        """The cells of the partition key as bytes; see `partition_key_in`."""
        if len(found) == 1:
            if isinstance(found[0], str):
                return found[0].encode("utf-8", "surrogatepass")
            if isinstance(found[0], bytes):
                return found[0]
        texts = [_key_text(one) for one in found]
        return json.dumps(texts, default=str, separators=(",", ":")).encode()

    def partition_key_of(self, value: object) -> bytes:
        """The partition key of a value; errors as `row`."""
        return self.partition_key_in(self.row(value))

    def described(self) -> dict[str, object]:
        """As plain data, for the table's metadata and a memtable's state."""
        return {
            "columns": {column.name: column.type for column in self.columns},
            "partition_key": list(self.partition_key),
            "row_key": list(self.row_key),
        }


def _key_text(cell: object) -> object:
    """A cell as JSON can tell it from others; a moment is one, whatever zone says it."""
    if isinstance(cell, datetime):
        return str(cell.astimezone(UTC))
    return cell.hex() if isinstance(cell, bytes) else cell


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else (given,)
    if not all(isinstance(one, str) for one in found):
        raise FlowError(f"a key of a table is a column's name, or several; got {given!r}")
    return found
