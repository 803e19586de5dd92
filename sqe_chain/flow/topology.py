"""A flow as data: its nodes, and how they hang together. Everything that runs a flow reads this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

from sqe_chain.codecs import Codec
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import (
    check_bool,
    check_choice,
    check_int,
    check_name,
    check_topic,
    place,
)
from sqe_chain.flow.filtering import FilterSpec
from sqe_chain.flow.functions import UserFunction
from sqe_chain.ports import ViewKind
from sqe_chain.replays.marks import DEFAULT_MAX_LANES, Recreated

Found = TypeVar("Found")
Kind = Literal[
    "source",
    "map",
    "filter",
    "flat_map",
    "key_by",
    "merge",
    "aggregate",
    "sieve",
    "changes",
    "dropped",
    "output",
]
STAGES = ("aggregate", "sieve")
"""Kinds of nodes that hold state: a fold by key, and a filter that remembers."""
SIDES = ("changes", "dropped")
"""Kinds of nodes that take something else from a stage than what it gives on."""
PoisonPolicy = Literal["stop", "dead_letter", "skip"]
Carrier = Literal["value", "headers"]
Nulls = Literal["poison", "skip", "decode"]

DEFAULT_STATE_PARTITIONS = 8
MAX_PARTITIONS = 100_000
"""Of an output; more than any Kafka cluster carries, so it is a slip."""
_MOST = {"state_partitions": 65_536, "dead_letter_partitions": MAX_PARTITIONS, "max_lanes": 10_000_000}


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a flow.

    Attributes:
        index: its place in `Flow.nodes`; parents come before children.
        kind: what it does.
        place: where the user declared it, ``file:line``.
        parents: indexes of the nodes it takes its units from.
        function: the user's function (map, filter, flat_map, fold, or the decoder of a source).
        takes_context: whether the function wants the context as its last argument.
        key: the user's key function (key_by, aggregate, output); None keeps the unit's key.
        key_takes_context: whether the key function wants the context.
        name: stage or output name; topic of a source without a name of its own.
        topics: input topics of a source; the one topic of an output.
        codec: of a source's payloads or a stage's states; None: a source has a decoder, a filter keeps no states.
        encoding: of an output: the codec of its payloads, or the class of codecs for whatever type they have; None:
            each value goes by the codec that takes its type.
        raw: a source whose messages carry no envelope.
        nulls: what a source does with null values.
        partitions: partitions of an output.
        headers: whether an output passes the input's headers on.
        store: name of the store a stage wants; None for the service's default.
        buckets: into how many buckets a stage's state partitions are split in the store.
        view: how a stage shows its states to other programs; None: it does not.
        carrier: of an output: where the chain stands: in the "value", an envelope, or in the "headers".
        process_id: of an output with SQE's record keys instead of envelopes; None: envelopes.
        spec: what a sieve does.
    """

    index: int
    kind: Kind
    place: str
    parents: tuple[int, ...] = ()
    function: UserFunction | None = None
    takes_context: bool = False
    key: UserFunction | None = None
    key_takes_context: bool = False
    name: str = ""
    topics: tuple[str, ...] = ()
    codec: Codec[Any] | None = None
    encoding: Codec[Any] | type[Codec[Any]] | None = None
    raw: bool = False
    nulls: Nulls = "poison"
    partitions: int = 0
    headers: bool = True
    store: str | None = None
    buckets: int = 1
    view: ViewKind | None = None
    spec: FilterSpec | None = None
    carrier: Carrier = "value"
    process_id: int | None = None


