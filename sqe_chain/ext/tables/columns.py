"""The columns of a table: their types, and how a payload type or a declaration gives them."""

from __future__ import annotations

import datetime as dt
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Final

import pyarrow as pa
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from sqe_chain.codecs.arrow_columns import ListColumn, ScalarColumn
from sqe_chain.codecs.arrow_rows import rows_of
from sqe_chain.codecs.arrow_values import DataType
from sqe_chain.codecs.codec import field_names
from sqe_chain.errors import ConfigurationError, FlowError, RowOfAnotherType

Cells = ScalarColumn | ListColumn
"""How the cells of a column become an Arrow array."""
_CELLS: Final[Mapping[str, ScalarColumn]] = {
    "bool": ScalarColumn(pa.bool_(), bool),
    "int32": ScalarColumn(pa.int32(), int),
    "int64": ScalarColumn(pa.int64(), int),
    "float32": ScalarColumn(pa.float32(), float),
    "float64": ScalarColumn(pa.float64(), float),
    "string": ScalarColumn(pa.string(), str),
    "binary": ScalarColumn(pa.binary(), bytes),
    "timestamp": ScalarColumn(pa.timestamp("us", tz="UTC"), dt.datetime),
    "date": ScalarColumn(pa.date32(), dt.date),
}
_NAMES: Final[Mapping[DataType, str]] = {
    **{cells.arrow: name for name, cells in _CELLS.items()},
    pa.uint32(): "int64",  # a table has no unsigned numbers
    pa.uint64(): "decimal(20,0)",
}
_NO_KEYS: Final = ("float", "decimal", "list")
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_LIST: Final = re.compile(r"list<(.+)>")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,119}")
_RESERVED: Final = "_sqe_"
"""Columns of these names are the framework's own."""
_MAX_DIGITS: Final = 38
_TYPES: Final = (
    "bool, int32, int64, float32, float64, string, binary, timestamp, date, decimal(P,S) or list<…> of one"
)


@cache
def cells_of(type_name: object) -> Cells | None:
    """How the cells of a type of columns are stored; None: there is no such type."""
    if not isinstance(type_name, str):
        return None
    if listed := _LIST.fullmatch(type_name):
        item = cells_of(listed[1])
        return ListColumn(item, name="element") if isinstance(item, ScalarColumn) else None
    if digits := _DECIMAL.fullmatch(type_name):
        precision, scale = int(digits[1]), int(digits[2])
        possible = 1 <= precision <= _MAX_DIGITS and scale <= precision
        return ScalarColumn(pa.decimal128(precision, scale), Decimal) if possible else None
    return _CELLS.get(type_name)


def type_name(arrow: DataType) -> str:
    """The type of a column, as `Column` names it; of an Arrow type that no column has, Arrow's name."""
    if pa.types.is_list(arrow):
        return f"list<{type_name(arrow.value_type)}>"
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_timestamp(arrow):
        return "timestamp"
    return _NAMES.get(arrow) or str(arrow)


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: letters, digits and ``_``; not beginning with a digit or ``_sqe_``.
        type: bool, int32, int64, float32, float64, string, binary, timestamp (microseconds, UTC), date, decimal(P,S), or
            list<…> of one of them.
        of: ``value -> cell``; None: the field or key of this name.
    """

    name: str
    type: str
    of: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        """Check both. Raises FlowError."""
        if (
            not isinstance(self.name, str)
            or not _NAME.fullmatch(self.name)
            or self.name.startswith(_RESERVED)
        ):
            raise FlowError(
                f"column {self.name!r}: letters, digits and '_', not beginning with a digit or {_RESERVED!r}"
            )
        if cells_of(self.type) is None:
            raise FlowError(f"column {self.name!r}: type {self.type!r}; one of {_TYPES}")

    @property
    def cells(self) -> Cells:
        """How its cells become an Arrow array."""
        cells = cells_of(self.type)
        assert cells is not None  # noqa: S101 - checked above
        return cells

    @property
    def arrow(self) -> DataType:
        """Its Arrow type."""
        return self.cells.arrow

    @property
    def is_list(self) -> bool:
        """Whether a cell holds several values."""
        return isinstance(self.cells, ListColumn)

    @property
    def may_be_key(self) -> bool:
        """Whether it may be part of a key: its values have one order, and equal values are the same."""
        return not self.type.startswith(_NO_KEYS)


def columns_of(
    payload: type | None, given: Mapping[str, str] | Sequence[str | Column] | None = None
) -> tuple[Column, ...]:
    """The columns of a table.

    Args:
        payload: type of the values: a protobuf message, a msgspec Struct or a dataclass; None: it is not known.
        given: the columns wanted: name -> type; or a sequence of names, whose types follow from the payload type, and of
            `Column`. None: all fields of the payload type.

    Raises:
        FlowError: a type cannot be a column, a name is not a field, or nothing is known.
    """
    if given is not None and (isinstance(given, str) or not isinstance(given, Mapping | Sequence)):
        raise FlowError(
            f"columns={given!r}; a mapping of names to types, or a sequence of names and Column objects"
        )
    known = _names_of(payload)
    if given is None:
        columns = [_column(payload, name) for name in known or (None,)]
    elif isinstance(given, Mapping):
        columns = [Column(name, of) for name, of in given.items()]
    else:
        columns = [column if isinstance(column, Column) else _column(payload, column) for column in given]
    names = [column.name.lower() for column in columns]
    if not columns or len(set(names)) != len(names):
        of = (
            f"columns={given!r}"
            if given is not None
            else f"the fields of {getattr(payload, '__qualname__', payload)}"
        )
        raise FlowError(
            f"{of}: {', '.join(column.name for column in columns) or 'none'}. Expected at least one, each once: upper and lower case are the same. "
            "Give columns=, or rename a field"
        )
    for column in columns:
        if column.of is None and known and not _has(payload, column.name, known):
            raise _no_field(payload, column.name)
        if isinstance(given, Mapping) and payload is not None and issubclass(payload, Message):
            _column(payload, column.name)
    return tuple(columns)


def _names_of(payload: type | None) -> Sequence[str]:
    """The fields of a type; none: they are not known, or values may have any."""
    names: Sequence[str] = field_names(payload) or getattr(payload, "_fields", ())
    return names


def _has(payload: type | None, name: str, known: Sequence[str]) -> bool:
    """Whether values of a type have a cell of this name: a field, or for Python's types what is computed like one."""
    if name in known or payload is None or issubclass(payload, Message):
        return name in known
    attribute = inspect.getattr_static(payload, name, None)
    return attribute is not None and not inspect.isroutine(attribute)


