"""Rows as protobuf messages: protobuf's own JSON mapping, with text checked first.

Protobuf's parser gives text to `int` and `float` of Python, which take underscores, blanks and digits of any script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from sqe_chain.codecs.text import exact_float, parse_bool, parse_float, parse_int
from sqe_chain.ports.files import Format

_PROTOBUF: Final = "google.protobuf."
_BITS: Final = {FieldDescriptor.CPPTYPE_FLOAT: 32, FieldDescriptor.CPPTYPE_DOUBLE: 64}
_INTS: Final = frozenset(
    getattr(FieldDescriptor, f"CPPTYPE_{name}") for name in ("INT32", "INT64", "UINT32", "UINT64")
)
_OWN_FLOATS: Final = ("NaN", "Infinity", "-Infinity")
"""What protobuf's JSON calls them."""
_TEXTS: Final[Mapping[str, re.Pattern[str]]] = {
    f"{_PROTOBUF}{name}": re.compile(pattern)
    for name, pattern in {
        "Timestamp": r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})",
        "Duration": r"-?[0-9]+(\.[0-9]{1,9})?s",
    }.items()
}
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/_-]{4})*(?:[A-Za-z0-9+/_-]{2}(?:==)?|[A-Za-z0-9+/_-]{3}=?)?")
_FREE: Final = frozenset(f"{_PROTOBUF}{name}" for name in ("Struct", "Value", "ListValue"))
_MANTISSA: Final = 1 << 53


def message_of(python_type: type[Message], row: dict[str, Any], form: Format) -> Message:
    """The message of a row; fields that it does not have are ignored.

    Args:
        python_type: its class.
        row: the row.
        form: where it comes from. In CSV all of it is text, and an empty text is no value for fields that take none; in Parquet numbers have types.

    Raises:
        ParseError: a field does not hold what is there.
    """
    descriptor = cast("Descriptor", python_type.DESCRIPTOR)
    message: Message = ParseDict(_read(descriptor, row, "", form), python_type(), ignore_unknown_fields=True)
    return message


def _read(kind: Descriptor, value: Any, path: str, form: Format) -> Any:  # noqa: ANN401 - JSON
    """JSON of a message, as its parser may have it."""
    if kind.full_name in _TEXTS:
        if isinstance(value, str) and not _TEXTS[kind.full_name].fullmatch(value):
            raise ParseError(
                f"field {path}: {value[:80]!r} is no {kind.name}. Expected RFC 3339, or seconds as in 1.5s."
            )
        return value
    if kind.full_name in _FREE:
        return _each(
            value, lambda number: _checked(path, exact_float, number) if type(number) is int else number
        )
    if not isinstance(value, dict):
        wrapped = kind.fields_by_name.get("value") if kind.full_name == f"{_PROTOBUF}{kind.name}" else None
        return value if wrapped is None else _one(wrapped, value, path, form)
    fields = {name: field for field in kind.fields for name in (field.name, field.json_name)}
    return {
        name: _field(fields[name], item, f"{path}.{name}" if path else name, form) if name in fields else item
        for name, item in value.items()
        if not (
            form == "csv"
            and item == ""
            and name in fields
            and fields[name].type != FieldDescriptor.TYPE_STRING
        )
    }


def _field(field: FieldDescriptor, value: Any, path: str, form: Format) -> Any:  # noqa: ANN401 - JSON
    message = field.message_type
    if message is not None and message.GetOptions().map_entry and isinstance(value, dict):
        key, item = (message.fields_by_name[name] for name in ("key", "value"))
        if key.cpp_type in _INTS:
            value = {str(_checked(path, parse_int, name)): item for name, item in value.items()}
        return {name: _one(item, content, f"{path}[...]", form) for name, content in value.items()}
    if field.is_repeated and isinstance(value, list):
        return [_one(field, item, path, form) for item in value]
    return _one(field, value, path, form)


def _one(field: FieldDescriptor, value: Any, path: str, form: Format) -> Any:  # noqa: ANN401, PLR0911 - JSON; a case for each kind
    if field.message_type is not None:
        return _read(field.message_type, value, path, form)
    kind = field.cpp_type
    if kind in _INTS:
        if isinstance(value, float) and abs(value) >= _MANTISSA:
            raise ParseError(
                f"field {path}: {value!r} was rounded before. Expected an int. Write its digits."
            )
        return _checked(path, parse_int, value) if isinstance(value, str) else value
    if kind in _BITS:
        return _float(value, _BITS[kind], path, form)
    if not isinstance(value, str):
        return value
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return _checked(path, parse_bool, value) if form == "csv" else value
    if field.enum_type is not None:
        return value if value in field.enum_type.values_by_name else _checked(path, parse_int, value)
    if field.type == FieldDescriptor.TYPE_BYTES and not _BASE64.fullmatch(value):
        raise ParseError(f"field {path}: {value[:80]!r} is no base64. Expected only characters of base64.")
    return value


def _float(value: Any, bits: int, path: str, form: Format) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str) and value not in _OWN_FLOATS:
        return _checked(path, lambda text: parse_float(text, bits), value)
    if type(value) is int or (form == "parquet" and type(value) is float):
        return _checked(path, lambda number: exact_float(number, bits), value)
    return value


def _checked(path: str, read: Callable[[Any], Any], value: Any) -> Any:  # noqa: ANN401 - JSON
    try:
        return read(value)
    except ValueError as error:
        raise ParseError(f"field {path}: {error}") from error


def _each(value: Any, check: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {name: _each(item, check) for name, item in value.items()}
    return [_each(item, check) for item in value] if isinstance(value, list) else check(value)
