"""Protobuf: messages of generated classes, under their full names."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache, partial
from typing import Any, ClassVar, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from sqe_chain.codecs.codec import Codec, Field, FieldKind, Shape, codec_name
from sqe_chain.codecs.protobuf_shape import misread, shape_of
from sqe_chain.errors import ConfigurationError

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
    return use_numbers(state, as_dict(state))


def use_numbers(message: Message, value: Any) -> Any:  # noqa: ANN401 - see as_dict
    """Protobuf's JSON of a message, with 64-bit integers as numbers; see `as_plain`."""
    return _use_numbers(cast("Descriptor", message.DESCRIPTOR), value)


def _use_numbers(kind: Descriptor, value: Any) -> Any:  # noqa: ANN401 - see as_dict
    if kind.full_name in _WRAPPERS:
        return int(value)
    if not isinstance(value, dict) or kind.full_name in _FREE:
        return value
    names = {field.name: field for field in kind.fields}
    return {
        name: _field_with_numbers(names[name], content) if name in names else content
        for name, content in value.items()
    }


def _field_with_numbers(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - see as_dict
    if isinstance(value, dict) and field.message_type and field.message_type.GetOptions().map_entry:
        values = field.message_type.fields_by_name["value"]
        return {key: _field_with_numbers(values, content) for key, content in value.items()}
    if isinstance(value, list) and field.is_repeated:
        return [_item_with_numbers(field, item) for item in value]
    return _item_with_numbers(field, value)


def _item_with_numbers(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - see as_dict
    if field.message_type is not None and value is not None:
        return _use_numbers(field.message_type, value)
    return int(value) if field.cpp_type in _LONG and isinstance(value, str) else value


M = TypeVar("M", bound=Message)

KINDS: dict[int, FieldKind] = {
    FieldDescriptor.CPPTYPE_INT32: "int32",
    FieldDescriptor.CPPTYPE_INT64: "int64",
    FieldDescriptor.CPPTYPE_UINT32: "uint32",
    FieldDescriptor.CPPTYPE_UINT64: "uint64",
    FieldDescriptor.CPPTYPE_FLOAT: "float32",
    FieldDescriptor.CPPTYPE_DOUBLE: "float64",
    FieldDescriptor.CPPTYPE_BOOL: "bool",
}
"""Numbers and booleans of protobuf, as every mapping to columns names them."""


class Protobuf(Codec[M]):
    """Messages of one generated class."""

    name: ClassVar[str] = "protobuf"
    content_type: ClassVar[str] = "application/protobuf"
    self_checking: ClassVar[bool] = True
    reads_back = True

    def __init__(self, python_type: type[M]) -> None:
        super().__init__(python_type)
        if not self.takes(python_type):
            raise ConfigurationError(f"codec 'protobuf' takes generated classes, not {python_type!r}")
        # Bound directly, without the detour through the methods below: both are called for every message.
        vars(self).update(
            encode=_encoder(cast("Hashable", python_type)),
            decode=python_type.FromString,
            decode_own=python_type.FromString,
        )

    def encode(self, value: M) -> bytes:
        """The same bytes for the same content."""
        return value.SerializeToString(deterministic=True)

    def decode(self, data: bytes) -> M:
        return self.python_type.FromString(data)

    @classmethod
    def takes(cls, python_type: type) -> bool:
        return issubclass(python_type, Message) and python_type is not Message

    @property
    def type_name(self) -> str:
        """The full name of the message."""
        name: str = self.python_type.DESCRIPTOR.full_name
        return name

    def copy(self, value: M) -> M:
        copy = self.python_type()
        copy.CopyFrom(value)
        return copy

    def encode_state(self, state: M, seen: set[int] | None = None) -> bytes:
        """Its bytes, unchecked: protobuf accepts only values that are read back unchanged, and copies what it is given."""
        del seen
        return self.encode(state)

    def check_state(self) -> str:
        """Every message can be a state."""
        return ""

    def to_json(self, value: M) -> Any:  # noqa: ANN401 - see Codec
        """Protobuf's JSON with 64-bit integers as numbers; see `as_plain`."""
        return as_plain(value)

    def to_view(self, value: M) -> Any:  # noqa: ANN401 - see Codec
        """Protobuf's JSON; see `as_dict`."""
        return as_dict(value)

    def fields(self) -> tuple[Field, ...]:
        """The fields of the .proto file."""
        known: Iterable[FieldDescriptor] = self.python_type.DESCRIPTOR.fields  # type: ignore[assignment]  # the stubs know two
        return tuple(map(_field, known))

    def shape(self, known: Mapping[str, str] | None = None) -> Shape:
        return shape_of(cast("Descriptor", self.python_type.DESCRIPTOR), known)

    def misread(self, was: str, shape: Mapping[str, str]) -> str:
        if codec_name(was) != self.name:
            return f"it was {was}, now it is the protobuf type {self.type_name}"
        return misread(shape, cast("Descriptor", self.python_type.DESCRIPTOR), was)


@cache
def _encoder(python_type: type[Message]) -> Callable[[Any], bytes]:
    """What serializes messages of a type: equal content gives equal bytes. Sorting maps costs as much again, so only types that may hold maps get it."""
    if _has_order(python_type.DESCRIPTOR, set()):
        return python_type.SerializeToString
    return partial(python_type.SerializeToString, deterministic=True)


def _has_order(descriptor: Any, seen: set[str]) -> bool:  # noqa: ANN401 - two kinds of descriptor
    """Whether neither a message type nor any type inside it holds maps, or extensions that may hold one."""
    # Seen, so looked at above: a type that holds itself adds nothing new.
    if descriptor.full_name in seen:
        return True
    seen.add(descriptor.full_name)
    if descriptor.is_extendable or descriptor.GetOptions().map_entry:
        return False
    return all(
        field.message_type is None or _has_order(field.message_type, seen) for field in descriptor.fields
    )


def _field(field: FieldDescriptor) -> Field:
    """Numbers, text and bytes as they are, enums by name, everything else as JSON."""
    name = field.name
    if field.is_repeated or field.message_type is not None:
        return Field(name, "other", lambda value: json.dumps(as_plain(value).get(name), ensure_ascii=False))
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        choices = tuple(name for _, name in sorted(names.items()))
        return Field(
            name, "enum", lambda value: names.get(getattr(value, name), str(getattr(value, name))), choices
        )
    text: FieldKind = "bytes" if field.type == FieldDescriptor.TYPE_BYTES else "text"
    kind = KINDS.get(field.cpp_type, text)
    if field.has_presence:
        return Field(name, kind, lambda value: getattr(value, name) if value.HasField(name) else None)
    return Field(name, kind, lambda value: getattr(value, name))
