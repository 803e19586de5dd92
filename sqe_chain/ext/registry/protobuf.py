"""Protobuf by a schema registry: messages of generated classes, each named by its place in the schema's file."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from sqe_chain.codecs.codec import Shape
from sqe_chain.codecs.protobuf import as_dict
from sqe_chain.codecs.protobuf_shape import misread, shape_of
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.registry.codec import Reader, RegistryCodec, SubjectName
from sqe_chain.ext.registry.frames import PREFIX_BYTES, Framing, path_bytes, path_in
from sqe_chain.ext.registry.schemas import Kind, WrittenSchema

M = TypeVar("M", bound=Message)

_WORDS: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[{};]|[A-Za-z_][\w.]*", re.DOTALL
)
_OWN_FILES: Final = "google/protobuf/"


class ProtobufSchema(RegistryCodec[M]):
    """Protobuf messages that name a schema of a registry.

    A record's message is found by its place in the schema's file. Is it another one than that of the class, the record is poison.

    Args:
        python_type: a generated class.
        schema: the .proto file, or its text, as the registry is to have it; by default the class's own descriptor.
        subject: how the subject of an output is named: by its "topic", by its "record", or "topic-record".
        framing: where records name their schema: in a "prefix" of the payload, in a "header", or "either" of them.
        auto_register: register the schema of an output at each start. By default a start ends where it is not registered.
        references: files that the .proto imports, other than Google's: name, subject, version.
        registry: address of a registry of its own; by default that of the service.

    Raises:
        ConfigurationError: it is no generated class, the file cannot be read, or an import has no reference.
    """

    name: ClassVar[str] = "protobuf-schema"
    content_type: ClassVar[str] = "application/protobuf"
    kind: ClassVar[Kind] = "PROTOBUF"
    self_checking: ClassVar[bool] = True
    # Payloads have numbers of fields only, and records are read without the schema's types.
    self_describing: ClassVar[bool] = False

    def __init__(
        self,
        python_type: type[M],
        *,
        schema: str | Path | None = None,
        subject: SubjectName = "topic",
        framing: Framing = "prefix",
        auto_register: bool = False,
        references: Sequence[tuple[str, str, int]] = (),
        registry: str | None = None,
    ) -> None:
        super().__init__(
            python_type,
            subject=subject,
            framing=framing,
            auto_register=auto_register,
            references=references,
            registry=registry,
        )
        if not issubclass(python_type, Message):
            raise ConfigurationError(
                f"ProtobufSchema({python_type.__qualname__}). Expected a generated class"
            )
        descriptor: Any = python_type.DESCRIPTOR
        text = _text_of(schema, descriptor.file)
        self.take_schema(schema, text)
        named_files = {known.name for known in self.references}
        missing = [
            file.name
            for file in descriptor.file.dependencies
            if file.name not in named_files and not file.name.startswith(_OWN_FILES)
        ]
        if missing:
            raise ConfigurationError(
                f"ProtobufSchema({python_type.__qualname__}): {descriptor.file.name} imports {', '.join(missing)}. Expected a reference for "
                "each. Give references=[(NAME, SUBJECT, VERSION)]"
            )
        self._full_name: str = descriptor.full_name
        self._path = _path_of(text, self._full_name)

    @property
    def type_name(self) -> str:
        """``protobuf-schema:`` and the full name of the message."""
        return f"{self.name}:{self._full_name}"

    def record_name(self) -> str:
        return self._full_name

    def path(self) -> tuple[int, ...]:
        return self._path

    def write(self, value: M) -> bytes:
        if not isinstance(value, self.python_type):
            raise TypeError(f"a {type(value).__qualname__}. Expected a {self.python_type.__qualname__}")
        return value.SerializeToString(deterministic=True)

    def reader_of(self, schema: WrittenSchema) -> Reader:
        places, parse = _places_in(schema.text), self.python_type.FromString
        begin = path_bytes(places[self._full_name]) if self._full_name in places else None

        def read_message(data: bytes, at: int) -> M:
            if begin is not None and data.startswith(begin, at):
                return parse(data[at + len(begin) :])
            path, _ = path_in(data, at)
            raise _another(path, places, self._full_name)

        return read_message

    def after_header(self, schema: WrittenSchema, rest: bytes) -> Reader:
        places, parse = _places_in(schema.text), self.python_type.FromString
        path, end = path_in(rest, 0)
        if places.get(self._full_name) != path or end != len(rest):
            raise _another(path, places, self._full_name)
        return lambda data, _: parse(data)

    def read_own(self, data: bytes, begin: int) -> M:
        at = begin + len(path_bytes(self._path)) if begin == PREFIX_BYTES else begin
        return self.python_type.FromString(data[at:])

    def to_json(self, value: M) -> Any:  # noqa: ANN401 - see Codec
        return as_dict(value)

    def shape(self, known: Mapping[str, str] | None = None) -> Shape:
        return shape_of(cast("Descriptor", self.python_type.DESCRIPTOR), known)

    def misread(self, was: str, shape: Mapping[str, str]) -> str:
        other = super().misread(was, shape)
        return other or misread(shape, cast("Descriptor", self.python_type.DESCRIPTOR), was.partition(":")[2])


def _another(path: tuple[int, ...], places: dict[str, tuple[int, ...]], wanted: str) -> ValueError:
    name = next(
        (name for name, place in places.items() if place == path), f"at {list(path)}, which it does not have"
    )
    return ValueError(f"the record is of message {name} of its schema. Expected {wanted}")


def _text_of(schema: str | Path | None, file: Any) -> str:  # noqa: ANN401 - protobuf's descriptor has no type of its own
    if schema is None:
        return b64encode(file.serialized_pb).decode()  # as Confluent's serializer registers it
    try:
        return schema.read_text(encoding="utf-8") if isinstance(schema, Path) else schema
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"ProtobufSchema(schema={schema}) cannot be read: {error}. Expected a .proto file"
        ) from error


def _path_of(text: str, full_name: str) -> tuple[int, ...]:
    places = _places_in(text)
    if full_name not in places:
        known = ", ".join(places) or "none"
        raise ConfigurationError(
            f"the schema has no message {full_name}. Expected one of its messages: {known}"
        )
    return places[full_name]


def _places_in(text: str) -> dict[str, tuple[int, ...]]:
    """Full name of each message of a file -> its place: of a .proto as text, or of a descriptor in base 64."""
    try:
        file = FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (NoBase64, ValueError, DecodeError):
        return dict(_places_in_proto(text))
    return dict(_places_of(file.message_type, file.package, ()))


def _places_of(
    messages: Iterable[DescriptorProto], scope: str, place: tuple[int, ...]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for number, message in enumerate(messages):
        name = f"{scope}.{message.name}" if scope else message.name
        yield name, (*place, number)
        yield from _places_of(message.nested_type, name, (*place, number))


def _places_in_proto(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same by the text of a .proto: only `package`, `message` and braces matter."""
    words = [word for word in _WORDS.findall(text) if not word.startswith(("//", "/*", '"', "'"))]
    # Names of the messages around, None for any other braces; and how many messages each of them has had.
    package, scopes, counts = "", list[str | None](), [0]
    for number, word in enumerate(words):
        before = words[max(number - 3, 0) : number]
        if word == ";" and before[-2:-1] == ["package"]:
            package = before[-1]
        elif word == "{":
            begins = len(before) < 3 or before[0] in {"{", "}", ";"}  # noqa: PLR2004 - `message`, its name, and what is before
            if begins and before[-2:-1] == ["message"] and None not in scopes:
                scopes.append(before[-1])
                yield ".".join(filter(None, (package, *scopes))), tuple(counts)
                counts.append(0)
            else:
                scopes.append(None)
        elif word == "}" and scopes and scopes.pop() is not None:
            counts.pop()
            counts[-1] += 1
