"""Protobuf's JSON of messages, for people and for programs without protobuf.

It is protobuf's own JSON mapping with the field names of the .proto: 64-bit integers are strings, bytes are
base64, fields without presence are included even when they are 0 or empty.
"""

from __future__ import annotations

from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

_LONG = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_FREE = ("google.protobuf.Any", "google.protobuf.Struct", "google.protobuf.Value")
"""Types whose JSON is not made of their own fields."""
_WRAPPERS = ("google.protobuf.Int64Value", "google.protobuf.UInt64Value")


def as_dict(state: Message) -> Any:  # noqa: ANN401 - the JSON of some of protobuf's own types is no object
    """A state in protobuf's JSON mapping, with the field names of the .proto."""
    return MessageToDict(state, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def as_plain(state: Message) -> Any:  # noqa: ANN401 - see as_dict
    """`as_dict` with 64-bit integers as numbers instead of text, also inside messages, lists and maps.

    Keys of maps stay text, and so does the content of protobuf's own types (Any, Struct, Timestamp, Duration). Readers
    whose numbers are doubles (JavaScript) lose digits beyond 2**53.
    """
    return numbered(state, as_dict(state))


def numbered(message: Message, value: Any) -> Any:  # noqa: ANN401 - see as_dict
    """Protobuf's JSON of a message, with 64-bit integers as numbers; see `as_plain`."""
    return _numbered(cast("Descriptor", message.DESCRIPTOR), value)


def _numbered(kind: Descriptor, value: Any) -> Any:  # noqa: ANN401 - see as_dict
    if kind.full_name in _WRAPPERS:
        return int(value)
    if not isinstance(value, dict) or kind.full_name in _FREE:
        return value
    found = dict(value)
    for field in kind.fields:
        if field.name in found:
            found[field.name] = _field_numbered(field, found[field.name])
    return found


def _field_numbered(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - see as_dict
    if isinstance(value, dict) and field.message_type and field.message_type.GetOptions().map_entry:
        values = field.message_type.fields_by_name["value"]
        return {key: _field_numbered(values, one) for key, one in value.items()}
    if isinstance(value, list) and field.is_repeated:
        return [_one_numbered(field, one) for one in value]
    return _one_numbered(field, value)


def _one_numbered(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - see as_dict
    if field.message_type is not None and value is not None:
        return _numbered(field.message_type, value)
    return int(value) if field.cpp_type in _LONG and isinstance(value, str) else value
