"""What a layout holds of a flow's declaration, and whether the present declaration may go on with it.

Two checks, at each start:

* If a plan is unfinished: is this the code that sealed it, as far as that can be seen?
* Can the states that are stored, and the messages that were read, still be read with the declared types?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import ChangedType, PartitionsMismatch, PlanMismatch, ServiceStopped
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import SourceNode, StageNode
from sqe_chain.ports import TopicInfo, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.environment import Refold
from sqe_chain.protocol.layout import Layout, StageLayout, TypeLayout
from sqe_chain.protocol.plan import FILES, Plan, PlannedRange
from sqe_chain.protocol.same_inputs import is_new_root, recreation_text
from sqe_chain.task.states import Claim

Infos = Mapping[str, TopicInfo]


def types_of(flow: CompiledFlow, known: Layout | None = None) -> dict[str, TypeLayout]:
    """Every stage and input topic -> what is stored or read there.

    Args:
        flow: the flow.
        known: the layout so far: fields that a type no longer has stay known.
    """
    return {holder: _type_layout(holder, kind, node, known) for holder, kind, node in _holders(flow)}


def _holders(flow: CompiledFlow) -> Iterator[tuple[str, str, StageNode | SourceNode]]:
    """What stores or reads values of a declared type: its name in layouts, of what kind it is, and the node."""
    for stage in flow.stages:
        yield f"stage/{stage.name}", stage.kind, stage
    for source in flow.sources:
        for topic in source.topics if source.codec is not None else ():
            yield f"source/{topic}", "raw" if source.raw else "envelopes", source


def _type_layout(holder: str, kind: str, node: StageNode | SourceNode, known: Layout | None) -> TypeLayout:
    codec = node.codec
    if codec is None:
        return TypeLayout(kind)
    if isinstance(node, SourceNode) and codec.self_describing:
        return TypeLayout(kind, codec.type_name)
    before = known.types.get(holder) if known else None
    same = before is not None and before.name == codec.type_name
    return TypeLayout(kind, codec.type_name, codec.shape(before.shape if before and same else None))


def check_types(flow: CompiledFlow, known: Layout) -> None:
    """Check that stored states and inputs can be read with the types that are declared now.

    Args:
        flow: the flow.
        known: the layout of its last plan.

    Raises:
        ChangedType: something would be read wrongly; the text names both types.
    """
    for holder, stored, node in _holders(flow):
        was, now = known.types.get(holder), _type_layout(holder, stored, node, None)
        if was is None:
            continue
        kind, _, name = holder.partition("/")
        if kind == "source" and now.kind == was.kind == "envelopes" and now.name != was.name:
            continue  # each envelope names its type, and another type is poison
        difference = (
            f"it was {was.kind}, now it is {now.kind}" if now.kind != was.kind and kind == "stage" else ""
        )
        if node.codec is not None and not difference and was.name:
            difference = node.codec.misread(was.name, was.shape)
        if not difference:
            continue
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


def check_same_code(flow: CompiledFlow, last: Plan) -> None:
    """Check that a flow is declared as it was when the plan was sealed that has to be finished first.

    Args:
        flow: the flow.
        last: its last plan; this one or an earlier one is unfinished.

    Raises:
        PlanMismatch: it has other stages, sources or outputs; the text names them.
    """
    was = last.layout.ways | {f"source/{topic}": "" for topic in last.layout.sources}
    now = flow.paths | {f"source/{topic}": "" for topic in flow.input_names}
    news = [f"{way} is new" for way in now if way not in was]
    news += [f"{way} is gone" for way in was if way not in now]
    news += [
        f"{way} came from {was[way]}, now from {now[way]}"
        for way in now
        if was.get(way, now[way]) != now[way]
    ]
    if news:
        raise PlanMismatch(
            f"flow {flow.name!r}: plan {last.number} was sealed and is not finished, and the flow is declared "
            f"otherwise now: {'; '.join(news)}. Other code cannot finish what the plan has begun. Run the code that "
            "sealed it until it reports that it has recovered, then replace it"
        )


def news_of(flow: CompiledFlow, last: Plan, plan: Plan, infos: Mapping[str, TopicInfo]) -> Iterator[str]:
    """The texts of the notices that a plan brings in a new layout.

    Args:
        flow: the flow.
        last: the plan before.
        plan: the plan.
        infos: the flow's topics.
    """
    for topic, (known_id, _) in last.layout.sources.items():
        if is_new_root(flow, topic, known_id, infos.get(topic)):
            read = {tp: planned.stop for tp, planned in last.ends().items() if tp[0] == topic}
            yield f"plan {plan.number}: {recreation_text(topic, known_id, infos[topic], read)}"
    if news := plan.layout.changes_since(last.layout):
        yield f"plan {plan.number} brings in {', '.join(news)}"


NO_MARKS: Mapping[TopicPartition, PartitionMarks] = MappingProxyType({})


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
        types_of(flow, known),
    )


def birth_plan(
    flow: CompiledFlow,
    claim: Claim,
    clock_ms: int,
    infos: Infos,
    starts: Mapping[TopicPartition, tuple[int, bool]],
    refold: Refold | None = None,
    known: Mapping[TopicPartition, PartitionMarks] = NO_MARKS,
) -> Plan:
    """The birth plan: the layout, and where each partition begins. Number 0, unless the flow is folded again.

    Args:
        flow: the flow.
        claim: the run.
        clock_ms: now.
        infos: its topics.
        starts: of each input partition: first offset, and whether it lies in the middle of the log.
        refold: what is folded again: the plan continues the flow's numbers.
        known: marks of partitions that were begun.
    """
    ranges, marks = [], dict[TopicPartition, PartitionMarks]()
    for (topic, partition), (offset, middle) in sorted(starts.items()):
        info = infos[topic]
        ranges.append(PlannedRange(topic, info.topic_id.hex(), partition, offset, offset))
        fresh = inputs.new_marks(info, partition, entered_in_middle=middle)
        marks[topic, partition] = known.get((topic, partition), fresh)
    number = refold.number if refold else 0
    layout = layout_of(flow, infos, number).with_starts(starts)
    plan = Plan(number, "", "", claim, clock_ms, layout, tuple(ranges), marks)
    return (replace(plan, sections=refold.sections) if refold else plan).with_id()


def check_layout(flow: CompiledFlow, known: Layout, drop_stages: Sequence[str]) -> None:
    """Check that what is permanent of a flow's declaration has not changed.

    Args:
        flow: the flow.
        known: the layout of its last plan.
        drop_stages: stored stages that may be forgotten.

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
