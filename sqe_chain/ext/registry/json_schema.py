"""JSON by a schema registry: the same JSON as everywhere, with the id of its schema, and checked by it on request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from sqe_chain.codecs.json_codec import Json
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.registry.codec import Reader, RegistryCodec, SubjectName, read_schema
from sqe_chain.ext.registry.frames import Framing
from sqe_chain.ext.registry.schemas import Kind, WrittenSchema
from sqe_chain.wings import needing

Value = TypeVar("Value")
Check = Callable[[bytes], object]
_DIALECT: Final = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
"""That of msgspec. Apicurio does not recognise a schema without."""


class JsonSchema(RegistryCodec[Value]):
    """JSON that names a JSON Schema of a registry.

    Args:
        python_type: as `source` takes it: a dataclass, a struct, dict, ...
        schema: the JSON Schema, as text, as JSON in Python, or a file; by default it is made of the class. A dict can be read without.
        validate: check each record by the schema that it names, and each value by the written one. Without, the types of the class are
            checked alone.
        subject: how the subject of an output is named: by its "topic", by its "record" (the schema's `title`), or "topic-record".
        framing: where records name their schema: in a "prefix" of the payload, in a "header", or "either" of them.
        auto_register: register the schema of an output at each start. By default a start ends where it is not registered.
        references: schemas that `schema` names: name, subject, version. They cannot be validated.
        registry: address of a registry of its own; by default that of the service.

    Raises:
        ConfigurationError: JSON cannot express the class, the schema is none, or a package is missing.
    """

    name: ClassVar[str] = "json-schema"
    content_type: ClassVar[str] = "application/json"
    kind: ClassVar[Kind] = "JSON"

    def __init__(
        self,
        python_type: type[Value],
        *,
        schema: str | Path | Mapping[str, Any] | None = None,
        validate: bool = False,
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
        self._json = Json(python_type)
        self._validate = validate
        text = _text_of(schema, python_type)
        self.take_schema(schema, text)
        self._check: Check | None = _check_of(self._schema) if validate and text else None
        self.is_exact = self._json.is_exact
        self.settle = self._json.settle

    @property
    def type_name(self) -> str:
        """``json-schema:`` and the name of the class; of plain values without a name."""
        return f"{self.name}:{self._json.type_name.partition(':')[2]}"

    def record_name(self) -> str:
        return str(json.loads(self._schema.text).get("title", self.python_type.__name__))

    def write(self, value: Value) -> bytes:
        """The JSON of a value.

        Raises:
            TypeError, ValueError: JSON cannot express it, or the schema does not allow it.
        """
        data = self._json.encode(value)
        if self._check is not None:
            self._check(data)
        return data

    def reader_of(self, schema: WrittenSchema) -> Reader:
        check, read = _check_of(schema) if self._validate else None, self._json.decode

        def read_json(data: bytes, begin: int) -> Any:  # noqa: ANN401 - a value
            payload = data[begin:]
            if check is not None:
                check(payload)
            return read(payload)

        return read_json

    def read_own(self, data: bytes, begin: int) -> Value:
        return self._json.decode_own(data[begin:])

    def to_json(self, value: Value) -> Any:  # noqa: ANN401 - see Codec
        return self._json.to_json(value)


def _check_of(schema: WrittenSchema) -> Check:
    """What checks JSON by a schema.

    Raises:
        ConfigurationError: there is no package for it, or the schema refers to others.
    """
    if schema.references:
        raise ConfigurationError(
            "JsonSchema(validate=True): the schema refers to others. Expected one without references. Leave validate out"
        )
    with needing("JsonSchema(validate=True)", "registry"):
        import fastjsonschema  # noqa: PLC0415 - when it is asked for

    validate = fastjsonschema.compile(json.loads(schema.text), use_default=False)

    def check(payload: bytes) -> None:
        try:
            validate(msgspec.json.decode(payload))
        except fastjsonschema.JsonSchemaValueException as error:
            raise ValueError(
                f"it is not what its JSON Schema allows: rule {error.rule} of {error.name}"
            ) from None

    return check


def _text_of(schema: str | Path | Mapping[str, Any] | None, python_type: type) -> str:
    """The schema as text; empty: there is none."""
    if schema is None:
        plain = python_type in (dict, list, object)
        return "" if plain else json.dumps(_DIALECT | msgspec.json.schema(python_type), sort_keys=True)
    text, read = read_schema("JsonSchema", schema)
    if not isinstance(read, Mapping):
        raise ConfigurationError('JsonSchema(schema=...) is no schema. Expected {"type": "object", ...}')
    return text