def _column(payload: type | None, name: object) -> Column:
    """The column of a field, whose type is that of the payload type."""
    if payload is None or not field_names(payload):
        raise FlowError(
            f"the columns of {_called(payload)} are not known. Give columns= as a mapping of names to types, or a payload type "
            "that is a protobuf message, a msgspec Struct or a dataclass"
        )
    if not isinstance(name, str) or name not in field_names(payload):
        raise _no_field(payload, name)
    if issubclass(payload, Message) and _is_time(payload, name):
        return Column(name, "timestamp")
    try:
        cells: Any = rows_of(payload, (name,)).parts[0].column
        leaf = cells.item if isinstance(cells, ListColumn) else cells
        plain = isinstance(leaf, ScalarColumn) and leaf.into is leaf.out_of is None
        text = type_name(cells.arrow) if plain else getattr(leaf, "title", str(cells.arrow))
    except ConfigurationError as error:
        plain, text = False, str(error)
    if plain and cells_of(text) is not None:
        return Column(name, text)
    raise FlowError(
        f"field {name!r} of {_called(payload)} cannot be a column ({text}). Skip it with columns=, or give a function for one of "
        f"{_TYPES}: Column({name!r}, type, of=function)"
    )


def _no_field(payload: type | None, name: object) -> FlowError:
    return FlowError(
        f"columns: {name!r} is not a field of {_called(payload)}; it has {', '.join(_names_of(payload))}"
    )


def _called(payload: type | None) -> str:
    return "values of an unknown type" if payload is None else payload.__qualname__


def reader_of(payload: type | None, column: Column) -> Callable[[Any], Any]:
    """The function that gives the cell of a value."""
    name = column.name
    if column.of is not None:
        return column.of
    if payload is None:
        return lambda value: itemgetter(name)(value) if isinstance(value, Mapping) else getattr(value, name)
    if issubclass(payload, Message):
        if _is_time(payload, name):
            return lambda value: _moment(getattr(value, name), name) if value.HasField(name) else None
        return rows_of(payload, (name,)).parts[0].of
    return (lambda value: value.get(name)) if issubclass(payload, Mapping) else attrgetter(name)


def _is_time(payload: type[Message], name: str) -> bool:
    """Whether a field is one `google.protobuf.Timestamp`, which is a column of its own."""
    field: Any = payload.DESCRIPTOR.fields_by_name[name]
    message = field.message_type
    return (
        message is not None and message.full_name == Timestamp.DESCRIPTOR.full_name and not field.is_repeated
    )


def _moment(stamp: Timestamp, name: str) -> dt.datetime:
    if stamp.nanos % 1_000:
        raise RowOfAnotherType(
            f"column {name!r}: timestamp does not take {stamp.nanos} nanoseconds. Expected whole microseconds. Round it in the flow, or "
            f"store it as int64 by Column({name!r}, 'int64', of=...)."
        )
    return stamp.ToDatetime(tzinfo=dt.UTC)
