"""How plans are made: the birth plan, the plan of a batch, and the plan that brings in a new layout; and what a batch reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import PartitionsMismatch, ServiceStopped, StoreInconsistent
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Commit, TopicInfo, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.commit_metadata import parse_metadata
from sqe_chain.protocol.declared import check_types, types_of
from sqe_chain.protocol.feature import Feature, Look, Part
from sqe_chain.protocol.layout import Layout, StageLayout
from sqe_chain.protocol.plan import FILES, Plan, PlannedRange, as_range
from sqe_chain.protocol.settings import Refold
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import PartitionEnd, Portion, Report
from sqe_chain.task.states import Claim

Infos = Mapping[str, TopicInfo]
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
        | {one.name: (FILES, 0) for one in flow.file_sources},
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
        known: marks of partitions of which something was read.
    """
    ranges, marks = [], dict[TopicPartition, PartitionMarks]()
    for (topic, partition), (offset, middle) in sorted(starts.items()):
        info = infos[topic]
        ranges.append(PlannedRange(topic, info.topic_id.hex(), partition, offset, offset))
        fresh = inputs.new_marks(info, partition, entered_in_middle=middle)
        marks[topic, partition] = known.get((topic, partition), fresh)
    number = refold.number if refold else 0
    layout = _with_starts(layout_of(flow, infos, number), starts)
    plan = Plan(number, "", "", claim, clock_ms, layout, tuple(ranges), marks)
    return (plan.with_sections(*refold.sections) if refold else plan).with_id()


def _with_starts(layout: Layout, starts: Mapping[TopicPartition, tuple[int, bool]]) -> Layout:
    """The layout, with the offsets at which partitions begin."""
    begun = {tp: offset for tp, (offset, _) in starts.items() if offset > 0}
    return replace(layout, starts=layout.starts | begun) if begun else layout


def layout_plan(
    last: Plan,
    kept: Sequence[PlannedRange],
    claim: Claim,
    clock_ms: int,
    layout: Layout,
    infos: Infos,
    starts: Mapping[TopicPartition, tuple[int, bool]],
    features: Iterable[Feature] = (),
) -> Plan:
    """An empty plan by which new partitions, sources, stages and outputs enter.

    Args:
        last: the last plan.
        kept: its ranges that go on; the others are gone with the topic they belonged to.
        claim: the run.
        clock_ms: now.
        layout: the new layout.
        infos: the flow's topics.
        starts: of each entering partition: first offset, and whether it lies in the middle of the log.
        features: that the flow needs, or the last plan.
    """
    entering = [
        PlannedRange(topic, infos[topic].topic_id.hex(), partition, offset, offset)
        for (topic, partition), (offset, _) in starts.items()
    ]
    ranges = [replace(planned, start=planned.stop, again=-1) for planned in kept] + entering
    marks = dict(last.marks)
    for (topic, partition), (_, middle) in starts.items():
        marks[topic, partition] = inputs.new_marks(infos[topic], partition, entered_in_middle=middle)
    in_order = tuple(sorted(ranges, key=lambda planned: planned.tp))
    plan = plan_after(last, claim, clock_ms, _with_starts(layout, starts), in_order, marks)
    news = [infos[topic] for topic, _ in starts]
    sections = [feature.entered(plan, news) for feature in features]
    return plan.with_sections(*(one for one in sections if one is not None)).with_id(last)


def plan_after(
    last: Plan,
    claim: Claim,
    clock_ms: int,
    layout: Layout,
    ranges: tuple[PlannedRange, ...],
    marks: Mapping[TopicPartition, PartitionMarks],
) -> Plan:
    """The beginning of the plan after another one, still without an id: what each section keeps is carried over."""
    known = {one.tp: marks[one.tp] for one in ranges}
    return Plan(last.number + 1, "", last.plan_id, claim, clock_ms, layout, ranges, known).carried_from(last)


def batch_plan(
    last: Plan,
    claim: Claim,
    part: Part,
    report: Report,
    exclusions: tuple[Exclusion, ...],
    features: Iterable[Feature] = (),
) -> Plan:
    """The plan of a batch that was processed: its ranges with their last records, and the marks at its end.

    Args:
        last: the plan before.
        claim: the run.
        part: what was read.
        report: of the attempt that processed it.
        exclusions: inputs left out.
        features: that the flow needs, or the last plan.
    """
    ends = {(end.topic, end.partition): end for end in report.ends}
    ranges = tuple(_with_witness(planned, ends.get(planned.tp)) for planned in part.ranges)
    plan = plan_after(last, claim, part.clock_ms, last.layout, ranges, marks_after(last, report))
    plan = replace(plan, exclusions=exclusions, wakes=part.wakes and not part.reads)
    found = [feature.after(last, part, report) for feature in features]
    return plan.with_sections(*(one for one in found if one is not None)).with_id(last)


