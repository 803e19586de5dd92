"""The codec port: how values of one Python type are encoded in messages, states and shuffles."""

from __future__ import annotations

import copyreg
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

Value = TypeVar("Value")

Shape = dict[str, str]
"""Name of a type -> its fields, as text. Plans store it, to detect later how the type has changed."""

FieldKind = Literal[
    "bool", "int32", "int64", "uint32", "uint64", "float32", "float64", "text", "bytes", "enum", "other"
]
"""Kind of a field, for tables and comparisons."""


Role = Literal["key", "value"]
"""Which part of a record holds what a codec encodes."""

RecordHeaders = Sequence[tuple[str, bytes | None]]
"""Headers of a record, in their order; names may repeat."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a codec's bytes are: see `Codec.at`. Schema registries make the name of a subject of it.

    Attributes:
        topic: name of the topic.
        role: the part of its records. A flow's sources and outputs have codecs of values; their keys are bytes.
        writes: whether the flow writes there.
        registry: the service's schema registry, as a codec that `wants_registry` can open it; None: the service has none.
        notes: what codecs have noted, see `Codec.prepare` and `Codec.met`. Invariant: what is noted at a start does not change until the next.
    """

    topic: str
    role: Role = "value"
    writes: bool = False
    registry: Any = field(default=None, repr=False, compare=False)
    notes: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a type, for tables and for conditions on states.

    Attributes:
        name: its name.
        kind: its kind; "other": lists, maps, messages and everything else.
        of: takes a value of the type, returns the content of the field: a number, text, bytes; for "enum" its name;
            for "other" its JSON.
        choices: the names of an enum.
    """

    name: str
    kind: FieldKind
    of: Callable[[Any], object]
    choices: tuple[str, ...] = ()


class Codec(ABC, Generic[Value]):
    """Encodes and decodes the values of one Python type.

    A codec of your own is a subclass with a `name`, `encode` and `decode`. Register it with `register`, or by an entry point of
    the group ``sqe_chain.codecs``. Where it is named, or found by a type, it is created as ``CodecClass(python_type)``.

    A constructor may take more, for codecs that are given as objects. Other processes create the codec again with the same
    arguments, so these must be picklable. What it looks up or opens later, such as a client, stays in its process.

    Attributes:
        name: of the codec, lower case letters, digits, "-" and "_"; permanent, it is written into envelopes.
        content_type: media type of the payloads, for headers.
        deterministic: whether equal values always give the same bytes. States and outputs need that: a batch that
            is processed again must give the same bytes.
        self_checking: whether the type accepts only values that survive encoding, as protobuf messages do. States of
            other codecs are decoded again to check them.
        reads_back: whether each value that it has decoded is encoded and decoded to the same. Then a value that has one owner
            need not pass the codec again.
        reads_default: whether what it decodes is certainly what the default codec of the type would read of it. Then stages take it as it is.
        has_reader_schema: whether all that it decodes has to fit one schema of its own. Then it reads values or keys, not both.
        is_exact: whether a value that it has encoded is certainly read back: then an output need not try. None: nobody knows.
        settle: makes of a state what decoding makes of it, after each fold: ints in fields of floats become floats. None: there is
            nothing to do.
        self_describing: whether payloads name their fields, so that decoding notices a payload of another type. Plans
            then do not store how a topic's payloads were declared.
        wants_headers: whether decoding a record needs its headers: then sources call `decode_with` instead of `decode`.
        wants_key: whether decoding a record needs its key: then sources call `decode_keyed` instead of `decode`.
        writes_headers: whether records of an output bear the `headers` of its codec.
        wants_registry: whether it asks a schema registry: then it finds that in its place, and each start calls `prepare`.
        python_type: type of the values.
    """

    reads_back: bool = False
    reads_default: bool = False
    has_reader_schema: bool = False
    is_exact: Callable[[Value], bool] | None = None
    settle: Callable[[Value], None] | None = None

    name: ClassVar[str]
    content_type: ClassVar[str] = "application/octet-stream"
    deterministic: ClassVar[bool] = True
    self_checking: ClassVar[bool] = False
    self_describing: ClassVar[bool] = False
    wants_headers: ClassVar[bool] = False
    wants_key: ClassVar[bool] = False
    writes_headers: ClassVar[bool] = False
    wants_registry: ClassVar[bool] = False

    # Kept before the subclass's own constructor runs, so that no subclass can forget a setting on its way to a worker.
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *settings: Any, **named: Any) -> Self:  # noqa: ANN401 - whatever the constructor of a subclass takes
        codec = super().__new__(cls)
        codec._made_with = settings, named
        return codec

    def __init__(self, python_type: type[Value]) -> None:
        self.python_type = python_type

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickled as its class and what its constructor was given, and created again on the other side."""
        return _create, (type(self), *self._made_with)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.python_type.__qualname__})"

    def at(self, place: Place) -> Self:
        """The codec for one place: this one, or another one of its class that knows the place. By default this one.

        A flow asks for it when it is compiled, for each topic of a source and for each output. Each process that runs its tasks asks
        again. The flow keeps what it gets, so a codec may keep what it has looked up. An output whose codec goes by the type of each value
        asks when the first value of a type comes. States, shuffles and `wrap` have no place: there this is not called.

        Do not ask a server here: `encode` and `decode` can raise `Unavailable` and are called again; what this raises stops the start.

        Args:
            place: the topic, and the part of its records.

        Raises:
            ConfigurationError: the codec cannot be used there; the flow's error names the line of the declaration.
        """
        del place
        return self

    def prepare(self, notes: Mapping[str, str]) -> Mapping[str, str]:
        """Ask the registry, at a start, for what all attempts at a batch must have in common, such as a schema's id.

        Only called if `wants_registry` is set, for each place of the flow. What it gives is kept in plans, and is in `Place.notes` of all
        tasks. So a redo encodes the same, whatever the registry answers by then.

        Args:
            notes: what was noted before, by this codec and others. What is known is not to be asked for again.

        Returns:
            Name -> what is to be noted under it.

        Raises:
            Unavailable: the registry does not answer; it is asked again.
            ConfigurationError: the start cannot go on.
            ChangedType: what is noted of records that were read shows that the type of now does not read them.
        """
        del notes
        return {}

    def met(self) -> Mapping[str, str]:
        """What plans are to note of the records that this codec has read in this process, such as ids of their schemas.

        Only called if `wants_registry` is set, after each input partition of a batch. Later starts give it to `prepare`.

        Returns:
            Name -> what is to be noted under it; the same from each process that has read the same. It does not shrink.
        """
        return {}

    @abstractmethod
    def encode(self, value: Value) -> bytes:
        """The bytes of a value. Any exception is an error in the value, except those of an outage, such as `Unavailable`: the batch is repeated."""

    @abstractmethod
    def decode(self, data: bytes) -> Value:
        """The value of these bytes. Any exception is an error in the bytes, except those of an outage, such as `Unavailable`: the batch is repeated."""

    def decode_with(self, data: bytes, headers: RecordHeaders) -> Value:
        """As `decode`, for a record of a source. Only called if `wants_headers` is set.

        Args:
            data: the payload.
            headers: of its record; those of a schema registry name the schema.
        """
        del headers
        return self.decode(data)

    def decode_keyed(self, data: bytes, key: bytes | None) -> Value:
        """As `decode`, for a record of a source. Only called if `wants_key` is set.

        Args:
            data: the payload.
            key: of its record.
        """
        del key
        return self.decode(data)

    def headers(self) -> RecordHeaders:
        """What each record of an output bears besides its payload, such as the schema's id. Only called if `writes_headers` is set.

        They are the same for all values of the codec, in every attempt. They take the place of headers with their names that come
        from the input. An outage may be raised, as by `encode`.
        """
        return ()

    def decode_own(self, data: bytes) -> Value:
        """As `decode`, for what `encode` has given, which has no headers: what `encode` refuses need not be looked for.

        What is published is read by it before, so a codec whose `decode` needs headers has one of its own.
        """
        return self.decode(data)

    def decode_all(self, payloads: Sequence[bytes]) -> list[Value]:
        """The values of many payloads. Raises as `decode` does."""
        decode = self.decode
        return [decode(payload) for payload in payloads]  # map() would end at a StopIteration

    @classmethod
    def takes(cls, python_type: type) -> bool:
        """Whether this codec is the default for values of this type."""
        del python_type
        return False

    @property
    def type_name(self) -> str:
        """The field `type` of envelopes: ``codec:TypeName``."""
        return f"{self.name}:{self.python_type.__name__}"

    def reads(self, type_name: str) -> bool:
        """Whether this codec reads payloads of envelopes with this field `type`."""
        return type_name == self.type_name

    def new(self) -> Value:
        """The initial state of a key."""
        return self.python_type()

    def copy(self, value: Value) -> Value:
        """A value that can be changed without changing this one."""
        return self.decode(self.encode(value))

    def encode_state(self, state: Value, seen: set[int] | None = None) -> bytes:
        """The bytes of a state, checked: what they decode to is exactly the same. By default: an equal one.

        Args:
            state: the state, settled.
            seen: identities of the objects in all states that are alive; those of this one are added. Two states that share an
                object would be read back as two that do not. None: those of this state alone.

        Raises:
            ValueError: they would decode to something else; the text names it.
        """
        del seen
        data = self.encode(state)
        if self.decode(data) != state:
            raise ValueError(
                "it would be read back as another one. Expected one that is equal to what is read back"
            )
        return data

    def check_state(self) -> str:
        """Why values of this type cannot be states, as the end of a sentence; empty if they can."""
        try:
            self.new()
        except Exception as error:  # noqa: BLE001 - a constructor may raise anything
            return f"a new key begins with {self.python_type.__name__}(), which fails: {type(error).__name__}: {error}"
        if self.python_type.__eq__ is object.__eq__:
            return "its values do not compare (no __eq__), so it cannot be checked that one is read back unchanged"
        return "" if self.deterministic else f"codec {self.name!r} does not give the same bytes each time"

    def to_json(self, value: Value) -> Any:  # noqa: ANN401 - any JSON
        """A value for people, as JSON: dict, list, text, numbers."""
        return {"type": self.type_name, "hex": self.encode(value).hex()}

    def to_view(self, value: Value) -> Any:  # noqa: ANN401 - any JSON
        """A value as JSON for views in stores."""
        return self.to_json(value)

    def fields(self) -> tuple[Field, ...]:
        """The fields of the type; empty if they are not known."""
        return ()

    def shape(self, known: Mapping[str, str] | None = None) -> Shape:
        """The shape that a plan stores, merged with the one that an earlier plan stored."""
        del known
        return {}

    def misread(self, was: str, shape: Mapping[str, str]) -> str:
        """Whether this codec would misread what was written before.

        Args:
            was: `type_name` of the codec that wrote it.
            shape: the shape of that codec.

        Returns:
            The first difference that matters, in words; empty when there is none.
        """
        del shape
        return "" if self.reads(was) else f"it was {was}, now it is {self.type_name}"


def _create(codec: Callable[..., Codec[Any]], settings: tuple[Any, ...], named: dict[str, Any]) -> Codec[Any]:
    """A codec as it was created elsewhere: `pickle` itself passes positional arguments only."""
    return codec(*settings, **named)


class MadeClass(type):
    """The type of classes that any process can make again.

    Attributes:
        made_by: the function that makes the class, and its arguments, as which it is pickled; None: it is found by its name.
    """

    made_by: tuple[Callable[..., Any], tuple[Any, ...]] | None = None


copyreg.pickle(MadeClass, lambda cls: cls.made_by or cls.__qualname__)


def field_names(python_type: type | None) -> Sequence[str]:
    """The fields of a message, a struct or a dataclass; none: they are not known."""
    if is_dataclass(python_type):
        return [field.name for field in fields(python_type)]
    descriptor: Any = getattr(python_type, "DESCRIPTOR", None)
    names: Sequence[str] = getattr(python_type, "__struct_fields__", ())
    return names if descriptor is None else list(descriptor.fields_by_name)


def codec_name(type_name: str) -> str:
    """The codec in an envelope's `type`: the part before the colon; without a colon it is protobuf."""
    name, colon, _ = type_name.partition(":")
    return name if colon else "protobuf"
