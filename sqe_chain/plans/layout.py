"""What a flow is bound to for life: partitions, stages, outputs, sources, types; and whether it may go on as it is declared now.

Two checks, at each start:

* If a plan is unfinished: is this the code that sealed it, as far as that can be seen?
* Can the states that are stored, and the messages that were read, still be read with the declared types?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from sqe_chain.codecs import Codec
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import (
    START_OVER,
    AnotherCluster,
    ChangedType,
    PartitionsMismatch,
    PlanMismatch,
    ServiceStopped,
)
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import SourceNode, StageNode
from sqe_chain.ports import TopicInfo, TopicPartition

Marks = dict[TopicPartition, PartitionMarks]
"""Input partition -> what of it is counted."""
_Known = TypeVar("_Known")


def mark_name(topic: str, partition: int) -> str:
    """The name of a partition in what is stored and reported: "topic/partition"; also of a state partition: "stage/partition"."""
    return f"{topic}/{partition}"


def by_name(known: Mapping[TopicPartition, _Known]) -> dict[str, _Known]:
    """What is known of partitions, by their names."""
    return {mark_name(*at): value for at, value in known.items()}


def by_partition(known: Mapping[str, _Known]) -> dict[TopicPartition, _Known]:
    """What `by_name` was given.

    Raises:
        ValueError: a name is none of `mark_name`.
    """
    parts = {name: name.rpartition("/") for name in known}
    return {(first, int(number)): known[name] for name, (first, _, number) in parts.items()}


def plain_marks(marks: Marks) -> dict[str, Any]:
    """Marks for JSON; `marks_in` reads them."""
    return {name: own.to_json() for name, own in by_name(marks).items()}


def marks_in(plain: Mapping[str, Any]) -> Marks:
    """The marks that `plain_marks` was given."""
    return {tp: PartitionMarks.from_json(own) for tp, own in by_partition(plain).items()}


@dataclass(frozen=True, slots=True)
class StageLayout:
    """Where and how the states of a stage are stored.

    Attributes:
        birth: number of the stage's birth plan.
        buckets: buckets of each state partition; each has a header of its own.
        flow: name of the flow under which the store keeps them: another one after a rebuild.
    """

    birth: int
    buckets: int
    flow: str


@dataclass(frozen=True, slots=True)
class TypeLayout:
    """The type of what a stage stores, or of what is read from a topic, to be compared with later declarations.

    Attributes:
        kind: `aggregate`, or that of a filter or of windows; of a topic `raw` or `envelopes`.
        name: of the type, as envelopes name it: full protobuf name, or ``codec:Name``; empty where the library alone knows what is stored.
        shape: of that type: see `Codec.shape`.
    """

    kind: str
    name: str = ""
    shape: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a flow is bound to for life.

    Attributes:
        state_partitions: P.
        stages: stage name -> where and how its states are stored.
        outputs: output name -> [topic, partitions].
        sources: topic -> [topic id (hexadecimal), known partitions].
        starts: where the flow once began to read a partition, where that was not offset 0.
        gone: topics that were created again since something of them was read, which cannot be read again.
        ways: "stage/NAME" or "output/NAME" -> where its units come from.
        types: "stage/NAME" or "source/TOPIC" -> what is stored or read there.
        cluster: id of the Kafka cluster that holds the sources; empty: it is not known yet.
        past: topic -> ids of those that were read under its name before it was created again.
    """

    state_partitions: int
    stages: dict[str, StageLayout] = field(default_factory=dict)
    outputs: dict[str, tuple[str, int]] = field(default_factory=dict)
    sources: dict[str, tuple[str, int]] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    ways: dict[str, str] = field(default_factory=dict)
    types: dict[str, TypeLayout] = field(default_factory=dict)
    cluster: str = ""
    past: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The layout as JSON."""
        plain = _members(self, _LAYOUT)
        plain["stages"] = {name: _members(stage, _STAGE) for name, stage in self.stages.items()}
        plain["types"] = {name: _members(known, _TYPE) for name, known in self.types.items()}
        plain["starts"] = by_name(self.starts)
        # Plans of older versions lack the members of `_LATER`. Written back they must give the same bytes, for their id is a digest.
        return {name: value for name, value in plain.items() if value or name not in _LATER}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Layout:
        """A layout from what `to_json` gave."""
        return cls(
            raw["state_partitions"],
            {name: StageLayout(**stage) for name, stage in raw["stages"].items()},
            {name: (topic, number) for name, (topic, number) in raw["outputs"].items()},
            {topic: (topic_id, number) for topic, (topic_id, number) in raw["sources"].items()},
            by_partition(raw["starts"]),
            tuple(raw["gone"]),
            raw["ways"],
            {holder: TypeLayout(**known) for holder, known in raw["types"].items()},
            raw.get("cluster", ""),  # plans of older versions name none
            {topic: tuple(ids) for topic, ids in raw.get("past", {}).items()},
        )

    def with_starts(self, starts: Mapping[TopicPartition, tuple[int, bool]]) -> Layout:
        """The layout, with the offsets at which partitions begin.

        Args:
            starts: of partitions: first offset, and whether it lies in the middle of the log.
        """
        begun = {tp: offset for tp, (offset, _) in starts.items() if offset > 0}
        return replace(self, starts=self.starts | begun) if begun else self

    def stored_in(self) -> dict[str, str]:
        """Stage name -> name of the flow under which the store keeps its states."""
        return {name: stage.flow for name, stage in self.stages.items()}

    def changes_since(self, before: Layout) -> list[str]:
        """What was added or removed since, in words: stages, outputs, topics, partitions; not topics created again."""
        changes = [f"stage {name!r}" for name in self.stages if name not in before.stages]
        changes += [f"stage {name!r} is gone" for name in before.stages if name not in self.stages]
        changes += [
            f"output {name!r} ({number} partitions of {topic!r})"
            for name, (topic, number) in self.outputs.items()
            if name not in before.outputs
        ]
        for topic, (topic_id, number) in self.sources.items():
            known_id, known = before.sources.get(topic, ("", 0))
            if not known_id:
                changes.append(f"input {topic!r} with {number} partitions" if number else f"files {topic!r}")
            elif known_id == topic_id and known != number:
                changes.append(f"partitions {known} to {number - 1} of input {topic!r}")
        return changes


_LATER: Final = {"cluster", "past"}
_LAYOUT = tuple(field.name for field in fields(Layout))
_STAGE = tuple(field.name for field in fields(StageLayout))
_TYPE = tuple(field.name for field in fields(TypeLayout))


def _members(record: object, names: Sequence[str]) -> dict[str, Any]:
    """Fields as they are: `dataclasses.asdict` copies all they hold, which took most of a small batch's time."""
    return {name: getattr(record, name) for name in names}


