"""A flow as data: its nodes and how they are connected. Everything that runs a flow reads this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar

from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import (
    caller_line,
    check_bool,
    check_choice,
    check_int,
    check_name,
    check_topic,
)
from sqe_chain.flow.nodes import NO_TIMES, Node, OutputNode, SourceNode, StageNode
from sqe_chain.ports.files import FileSource
from sqe_chain.ports.readers import ALL, Partitions, flow_of, scope_of
from sqe_chain.replays.marks import DEFAULT_MAX_LANES, Recreated

Found = TypeVar("Found")
FoundNode = TypeVar("FoundNode", bound=Node)
PoisonPolicy = Literal["stop", "dead_letter", "skip"]

DEFAULT_STATE_PARTITIONS = 8
MAX_PARTITIONS = 100_000
"""Of an output; more than any Kafka cluster can have, so a larger number is a typing error."""
_MOST = {
    "state_partitions": 65_536,
    "dead_letter_partitions": MAX_PARTITIONS,
    "max_lanes": 10_000_000,
}


def takes_times(stage: StageNode) -> bool:
    """Whether a stage takes its units in the order of their times, across input partitions."""
    kind = stage.stage_kind
    return kind.order == "times" and kind.spread in ("key", "id")


@dataclass
class Topology:
    """The nodes of a flow and how they are connected. See `sqe_chain.flow.flow.Flow` for the arguments.

    Attributes:
        nodes: in the order of their declaration; parents come before children.
        declared_name: its name as its user declared it: the Kafka group, and the writer in what it publishes. `name` is that of
            its claim, plans and states, which differs for each of several readers.
        partitions: the input partitions that it reads; None: all of them.
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
    declared_name: str = field(default="", init=False, repr=False)
    partitions: Partitions | None = field(default=None, init=False, repr=False)
    _found: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = caller_line()
        check_name("flow", self.name, where)
        if flow_of(self.name) != self.name:
            raise FlowError(
                f"{where}: flow name {self.name!r} ends as the names of readers do; choose another one"
            )
        self.declared_name = self.name
        check_choice("poison", self.poison, ("stop", "dead_letter", "skip"), where)
        check_choice("recreated", self.recreated, ("stop", "count", "skip"), where)
        if self.dead_letter_topic == "":
            self.dead_letter_topic = f"{self.name}.dead-letters"
        check_topic(self.dead_letter_topic, where)
        for what, most in _MOST.items():
            check_int(what, getattr(self, what), 1, most, where)
        check_bool("allow_compacted", self.allow_compacted, where)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to Spark's workers: all but the cache of `_once`, which they build again."""
        return {**self.__dict__, "_found": {}}

    @property
    def dead_letters(self) -> bool:
        """Whether this flow publishes dead letters."""
        return self.poison == "dead_letter"

    def stages(self) -> Sequence[StageNode]:
        """The stages, in the order of their declaration."""
        return self._of(StageNode)

    def stage_at(self, index: int) -> StageNode:
        """The stage with this index in `nodes`."""
        node = self.nodes[index]
        if not isinstance(node, StageNode):
            raise AssertionError(f"{node.declared_at}: no stage")  # noqa: TRY004 - ours, no user can cause it
        return node

    def renamed(self, name: str) -> Self:
        """The same flow under another name: another writer, with states of its own."""
        check_name("flow", name, "renamed")
        found = copy(self)
        found.name, found.declared_name, found.nodes = name, name, list(self.nodes)
        vars(found)["_found"] = {}
        return found

    def reader(self, partitions: Partitions, *, scope: str | None = None) -> Self:
        """The same flow, read by one of several readers: another claim, the same writer.

        Args:
            partitions: the input partitions that it reads; all of them: as a flow that is run as one.
            scope: name of its claim, plans and states; None: that of a reader that has been there from the beginning.

        Raises:
            FlowError: the flow cannot be read so; see `check_apart`.
        """
        self.check_apart()
        whole = partitions == ALL
        found = copy(self)
        found.name = scope or (self.name if whole else scope_of(self.declared_name, partitions, 0))
        found.partitions, found.nodes = None if whole else partitions, list(self.nodes)
        vars(found)["_found"] = {}
        return found

    def check_apart(self) -> None:
        """Check that several readers can run it side by side, each for its own input partitions.

        Nothing that one of them keeps may depend on what another one reads.

        Raises:
            FlowError: it cannot; the text names what stands against it.
        """
        for source in self.sources():
            if source.files is not None:
                raise FlowError(
                    f"{source.declared_at}: flow {self.declared_name!r} reads files, which have no partitions, so readers cannot share "
                    "them out; spread one service over processes with --workers"
                )
        for stage in self.stages():
            if not stage.stage_kind.apart:
                raise FlowError(
                    f"{stage.declared_at}: flow {self.declared_name!r} cannot be read by several readers: stage {stage.name!r} "
                    f"({stage.stage_kind.called}) keeps states that messages of any input partition may change, and readers know nothing "
                    "of each other. Let readers write tables or publish, and keep states in another flow; or spread one service over "
                    "processes with --workers, or on Spark"
                )

    @property
    def may_run_apart(self) -> bool:
        """Whether it has stages, and several readers could run it; see `check_apart`."""
        return (
            bool(self.stages())
            and not self.file_sources()
            and all(one.stage_kind.apart for one in self.stages())
        )

    def reads_partition(self, number: int) -> bool:
        """Whether it reads the input partitions with this number."""
        return self.partitions is None or number in self.partitions

    def cells(self, stage: StageNode) -> range:
        """The numbers of a stage's cells. A cell is one bucket of one state partition."""
        return range(self.state_partitions * stage.buckets)

    def outputs(self) -> Sequence[OutputNode]:
        """The outputs, in the order of their declaration."""
        return self._of(OutputNode)

    def sources(self) -> Sequence[SourceNode]:
        """The sources, in the order of their declaration."""
        return self._of(SourceNode)

    def input_topics(self) -> Sequence[str]:
        """All input topics, sorted; without files."""
        return self._once(
            "input topics",
            lambda: tuple(
                sorted(topic for node in self.sources() if node.files is None for topic in node.topics)
            ),
        )

    def file_sources(self) -> Sequence[FileSource]:
        """The sources that read files, in the order of their declaration."""
        return self._once(
            "file sources", lambda: tuple(node.files for node in self.sources() if node.files is not None)
        )

    def input_names(self) -> Sequence[str]:
        """All input topics and the names of all sources of files, sorted."""
        return sorted([*self.input_topics(), *(one.name for one in self.file_sources())])

    def source_of(self, topic: str) -> SourceNode | None:
        """The source that reads a topic, or the file whose topic it is."""
        return next((node for node in self.sources() if node.reads(topic)), None)

    def declared_topic(self, topic: str) -> str:
        """A topic as it is declared: of a file the name of its source."""
        return next((one.name for one in self.file_sources() if one.has(topic)), topic)

    @property
    def keeps_plans(self) -> bool:
        """Whether it needs a store: for states, or for how far its files are read."""
        return bool(self.stages() or self.file_sources())

    def children(self, index: int) -> Sequence[Node]:
        """The nodes that take their units from this one, in the order of their declaration."""
        return self._once(index, lambda: tuple(node for node in self.nodes if index in node.parents))

    def stage_of(self, node: Node) -> StageNode | None:
        """The keyed stage that a node's units come from; None before the first one."""
        while node.parents:
            node = self.nodes[node.parents[0]]
            if isinstance(node, StageNode):
                return node
        return None

    def depth(self, node: Node) -> int:
        """How many keyed stages a node's units have passed, itself included."""
        stage = node if isinstance(node, StageNode) else self.stage_of(node)
        return 0 if stage is None else self.level(stage)

    def level(self, stage: StageNode) -> int:
        """How many keyed stages a unit has passed when it has passed this one: 1 for the first."""

        def counted() -> int:
            upstream = self.stage_of(stage)
            return 1 if upstream is None else 1 + self.level(upstream)

        return self._once(("level", stage.index), counted)

    @property
    def gated(self) -> frozenset[str]:
        """The input topics, and the names of sources of files, whose inputs are taken in the order of their times.

        That are those that reach a stage which compares times of several inputs. What a stage compares of one input partition
        alone has an order already.
        """

        def found() -> frozenset[str]:
            return frozenset().union(
                *(self.topics_before(one) for one in self.stages() if takes_times(one)),
            )

        return self._once("gated", found)

    @property
    def by_time(self) -> bool:
        """Whether any stage takes its records in the order of their times."""
        return bool(self.gated)

    @property
    def writes_sqe(self) -> bool:
        """Whether an output has SQE's record keys."""
        return any(output.process_id is not None for output in self.outputs())

    @property
    def timed(self) -> bool:
        """Whether event time is followed in the inputs: for such stages, or for those who read what the flow writes."""
        return self.by_time or bool(self.outputs())

    def topics_before(self, node: Node) -> frozenset[str]:
        """The input topics, and the names of sources of files, whose messages reach a node."""
        if isinstance(node, SourceNode):
            return frozenset(node.topics)
        return self._once(
            ("topics before", node.index),
            lambda: frozenset().union(*(self.topics_before(self.nodes[parent]) for parent in node.parents)),
        )

    def leave_out_times(self, table: Node, where: str) -> None:
        """Let what the sources before a node read have no times: a join reads it as a table without history.

        Raises:
            FlowError: the table has passed a stage, or its sources have times of their own.
        """
        if self.depth(table):
            raise FlowError(
                f"{where}: a static table is read from a source, and this one comes from a stage: publish it first"
            )
        for source in self.sources():
            if not self.topics_before(table).isdisjoint(source.topics):
                if source.timestamp not in (None, NO_TIMES):
                    raise FlowError(
                        f"{where}: a static table has no times: remove timestamp= from source {source.name!r} ({source.declared_at})"
                    )
                self.nodes[source.index] = replace(source, timestamp=NO_TIMES)
        self._found.clear()

    def _check_static(self, source: SourceNode) -> None:
        """Check that nothing but static tables takes what a source reads: it has no times."""
        reached: list[Node] = [source]
        while reached:
            node = reached.pop()
            for child in self.children(node.index):
                table = isinstance(child, StageNode) and getattr(child.stage_kind, "static", False)
                if isinstance(child, OutputNode) or (
                    isinstance(child, StageNode) and not (table and child.parents[1:] == (node.index,))
                ):
                    raise FlowError(
                        f"{child.declared_at}: source {source.name!r} is read as a static table, so its messages have no times, and "
                        "nothing else can take them: read them in another flow as well"
                    )
                if not isinstance(child, StageNode):
                    reached.append(child)

    def check(self) -> None:
        """Check what can only be checked once the flow is complete.

        Raises:
            FlowError: there is no source, a stream is not used, or the flow would read its own dead letters.
        """
        if not self.nodes:
            raise FlowError(f"flow {self.name!r} has no source")
        for source in self.sources():
            if self.dead_letters and self.dead_letter_topic in source.topics:
                raise FlowError(
                    f"{source.declared_at}: {self.dead_letter_topic!r} takes the dead letters of flow {self.name!r}: reading it "
                    "would be a loop; choose another dead_letter_topic"
                )
            if source.static:
                self._check_static(source)
            if source.files is not None and self.by_time and source.timestamp is None:
                raise FlowError(
                    f"{source.declared_at}: flow {self.name!r} goes by event time, and rows of files have no time but those in their "
                    "columns: give files(..., timestamp=...)"
                )
        for output in self.outputs():
            if output.process_id is not None and (len(self.input_topics()) > 1 or self.file_sources()):
                raise FlowError(
                    f"{output.declared_at}: SQE's record keys name a source partition and offset, not a topic: this flow reads "
                    f"{', '.join(self.input_names())}; read one topic in a flow that writes for SQE"
                )
        for node in self.nodes:
            if not node.may_be_last and not self.children(node.index):
                raise FlowError(
                    f"{node.declared_at}: nothing is done with {node.described(self.nodes)} of flow {self.name!r}; let a stage or an "
                    "output follow it, or remove it"
                )

    def _of(self, kind: type[FoundNode]) -> Sequence[FoundNode]:
        return self._once(kind, lambda: tuple(node for node in self.nodes if isinstance(node, kind)))

    def _once(self, what: object, find: Callable[[], Found]) -> Found:
        """The result of `find`, cached until a node is added, because each batch asks for it many times."""
        found: Found | None = self._found.get(what)
        if found is None:
            found = self._found[what] = find()
        return found

    def add(self, kind: type[FoundNode], declared_at: str, *parents: Node, **fields: Any) -> FoundNode:  # noqa: ANN401 - the fields of the node
        """Append a node. Its fields were checked by the stream that declares it.

        Args:
            kind: its class.
            declared_at: where the user declared it.
            parents: the nodes it takes its units from.
            fields: those of its class.
        """
        node = kind(len(self.nodes), declared_at, tuple(parent.index for parent in parents), **fields)
        self.nodes.append(node)
        self._found.clear()
        return node
