"""The columns of a table: their types, from a payload type or as given, and how the values of a row are read and checked."""

from __future__ import annotations

import datetime as dt
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from sqe_chain.codecs.codec import field_names
from sqe_chain.codecs.protobuf import KINDS
from sqe_chain.errors import FlowError, RowOfAnotherType

_PYTHON: Final[Mapping[type, str]] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    bytes: "binary",
    dt.datetime: "timestamp",
    dt.date: "date",
}
_PROTOBUF: Final[Mapping[int, str]] = {
    **KINDS,
    FieldDescriptor.CPPTYPE_ENUM: "int32",
    FieldDescriptor.CPPTYPE_UINT32: "int64",  # a table has no unsigned numbers
    FieldDescriptor.CPPTYPE_UINT64: "decimal(20,0)",
}
PythonTypes = frozenset[type]
_TAKES: Final[Mapping[str, PythonTypes]] = {
    "bool": frozenset({bool}),
    "int32": frozenset({int}),
    "int64": frozenset({int}),
    "float32": frozenset({float, int}),
    "float64": frozenset({float, int}),
    "string": frozenset({str}),
    "binary": frozenset({bytes}),
    "timestamp": frozenset({dt.datetime}),
    "date": frozenset({dt.date}),
}
_KEYS: Final = frozenset({"bool", "int32", "int64", "string", "binary", "timestamp", "date"})
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_LIST: Final = re.compile(r"list<(.+)>")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,119}")
RESERVED: Final = "_sqe_"
"""Columns of these names are the framework's own."""
MAX_DIGITS: Final = 38
_WORDS: Final = (
    "bool, int32, int64, float32, float64, string, binary, timestamp, date, decimal(P,S) or list<…> of one"
)


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
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name.startswith(RESERVED):
            raise FlowError(
                f"column {self.name!r}: letters, digits and '_', not beginning with a digit or {RESERVED!r}"
            )
        if not is_type(self.type):
            raise FlowError(f"column {self.name!r}: type {self.type!r}; one of {_WORDS}")

    @property
    def element(self) -> str:
        """The type of its elements, for a list; else its own."""
        found = _LIST.fullmatch(self.type)
        return found[1] if found else self.type

    @property
    def is_list(self) -> bool:
        """Whether a cell holds several values."""
        return self.element != self.type

    @property
    def may_be_key(self) -> bool:
        """Whether rows can be told apart by it: its values have one order, and equal ones are the same."""
        return self.type in _KEYS

    @property
    def takes(self) -> PythonTypes:
        """The Python types of its values, of a list's elements."""
        return _TAKES.get(self.element) or frozenset({Decimal, int})

    def refusal(self, cell: object) -> str | None:
        """Why it does not take a cell; None: it does, or only its magnitude is wrong. None as a cell is null."""
        if cell is None:
            return None
        if self.is_list:
            if isinstance(cell, str | bytes) or not isinstance(cell, Sequence):
                return f"{self.type} does not take {type(cell).__name__}"
            return next((why for one in cell if (why := self._refuses(one)) is not None), None)
        return self._refuses(cell)

    def _refuses(self, one: object) -> str | None:
        if type(one) not in self.takes:
            return f"{self.type} does not take {type(one).__name__}"
        if not isinstance(one, dt.datetime):
            return None
        if one.tzinfo is None:
            return f"{self.type} does not take a time without a time zone"
        if dt.MINYEAR < one.year < dt.MAXYEAR:
            return None
        try:
            one.astimezone(dt.UTC)
        except OverflowError:
            return (
                f"{self.type} does not take {one.isoformat()}: in UTC it is before the year 1, or after 9999"
            )
        return None


def is_type(text: object) -> bool:
    """Whether a text is the type of a column."""
    if not isinstance(text, str):
        return False
    element = found[1] if (found := _LIST.fullmatch(text)) else text
    digits = _DECIMAL.fullmatch(element)
    if digits:
        return 1 <= int(digits[1]) <= MAX_DIGITS and int(digits[2]) <= int(digits[1])
    return element in _TAKES


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
    if given is None:
        return tuple(Column(name, _named(name, of)) for name, of in _fields(payload).items())
    if isinstance(given, Mapping):
        if payload is not None and issubclass(payload, Message):
            for name in given:
                _field(payload, name)
        found = [Column(name, of) for name, of in given.items()]
    else:
        found = [one if isinstance(one, Column) else _field(payload, one) for one in given]
    names = [one.name.lower() for one in found]
    if not found or len(set(names)) != len(names):
        raise FlowError(f"columns={given!r}: at least one, each once (upper and lower case are the same)")
    known = _names_of(payload)
    missing = [one.name for one in found if one.of is None and known and not _has(payload, one.name, known)]
    if missing:
        raise FlowError(
            f"columns: {missing[0]!r} is not a field of {_called(payload)}; it has {', '.join(known)}"
        )
    return tuple(found)


