"""The nodes of a flow: one class for each kind, with its fields, and what the compiler and error texts ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from sqe_chain.codecs import Codec
from sqe_chain.flow.event_time import NO_TIMES, NoTimestamp
from sqe_chain.flow.functions import DeclaredFunction, UserFunction, functions_in
from sqe_chain.flow.stage_kind import CONTEXT, ENVELOPE, NOTHING, Side, StageKind, StageTraits
from sqe_chain.ports import ViewKind, ViewTable
from sqe_chain.ports.files import FileSource

Nulls = Literal["poison", "skip", "decode"]
Carrier = Literal["value", "headers"]
"""Where the chain is carried: in the value, which is then an envelope, or in the headers."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a flow: a source, an operator, a stage or an output.

    Attributes:
        word: the word for it in texts.
        maker_name: the name of its `maker` in error texts; empty: `word`.
        side: which output of its parent it takes: the usual one, or that of `changes()` or `dropped()`.
        keeps_key: whether units keep their key.
        passes: whether its values are those of its parents.
        index: its index in `Flow.nodes`; parents come before children.
        declared_at: where the user declared it, ``file:line``.
        parents: indexes of the nodes it takes its units from.
    """

    word: ClassVar[str]
    maker_name: ClassVar[str] = ""
    side: ClassVar[Side] = ""
    keeps_key: ClassVar[bool] = True
    passes: ClassVar[bool] = False

    index: int
    declared_at: str
    parents: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Its kind: `word`, or for a stage the name of its kind, as layouts store it."""
        return self.word

    @property
    def functions(self) -> tuple[UserFunction, ...]:
        """The user's functions that it calls."""
        return tuple(declared.function for declared in functions_in(self))

    @property
    def maker(self) -> UserFunction | None:
        """The user's function that makes its output values; None: it passes on its input values."""
        return None

    @property
    def needs(self) -> int:
        """What it needs to know of the input that a unit comes from: NOTHING, ENVELOPE or CONTEXT."""
        return NOTHING

    @property
    def needs_key(self) -> bool:
        """Whether it uses the key of a unit."""
        return self.needs == CONTEXT

    @property
    def may_be_last(self) -> bool:
        """Whether it is useful even if no other node follows."""
        return False

    @property
    def called(self) -> str:
        """Its name in error texts about one of its functions."""
        return self.word

    @property
    def label(self) -> tuple[str, str]:
        """Title and detail, in the words of the declaration, as a picture of the flow shows them."""
        return self.word, ""

    def value_type(self, nodes: Sequence[Node]) -> type | None:
        """The type of its values, by all nodes of the flow; None if only the values know it."""
        types = {nodes[parent].value_type(nodes) for parent in self.parents} if self.passes else set[type]()
        return types.pop() if len(types) == 1 else None

    def described(self, nodes: Sequence[Node]) -> str:
        """The name of its output in error texts, by all nodes of the flow."""
        del nodes
        return f"this {self.word}"


@dataclass(frozen=True, slots=True)
class SourceNode(Node):
    """A source.

    Attributes:
        topics: what it reads; the first is also its name.
        codec: of its payloads; None: it has a decoder.
        decoder: the user's function, ``bytes -> value``; None: it has a codec.
        raw: its messages carry no envelope.
        nulls: what it does with null values.
        timestamp: the user's function that gives the event time of a value; None: the record's, or the envelope's.
        no_timestamp: what becomes of a value for which it gives none.
        files: the files that it reads, instead of topics; None: topics.
    """

    word = "source"

    topics: tuple[str, ...]
    codec: Codec[Any] | None
    decoder: DeclaredFunction | None
    raw: bool
    nulls: Nulls
    timestamp: DeclaredFunction | None = None
    no_timestamp: NoTimestamp = "poison"
    files: FileSource | None = None

    @property
    def static(self) -> bool:
        """Whether its messages have no times: they are the table of joins."""
        return self.timestamp == NO_TIMES

    @property
    def name(self) -> str:
        """The first topic, or the name of its files."""
        return self.topics[0]

    def value_type(self, nodes: Sequence[Node]) -> type | None:
        del nodes
        python_type = None if self.codec is None else self.codec.python_type
        return None if python_type is object else python_type

    def reads(self, topic: str) -> bool:
        """Whether it reads this topic, or the file whose topic it is."""
        return self.files.has(topic) if self.files is not None else topic in self.topics

    @property
    def maker(self) -> UserFunction | None:
        return None if self.decoder is None else self.decoder.function

    @property
    def called(self) -> str:
        return f"source {self.name!r}" if self.timestamp else f"decoder of source {self.name!r}"

    @property
    def label(self) -> tuple[str, str]:
        content = self.codec.type_name if self.codec else name_of(self.maker)
        if self.files is not None:
            return f"files {self.name}", ", ".join(filter(None, (content, *self.files.patterns)))
        return f"source {', '.join(self.topics)}", ", ".join(filter(None, (content, "raw" * self.raw)))

    def described(self, nodes: Sequence[Node]) -> str:
        del nodes
        return f"source {self.name!r}"


@dataclass(frozen=True, slots=True)
class FunctionNode(Node):
    """An operator that calls a function of the user for each value."""

    function: DeclaredFunction

    @property
    def maker(self) -> UserFunction | None:
        return None if self.passes else self.function.function

    @property
    def needs(self) -> int:
        return CONTEXT if self.function.takes_context else NOTHING

    @property
    def label(self) -> tuple[str, str]:
        return self.word, name_of(self.function.function)


