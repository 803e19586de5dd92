"""Avro by a schema registry: records as dataclasses, structs or dicts."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID

import msgspec

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.registry.avro_samples import samples_of
from sqe_chain.ext.registry.avro_text import flat_reader, is_plain
from sqe_chain.ext.registry.avro_types import avro_schema_of
from sqe_chain.ext.registry.codec import Reader, RegistryCodec, SubjectName, read_schema
from sqe_chain.ext.registry.frames import Framing
from sqe_chain.ext.registry.schemas import Kind, WrittenSchema
from sqe_chain.wings import needing

Value = TypeVar("Value")
_PASSED: Final = (bytes, datetime, date, time, Decimal, UUID)
"""Types that both sides know: neither text nor numbers are made of them."""
_LONGEST: Final = 500
"""Characters of a failure: its library names whole schemas."""


class Avro(RegistryCodec[Value]):
    """Avro records that name a schema of a registry.

    Fields are found by their names. A field that the record does not have gets the class's default, and what the class does not have is
    ignored. With `schema`, Avro's own rules come first: it is the reader's schema, with its defaults and aliases.

    Args:
        python_type: a dataclass, a `msgspec.Struct`, or dict.
        schema: the Avro schema, as JSON text, as JSON in Python, or a file of it (.avsc). By default it is made of the class. It is what is
            written; a dict can be read without.
        namespace: of a schema that is made of the class.
        subject: how the subject of an output is named: by its "topic", by its "record", or "topic-record".
        framing: where records name their schema: in a "prefix" of the payload, in a "header", or "either" of them.
        auto_register: register the schema of an output at each start. By default a start ends where it is not registered.
        references: schemas that `schema` names: full name, subject, version.
        registry: address of a registry of its own; by default that of the service.

    Raises:
        ConfigurationError: the class cannot be expressed, the schema is none, or fastavro is not installed.
    """

    name: ClassVar[str] = "avro"
    content_type: ClassVar[str] = "application/vnd.apache.avro"
    kind: ClassVar[Kind] = "AVRO"

    def __init__(
        self,
        python_type: type[Value],
        *,
        schema: str | Path | Mapping[str, Any] | None = None,
        namespace: str = "",
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
        with needing("Avro", "registry"):
            import fastavro  # noqa: PLC0415 - when it is asked for

        self._fastavro = fastavro
        if not (python_type is dict or is_dataclass(python_type) or issubclass(python_type, msgspec.Struct)):
            raise ConfigurationError(
                f"Avro({python_type.__qualname__}). Expected a dataclass, a struct or dict"
            )
        text = _text_of(schema, python_type, namespace)
        self.take_schema(schema, text)
        self.has_reader_schema = schema is not None
        # Its library writes numbers beyond 32 bits into an int, which other languages do not read.
        self._has_ints = '"int"' in text or bool(self.references)
        self._parsed: Any = None
        self.is_exact = _always  # what `write` has read back
        self.reads_default = python_type is not dict and is_plain(python_type)

    @property
    def type_name(self) -> str:
        """``avro:`` and the name of the class; of a dict, of its schema's record."""
        if self.python_type is not dict:
            return super().type_name
        return f"{self.name}:{self.record_name().rpartition('.')[2] if self._schema.text else ''}"

    def record_name(self) -> str:
        return _full_name(json.loads(self._schema.text))

    def reader_of(self, schema: WrittenSchema) -> Reader:
        writer, reader = self._parse(schema), self._written() if self.has_reader_schema else None
        read, python_type = self._fastavro.schemaless_reader, self.python_type
        if reader is None and python_type is not dict and not schema.references:
            flat = flat_reader(json.loads(schema.text), python_type)
            if flat is not None:
                return flat

        def read_record(data: bytes, begin: int) -> Any:  # noqa: ANN401 - a value
            stream = BytesIO(data)
            stream.seek(begin)
            record = read(stream, writer, reader)
            if stream.tell() != len(data):
                raise ValueError(f"{len(data) - stream.tell()} bytes after an Avro record. Expected none")
            return record if python_type is dict else _made(record, python_type)

        return read_record

    def why_unread(self, schema: WrittenSchema) -> str:
        """Why it does not read all records of a schema: records with each branch of its unions and each symbol are tried."""
        parsed = self._parse(schema)
        try:
            samples = samples_of(parsed, parsed.get("__named_schemas", {}))
        except ValueError:
            return ""  # nobody can write such a record
        read = self.reader_of(schema)
        for sample in samples:
            try:
                read(sample, 0)
            except Exception as error:  # noqa: BLE001 - the class may raise anything
                return self._why(parsed, sample, error)
        return ""

    def _why(self, writer: Any, sample: bytes, error: Exception) -> str:  # noqa: ANN401 - a parsed schema
        """A failure, with the field of the record that has failed."""
        if not self.has_reader_schema:
            return shorten(str(error), _LONGEST)
        whole = self._written()
        for name, fields in (("", []), *((field["name"], [field]) for field in whole["fields"])):
            try:
                self._fastavro.schemaless_reader(BytesIO(sample), writer, {**whole, "fields": fields})
            except Exception as own:  # noqa: BLE001 - it has failed before
                if name:
                    return f"field {name!r}: {shorten(str(own), _LONGEST)}"
                return f"record {writer['name']!r} is not {whole['name']!r}, nor one of its aliases"
        return shorten(str(error), _LONGEST)

    def write(self, value: Value) -> bytes:
        """The record of a value, read back.

        Raises:
            TypeError: it has another type.
            ValueError: the schema does not express it: it would be read back as another one.
        """
        if not isinstance(value, self.python_type):
            raise TypeError(f"a {type(value).__qualname__}. Expected a {self.python_type.__qualname__}")
        # The same order of a dict's keys in every attempt.
        given = msgspec.to_builtins(value, builtin_types=_PASSED, order="deterministic")
        stream, schema = BytesIO(), self._written()
        if self._has_ints:
            self._fastavro.validate(given, schema)
        self._fastavro.schemaless_writer(stream, schema, given)
        data = stream.getvalue()
        back = self._fastavro.schemaless_reader(BytesIO(data), schema, None)
        if back != given and not _is_same(given, back):
            raise ValueError(
                "it would be read back as another record. Expected all fields of the schema and no others, numbers and times that it holds "
                "exactly, and times with a zone"
            )
        return data

    def read_own(self, data: bytes, begin: int) -> Value:
        stream = BytesIO(data)
        stream.seek(begin)
        record: Any = self._fastavro.schemaless_reader(stream, self._written(), None)
        return record if self.python_type is dict else _made(record, self.python_type)

    def _written(self) -> Any:  # noqa: ANN401 - a parsed schema
        if self._parsed is None:
            self._parsed = self._parse(self._schema)
        return self._parsed

    def _parse(self, schema: WrittenSchema) -> Any:  # noqa: ANN401 - a parsed schema
        named: dict[str, Any] = {}
        for text in self.texts_of(schema).values():
            self._fastavro.parse_schema(json.loads(text), named_schemas=named)
        return self._fastavro.parse_schema(json.loads(schema.text), named_schemas=named)