FILES: Final = "files"
"""In place of a topic's id: it is a source of files."""

Infos = Mapping[str, TopicInfo]


Holder = tuple[str, str, StageNode | SourceNode, Codec[Any] | None]
"""What stores or reads values of a declared type: its name in layouts, of what kind it is, the node, and the codec."""


def _holders(flow: CompiledFlow) -> Iterator[Holder]:
    for stage in flow.stages:
        yield f"stage/{stage.name}", stage.kind, stage, stage.codec
    for source in flow.sources:
        for topic in source.topics if source.codec is not None else ():
            yield f"source/{topic}", "raw" if source.raw else "envelopes", source, flow.codec_of[topic]


def _type_layout(own: Holder, known: Layout | None) -> TypeLayout:
    holder, kind, node, codec = own
    if codec is None:
        return TypeLayout(kind)
    if isinstance(node, SourceNode) and codec.self_describing:
        return TypeLayout(kind, codec.type_name)
    before = known.types.get(holder) if known else None
    same = before is not None and before.name == codec.type_name
    return TypeLayout(kind, codec.type_name, codec.shape(before.shape if before and same else None))


def check_types(flow: CompiledFlow, known: Layout) -> None:
    """Check that stored states and inputs can be read with the types that are declared now.

    Raises:
        ChangedType: something would be read wrongly; the text names both types.
    """
    for own in _holders(flow):
        holder = own[0]
        was, now = known.types.get(holder), _type_layout(own, None)
        difference = _difference(own, was, now) if was is not None else ""
        if was is None or not difference:
            continue
        kind, _, name = holder.partition("/")
        if kind == "stage":
            raise ChangedType(
                f"flow {flow.name!r}: stage {name!r} holds states of type {was.name or was.kind!r} that the type declared "
                f"now, {now.name or now.kind!r}, would read wrongly: {difference}. Give a changed field a new number (in JSON another name). Or "
                "fold the states again from the inputs with sqe-chain rebuild. Or give the stage another name: it begins "
                f"empty, and --drop {name} forgets this one"
            )
        raise ChangedType(
            f"flow {flow.name!r}: input {name!r} was read as {was.name!r}; {now.name!r} would read such messages "
            f"wrongly: {difference}. Give a changed field a new number. If all that is still to be read was written with "
            "the new type, use sqe-chain rebuild: it folds all of the topic with it"
        )


