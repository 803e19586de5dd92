"""A flow as it runs: frozen, and everything that a batch asks of it looked up once, when it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Literal, Self, TypeVar

from sqe_chain.codecs import Codec, Place, codec_for
from sqe_chain.envelope.marks import Recreated
from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.flow.declaration import check_name
from sqe_chain.flow.nodes import KeyedNode, Node, OutputNode, SideNode, SourceNode, StageNode
from sqe_chain.ports.files import FileSource
from sqe_chain.ports.readers import ALL, Partitions, scope_of

PoisonPolicy = Literal["stop", "dead_letter", "skip", "park"]
Key = TypeVar("Key")
Found = TypeVar("Found")


class Kept(dict[Key, Found], Generic[Key, Found]):
    """What `find` gives for a key, kept when it is asked for first: topics of files and types of values come while the flow runs."""

    def __init__(self, find: Callable[[Key], Found]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, key: Key) -> Found:
        value = self[key] = self._find(key)
        return value


@dataclass(frozen=True, eq=False)
class CompiledFlow:
    """A flow whose declaration is complete. `Flow.compile` makes it; see there for the settings.

    Attributes:
        name: of its claim, plans and states; differs for each of several readers.
        declared_name: its name as its user declared it: the Kafka group, and the writer in what it publishes.
        partitions: the input partitions that it reads; None: all of them.
        nodes: in the order of their declaration; parents come before children.
        sources: its sources, in the order of their declaration; so are stages and outputs.
        stages: its stages.
        levels: its stages by how many a unit has passed when it has passed them: the first level at 0.
        outputs: its outputs.
        children: by the index of a node: the nodes that take their units from it.
        depths: by the index of a node: how many stages its units have passed, itself included.
        stage_before: by the index of a node: the stage that its units come from; None before the first one.
        topics_before: by the index of a node: the input topics, and the names of sources of files, whose messages reach it.
        paths: every stage and output -> where its units come from: sources, stages, `changes()` and `dropped()` of stages.
        cells: by the index of a stage: the numbers of its cells. A cell is one bucket of one state partition.
        all_cells: every (stage, cell).
        input_topics: all input topics, sorted; without files.
        file_sources: what its sources of files read.
        input_names: all input topics and the names of all sources of files, sorted.
        source_of: topic -> the source that reads it, or the file whose topic it is; None: none does.
        codec_of: topic -> the codec of the source that reads it, for that place; None: it has a decoder.
        output_codec: index of an output, and the type of a value -> the codec that encodes such values, for its topic.
        headed: index of an output, and a type as envelopes name it -> the codec, if such records bear its headers. Filled as
            `output_codec` finds them: a payload has been encoded before its headers are asked for.
        registry: the service's schema registry, for codecs that ask one; None: it has none. Sent to workers with its login.
        notes: what codecs have noted at the start of the service; see `Codec.prepare`. A task takes it from its job.
        operators: what tasks have compiled for it (`sqe_chain.task.compiler`). It holds the flow, so it lives here: a cache elsewhere
            would keep every flow. Each process compiles its own.
        declared_topic: topic -> the topic as it is declared: of a file the name of its source.
        gated: the input topics, and the names of sources of files, whose inputs are taken in the order of their times. They reach
            a stage that compares times of several inputs. One input partition alone has an order already.
        one_time: index of a source -> name of a stage by time that takes its values at the times of their inputs. Then each input
            must have one time.
        own_times: indexes of the sources whose values all have times of their own in stages by time.
        by_time: whether any stage takes its records in the order of their times.
        timed: whether event time is followed in the inputs: for such stages, or for those who read what the flow writes.
        dead_letters: whether it publishes dead-letter records.
        written_topics: all topics that it publishes to, sorted; those of dead-letter records and of markers included.
        writes_sqe: whether an output has SQE's record keys.
        keeps_plans: whether it needs a store: for states, for how far its files are read, or for what a transaction has published.
        seals_outputs: whether plans have digests of outputs, so that a redo gives what receivers may have. Of a transactional flow they
            have none of a plan that is redone.
        notes_lanes: whether plans note where the lanes of its outputs end, because it may go on in another cluster; see
            `sqe_chain.operations.failover`.
        marker_topic: where a transaction notes which plan it has published; empty: the flow is not transactional.
        may_run_apart: whether it has stages, and several readers could run it; see `check_apart`.
        ticking: names of the stages that go by the batch's clock.
        falling: names of those in which something falls due by event time.
        by_order: whether what a stage gives depends on the order of inputs. Stages of windows that give final ones alone are those that do
            not, among those that go by event time.
        after_falling: indexes of the stages that such a stage is before: in a batch they get units in the order of their places.
        reversible: whether all stages can revert the changes of an input.
        fits_in_place: whether nothing in it needs a shuffle: no stage has heartbeats, which go to every state partition.
    """

    name: str
    poison: PoisonPolicy
    dead_letter_topic: str
    dead_letter_partitions: int
    state_partitions: int
    max_lanes: int
    recreated: Recreated
    allow_compacted: bool
    traces: bool
    transactional: bool
    nodes: tuple[Node, ...] = field(repr=False)
    declared_name: str = ""
    partitions: Partitions | None = None
    registry: object = field(default=None, repr=False)

    sources: tuple[SourceNode, ...] = field(init=False, repr=False)
    stages: tuple[StageNode, ...] = field(init=False, repr=False)
    levels: tuple[tuple[StageNode, ...], ...] = field(init=False, repr=False)
    outputs: tuple[OutputNode, ...] = field(init=False, repr=False)
    children: tuple[tuple[Node, ...], ...] = field(init=False, repr=False)
    depths: tuple[int, ...] = field(init=False, repr=False)
    stage_before: tuple[StageNode | None, ...] = field(init=False, repr=False)
    topics_before: tuple[frozenset[str], ...] = field(init=False, repr=False)
    paths: dict[str, str] = field(init=False, repr=False)
    cells: dict[int, range] = field(init=False, repr=False)
    all_cells: tuple[tuple[StageNode, int], ...] = field(init=False, repr=False)
    input_topics: tuple[str, ...] = field(init=False, repr=False)
    file_sources: tuple[FileSource, ...] = field(init=False, repr=False)
    input_names: tuple[str, ...] = field(init=False, repr=False)
    source_of: Kept[str, SourceNode | None] = field(init=False, repr=False)
    codec_of: Kept[str, Codec[Any] | None] = field(init=False, repr=False)
    output_codec: Kept[tuple[int, type], Codec[Any]] = field(init=False, repr=False)
    headed: dict[tuple[int, str], Codec[Any]] = field(init=False, repr=False)
    notes: dict[str, str] = field(init=False, repr=False)
    operators: dict[tuple[int, str, frozenset[int]], Any] = field(init=False, repr=False)
    declared_topic: Kept[str, str] = field(init=False, repr=False)
    gated: frozenset[str] = field(init=False, repr=False)
    one_time: dict[int, str] = field(init=False, repr=False)
    own_times: frozenset[int] = field(init=False, repr=False)
    by_time: bool = field(init=False, repr=False)
    timed: bool = field(init=False, repr=False)
    dead_letters: bool = field(init=False, repr=False)
    written_topics: tuple[str, ...] = field(init=False, repr=False)
    writes_sqe: bool = field(init=False, repr=False)
    keeps_plans: bool = field(init=False, repr=False)
    marker_topic: str = field(init=False, repr=False)
    seals_outputs: bool = field(init=False, repr=False)
    notes_lanes: bool = field(init=False, repr=False)
    may_run_apart: bool = field(init=False, repr=False)
    ticking: frozenset[str] = field(init=False, repr=False)
    falling: frozenset[str] = field(init=False, repr=False)
    by_order: bool = field(init=False, repr=False)
    after_falling: frozenset[int] = field(init=False, repr=False)
    reversible: bool = field(init=False, repr=False)
    fits_in_place: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        known: dict[str, Any] = {"declared_name": self.declared_name or self.name}
        known |= _connections(self.nodes)
        known["sources"] = sources = tuple(node for node in self.nodes if isinstance(node, SourceNode))
        known["stages"] = stages = tuple(node for node in self.nodes if isinstance(node, StageNode))
        known["outputs"] = outputs = tuple(node for node in self.nodes if isinstance(node, OutputNode))
        files = tuple(node.files for node in sources if node.files is not None)
        topics = sorted(topic for node in sources if node.files is None for topic in node.topics)
        letters = {self.dead_letter_topic} if self.poison == "dead_letter" else set()
        marker_topic = f"{self.declared_name or self.name}.published" if self.transactional else ""
        beside = letters | {marker_topic} - {""}
        cells = {stage.index: range(self.state_partitions * stage.buckets) for stage in stages}
        gated = frozenset[str]().union(
            *(known["topics_before"][stage.index] for stage in stages if takes_times(stage))
        )
        one_time, own_times = _taken_times(sources, known["children"])
        children = known["children"]
        depth = max((known["depths"][stage.index] for stage in stages), default=0)
        traits = [stage.traits for stage in stages]
        known |= {
            "levels": tuple(
                tuple(stage for stage in stages if known["depths"][stage.index] == level)
                for level in range(1, depth + 1)
            ),
            "paths": _paths(self.nodes),
            "cells": cells,
            "all_cells": tuple((stage, cell) for stage in stages for cell in cells[stage.index]),
            "input_topics": tuple(topics),
            "file_sources": files,
            "input_names": tuple(sorted([*topics, *(source.name for source in files)])),
            "source_of": Kept(lambda topic: next((node for node in sources if node.reads(topic)), None)),
            "codec_of": Kept(self._codec_of),
            "output_codec": Kept(self._output_codec),
            "headed": {},
            "notes": {},
            "operators": {},
            "declared_topic": Kept(
                lambda topic: next((source.name for source in files if source.has(topic)), topic)
            ),
            "gated": gated,
            "one_time": one_time,
            "own_times": own_times,
            "by_time": bool(gated),
            "timed": bool(gated or outputs),
            "dead_letters": self.poison == "dead_letter",
            "written_topics": tuple(sorted({output.topic for output in outputs} | beside)),
            "writes_sqe": any(output.process_id is not None for output in outputs),
            "keeps_plans": bool(stages or files or self.transactional),
            "marker_topic": marker_topic,
            "seals_outputs": bool(stages or files) and not self.transactional,
            "notes_lanes": bool(stages and outputs and self.poison == "stop" and not gated)
            and not (self.transactional or self.allow_compacted or self.partitions is not None)
            and not any(node.raw or node.files for node in sources)
            and not any(trait.ticks for trait in traits),
            "may_run_apart": bool(stages)
            and not files
            and not self.transactional
            and all(trait.apart for trait in traits),
            "ticking": frozenset(stage.name for stage in stages if stage.traits.ticks),
            "falling": frozenset(
                stage.name for stage in stages if stage.traits.falls_due and takes_times(stage)
            ),
            "by_order": any(
                not stage.traits.windowed or any(child.side == "changes" for child in children[stage.index])
                for stage in stages
                if takes_times(stage)
            ),
            "reversible": all(trait.reversible for trait in traits),
            "fits_in_place": bool(stages) and not any(trait.heartbeat for trait in traits),
        }
        known["after_falling"] = _after(self.nodes, known["falling"])
        # Frozen from here on. Written past `__setattr__`, which a frozen dataclass refuses.
        vars(self).update(known)

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        """What is sent to workers: what was declared; they look up the rest again."""
        return type(self), tuple(getattr(self, declared.name) for declared in fields(self) if declared.init)

    def compile(self) -> Self:
        """Itself."""
        return self

    def _codec_of(self, topic: str) -> Codec[Any] | None:
        node = next((node for node in self.sources if topic in node.topics or node.reads(topic)), None)
        codec = None if node is None else node.codec
        if node is None or codec is None or node.files is not None:  # rows of files are in no topic
            return codec
        return self._at(codec, Place(topic, registry=self.registry, notes=self.notes))

    def _output_codec(self, place: tuple[int, type]) -> Codec[Any]:
        index, python_type = place
        node = self.nodes[index]
        if not isinstance(node, OutputNode):
            raise AssertionError(f"{node.declared_at}: no output")  # noqa: TRY004 - ours, no user can cause it
        at = Place(node.topic, writes=True, registry=self.registry, notes=self.notes)
        if isinstance(node.encoding, Codec):
            whole = index, node.encoding.python_type
            if place != whole:  # it takes values of every type, and has one memory of what it has looked up
                return self.output_codec[whole]
            codec = self._at(node.encoding, at)
        else:
            make = codec_for if node.encoding is None else node.encoding
            codec = self._at(make(python_type), at)
        if codec.writes_headers:
            self.headed[index, codec.type_name] = codec
        return codec

    @staticmethod
    def _at(codec: Codec[Any], place: Place) -> Codec[Any]:
        """A codec for the values of a topic.

        Raises:
            ConfigurationError: the codec refuses the place, or gives something else.
        """
        own = codec.at(place)
        if type(own) is not type(codec) or own.python_type is not codec.python_type:
            raise ConfigurationError(
                f"codec {codec.name!r} gives {own!r} for the values of topic {place.topic!r}. Expected itself, or a codec of its class "
                f"and type. Let {type(codec).__name__}.at() return one"
            )
        return own

    @property
    def asking_codecs(self) -> list[tuple[str, Codec[Any]]]:
        """The codecs of sources and outputs that ask a schema registry, each with what it is for."""
        read = (
            (f"{source.declared_at}: source {source.name!r}", self.codec_of[topic])
            for source in self.sources
            for topic in (source.topics if source.files is None else ())
        )
        written = (
            (
                f"{node.declared_at}: output to {node.topic!r}",
                self.output_codec[node.index, node.encoding.python_type],
            )
            for node in self.outputs
            if isinstance(node.encoding, Codec)
        )
        return [
            (what, codec) for what, codec in (*read, *written) if codec is not None and codec.wants_registry
        ]

    def asking(self, registry: object) -> Self:
        """The same flow, whose codecs ask this schema registry."""
        return replace(self, registry=registry)

    def stage_at(self, index: int) -> StageNode:
        """The stage with this index in `nodes`."""
        node = self.nodes[index]
        if not isinstance(node, StageNode):
            raise AssertionError(f"{node.declared_at}: no stage")  # noqa: TRY004 - ours, no user can cause it
        return node

    def giving_later_before(self, node: Node) -> list[str]:
        """The stages before a node that may give later what they make of an input; see `StageTraits.gives_later`."""
        names, ahead = set[str](), list(node.parents)
        while ahead:
            before = self.nodes[ahead.pop()]
            ahead += before.parents
            if isinstance(before, StageNode) and before.traits.gives_later:
                names.add(before.name)
        return sorted(names)

    def renamed(self, name: str) -> Self:
        """The same flow under another name: another writer, with states of its own, and no transactions."""
        check_name("flow", name, "renamed")
        return replace(self, name=name, declared_name=name, transactional=False)

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
        name = scope or (self.name if whole else scope_of(self.declared_name, partitions, 0))
        return replace(self, name=name, partitions=None if whole else partitions)

    def check_apart(self) -> None:
        """Check that several readers can run it side by side, each for its own input partitions.

        Nothing that one of them keeps may depend on what another one reads.

        Raises:
            FlowError: it cannot; the text names the reason.
        """
        if self.transactional:
            raise FlowError(
                f"flow {self.declared_name!r} is transactional, so several readers cannot share it out: one run publishes all outputs. "
                "Declare it without transactional=True, or spread one service over processes with --workers"
            )
        for source in self.sources:
            if source.files is not None:
                raise FlowError(
                    f"{source.declared_at}: flow {self.declared_name!r} reads files, which have no partitions, so readers cannot share "
                    "them out; spread one service over processes with --workers"
                )
        for stage in self.stages:
            if not stage.traits.apart:
                raise FlowError(
                    f"{stage.declared_at}: flow {self.declared_name!r} cannot be read by several readers: stage {stage.name!r} "
                    f"({stage.traits.called}) keeps states that messages of any input partition may change. Readers know nothing "
                    "of each other. Let readers write tables or publish, and keep states in another flow; or spread one service over "
                    "processes with --workers, or on Spark"
                )

    def reads_partition(self, number: int) -> bool:
        """Whether it reads the input partitions with this number."""
        return self.partitions is None or number in self.partitions


def takes_times(stage: StageNode) -> bool:
    """Whether a stage takes its units in the order of their times, across input partitions."""
    return stage.traits.order == "times" and stage.traits.spread in ("key", "id")


def _connections(nodes: tuple[Node, ...]) -> dict[str, object]:
    """What is known of each node by its place: parents come before children."""
    children: list[list[Node]] = [[] for _ in nodes]
    stages: list[StageNode | None] = []
    depths: list[int] = []
    topics: list[frozenset[str]] = []
    for node in nodes:
        for parent in node.parents:
            children[parent].append(node)
        before = nodes[node.parents[0]] if node.parents else None
        stage = before if isinstance(before, StageNode) or before is None else stages[before.index]
        stages.append(stage if isinstance(stage, StageNode) else None)
        depths.append((depths[before.index] if before is not None else 0) + isinstance(node, StageNode))
        own = frozenset(node.topics) if isinstance(node, SourceNode) else frozenset[str]()
        topics.append(own.union(*(topics[parent] for parent in node.parents)))
    return {
        "children": tuple(map(tuple, children)),
        "stage_before": tuple(stages),
        "depths": tuple(depths),
        "topics_before": tuple(topics),
    }


def _taken_times(
    sources: Sequence[SourceNode], children: Sequence[Sequence[Node]]
) -> tuple[dict[int, str], frozenset[int]]:
    """See `CompiledFlow.one_time` and `own_times`. What windows give is another value, with the time at which they end."""
    one_time, own_times = dict[int, str](), set[int]()
    for source in sources:
        pending: list[Node] = [source]
        while pending:
            node = pending.pop()
            for child in children[node.index]:
                if isinstance(child, StageNode) and takes_times(child):
                    own = child.traits.own_times
                    if own is not None and child.parents.index(node.index) in own.inputs:
                        own_times.add(source.index)
                    else:
                        one_time.setdefault(source.index, child.name)
                if not (isinstance(child, StageNode) and child.traits.windowed):
                    pending.append(child)
    return one_time, frozenset(own_times.difference(one_time))


def _after(nodes: Sequence[Node], names: frozenset[str]) -> frozenset[int]:
    """Indexes of the stages that have one with these names somewhere before them."""
    after = set[int]()
    for node in nodes:  # parents come before children
        for parent in node.parents:
            before = nodes[parent]
            if parent in after or (isinstance(before, StageNode) and before.name in names):
                after.add(node.index)
    return frozenset(index for index in after if isinstance(nodes[index], StageNode))


def _paths(nodes: Sequence[Node]) -> dict[str, str]:
    paths = {}
    for node in nodes:
        if isinstance(node, KeyedNode):
            kind = "stage" if isinstance(node, StageNode) else node.kind
            paths[f"{kind}/{node.name}"] = " ".join(sorted(set(_upstream(nodes, node))))
    return paths


def _upstream(nodes: Sequence[Node], node: Node) -> Iterator[str]:
    for parent in (nodes[index] for index in node.parents):
        if isinstance(parent, SourceNode):
            yield f"source/{','.join(parent.topics)}"
        elif isinstance(parent, StageNode):
            yield f"stage/{parent.name}"
        elif isinstance(parent, SideNode):
            yield f"{parent.kind}/{getattr(nodes[parent.parents[0]], 'name', '')}"
        else:
            yield from _upstream(nodes, parent)