@dataclass
class Topology:
    """The nodes of a flow, and how they hang together. See `sqe_chain.flow.flow.Flow` for the arguments.

    Attributes:
        nodes: in the order of their declaration; parents come before children.
    """

    name: str
    poison: PoisonPolicy = "stop"
    dead_letter_topic: str = ""
    dead_letter_partitions: int = 1
    state_partitions: int = DEFAULT_STATE_PARTITIONS
    max_lanes: int = DEFAULT_MAX_LANES
    recreated: Recreated = "stop"
    allow_compacted: bool = False
    nodes: list[Node] = field(default_factory=list, init=False, repr=False)
    _found: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = place()
        check_name("flow", self.name, where)
        check_choice("poison", self.poison, ("stop", "dead_letter", "skip"), where)
        check_choice("recreated", self.recreated, ("stop", "count", "skip"), where)
        if self.dead_letter_topic == "":
            self.dead_letter_topic = f"{self.name}.dead-letters"
        check_topic(self.dead_letter_topic, where)
        for what, most in _MOST.items():
            check_int(what, getattr(self, what), 1, most, where)
        check_bool("allow_compacted", self.allow_compacted, where)

    def __getstate__(self) -> dict[str, Any]:
        """What is shipped to Spark's workers: without what is found again."""
        return {**self.__dict__, "_found": {}}

    @property
    def dead_letters(self) -> bool:
        """Whether this flow publishes dead letters."""
        return self.poison == "dead_letter"

    def stages(self) -> Sequence[Node]:
        """The stages, in the order of their declaration."""
        return self._once("stages", lambda: tuple(node for node in self.nodes if node.kind in STAGES))

    def renamed(self, name: str) -> Self:
        """The same flow under another name: another writer, with states of its own."""
        check_name("flow", name, "renamed")
        found = copy(self)
        found.name, found.nodes = name, list(self.nodes)
        vars(found)["_found"] = {}
        return found

    def cells(self, stage: Node) -> range:
        """The numbers of a stage's cells: of the buckets of all its state partitions."""
        return range(self.state_partitions * stage.buckets)

    def outputs(self) -> Sequence[Node]:
        """The outputs, in the order of their declaration."""
        return self._of("output")

    def sources(self) -> Sequence[Node]:
        """The sources, in the order of their declaration."""
        return self._of("source")

    def input_topics(self) -> Sequence[str]:
        """All input topics, sorted."""
        return self._once(
            "input topics", lambda: tuple(sorted(topic for node in self.sources() for topic in node.topics))
        )

    def children(self, index: int) -> Sequence[Node]:
        """The nodes that take their units from this one, in the order of their declaration."""
        return self._once(index, lambda: tuple(node for node in self.nodes if index in node.parents))

    def stage_of(self, node: Node) -> Node | None:
        """The keyed stage that a node's units come from; None before the first one."""
        while True:
            if node.kind == "source":
                return None
            node = self.nodes[node.parents[0]]
            if node.kind in STAGES:
                return node

    def level(self, stage: Node) -> int:
        """How many keyed stages a unit has passed when it has passed this one: 1 for the first."""

        def counted() -> int:
            upstream = self.stage_of(stage)
            return 1 if upstream is None else 1 + self.level(upstream)

        return self._once(("level", stage.index), counted)

    def check(self) -> None:
        """Check what only the whole shows.

        Raises:
            FlowError: there is no source, nothing comes of a stream, or dead letters would be read again.
        """
        if not self.nodes:
            raise FlowError(f"flow {self.name!r} has no source")
        for node in self.nodes:
            if node.kind == "source" and self.dead_letters and self.dead_letter_topic in node.topics:
                raise FlowError(
                    f"{node.place}: {self.dead_letter_topic!r} takes the dead letters of flow {self.name!r}: reading it "
                    "would be a loop"
                )
            if node.process_id is not None and len(self.input_topics()) > 1:
                raise FlowError(
                    f"{node.place}: SQE's record keys name a source partition and offset, not a topic: this flow reads "
                    f"{', '.join(self.input_topics())}; read one topic in a flow that writes for SQE"
                )
            left = node.kind in ("output", "aggregate") or (
                node.spec and node.spec.settings.get("retention_ms")
            )
            if not left and not self.children(node.index):
                raise FlowError(
                    f"{node.place}: nothing is done with {self._told(node)} of flow {self.name!r}; let a stage or an "
                    "output follow it, or remove it"
                )

    def _told(self, node: Node) -> str:
        """A node in the words of whoever declared it."""
        if node.kind in SIDES:
            return f"what {node.kind}() of stage {self.nodes[node.parents[0]].name!r} gives"
        if node.kind == "source":
            return f"source {node.name!r}"
        return f"{node.spec.method} {node.name!r}" if node.spec else f"this {node.kind}"

    def _of(self, kind: Kind) -> Sequence[Node]:
        return self._once(kind, lambda: tuple(node for node in self.nodes if node.kind == kind))

    def _once(self, what: object, find: Callable[[], Found]) -> Found:
        """What `find` gives, looked for once until a node is added: each batch asks these things many times."""
        if what not in self._found:
            self._found[what] = find()
        found: Found = self._found[what]
        return found

    def add(self, kind: Kind, place: str, **fields: Any) -> Node:  # noqa: ANN401 - the fields of Node
        """Append a node. Streams check what they are asked for before."""
        node = Node(len(self.nodes), kind, place, **fields)
        self.nodes.append(node)
        self._found.clear()
        return node
