"""What a service does, declared as data: sources, steps, stages, outputs. Nothing runs here.

    >>> from google.protobuf.wrappers_pb2 import Int64Value, StringValue
    >>> flow = Flow("word-count")
    >>> lengths = flow.source("words", StringValue).map(lambda word: Int64Value(value=len(word.value)))
    >>> def add(total: Int64Value, length: Int64Value) -> None:
    ...     total.value += length.value
    >>> stage = lengths.aggregate("per-length", key=lambda n: str(n.value), state=Int64Value, fold=add)
    >>> stage.changes().to("totals", partitions=1)
    >>> [node.kind for node in flow.nodes]
    ['source', 'map', 'aggregate', 'changes', 'output']

Every function may take the context of its input as one more argument. Functions must be pure: the same
value gives the same result, and values are never changed, but for the state that a fold is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from google.protobuf.message import Message

from sqe_chain.declaration import (
    TOPIC_LENGTH,
    UserFunction,
    check_callable,
    check_choice,
    check_name,
    check_topic,
    place,
    wants_context,
)
from sqe_chain.errors import FlowError
from sqe_chain.filtering import FilterSpec, FilterSteps
from sqe_chain.marks import DEFAULT_MAX_LANES, Recreated
from sqe_chain.ports import ViewKind

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
Nulls = Literal["poison", "skip", "decode"]

DEFAULT_STATE_PARTITIONS = 8
MAX_BUCKETS = 1024


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
        payload: payload type of a source, state type of an aggregate.
        raw: a source whose messages carry no envelope.
        nulls: what a source does with null values.
        partitions: partitions of an output.
        headers: whether an output passes the input's headers on.
        store: name of the store a stage wants; None for the service's default.
        buckets: into how many buckets a stage's state partitions are split in the store.
        view: how a stage shows its states to other programs; None: it does not.
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
    payload: type[Message] | None = None
    raw: bool = False
    nulls: Nulls = "poison"
    partitions: int = 0
    headers: bool = True
    store: str | None = None
    buckets: int = 1
    view: ViewKind | None = None
    spec: FilterSpec | None = None
    process_id: int | None = None


@dataclass
class Flow:
    """A named flow. Names are permanent: a renamed flow or output is another writer.

    Args:
        name: flow name, ``[A-Za-z0-9._-]``; also the Kafka group id.
        poison: what happens to inputs that cannot be decoded or on which user code fails.
        dead_letter_topic: where `dead_letter` sends them; by default ``<name>.dead-letters``.
        dead_letter_partitions: partitions used there.
        state_partitions: number P of state partitions; fixed when the flow first starts.
        max_lanes: lanes that one input partition may carry.
        recreated: what to do with old roots that come back through a recreated topic in between.
        allow_compacted: accept inputs with `cleanup.policy=compact`.

    Raises:
        FlowError: a name or number is out of bounds.
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

    def __post_init__(self) -> None:
        where = place()
        check_name("flow", self.name, where)
        check_choice("poison", self.poison, ("stop", "dead_letter", "skip"), where)
        check_choice("recreated", self.recreated, ("stop", "count", "skip"), where)
        self.dead_letter_topic = self.dead_letter_topic or f"{self.name}.dead-letters"
        check_topic(self.dead_letter_topic, where)
        for what in ("state_partitions", "dead_letter_partitions", "max_lanes"):
            if getattr(self, what) < 1:
                raise FlowError(f"{where}: {what}={getattr(self, what)}; at least 1")

    def source(
        self,
        topics: str | Iterable[str],
        payload: type[Message] | UserFunction | None = None,
        *,
        raw: bool = False,
        nulls: Nulls = "poison",
    ) -> Stream:
        """Read one or more topics.

        Args:
            topics: topic name, or several with the same payloads.
            payload: protobuf type of the payloads, or a decoder ``bytes -> value``
                (with the context as second argument if it takes one).
            raw: the messages carry no envelope: their own coordinates are the root.
            nulls: null values go to the `decode`r, are `skip`ped, or are `poison`.

        Raises:
            FlowError: a topic is read twice, or a name or type is wrong.
        """
        where = place()
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names:
            raise FlowError(f"{where}: a source needs at least one topic")
        for topic in names:
            check_topic(topic, where)
            for other in self._of("source"):
                if topic in other.topics:
                    raise FlowError(
                        f"{where}: topic {topic!r} is read already at {other.place}; use that stream twice"
                    )
            for output in self.outputs():
                if topic in output.topics:
                    raise FlowError(f"{where}: {topic!r} is written at {output.place}: that would be a loop")
        if len(set(names)) != len(names):
            raise FlowError(f"{where}: a topic is named twice in {names}")
        message_type = payload if isinstance(payload, type) and issubclass(payload, Message) else None
        if message_type is None and not callable(payload):
            raise FlowError(
                f"{where}: source {names[0]!r} needs a protobuf type or a decoder, got {payload!r}"
            )
        check_choice("nulls", nulls, ("poison", "skip", "decode"), where)
        if nulls == "decode" and message_type is not None:
            raise FlowError(f"{where}: nulls='decode' needs a decoder function that accepts None")
        function = None if message_type else payload
        return self._add(
            "source",
            where,
            function=function,
            takes_context=wants_context(function, 1, where),
            name=names[0],
            topics=names,
            payload=message_type,
            raw=raw,
            nulls=nulls,
        )

    @property
    def dead_letters(self) -> bool:
        """Whether this flow publishes dead letters."""
        return self.poison == "dead_letter"

    def stages(self) -> list[Node]:
        """The stages, in the order of their declaration."""
        return [node for node in self.nodes if node.kind in STAGES]

    def renamed(self, name: str) -> Flow:
        """The same flow under another name: another writer, with states of its own."""
        check_name("flow", name, "renamed")
        found = copy(self)
        found.name, found.nodes = name, list(self.nodes)
        return found

    def cells(self, stage: Node) -> range:
        """The numbers of a stage's cells: of the buckets of all its state partitions."""
        return range(self.state_partitions * stage.buckets)

    def outputs(self) -> list[Node]:
        """The outputs, in the order of their declaration."""
        return self._of("output")

    def sources(self) -> list[Node]:
        """The sources, in the order of their declaration."""
        return self._of("source")

    def input_topics(self) -> list[str]:
        """All input topics, sorted."""
        return sorted(topic for node in self.sources() for topic in node.topics)

    def children(self, index: int) -> list[Node]:
        """The nodes that take their units from this one, in the order of their declaration."""
        return [node for node in self.nodes if index in node.parents]

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
        upstream = self.stage_of(stage)
        return 1 if upstream is None else 1 + self.level(upstream)

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
                raise FlowError(f"{node.place}: nothing is done with this {node.kind} of flow {self.name!r}")

    def _of(self, kind: Kind) -> list[Node]:
        return [node for node in self.nodes if node.kind == kind]

    def _add(self, kind: Kind, place: str, **fields: Any) -> Stream:  # noqa: ANN401 - the fields of Node
        node = Node(len(self.nodes), kind, place, **fields)
        self.nodes.append(node)
        return Stream(self, node)