@dataclass(frozen=True, slots=True)
class MapNode(FunctionNode):
    """One value for each value."""

    word = "map"


@dataclass(frozen=True, slots=True)
class FilterNode(FunctionNode):
    """Only the values for which the function is true."""

    word = "filter"
    passes = True


@dataclass(frozen=True, slots=True)
class FlatMapNode(FunctionNode):
    """Any number of values for each value."""

    word = "flat_map"


@dataclass(frozen=True, slots=True)
class KeyByNode(FunctionNode):
    """The same values under the key that the function gives."""

    word = "key_by"
    passes = True
    keeps_key = False


@dataclass(frozen=True, slots=True)
class MergeNode(Node):
    """The units of two streams."""

    word = "merge"
    passes = True


@dataclass(frozen=True, slots=True)
class KeyedNode(Node):
    """A node whose units have a key: a stage, or an output.

    Attributes:
        name: its permanent name.
        key: the user's key function; None keeps the unit's key.
    """

    keeps_key = False

    name: str
    key: DeclaredFunction | None

    @property
    def needs(self) -> int:
        return CONTEXT if self.key is not None and self.key.takes_context else NOTHING

    @property
    def needs_key(self) -> bool:
        return self.key is None or self.needs == CONTEXT

    @property
    def called(self) -> str:
        return f"{self.word} {self.name!r}"


@dataclass(frozen=True, slots=True)
class StageNode(KeyedNode):
    """A stage: a node with state.

    Attributes:
        stage_kind: what it does.
        store: name of its store; None for the service's default.
        buckets: into how many buckets its state partitions are split in the store.
        view: the format in which other programs can read its states; None: there is no view.
        table: with a view as a table, which one.
        traits: what the framework does around its kind.
    """

    word = "stage"
    maker_name = "the fold"

    stage_kind: StageKind
    store: str | None
    buckets: int = 1
    view: ViewKind | None = None
    table: ViewTable | None = None
    traits: StageTraits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kind, traits = self.stage_kind, self.stage_kind.traits
        in_context = any(function.takes_context for function in kind.functions)
        last = traits.may_be_last
        useful = kind.codec is not None or kind.sink is not None if last is None else last
        method, needs = traits.method or kind.name, CONTEXT if in_context else traits.needs
        object.__setattr__(self, "traits", replace(traits, method=method, needs=needs, may_be_last=useful))

    @property
    def kind(self) -> str:
        return self.stage_kind.name

    @property
    def codec(self) -> Codec[Any] | None:
        """Of its states; None: its rows have a format of their own."""
        return self.stage_kind.codec

    @property
    def functions(self) -> tuple[UserFunction, ...]:
        return *(each.function for each in self.stage_kind.functions), *super(StageNode, self).functions

    @property
    def maker(self) -> UserFunction | None:
        return self.traits.maker

    @property
    def needs(self) -> int:
        # Includes the functions that are called before a unit enters the stage
        return super(StageNode, self).needs or self.traits.needs

    @property
    def may_be_last(self) -> bool:
        return bool(self.traits.may_be_last)

    @property
    def called(self) -> str:
        return f"{self.traits.called} {self.name!r}"

    @property
    def label(self) -> tuple[str, str]:
        return f"{self.traits.method} {self.name}", self.codec.type_name if self.codec else ""

    def described(self, nodes: Sequence[Node]) -> str:
        del nodes
        return f"{self.traits.method} {self.name!r}"


@dataclass(frozen=True, slots=True)
class SideNode(Node):
    """A side output of a stage."""

    def described(self, nodes: Sequence[Node]) -> str:
        (parent,) = (nodes[index] for index in self.parents)
        return f"{self.word}() of stage {getattr(parent, 'name', '')!r}"


@dataclass(frozen=True, slots=True)
class ChangesNode(SideNode):
    """The newest state of each key that changed."""

    word = "changes"
    side = "changes"


@dataclass(frozen=True, slots=True)
class DroppedNode(SideNode):
    """What a stage has dropped, with the reason."""

    word = "dropped"
    side = "dropped"


@dataclass(frozen=True, slots=True)
class OutputNode(KeyedNode):
    """An output.

    Attributes:
        topic: where it publishes.
        partitions: how many of the topic's partitions it uses.
        headers: whether it passes the input's headers on.
        encoding: the codec of its payloads, or a class of codecs for payloads of any type; None: that of each value's type.
        carrier: where the chain is carried.
        process_id: of an output with SQE's record keys instead of envelopes; None: envelopes.
        separate: whether each value has an envelope of its own.
        revision: how many times it was corrected, plus one; see `sqe_chain.envelope.revisions`.
    """

    word = "output"

    topic: str
    partitions: int
    headers: bool = True
    encoding: Codec[Any] | type[Codec[Any]] | None = None
    carrier: Carrier = "value"
    process_id: int | None = None
    separate: bool = False
    revision: int = 1

    @property
    def needs(self) -> int:
        return super(OutputNode, self).needs or ENVELOPE

    @property
    def may_be_last(self) -> bool:
        return True

    @property
    def label(self) -> tuple[str, str]:
        return f"to {self.topic}", f"{self.partitions} partition{'s' if self.partitions != 1 else ''}"


def name_of(function: UserFunction | None) -> str:
    """The name of a function in labels; empty if it has none."""
    name = getattr(function, "__name__", type(function).__name__) if function is not None else ""
    return "" if name == "<lambda>" else name