def _difference(own: Holder, was: TypeLayout, now: TypeLayout) -> str:
    """What would be read wrongly of what was stored or read under another type, in words; empty: nothing."""
    _, _, node, codec = own
    if isinstance(node, StageNode) and now.kind != was.kind:
        return f"it was {was.kind}, now it is {now.kind}"
    if isinstance(node, SourceNode) and now.kind == was.kind == "envelopes" and now.name != was.name:
        return ""  # each envelope names its type, and another type is poison
    return codec.misread(was.name, was.shape) if codec is not None and was.name else ""


def read_type(flow: CompiledFlow, topic: str) -> TypeLayout | None:
    """The type as which a topic is read; None: its payloads name their types."""
    return next((now for _, now in _read_types(flow, topic)), None)


def _read_types(flow: CompiledFlow, topic: str) -> Iterator[tuple[Holder, TypeLayout]]:
    for own in _holders(flow):
        now = _type_layout(own, None)
        if own[0] == f"source/{topic}" and now.shape:
            yield own, now


def check_read_type(flow: CompiledFlow, topic: str, was: TypeLayout) -> None:
    """Check that the rest of a topic can be read with the type that is declared now.

    Args:
        flow: a flow without stages.
        topic: a topic with records still to be read.
        was: the type as which it was read so far.

    Raises:
        ChangedType: it would be read wrongly.
    """
    for own, now in _read_types(flow, topic):
        difference = _difference(own, was, now)
        if not difference:
            continue
        raise ChangedType(
            f"flow {flow.name!r}: input {topic!r} was read as {was.name!r}; {now.name!r} would read what is still to be read of it "
            f"wrongly: {difference}. Expected a type that reads both. Give a changed field a new number. Or let the old code read "
            "all, and start the new code before anything more is written"
        ).at(topic)


def moved_outputs(flow: CompiledFlow, known: Layout) -> list[str]:
    """The outputs that come on other lanes than under a layout, in words. What the layout does not know counts as unchanged.

    Partition of the topic and shard are part of a lane. The shard is the state partition of the last stage before the output.
    """
    declared = {node.name: (node.topic, node.partitions) for node in flow.outputs}
    texts = list[str]()
    for name, before in known.outputs.items():
        was, now = known.ways.get(f"output/{name}"), flow.paths.get(f"output/{name}")
        place = declared.get(name, before)
        if place != before:
            texts.append(
                f"output/{name} had {before[1]} partitions of {before[0]!r}, now {place[1]} of {place[0]!r}"
            )
        if known.state_partitions != flow.state_partitions and (was is None or _stages_in(was)):
            texts.append(
                f"output/{name} had {known.state_partitions} state partitions, now {flow.state_partitions}"
            )
        if was is not None and now is not None and _stages_in(was) != _stages_in(now):
            texts.append(f"output/{name} came from {was}, now from {now}")
    return texts


def _stages_in(way: str) -> set[str]:
    """The stages whose state partitions are the shards of an output."""
    return {name for kind, _, name in (part.partition("/") for part in way.split()) if kind != "source"}


def behind_stages(flow: CompiledFlow, output: str) -> bool:
    """Whether an output publishes what a stage gives."""
    return bool(_stages_in(flow.paths[f"output/{output}"]))


def check_same_code(flow: CompiledFlow, known: Layout, number: int) -> None:
    """Check that a flow is declared as it was when the plan was sealed that has to be finished first.

    Args:
        flow: the flow.
        known: the layout of its last plan.
        number: of its last plan; this one or an earlier one is unfinished.

    Raises:
        PlanMismatch: it has other stages, sources or outputs; the text names them.
    """
    was = known.ways | {f"source/{topic}": "" for topic in known.sources}
    now = flow.paths | {f"source/{topic}": "" for topic in flow.input_names}
    news = [f"{way} is new" for way in now if way not in was]
    news += [f"{way} is gone" for way in was if way not in now]
    news += [
        f"{way} came from {was[way]}, now from {now[way]}"
        for way in now
        if was.get(way, now[way]) != now[way]
    ]
    news += [text for text in moved_outputs(flow, known) if text not in news]
    if news:
        raise PlanMismatch(
            f"flow {flow.name!r}: plan {number} was sealed and is not finished, and the flow is declared "
            f"otherwise now: {'; '.join(news)}. Expected the code that sealed it: other code cannot finish what the plan has begun. "
            "Run the code that sealed it with sqe-chain run --once, then the new code, or its rebuild. If the old code cannot start, rebuild "
            "with it first"
        )


