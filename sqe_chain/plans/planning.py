"""How plans begin: the birth plan, those by which a new layout enters, and what all that follow another one have of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Refold
from sqe_chain.plans.first_stage import Begun
from sqe_chain.plans.layout import Layout, Marks, layout_of
from sqe_chain.plans.plan import Plan, PlannedRange, encoded_sections
from sqe_chain.plans.published import PublishedLanes
from sqe_chain.plans.revisions import Revisions
from sqe_chain.ports import TopicInfo, TopicPartition
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
    revisions: Revisions | None = None,
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
        revisions: those that the flow follows; None: the first one of everything.
    """
    ranges, fresh = [], dict[TopicPartition, PartitionMarks]()
    for (topic, partition), (offset, middle) in sorted(starts.items()):
        info = infos[topic]
        ranges.append(PlannedRange(topic, info.topic_id.hex(), partition, offset, offset))
        fresh[topic, partition] = inputs.new_marks(info, partition, entered_in_middle=middle)
    number = refold.number if refold else 0
    layout = layout_of(flow, infos, number).with_starts(starts)
    sections = refold.sections if refold else encoded_sections(Begun(known), revisions or Revisions())
    plan = Plan(number, "", "", claim, clock_ms, layout, tuple(ranges), fresh, sections=sections, placed=True)
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
    ranges = [planned.ended() for planned in kept] + entering
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
    number, before, placed = last.number + 1, last.plan_id, last.placed
    plan = Plan(number, "", before, claim, clock_ms, layout, ranges, known, placed=placed)
    return replace(plan, published=last.published)


def published_by(plan: Plan) -> PublishedLanes:
    """Where the lanes of outputs end after a plan, as far as plans have noted it."""
    # An older version has noted nothing, nor has a flow without stages that this one was. A birth plan comes before all outputs.
    new = plan.number == 0 and Begun.name not in plan.sections
    return plan.published or PublishedLanes(0 if new else plan.number + 1)
