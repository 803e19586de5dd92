"""The columns of a type: of a struct, a dataclass, a protobuf message, a plain value, or of dicts by a schema of Arrow."""

from __future__ import annotations

import dataclasses
import inspect
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from enum import Enum
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pyarrow import types as arrow_types

from sqe_chain.codecs.arrow_columns import (
    ArrowColumn,
    ListColumn,
    MapColumn,
    RowColumns,
    RowField,
    ScalarColumn,
    python_type_of,
)
from sqe_chain.codecs.codec import field_names
from sqe_chain.codecs.protobuf import KINDS
from sqe_chain.errors import ConfigurationError

VALUE: Final = "value"
"""The column of values that have no fields."""
_SCALARS: Final[Mapping[object, ScalarColumn]] = {
    bool: ScalarColumn(pa.bool_(), bool),
    int: ScalarColumn(pa.int64(), int),
    float: ScalarColumn(pa.float64(), float),
    str: ScalarColumn(pa.string(), str),
    bytes: ScalarColumn(pa.binary(), bytes),
    datetime: ScalarColumn(pa.timestamp("us", tz="UTC"), datetime),
    date: ScalarColumn(pa.date32(), date),
    time: ScalarColumn(pa.time64("us"), time),
    timedelta: ScalarColumn(pa.duration("us"), timedelta),
    uuid.UUID: ScalarColumn(pa.string(), str, str, uuid.UUID),
}
_NUMBERS: Final[Mapping[int, ScalarColumn]] = {
    kind: ScalarColumn(pa.type_for_alias(name), float if "float" in name else bool if name == "bool" else int)
    for kind, name in (*KINDS.items(), (FieldDescriptor.CPPTYPE_ENUM, "int32"))
}
_NAME_IT: Final = "name its columns with a pyarrow.schema"


def rows_of(of: type | Any, only: Sequence[str] | None = None) -> RowColumns:  # noqa: ANN401 - a schema of Arrow
    """The columns of values.

    Args:
        of: their type; or a `pyarrow.Schema`, for dicts and for objects of any type.
        only: names of the fields that become columns, in this order; None: all. The others need no type.

    Raises:
        ConfigurationError: a field has no type that a column could have.
    """
    if isinstance(of, pa.Schema):
        return _of_schema(of)
    if only is None or of in _SCALARS:
        return _of_type(of, ())
    known = _names_of(of)
    if missing := [name for name in only if name not in known]:
        raise ConfigurationError(f"{of.__qualname__} has no field {missing[0]!r}; it has {', '.join(known)}")
    return _of_type(of, (), tuple(dict.fromkeys(only)))


def _of_type(of: type, outer: tuple[type, ...], only: Sequence[str] | None = None) -> RowColumns:
    if of in outer:
        raise ConfigurationError(f"{of.__qualname__} is in itself, and columns are not: {_NAME_IT}")
    if of in _SCALARS:
        return RowColumns(
            of.__qualname__,
            (RowField(VALUE, _SCALARS[of], lambda value: value, nullable=False),),
            lambda _, columns: columns[0],
        )
    names = _names_of(of) if only is None else only
    return (_of_message if issubclass(of, Message) else _of_record)(of, names, (*outer, of))


def _names_of(of: type) -> Sequence[str]:
    names = field_names(of)
    if not names:
        raise ConfigurationError(f"the fields of {of.__qualname__} are not known: {_NAME_IT}")
    return names


# --- structs and dataclasses ----------------------------------------------------------------------------------


def _of_record(of: type, names: Sequence[str], outer: tuple[type, ...]) -> RowColumns:
    try:
        hints = get_type_hints(of, include_extras=True)
    except Exception as error:  # a hint may be any expression
        raise ConfigurationError(f"the types of {of.__qualname__} cannot be read: {error}") from error
    given = inspect.signature(of).parameters
    parts = []
    for name in names:
        column, nullable = _of_hint(hints[name], f"{of.__qualname__}.{name}", outer)
        optional = name not in given or given[name].default is not inspect.Parameter.empty
        parts.append(RowField(name, column, attrgetter(name), nullable, optional))
    return RowColumns(of.__qualname__, tuple(parts), _maker(of, given))