def _names_of(payload: type | None) -> Sequence[str]:
    """The fields of a type; none: they are not known, or values may have any."""
    found: Sequence[str] = field_names(payload) or getattr(payload, "_fields", ())
    return found


def _has(payload: type | None, name: str, known: Sequence[str]) -> bool:
    """Whether values of a type have a cell of this name: a field, or for Python's types what is computed like one."""
    if name in known or payload is None or issubclass(payload, Message):
        return name in known
    found = inspect.getattr_static(payload, name, None)
    return found is not None and not inspect.isroutine(found)


def reader_of(payload: type | None, columns: Sequence[Column]) -> Callable[[Any], tuple[object, ...]]:
    """The function that gives the cells of a value, in the order of the columns."""
    reads = cell_readers(payload, columns)
    return lambda value: tuple([read(value) for read in reads])


def cell_readers(payload: type | None, columns: Sequence[Column]) -> list[Callable[[Any], object]]:
    """For each column the function that gives the cell of a value."""
    return [column.of or _any_cell(payload, column.name) for column in columns]


def _any_cell(payload: type | None, name: str) -> Callable[[Any], object]:
    if payload is not None and issubclass(payload, Message):
        return _protobuf_cell(payload.DESCRIPTOR.fields_by_name[name])
    if payload is not None and issubclass(payload, Mapping):
        return lambda value: value.get(name)
    if payload is not None:
        return attrgetter(name)
    return lambda value: itemgetter(name)(value) if isinstance(value, Mapping) else getattr(value, name)


def _protobuf_cell(field: Any) -> Callable[[Any], object]:  # noqa: ANN401 - see `_protobuf_type`
    read: Callable[[Any], Any] = attrgetter(field.name)
    name = field.name
    if field.is_repeated:
        return lambda value: list(read(value))
    if field.message_type is not None:
        return lambda value: _moment(read(value), name) if value.HasField(name) else None
    if field.has_presence:
        return lambda value: read(value) if value.HasField(name) else None
    return read


def _moment(stamp: Timestamp, name: str) -> dt.datetime:
    if stamp.nanos % 1_000:
        raise RowOfAnotherType(
            f"column {name!r}: timestamp does not take {stamp.nanos} nanoseconds. Expected whole microseconds. Round it in the flow, or "
            f"store it as int64 by Column({name!r}, 'int64', of=...)."
        )
    return stamp.ToDatetime(tzinfo=dt.UTC)


def _field(payload: type | None, name: object) -> Column:
    fields = _fields(payload)
    if not isinstance(name, str) or name not in fields:
        raise FlowError(f"columns: {name!r} is not a field of {_called(payload)}; it has {', '.join(fields)}")
    return Column(name, _named(name, fields[name]))


def _named(name: str, found: object) -> str:
    if not isinstance(found, str):
        raise FlowError(
            f"field {name!r}: {getattr(found, 'full_name', found)} cannot be a column; leave it out with columns=, or say how it becomes one of {_WORDS}: "
            f"Column({name!r}, type, of=function)"
        )
    return found


def _fields(payload: type | None) -> dict[str, object]:
    """Field -> the type of its column, or the field's own type where it cannot be one."""
    if payload is not None and issubclass(payload, Message):
        descriptor: Any = payload.DESCRIPTOR
        return {field.name: _protobuf_type(field) for field in descriptor.fields}
    names = field_names(payload)
    if not names or payload is None:
        raise FlowError(
            f"the columns of {_called(payload)} are not known: give columns= as a mapping of names to types, or a payload type "
            "that is a protobuf message, a msgspec Struct or a dataclass"
        )
    try:
        hints = get_type_hints(payload)
    except (NameError, TypeError) as error:
        raise FlowError(
            f"the types of {_called(payload)} cannot be found out ({error}): give columns="
        ) from error
    return {name: _python_type(hints[name]) for name in names}


def _python_type(hint: Any) -> object:  # noqa: ANN401 - any annotation
    if get_origin(hint) in (Union, UnionType):
        rest = [one for one in get_args(hint) if one is not NoneType]
        return _python_type(rest[0]) if len(rest) == 1 else hint
    if get_origin(hint) in (list, Sequence) or (get_origin(hint) is tuple and get_args(hint)[1:] == (...,)):
        element = _python_type(get_args(hint)[0])
        return f"list<{element}>" if isinstance(element, str) and not element.startswith("list") else hint
    return _PYTHON.get(hint, hint) if isinstance(hint, type) else hint


def _protobuf_type(field: Any) -> object:  # noqa: ANN401 - a field's descriptor, of two classes
    message = field.message_type
    if message is not None:
        stamp = message.full_name == Timestamp.DESCRIPTOR.full_name and not field.is_repeated
        return "timestamp" if stamp else message
    text = "binary" if field.type == FieldDescriptor.TYPE_BYTES else "string"
    found = _PROTOBUF.get(field.cpp_type, text)
    return f"list<{found}>" if field.is_repeated else found


def _called(payload: type | None) -> str:
    return "values of an unknown type" if payload is None else payload.__qualname__
