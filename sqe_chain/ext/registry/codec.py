"""What all codecs of a schema registry have in common: which schema a record names, and the id under which one is written."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from sqe_chain.codecs.codec import Codec, Place, RecordHeaders, codec_name
from sqe_chain.errors import ChangedType, ConfigurationError
from sqe_chain.ext.registry import frames
from sqe_chain.ext.registry.address import RegistryAddress, parse_registry
from sqe_chain.ext.registry.client import open_registry
from sqe_chain.ext.registry.frames import Framing
from sqe_chain.ext.registry.schemas import (
    Kind,
    Reference,
    Registry,
    SchemaId,
    UnknownSchema,
    WrittenSchema,
)

Value = TypeVar("Value")
SubjectName = Literal["topic", "record", "topic-record"]
"""How the subject of an output is named: ``orders-value``, ``shop.Order``, or ``orders-shop.Order``."""
Reader = Callable[[bytes, int], Any]
"""Takes a record's bytes, and where those of the value begin."""
_FRAMINGS = ("prefix", "header", "either")
_SUBJECTS = ("topic", "record", "topic-record")
_MOST_MET = 100
"""Schemas of a topic that are noted."""


class RegistryCodec(Codec[Value]):
    """A codec whose payloads name a schema of a registry.

    Reading asks the registry once for each schema, in each process. Writing asks at the start, and notes the id in the flow's plans.
    While the registry does not answer, the service waits. A record is poison if the registry answers that it has no such schema.

    Attributes:
        registry: the address that this codec was given; None: that of the service.
        subject_name: how the subject of an output is named.
        framing: where records name their schema.
        auto_register: whether a start registers the schema of an output.
        references: schemas that the written one names.
    """

    wants_registry: ClassVar[bool] = True
    self_describing: ClassVar[bool] = True
    kind: ClassVar[Kind]
    _schema: WrittenSchema

    def __init__(
        self,
        python_type: type[Value],
        *,
        subject: SubjectName = "topic",
        framing: Framing = "prefix",
        auto_register: bool = False,
        references: Sequence[tuple[str, str, int]] = (),
        registry: str | None = None,
    ) -> None:
        super().__init__(python_type)
        own = type(self).__name__
        if subject not in _SUBJECTS:
            raise ConfigurationError(f"{own}(subject={subject!r}). Expected one of: {', '.join(_SUBJECTS)}")
        if framing not in _FRAMINGS:
            raise ConfigurationError(f"{own}(framing={framing!r}). Expected one of: {', '.join(_FRAMINGS)}")
        self.subject_name, self.framing, self.auto_register = subject, framing, auto_register
        self.references = tuple(Reference(*named) for named in references)
        self.registry: RegistryAddress | None = None if registry is None else parse_registry(registry)
        self._place: Place | None = None
        # Bytes before a payload, and what a header holds -> what reads it; filled as schemas are met.
        self._readers: dict[bytes, Reader] = {}
        self._by_header: dict[bytes, Reader] = {}
        # Names under which schemas are noted that it has met, and reads -> their ids or GUIDs.
        self._met: dict[str, str] = {}
        self._written_as: tuple[bytes, RecordHeaders] | None = None
        vars(self).update(wants_headers=framing != "prefix", writes_headers=framing == "header")

    def at(self, place: Place) -> Self:
        """The codec for a topic, with what it has looked up of its own."""
        if place.writes and (why := self.can_write()):
            raise ConfigurationError(why)
        own = copy.copy(self)  # made by its constructor
        vars(own).update(_place=place, _readers={}, _by_header={}, _met={}, _written_as=None)
        return own

    def take_schema(self, given: object, text: str) -> None:
        """Write by this schema.

        Args:
            given: as the constructor was given it. Other processes get the text of a file.
            text: of it.
        """
        if isinstance(given, Path):
            self.create_again_with(schema=text)
        self._schema = WrittenSchema(self.kind, text, self.references)

    def create_again_with(self, **named: Any) -> None:  # noqa: ANN401 - as the constructor takes them
        """Let other processes create the codec with these settings: they may not have a file that this one has read."""
        settings, known = self._made_with
        self._made_with = settings, {**known, **named}

    # ------------------------------------------------------------------ for each kind of schema

    @abstractmethod
    def reader_of(self, schema: WrittenSchema) -> Reader:
        """What reads payloads that were written by a schema; of Protobuf, from the message's place on."""

    @abstractmethod
    def record_name(self) -> str:
        """The full name of the written schema's type, for subjects."""

    @abstractmethod
    def write(self, value: Value) -> bytes:
        """The payload of a value, without id."""

    @abstractmethod
    def read_own(self, data: bytes, begin: int) -> Value:
        """What `write` has written."""

    def written_schema(self) -> WrittenSchema:
        """The schema by which values are written."""
        return self._schema

    def why_unread(self, schema: WrittenSchema) -> str:
        """Why it does not read all records of a schema, with the field and both its types; empty: it does, or nobody can know."""
        del schema
        return ""

    def can_write(self) -> str:
        """Why it cannot write, as an error's text; empty: it can."""
        return "" if self._schema.text else f"{self!r} has no schema to write by. Expected one. Give schema="

    def path(self) -> tuple[int, ...] | None:
        """The place of the written message in its file; None: its kind of schema has no such place."""
        return None

    # ------------------------------------------------------------------ reading

    def decode(self, data: bytes) -> Value:
        """The value of a payload with a prefix.

        Raises:
            ValueError: it names no schema, or is not what its schema describes.
            UnknownSchema: the registry does not have that schema.
            Unavailable: the registry does not answer.
        """
        begin = frames.PREFIX_BYTES
        read = self._readers.get(data[:begin])
        if read is None:
            own_id = str(frames.number_in(data))
            schema = self._schema_of(own_id)
            read = self._readers[data[:begin]] = self.reader_of(schema)
            self._meet(own_id, schema)
        return read(data, begin)  # type: ignore[no-any-return]

    def decode_with(self, data: bytes, headers: RecordHeaders) -> Value:
        """The value of a record whose header names the schema; with framing "either", or whose payload does."""
        named = frames.header_of(headers)
        if named is None:
            if self.framing == "either":
                return self.decode(data)
            raise ValueError(f"no header {frames.HEADER}. Expected it, as framing='header' declares")
        read = self._by_header.get(named)
        if read is None:
            if named[:1] == b"\0":
                own_id, rest = str(frames.number_in(named)), named[frames.PREFIX_BYTES :]
            else:
                own_id, rest = frames.guid_in(named)
            schema = self._schema_of(own_id)
            read = self._by_header[named] = self.after_header(schema, rest)
            self._meet(own_id, schema)
        return read(data, 0)  # type: ignore[no-any-return]

    def met(self) -> Mapping[str, str]:
        """The schemas that it has met, and reads."""
        return self._met

    def _meet(self, own_id: str, schema: WrittenSchema) -> None:
        # What it does not read is not noted: such records may be in the topic for other readers.
        if self._place is not None and len(self._met) < _MOST_MET and not self.why_unread(schema):
            self._met[f"{self._met_name()}{own_id}"] = own_id

    def _met_name(self) -> str:
        """The beginning of names under which schemas are noted that were met: those of another registry have other ids."""
        topic = "" if self._place is None else self._place.topic
        return f"{self.name} read {topic} {self._address().url} "

    def _check_met(self, own_id: str) -> None:
        """Check that it reads the records of a schema that was met, and read.

        Raises:
            ChangedType: it does not.
        """
        try:
            why = self.why_unread(self._schema_of(own_id))
        except (UnknownSchema, ValueError):
            return  # its records are poison now
        if why:
            topic = "" if self._place is None else self._place.topic
            raise ChangedType(
                f"topic {topic!r} has records of schema {own_id}, which {self.python_type.__qualname__} does not read any more: {why}. Expected "
                "a type that reads them, too. Give a new field a default, and name a renamed one as an alias in schema=. If no such records "
                "are to be read any more, use sqe-chain rebuild: it reads the whole topic with the new type"
            ).at(topic)

    def misread(self, was: str, shape: Mapping[str, str]) -> str:
        """Whether it was read by another codec: what records hold is compared by their schemas, see `prepare`."""
        del shape
        return "" if codec_name(was) == self.name else f"it was {was}, now it is {self.type_name}"

    def after_header(self, schema: WrittenSchema, rest: bytes) -> Reader:
        """What reads payloads whose header names their schema, and has more bytes after it."""
        if rest:
            raise ValueError(f"header {frames.HEADER} has {len(rest)} bytes after the id. Expected none")
        return self.reader_of(schema)

    def decode_own(self, data: bytes) -> Value:
        return self.read_own(data, 0 if self.framing == "header" else frames.PREFIX_BYTES)

    def copy(self, value: Value) -> Value:
        return self.read_own(self.write(value), 0)

    def _schema_of(self, own_id: str) -> WrittenSchema:
        """The schema with an id, or GUID. Raises UnknownSchema, or ValueError: it is of another kind."""
        registry = self._registry()
        schema = registry.by_guid(own_id) if "-" in own_id else registry.by_number(int(own_id))
        if schema.kind != self.kind:
            raise ValueError(
                f"schema {own_id} of the registry is of kind {schema.kind}. Expected {self.kind}, which {type(self).__name__} reads"
            )
        return schema

    def texts_of(self, schema: WrittenSchema) -> dict[str, str]:
        """The texts of all schemas that a schema names, and those that they name: name -> text, those first that name no others."""
        texts: dict[str, str] = {}
        pending = [*schema.references]
        while pending:
            known = pending[-1]
            named = self._registry().version(known.subject, known.version)
            missing = [
                other for other in named.references if other.name not in texts and other not in pending
            ]
            if not missing:
                texts[known.name] = named.text
                pending.pop()
            pending += missing
        return texts

    # ------------------------------------------------------------------ writing

    def encode(self, value: Value) -> bytes:
        if self._written_as is None:
            self._written_as = self._framed(self._note())
        return self._written_as[0] + self.write(value)

    def headers(self) -> RecordHeaders:
        if self._written_as is None:
            self._written_as = self._framed(self._note())
        return self._written_as[1]

    def prepare(self, notes: Mapping[str, str]) -> Mapping[str, str]:
        """Find the id of what is written. Of what is read: whether the registry takes the login, and whether records can still be read."""
        registry = self._registry()
        if self._place is None or not self._place.writes:
            registry.ping()
            begin = self._met_name()
            met = {name: note for name, note in notes.items() if name.startswith(begin)}
            for note in met.values():
                self._check_met(note)
            return met
        name = self._note_name()
        return {name: notes.get(name) or self._ask(registry)}

    def subject(self) -> str:
        """The subject in which the schema of this output is."""
        topic = "" if self._place is None else self._place.topic
        if self.subject_name == "record":
            return self.record_name()
        return f"{topic}-value" if self.subject_name == "topic" else f"{topic}-{self.record_name()}"

    def registered(self) -> SchemaId:
        """The id of the written schema in its subject. Raises UnknownSchema."""
        return self._registry().find(self.subject(), self.written_schema())

    def register(self) -> SchemaId:
        """Register the written schema, unless its subject has it. Raises Incompatible."""
        return self._registry().register(self.subject(), self.written_schema())

    def why_incompatible(self) -> str:
        """Why its subject would not take the written schema; empty: it would."""
        return self._registry().why_incompatible(self.subject(), self.written_schema())

    def _framed(self, noted: str) -> tuple[bytes, RecordHeaders]:
        """What is written before a payload, and in its headers."""
        number, _, guid = noted.partition(" ")
        place = self.path()
        path = b"" if place is None else frames.path_bytes(place)
        if self.framing == "header":
            return b"", (frames.guid_header(guid, path),)
        return frames.prefix(int(number)) + path, ()

    def _note(self) -> str:
        """What was noted at the start; where no start was, as in a test of a codec, what the registry answers now."""
        known = {} if self._place is None else self._place.notes
        return known.get(self._note_name()) or self._ask(self._registry())

    def _note_name(self) -> str:
        """The name of what is noted: another schema, subject or registry has another id."""
        schema = self.written_schema()
        url = self._address().url
        return f"{self.name} {digest_of(schema)} {self.subject()} {url}"

    def _ask(self, registry: Registry) -> str:
        own_id = self._find(registry)
        if self.framing == "header" and not own_id.guid:
            raise ConfigurationError(
                f"the schema registry has no GUID for subject {self.subject()!r}. Expected a registry with GUIDs, as framing='header' needs. "
                "Write with framing='prefix'"
            )
        return f"{own_id.number} {own_id.guid}".strip()

    def _find(self, registry: Registry) -> SchemaId:
        subject = self.subject()
        if self.auto_register:
            return registry.register(subject, self.written_schema())
        try:
            return registry.find(subject, self.written_schema())
        except UnknownSchema as error:
            raise ConfigurationError(
                f"subject {subject!r} does not have the schema that is written here ({error}). Expected a registered one. Register it "
                "with `sqe-chain schemas register MODULE:FLOW`"
            ) from error

    def _registry(self) -> Registry:
        return open_registry(self._address())

    def _address(self) -> RegistryAddress:
        address = self.registry or (None if self._place is None else self._place.registry)
        if address is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs a schema registry, and the service has none. Expected its address. Give --registry "
                "registry://HOST:PORT, or set SQE_CHAIN_REGISTRY"
            )
        return address

    def check_state(self) -> str:
        """Values with a registry's schemas cannot be states: a store has no place for the schema's id."""
        return f"codec {self.name!r} needs a registry to be read; give the state another codec"


def read_schema(codec: str, schema: str | Path | Mapping[str, Any]) -> tuple[str, Any]:
    """A schema that a codec was given: its text, and what that is as JSON.

    Args:
        codec: its name, for errors.
        schema: as JSON text, as JSON in Python, or a file of it.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        text = schema.read_text(encoding="utf-8") if isinstance(schema, Path) else schema
        read = json.loads(text) if isinstance(text, str) else text
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{codec}(schema=...) cannot be read: {error}. Expected JSON, or a file of it"
        ) from error
    return text if isinstance(text, str) else json.dumps(text), read


def digest_of(schema: WrittenSchema) -> str:
    """A short name of a schema and its references."""
    return blake2b(repr(schema).encode(), digest_size=8).hexdigest()