def _maker(of: Callable[..., Any], given: Mapping[str, inspect.Parameter]) -> Callable[..., list[Any]]:
    plain = [name for name, parameter in given.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]

    def make(names: Sequence[str], columns: Sequence[list[Any]]) -> list[Any]:
        if list(names) == plain[: len(names)]:
            return [of(*row) for row in zip(*columns, strict=True)]
        return [of(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]

    return make


def _of_hint(hint: object, where: str, outer: tuple[type, ...]) -> tuple[ArrowColumn, bool]:
    """The column of a field, and whether it may be null."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _of_hint(arguments[0], where, outer)
    others = [kind for kind in arguments if kind is not type(None)]
    if origin in (Union, types.UnionType) and len(others) == 1:
        return _of_hint(others[0], where, outer)[0], True
    if origin is Literal:
        choices = _of_choices(arguments, where)
        return dataclasses.replace(choices, out_of=_chooser(arguments)), None in arguments
    column = (
        _of_class(hint, where, outer) if isinstance(hint, type) else _of_many(origin, arguments, where, outer)
    )
    if column is None:
        shown = hint.__qualname__ if isinstance(hint, type) else str(hint)
        raise ConfigurationError(f"{where} is {shown}, which gives no type of a column: {_NAME_IT}")
    return column, False


def _of_class(kind: type, where: str, outer: tuple[type, ...]) -> ArrowColumn | None:
    if issubclass(kind, Enum):
        column = _of_choices([member.value for member in kind], where)
        return dataclasses.replace(column, into=attrgetter("value"), out_of=kind)
    if issubclass(kind, Message) or dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"):
        return _of_type(kind, outer)
    return _SCALARS.get(kind)


def _of_many(
    origin: object, arguments: Sequence[Any], where: str, outer: tuple[type, ...]
) -> ArrowColumn | None:
    if origin in (list, Sequence) or (origin is tuple and arguments[-1] is Ellipsis):
        return ListColumn(_of_hint(arguments[0], where, outer)[0], tuple if origin is tuple else list)
    if origin in (dict, Mapping):
        return MapColumn(*(_of_hint(hint, where, outer)[0] for hint in arguments))
    return None


def _chooser(choices: Sequence[object]) -> Callable[[object], object]:
    def choose(value: object) -> object:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(map(repr, choices))}")
        return value

    return choose


def _of_choices(choices: Sequence[object], where: str) -> ScalarColumn:
    kinds = {type(choice) for choice in choices if choice is not None}
    if len(kinds) != 1 or not kinds <= {int, str}:
        raise ConfigurationError(
            f"{where} is one of {list(choices)}, which are not all text or all int: {_NAME_IT}"
        )
    return _SCALARS[kinds.pop()]


# --- protobuf -------------------------------------------------------------------------------------------------


def _of_message(of: type[Message], names: Sequence[str], outer: tuple[type, ...]) -> RowColumns:
    known: Any = of.DESCRIPTOR.fields_by_name
    parts = [RowField(name, *_of_field(known[name], outer), optional=True) for name in names]
    return RowColumns(of.DESCRIPTOR.full_name, tuple(parts), _message_maker(of))


def _message_maker(of: type[Message]) -> Callable[..., list[Any]]:
    def make(names: Sequence[str], columns: Sequence[list[Any]]) -> list[Any]:
        return [
            of(**{name: content for name, content in zip(names, row, strict=True) if content is not None})
            for row in zip(*columns, strict=True)
        ]

    return make


def _of_field(field: Any, outer: tuple[type, ...]) -> tuple[ArrowColumn, Callable[[Any], Any]]:  # noqa: ANN401 - protobuf's description of a field
    """The column of a field, and what reads it; unset is null where that can be known."""
    name, column = field.name, _content(field, outer)
    if isinstance(column, MapColumn):
        return column, lambda message: dict(getattr(message, name))
    if field.is_repeated:
        return ListColumn(column), lambda message: list(getattr(message, name))
    if field.has_presence:
        return column, lambda message: getattr(message, name) if message.HasField(name) else None
    return column, attrgetter(name)


def _content(field: Any, outer: tuple[type, ...]) -> ArrowColumn:  # noqa: ANN401 - protobuf's description of a field
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            key, item = (
                _content(field.message_type.fields_by_name[name], outer) for name in ("key", "value")
            )
            return MapColumn(key, item)
        return _of_type(message_factory.GetMessageClass(field.message_type), outer)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _SCALARS[bytes]
    return _NUMBERS.get(field.cpp_type, _SCALARS[str])


# --- schemas of Arrow -----------------------------------------------------------------------------------------


def _of_schema(schema: Any) -> RowColumns:  # noqa: ANN401 - of Arrow
    return _of_fields(list(schema), "the schema")


def _of_fields(fields: Sequence[Any], title: str) -> RowColumns:
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{title} has columns of the same name: {', '.join(names)}")
    parts = [
        RowField(field.name, _of_arrow(field.type, field.name), _reader(field.name), field.nullable)
        for field in fields
    ]
    return RowColumns(title, tuple(parts), _dicts)


def _dicts(names: Sequence[str], columns: Sequence[list[Any]]) -> list[Any]:
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _reader(name: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:  # noqa: ANN401 - any object
        return value.get(name) if isinstance(value, Mapping) else getattr(value, name)

    return read


def _of_arrow(arrow: Any, name: str) -> ArrowColumn:  # noqa: ANN401 - a type of Arrow
    if arrow_types.is_map(arrow):
        return MapColumn(_of_arrow(arrow.key_type, name), _of_arrow(arrow.item_type, name))
    if arrow_types.is_list(arrow):
        return ListColumn(_of_arrow(arrow.value_type, name))
    if arrow_types.is_struct(arrow):
        return _of_fields(list(arrow), name)
    python_type = python_type_of(arrow)
    if python_type is None:
        raise ConfigurationError(f"column {name!r} is of type {arrow}, which values of Python do not have")
    return ScalarColumn(arrow, python_type)