def next_part(last: Plan, look: Look, clock_ms: int, features: Sequence[Feature]) -> Part | None:
    """The next batch after a plan; None: there is nothing to do. Changes nothing, but features may ask the broker.

    Args:
        last: the plan.
        look: what the batch is cut from.
        clock_ms: now.
        features: that the flow needs, or the plan.

    Raises:
        ServiceStopped: going on would not be exact.
        Unavailable: asked to stop while waiting for the broker.
    """
    offsets, bounds = last.next_offsets(), look.bounds
    for feature in features:
        limits = feature.limits(last)
        bounds = bounds if limits is None else inputs.limit_bounds(bounds, limits)
    stops = inputs.cut(offsets, bounds, max(len(last.ranges), look.limit))
    ranges = (replace(one, start=one.stop, stop=stops[one.tp], again=-1) for one in last.ranges)
    part: Part | None = Part(tuple(ranges), clock_ms)
    for feature in features:
        part = part and feature.cut(last, part, look)
    if part is None or not (part.reads or part.due):
        return None
    at_end = frozenset(tp for tp, stop in part.stops.items() if stop >= look.bounds[tp].stable_end)
    return replace(part, at_end=at_end)


def part_again(plan: Plan, before: Plan, features: Iterable[Feature]) -> Part:
    """What a sealed batch reads and does, for its redo. Pure.

    Args:
        plan: of the batch.
        before: the plan before it.
        features: that the flow needs, or the plan.
    """
    part = Part(plan.ranges, plan.clock_ms, sealed=plan.exclusions)
    for feature in features:
        part = feature.cut_again(plan, before, part)
    return part


def portions_of(part: Part, before: Plan, exclusions: Sequence[Exclusion]) -> list[Portion]:
    """What the tasks read, with marks, witnesses and exclusions.

    Args:
        part: what the batch reads and does.
        before: the plan before.
        exclusions: inputs that are left out.
    """
    known, portions = before.ends(), list[Portion]()
    for planned in part.ranges:
        if not (planned.reads or part.wakes):
            continue
        tp = planned.tp
        own = tuple(one for one in exclusions if (one.topic, one.partition) == tp)
        read = as_range(planned, known[tp].last_epoch)
        times = part.times.get(tp)
        portions.append(Portion(read, before.marks[tp], own, times, planned.start, tp in part.at_end))
    return portions


def marks_after(before: Plan, report: Report) -> dict[TopicPartition, PartitionMarks]:
    """The marks at the end of a batch."""
    return before.marks | {(end.topic, end.partition): end.marks for end in report.ends}


def _with_witness(planned: PlannedRange, end: PartitionEnd | None) -> PlannedRange:
    """The range with its last record, or with the one before if it held no record."""
    if end is None or end.last_offset < 0:
        return planned
    return replace(
        planned,
        last_offset=end.last_offset,
        last_epoch=end.last_epoch,
        last_timestamp_ms=end.last_timestamp_ms,
        last_crc=end.last_crc,
    )


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


def check_commits(flow: CompiledFlow, last: Plan, commits: Mapping[TopicPartition, Commit]) -> None:
    """Check that no commit names a later plan than the home store's last: a plan is committed after it was sealed.

    Raises:
        StoreInconsistent: a commit names a later plan, or another one.
    """
    for commit in commits.values():
        meta = parse_metadata(commit)
        if "plan" not in meta:
            continue
        number = int(str(meta["plan"]))
        other = number == last.number and meta.get("id") != last.plan_id
        if number > last.number or other:
            raise StoreInconsistent(
                f"flow {flow.name!r}: the home store's last plan is {last.number} ({last.plan_id}), but Kafka "
                f"has a commit of plan {meta['plan']} ({meta.get('id')}): the store went back as a whole. Its values are "
                "exact for an earlier moment; --accept-rollback goes on from there, but what was published since may "
                "differ from what is published now"
            )