def _made(record: Any, python_type: type[Value]) -> Value:  # noqa: ANN401 - what Avro has read
    return msgspec.convert(record, python_type, builtin_types=_PASSED)


def _always(value: object) -> bool:
    del value
    return True


def _text_of(schema: str | Path | Mapping[str, Any] | None, python_type: type, namespace: str) -> str:
    """The schema as text; empty: there is none."""
    if schema is None:
        return "" if python_type is dict else json.dumps(avro_schema_of(python_type, namespace))
    if namespace:
        raise ConfigurationError(
            "Avro(schema=..., namespace=...). Expected one: the schema has its own namespace"
        )
    text, read = read_schema("Avro", schema)
    if not isinstance(read, Mapping) or read.get("type") != "record" or not isinstance(read.get("name"), str):
        raise ConfigurationError(
            'Avro(schema=...) is no record. Expected {"type": "record", "name": ..., "fields": ...}'
        )
    return text


def _full_name(schema: Mapping[str, Any]) -> str:
    name, namespace = schema["name"], schema.get("namespace", "")
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _is_same(given: Any, back: Any) -> bool:  # noqa: ANN401 - any values
    """Whether a value is what was given, but for the digits that a float of four bytes does not have."""
    if isinstance(given, dict) and isinstance(back, dict):
        return given.keys() == back.keys() and all(_is_same(given[name], back[name]) for name in given)
    if isinstance(given, list | tuple) and isinstance(back, list):
        return len(given) == len(back) and all(map(_is_same, given, back))
    if type(given) is float and type(back) is float:
        return given == back or (given != given and back != back) or _short(given) == back  # noqa: PLR0124 - NaN
    return bool(given == back)


def _short(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return number