def layout_of(flow: CompiledFlow, infos: Infos, number: int, known: Layout | None = None) -> Layout:
    """The layout of a flow, by its declaration and by its topics as they are now.

    Args:
        flow: the flow.
        infos: its topics.
        number: of the plan that brings the layout in.
        known: the layout so far; None: there is none.
    """
    known = known or Layout(flow.state_partitions)
    return Layout(
        flow.state_partitions,
        {
            stage.name: known.stages.get(stage.name, StageLayout(number, stage.buckets, flow.name))
            for stage in flow.stages
        },
        # Names of outputs are permanent, so those that are no longer declared stay known.
        known.outputs | {node.name: (node.topic, node.partitions) for node in flow.outputs},
        {topic: (infos[topic].topic_id.hex(), infos[topic].partitions) for topic in flow.input_topics}
        | {file_source.name: (FILES, 0) for file_source in flow.file_sources},
        known.starts,
        known.gone,
        flow.paths,
        {own[0]: _type_layout(own, known) for own in _holders(flow)},
        next((infos[topic].cluster for topic in flow.input_topics), "") or known.cluster,
        known.past | {topic: (*known.past.get(topic, ()), was) for topic, was in _left(flow, infos, known)},
    )


def _left(flow: CompiledFlow, infos: Infos, known: Layout) -> Iterator[tuple[str, str]]:
    """Topics that were created again, and their ids before."""
    for topic in flow.input_topics:
        was, _ = known.sources.get(topic, ("", 0))
        if was and was != infos[topic].topic_id.hex():
            yield topic, was


def check_cluster(flow: CompiledFlow, known: Layout, infos: Infos, *, by_ids: bool = True) -> None:
    """Check that the inputs are in the cluster in which they were read.

    A cluster under another id that has the very topics is the same one.

    Args:
        flow: the flow.
        known: the layout of its last plan.
        infos: the topics of that layout, as they are now; one that is gone is absent.
        by_ids: whether ids of topics may show that it is the same. After a failover the cluster before has these ids, too.

    Raises:
        AnotherCluster: they are in another one.
    """
    cluster = next((info.cluster for info in infos.values() if info.cluster), "")
    ids = {topic: topic_id for topic, (topic_id, _) in known.sources.items() if topic_id != FILES}
    same = by_ids and all(
        topic in infos and infos[topic].topic_id.hex() == topic_id for topic, topic_id in ids.items()
    )
    if not known.cluster or not cluster or cluster == known.cluster or same:
        return
    raise AnotherCluster(
        f"flow {flow.name!r}: the store has its states from Kafka cluster {known.cluster}, this is cluster {cluster}. Expected the same: "
        "records of another cluster would be counted besides those that were. Give the right addresses of Kafka and store. If the "
        f"flow is to go on in the other cluster, which mirrors this one, use sqe-chain failover. Otherwise {START_OVER}"
    )


def check_layout(flow: CompiledFlow, known: Layout, drop_stages: Sequence[str]) -> None:
    """Check that what is permanent of a flow's declaration has not changed.

    Raises:
        PartitionsMismatch: another number of state partitions, or of an output's partitions.
        ServiceStopped: a stage or a source is no longer declared.
        ChangedType: what is stored, or was read, would be read wrongly with the declared type.
    """
    if known.state_partitions != flow.state_partitions:
        raise PartitionsMismatch(
            f"flow {flow.name!r} was created with {known.state_partitions} state partitions, declared are now "
            f"{flow.state_partitions}; the number is permanent"
        )
    for node in flow.outputs:
        topic, partitions = known.outputs.get(node.name, (node.topic, node.partitions))
        if (topic, partitions) != (node.topic, node.partitions):
            raise PartitionsMismatch(
                f"{node.declared_at}: output {node.name!r} was created with {partitions} partitions of {topic!r}, declared are "
                f"now {node.partitions} of {node.topic!r}: replays would take another lane; give it another name"
            ).at(topic)
    declared = {stage.name: stage for stage in flow.stages}
    for name, stored in known.stages.items():
        if name in declared and declared[name].buckets != stored.buckets:
            raise PartitionsMismatch(
                f"{declared[name].declared_at}: stage {name!r} was created with {stored.buckets} buckets, declared are now "
                f"{declared[name].buckets}; the number is permanent"
            )
        if name not in declared and name not in drop_stages:
            raise ServiceStopped(
                f"flow {flow.name!r}: the store holds stage {name!r}, which the flow no longer has; a renamed stage "
                f"would begin empty. Declare it again, or forget it with --drop {name}"
            )
    topics = set(flow.input_names)
    for topic in known.sources:
        if topic not in topics:
            raise ServiceStopped(
                f"flow {flow.name!r}: has read {topic!r} so far, which it no longer declares; declare it again"
            )
    check_types(flow, known)