@dataclass(frozen=True, slots=True)
class Stream(FilterSteps["Filter"]):
    """What a step gives: units on their way. May be used more than once."""

    flow: Flow
    node: Node

    def map(self, function: UserFunction) -> Stream:
        """One value for each value."""
        return self._step("map", function)

    def filter(self, function: UserFunction) -> Stream:
        """Only the values for which the function is true."""
        return self._step("filter", function)

    def flat_map(self, function: UserFunction) -> Stream:
        """Any number of values for each value. They stay together under their one input."""
        return self._step("flat_map", function)

    def key_by(self, key: UserFunction) -> Stream:
        """The same values under another key.

        Args:
            key: ``value -> bytes | str``; str is taken as UTF-8.
        """
        where = place()
        check_callable("key", key, where)
        if self._behind_changes():
            raise FlowError(f"{where}: changes() may feed map, filter and to() only; to() takes a key")
        return self.flow._add(  # noqa: SLF001 - Stream is the other half of Flow
            "key_by",
            where,
            parents=(self.node.index,),
            key=key,
            key_takes_context=wants_context(key, 1, where),
        )

    def merge(self, other: Stream) -> Stream:
        """The units of both streams, in the order of their inputs.

        Raises:
            FlowError: a stream of another flow, or one behind a stage: its order would not be defined.
        """
        where = place()
        if other.flow is not self.flow:
            raise FlowError(f"{where}: a stream of flow {other.flow.name!r} cannot be merged here")
        for stream in (self, other):
            if stream.node.kind in STAGES or self.flow.stage_of(stream.node):
                raise FlowError(f"{where}: streams behind a stage cannot be merged; merge before the stage")
        if other.node.index == self.node.index:
            raise FlowError(f"{where}: a stream cannot be merged with itself; every unit would count twice")
        parents = (self.node.index, other.node.index)
        return self.flow._add("merge", where, parents=parents)  # noqa: SLF001

    def aggregate(
        self,
        name: str,
        *,
        state: type[Message],
        fold: UserFunction,
        key: UserFunction | None = None,
        store: str | None = None,
        buckets: int = 1,
        view: ViewKind | None = None,
    ) -> Stage:
        """A keyed stage: fold each value into the state of its key.

        Args:
            name: stage name; permanent, states are stored under it.
            state: protobuf type of the states; a new key starts with an empty one.
            fold: ``(state, value) -> None | iterable of values``: changes the state in place and may
                emit values to the steps behind the stage. With the context as third argument, a state
                is deleted by ``context.delete_state()``.
            key: ``value -> bytes | str``; without it the stream's key is kept.
            store: name of the store for this stage; by default the service's.
            buckets: into how many pieces each state partition is split in the store, each with a header
                of its own: so that no partition of a Cassandra table grows beyond some 100,000 keys.
                Permanent, like the flow's state partitions.
            view: write beside each state, in the same atomic step, how it looks: its "json", or a "hash" of
                its fields where the store has such a thing (Redis), for programs that know no protobuf.
                Keys that do not change any more keep what they had.

        Raises:
            FlowError: name clash, no protobuf type, no bucket, no such view, or a stage behind `changes()`.
        """
        where = place()
        self._check_stage(name, where)
        if not (isinstance(state, type) and issubclass(state, Message)):
            raise FlowError(f"{where}: state of stage {name!r} must be a protobuf type, got {state!r}")
        check_callable("fold", fold, where)
        if key is not None:
            check_callable("key", key, where)
        if not isinstance(buckets, int) or not 1 <= buckets <= MAX_BUCKETS:
            raise FlowError(f"{where}: buckets={buckets!r}; 1 to {MAX_BUCKETS}")
        if view is not None:
            check_choice("view", view, ("json", "hash"), where)
        stream = self.flow._add(  # noqa: SLF001
            "aggregate",
            where,
            parents=(self.node.index,),
            function=fold,
            takes_context=wants_context(fold, 2, where),
            key=key,
            key_takes_context=wants_context(key, 1, where),
            name=name,
            payload=state,
            store=store,
            buckets=buckets,
            view=view,
        )
        return Stage(stream.flow, stream.node)

    def to(
        self,
        topic: str,
        *,
        partitions: int,
        key: UserFunction | None = None,
        name: str | None = None,
        headers: bool = True,
    ) -> None:
        """Publish: what one input gives for one key goes out as one envelope.

        Args:
            topic: output topic.
            partitions: N of ``murmur2(key) % N``; permanent. To grow, give the output a new name.
            key: ``value -> bytes | str | None``; without it the stage's key, else the message's.
            name: permanent name of the output; by default the topic.
            headers: pass the input's headers on (outputs without a stage before them).

        Raises:
            FlowError: a name clash, a loop into the flow's own input, or partitions below 1.
        """
        return self._to(topic, place(), partitions, key, name, headers=headers)

    def to_sqe(
        self, topic: str, *, partitions: int, process_id: int, name: str | None = None, headers: bool = True
    ) -> None:
        """Publish bare payloads under SQE's record keys, for readers that know those only.

        A key tells process, source partition and source offset, so an input may give one payload here at most, and
        the flow reads one topic. The destination is the source partition modulo the number of partitions.

        Args:
            topic: output topic.
            partitions: N; permanent.
            process_id: `sqe_chain.sqe_key.process_id` of what these readers take this flow for.
            name: permanent name of the output; by default the topic.
            headers: pass the input's headers on (before any stage).

        Raises:
            FlowError: a name clash, a loop into the flow's own input, partitions below 1, or no 64-bit number.
        """
        where = place()
        if not isinstance(process_id, int) or not -(1 << 63) <= process_id < 1 << 63:
            raise FlowError(f"{where}: process_id={process_id!r}; a whole number of 64 bits with a sign")
        self._to(topic, where, partitions, None, name, headers=headers, process_id=process_id)

    def _to(
        self,
        topic: str,
        where: str,
        partitions: int,
        key: UserFunction | None,
        name: str | None,
        **more: Any,  # noqa: ANN401 - the fields of Node
    ) -> None:
        check_topic(topic, where)
        output = name or topic
        check_name("output", output, where, TOPIC_LENGTH)
        for other in self.flow.outputs():
            if other.name == output:
                raise FlowError(
                    f"{where}: output {output!r} exists already at {other.place}; give this one a name=..."
                )
        if topic in self.flow.input_topics():
            raise FlowError(f"{where}: flow {self.flow.name!r} reads {topic!r} itself: that would be a loop")
        if not isinstance(partitions, int) or partitions < 1:
            raise FlowError(f"{where}: partitions={partitions!r}; at least 1")
        if key is not None:
            check_callable("key", key, where)
        self.flow._add(  # noqa: SLF001
            "output",
            where,
            parents=(self.node.index,),
            key=key,
            key_takes_context=wants_context(key, 1, where),
            name=output,
            topics=(topic,),
            partitions=partitions,
            **more,
        )

    def _filtered(
        self, name: str, spec: FilterSpec, store: str | None, where: str, key: UserFunction | None = None
    ) -> Filter:
        self._check_stage(name, where)
        if spec.settings.get("malformed") == "dead_letter" and not self.flow.dead_letters:
            raise FlowError(f"{where}: malformed='dead_letter' needs a flow with poison='dead_letter'")
        stream = self.flow._add(  # noqa: SLF001
            "sieve",
            where,
            parents=(self.node.index,),
            name=name,
            store=store,
            spec=spec,
            payload=spec.settings.get("state"),
            key=key,
            key_takes_context=wants_context(key, 1, where),
        )
        return Filter(stream.flow, stream.node)

    def _check_stage(self, name: str, where: str) -> None:
        check_name("stage", name, where)
        for other in self.flow.stages():
            if other.name == name:
                raise FlowError(f"{where}: stage {name!r} exists already at {other.place}")
        if self._behind_changes():
            raise FlowError(
                f"{where}: a stage cannot stand behind changes(): its result would depend on where "
                "batches end; emit from the fold instead"
            )

    def _behind_changes(self) -> bool:
        node = self.node
        while node.kind not in ("changes", *STAGES, "source"):
            node = self.flow.nodes[node.parents[0]]
        return node.kind == "changes"

    def _step(self, kind: Kind, function: UserFunction) -> Stream:
        where = place()
        check_callable(kind, function, where)
        wants = wants_context(function, 1, where)
        if kind == "flat_map" and self._behind_changes():
            raise FlowError(f"{where}: changes() may feed map, filter and to() only")
        return self.flow._add(  # noqa: SLF001
            kind, where, parents=(self.node.index,), function=function, takes_context=wants
        )


@dataclass(frozen=True, slots=True)
class Stage(Stream):
    """A keyed stage. As a stream it gives what its fold emits."""

    def changes(self) -> Stream:
        """The newest state of each key that changed, once a batch. A deleted state gives None.

        May feed `map`, `filter` and `to`, no further stage.
        """
        return self.flow._add("changes", place(), parents=(self.node.index,))  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class Filter(Stream):
    """A filter that remembers. As a stream it gives what goes on."""

    def dropped(self) -> Stream:
        """One `Dropped` (proto/sqe_chain/v1/dropped.proto) for each record that does not go on, with the reason.

        Also for one that goes on behind missing numbers (`gap`), or without any (`malformed="pass"`). May feed what
        any stream behind a stage may feed.
        """
        return self.flow._add("dropped", place(), parents=(self.node.index,))  # noqa: SLF001
