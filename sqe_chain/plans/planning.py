"""How plans are made: the plan of a batch, and the plan that brings in a new layout; and what a batch reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Refold
from sqe_chain.plans.feature import Feature, Features, Look, Part
from sqe_chain.plans.first_stage import Begun
from sqe_chain.plans.layout import Layout, Marks, layout_of
from sqe_chain.plans.plan import Plan, PlannedRange, encoded_sections
from sqe_chain.ports import TopicInfo, TopicPartition
from sqe_chain.task.digest import CURRENT, VERSION
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import PartitionEnd, Report
from sqe_chain.task.states import Claim

Infos = Mapping[str, TopicInfo]


NO_MARKS: Mapping[TopicPartition, PartitionMarks] = MappingProxyType({})


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
    ranges, fresh = [], dict[TopicPartition, PartitionMarks]()
    for (topic, partition), (offset, middle) in sorted(starts.items()):
        info = infos[topic]
        ranges.append(PlannedRange(topic, info.topic_id.hex(), partition, offset, offset))
        fresh[topic, partition] = inputs.new_marks(info, partition, entered_in_middle=middle)
    number = refold.number if refold else 0
    layout = layout_of(flow, infos, number).with_starts(starts)
    sections = refold.sections if refold else encoded_sections(Begun(known))
    plan = Plan(number, "", "", claim, clock_ms, layout, tuple(ranges), fresh, sections=sections)
    plan = replace(plan, marks={tp: Begun.of(plan).marks.get(tp, marks) for tp, marks in fresh.items()})
    if refold is not None:
        plan = replace(plan, layout=replace(layout, outputs={**refold.outputs, **layout.outputs}))
    return plan.with_id()


def layout_plan(
    last: Plan,
    kept: Sequence[PlannedRange],
    claim: Claim,
    clock_ms: int,
    layout: Layout,
    infos: Infos,
    starts: Mapping[TopicPartition, tuple[int, bool]],
) -> Plan:
    """An empty plan by which new partitions, sources, stages and outputs enter, still without an id.

    Args:
        last: the last plan.
        kept: its ranges that go on; the others are gone with the topic they belonged to.
        claim: the run.
        clock_ms: now.
        layout: the new layout.
        infos: the flow's topics.
        starts: of each entering partition: first offset, and whether it lies in the middle of the log.
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
    return plan_after(last, claim, clock_ms, layout.with_starts(starts), in_order, marks).carried_from(last)


def plan_after(
    last: Plan,
    claim: Claim,
    clock_ms: int,
    layout: Layout,
    ranges: tuple[PlannedRange, ...],
    marks: Marks,
) -> Plan:
    """The beginning of the plan after another one, still without sections and id."""
    known = {planned.tp: marks[planned.tp] for planned in ranges}
    return Plan(last.number + 1, "", last.plan_id, claim, clock_ms, layout, ranges, known)


def batch_plan(
    last: Plan,
    claim: Claim,
    part: Part,
    report: Report,
    exclusions: tuple[Exclusion, ...],
    features: Iterable[Feature] = (),
) -> Plan:
    """The plan of a batch that was processed: its ranges with their last records, and the marks at its end."""
    ends = {(end.topic, end.partition): end for end in report.ends}
    ranges = tuple([_with_witness(planned, ends.get(planned.tp)) for planned in part.ranges])
    plan = plan_after(last, claim, part.clock_ms, last.layout, ranges, marks_after(last, report))
    plan = replace(
        plan,
        exclusions=exclusions,
        wakes=part.wakes and not part.reads,
        gives=report.gives | {VERSION: CURRENT},
    )
    sections = [feature.after(last, part, report) for feature in features]
    return plan.carried_from(last, [section for section in sections if section is not None]).with_id(last)


def next_part(last: Plan, look: Look, clock_ms: int, features: Features) -> Part | None:
    """The next batch after a plan; None: there is nothing to do. Changes nothing, but features may ask the broker.

    Raises:
        ServiceStopped: going on would not be exact.
        Unavailable: asked to stop while waiting for the broker.
    """
    offsets, bounds = last.next_offsets(), look.bounds
    for feature in features.of(last, "limits"):
        limits = feature.limits(last)
        bounds = bounds if limits is None else inputs.limit_bounds(bounds, limits)
    stops = inputs.cut(offsets, bounds, max(len(last.ranges), look.limit))
    ranges = [
        replace(planned, start=planned.stop, stop=stops[planned.tp], again=-1) for planned in last.ranges
    ]
    part: Part | None = Part(tuple(ranges), clock_ms)
    for feature in features.of(last, "cut"):
        part = part and feature.cut(last, part, look)
    if part is None or not (part.reads or part.due):
        return None
    at_end = [planned.tp for planned in part.ranges if planned.stop >= look.bounds[planned.tp].stable_end]
    return replace(part, at_end=frozenset(at_end))


def part_again(plan: Plan, before: Plan, features: Iterable[Feature]) -> Part:
    """What a sealed batch reads and does, for its redo. Pure."""
    part = Part(plan.ranges, plan.clock_ms, sealed=plan.exclusions)
    for feature in features:
        part = feature.cut_again(plan, before, part)
    return part


def marks_after(before: Plan, report: Report) -> Marks:
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
