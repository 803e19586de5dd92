"""What a schema registry holds, and what codecs ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from sqe_chain.errors import ConfigurationError

Kind = Literal["AVRO", "PROTOBUF", "JSON"]
"""Kinds of schemas, by their names in registries."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one names.

    Attributes:
        name: as the other one names it: a full name in Avro, an import in Protobuf.
        subject: where it is registered.
        version: its version there.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """A schema as a registry has it.

    Attributes:
        kind: AVRO, PROTOBUF or JSON.
        text: the schema.
        references: those that it names.
    """

    kind: Kind
    text: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaId:
    """How records name a schema.

    Attributes:
        number: its id in one registry, 0 to 2^31 - 1.
        guid: its id in all registries: 32 hexadecimal digits with dashes; empty: the registry has none.
    """

    number: int
    guid: str = ""


class UnknownSchema(LookupError):
    """The registry has answered that it has no such schema, subject or version."""


class Incompatible(ConfigurationError):
    """A subject does not take a schema: by its rule, readers or writers of other versions could not use it."""


class Registry(Protocol):
    """What codecs and commands ask. Any call raises `Unavailable` if the registry does not answer."""

    def by_number(self, number: int) -> WrittenSchema:
        """The schema with this id. Raises UnknownSchema."""

    def by_guid(self, guid: str) -> WrittenSchema:
        """The schema with this GUID. Raises UnknownSchema."""

    def version(self, subject: str, version: int) -> WrittenSchema:
        """A version of a subject. Raises UnknownSchema."""

    def find(self, subject: str, schema: WrittenSchema) -> SchemaId:
        """The id of a schema that a subject has. Raises UnknownSchema."""

    def register(self, subject: str, schema: WrittenSchema) -> SchemaId:
        """Register a schema, unless the subject has it; raises Incompatible."""

    def why_incompatible(self, subject: str, schema: WrittenSchema) -> str:
        """Why a subject would not take a schema as its next version; empty: it would, or there is no such subject."""

    def ping(self) -> None:
        """Find out whether it answers, and takes the login. Raises ConfigurationError if it refuses."""
