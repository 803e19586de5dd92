"""The codec port: how values of one Python type stand as bytes in messages, states and shuffles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

Value = TypeVar("Value")

Shape = dict[str, str]
"""Name of a type -> its fields, as text: what plans remember of a type, to see later how it has changed."""

FieldKind = Literal[
    "bool", "int32", "int64", "uint32", "uint64", "float32", "float64", "text", "bytes", "enum", "other"
]
"""What a field holds, for tables and comparisons."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a type, for tables and for conditions on states.

    Attributes:
        name: its name.
        kind: what it holds; "other": lists, maps, messages and whatever else.
        of: value of the type -> content of the field: a number, text, bytes; for "enum" its name; for "other" its
            JSON form.
        choices: names that an enum has.
    """

    name: str
    kind: FieldKind
    of: Callable[[Any], object]
    choices: tuple[str, ...] = ()


class Codec(ABC, Generic[Value]):
    """How values of one Python type become bytes, and come back.

    A codec of your own is a subclass with a `name`, `encode` and `decode`, made known with `register` or by an entry
    point of the group ``sqe_chain.codecs``. It is created as ``CodecClass(python_type)``, and must be picklable.

    Attributes:
        name: of the codec, lower case letters, digits, "-" and "_"; permanent, it is written into envelopes.
        content_type: media type of the payloads, for headers.
        deterministic: whether equal values always give the same bytes. States and outputs need that: a batch that
            is done again must say the same again.
        self_checking: whether values take only what comes back as it was, as protobuf messages do; those of other
            types are tried when they have become part of a state.
        self_describing: whether payloads name their fields, so that one of another type shows itself when it is
            decoded. Then it is not remembered how a topic's payloads were declared before.
        python_type: type of the values.
    """

    name: ClassVar[str]
    content_type: ClassVar[str] = "application/octet-stream"
    deterministic: ClassVar[bool] = True
    self_checking: ClassVar[bool] = False
    self_describing: ClassVar[bool] = False

    def __init__(self, python_type: type[Value]) -> None:
        self.python_type = python_type

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        """Codecs travel as their type, and are made again where they arrive."""
        return type(self), (self.python_type,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.python_type.__qualname__})"

    @abstractmethod
    def encode(self, value: Value) -> bytes:
        """The bytes of a value. Whatever this raises is the fault of the value."""

    @abstractmethod
    def decode(self, data: bytes) -> Value:
        """The value of these bytes. Whatever this raises is the fault of the bytes."""

    @classmethod
    def takes(cls, python_type: type) -> bool:
        """Whether values of this type are encoded by this codec when none is named."""
        del python_type
        return False

    @property
    def type_name(self) -> str:
        """What envelopes say in their field `type`: ``codec:TypeName``."""
        return f"{self.name}:{self.python_type.__name__}"

    def reads(self, type_name: str) -> bool:
        """Whether payloads of envelopes that say this in their field `type` are read by this codec."""
        return type_name == self.type_name

    def new(self) -> Value:
        """The state of a key that has none yet."""
        return self.python_type()

    def copy(self, value: Value) -> Value:
        """A value that can be changed without changing this one."""
        return self.decode(self.encode(value))

    def encode_state(self, state: Value) -> bytes:
        """The bytes of a state, which are sure to give this state again.

        Raises:
            ValueError: they would give another one, or none.
        """
        data = self.encode(state)
        if self.decode(data) != state:
            raise ValueError(f"{state!r} would come back as {self.decode(data)!r}")
        return data

    def check_state(self) -> str:
        """Why values of this type cannot be states, as the end of a sentence; empty when they can."""
        try:
            self.new()
        except Exception as error:  # noqa: BLE001 - a constructor may raise anything
            return f"a new key begins with {self.python_type.__name__}(), which fails: {type(error).__name__}: {error}"
        if self.python_type.__eq__ is object.__eq__:
            return (
                "its values do not compare (no __eq__), so it cannot be seen whether one comes back as it was"
            )
        return "" if self.deterministic else f"codec {self.name!r} does not give the same bytes each time"

    def to_json(self, value: Value) -> Any:  # noqa: ANN401 - any JSON
        """A value as people read it: dict, list, text, numbers."""
        return {"type": self.type_name, "hex": self.encode(value).hex()}

    def to_view(self, value: Value) -> Any:  # noqa: ANN401 - any JSON
        """A value as views in stores show it."""
        return self.to_json(value)

    def fields(self) -> tuple[Field, ...]:
        """The fields of the type; empty where it has none that are known."""
        return ()

    def shape(self, known: Mapping[str, str] | None = None) -> Shape:
        """What a plan remembers of the type, together with what an earlier plan knew of it."""
        del known
        return {}

    def misread(self, was: str, shape: Mapping[str, str]) -> str:
        """What this codec would read wrongly of what was written before.

        Args:
            was: `type_name` of the codec that wrote.
            shape: its shape.

        Returns:
            The first difference that matters, in words; empty when there is none.
        """
        del shape
        return "" if self.reads(was) else f"it was {was}, now it is {self.type_name}"


def codec_name(type_name: str) -> str:
    """The codec that an envelope's `type` tells: what stands before a colon; without one, it is protobuf."""
    name, colon, _ = type_name.partition(":")
    return name if colon else "protobuf"
