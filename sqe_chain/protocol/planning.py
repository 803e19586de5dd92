"""How plans are made: the birth plan, the plan of a batch, and the plan that brings in a new layout. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import PartitionsMismatch, ServiceStopped, StoreInconsistent
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Commit, TopicInfo, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.closes import Closes
from sqe_chain.protocol.commit_metadata import parse_metadata
from sqe_chain.protocol.cutting import Part, ends_silence, is_behind, takes_again
from sqe_chain.protocol.declared import check_types, types_of, ways_of
from sqe_chain.protocol.event_times import gated_times, seen_after
from sqe_chain.protocol.file_inputs import files_in, with_finished
from sqe_chain.protocol.layout import Layout, StageLayout
from sqe_chain.protocol.plan import FILES, Plan, PlannedRange, as_range, at_name, mark_name
from sqe_chain.protocol.settings import RebuildSpec
from sqe_chain.protocol.ticking import timers_after
from sqe_chain.task.event_times import EventTimes
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import PartitionEnd, Portion, Report
from sqe_chain.task.states import Claim

Infos = Mapping[str, TopicInfo]
_Known = TypeVar("_Known")
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
        ways_of(flow),
        types_of(flow, known),
    )


def birth_plan(
    flow: CompiledFlow,
    claim: Claim,
    clock_ms: int,
    infos: Infos,
    starts: Mapping[TopicPartition, tuple[int, bool]],
    spec: RebuildSpec | None = None,
    known: Mapping[TopicPartition, PartitionMarks] = NO_MARKS,
) -> Plan:
    """The birth plan: the layout, and where each partition begins. Number 0, except for a rebuild.

    Args:
        flow: the flow.
        claim: the run.
        clock_ms: now.
        infos: its topics.
        starts: of each input partition: first offset, and whether it lies in the middle of the log.
        spec: what is rebuilt: the plan continues another flow's numbers.
        known: marks of partitions of which something was read.
    """
    ranges, marks = [], {}
    for (topic, partition), (offset, middle) in sorted(starts.items()):
        info = infos[topic]
        ranges.append(PlannedRange(topic, info.topic_id.hex(), partition, offset, offset))
        fresh = inputs.new_marks(info, partition, entered_in_middle=middle)
        marks[mark_name(topic, partition)] = known.get((topic, partition), fresh)
    number = spec.number if spec else 0
    layout = _with_starts(layout_of(flow, infos, number), starts)
    return Plan(
        number,
        "",
        "",
        claim.epoch,
        claim.run_id,
        clock_ms,
        layout,
        tuple(ranges),
        marks,
        silent_until=dict(spec.silent_until) if spec else {},
        unfinished=spec.unfinished if spec else None,
        attempt=number if spec else -1,
        published_until=dict(spec.published_until) if spec else {},
        reached=spec.reached if spec else None,
        closes=spec.closes if spec else Closes(),
    ).with_id()


def _with_starts(layout: Layout, starts: Mapping[TopicPartition, tuple[int, bool]]) -> Layout:
    """The layout, with the offsets at which partitions begin."""
    begun = {mark_name(*tp): offset for tp, (offset, _) in starts.items() if offset > 0}
    return replace(layout, starts=layout.starts | begun) if begun else layout


def layout_plan(
    last: Plan,
    kept: Sequence[PlannedRange],
    claim: Claim,
    clock_ms: int,
    layout: Layout,
    infos: Infos,
    starts: Mapping[TopicPartition, tuple[int, bool]],
    spec: RebuildSpec | None = None,
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
        spec: what is rebuilt; None: the flow goes on.
    """
    entering = [
        PlannedRange(topic, infos[topic].topic_id.hex(), partition, offset, offset)
        for (topic, partition), (offset, _) in starts.items()
    ]
    ranges = [replace(planned, start=planned.stop, again=-1) for planned in kept] + entering
    # What was read of a topic that was created again cannot be read again: a rebuild has to know.
    gone = (
        {planned.topic for planned in last.ranges} - {planned.topic for planned in kept} - last.files.keys()
    )
    layout = replace(layout, gone=tuple(sorted({*layout.gone, *gone})))
    others = {mark_name(*one.tp) for one in last.ranges} - {mark_name(*one.tp) for one in kept}
    marks = dict(last.marks)
    for (topic, partition), (_, middle) in starts.items():
        marks[mark_name(topic, partition)] = inputs.new_marks(
            infos[topic], partition, entered_in_middle=middle
        )
    plan = _plan_after(
        last,
        claim,
        clock_ms,
        _with_starts(layout, starts),
        tuple(sorted(ranges, key=lambda planned: planned.tp)),
        marks,
    )
    return replace(
        plan,
        silent_until=_without(last.silent_until, others),
        unfinished=last.unfinished,
        attempt=spec.number if spec else -1,
        published_until=_without(last.published_until, others),
        reached=last.reached and replace(last.reached, times=_without(last.reached.times, others)),
        files=plan.files | files_in(infos[topic] for topic, _ in starts),
        closes=last.closes.without(others),
    ).with_id(last)


def _without(known: Mapping[str, _Known], names: Collection[str]) -> dict[str, _Known]:
    """What was known of partitions of other topics, which had these names, holds for none of today's."""
    return {name: one for name, one in known.items() if name not in names}


def _plan_after(
    last: Plan,
    claim: Claim,
    clock_ms: int,
    layout: Layout,
    ranges: tuple[PlannedRange, ...],
    marks: dict[str, PartitionMarks],
) -> Plan:
    """The beginning of the plan after another one, still without an id; nothing else of that one is carried over."""
    kept = {mark_name(*one.tp): one.topic_id for one in ranges}
    ids = {one.topic_id for one in last.ranges}
    left = last.files.keys() - {one.topic for one in ranges}
    begun = {one.topic for one in last.ranges if one.stop > 0}
    return Plan(
        last.number + 1,
        "",
        last.plan_id,
        claim.epoch,
        claim.run_id,
        clock_ms,
        layout,
        ranges,
        {name: one for name, one in marks.items() if at_name(name)[0] not in left} if left else marks,
        times={name: one for name, one in last.times.items() if kept.get(name, "") in ids},
        frontier=last.frontier,
        seen=last.seen,
        ticked_ms=last.ticked_ms,
        timers=last.timers,
        closes=last.closes,
        files={topic: known for topic, known in last.files.items() if topic not in left}
        if left
        else last.files,
        finished=with_finished(last.finished, left & begun) if left else last.finished,
        overwrite=last.overwrite and last.overwrite.after(reads=any(one.start < one.stop for one in ranges)),
    )


def announcement_plan(last: Plan, claim: Claim, clock_ms: int, announced: dict[str, tuple[str, ...]]) -> Plan:
    """A plan that reads nothing, and publishes states once more.

    Args:
        last: the last plan; nothing after it has to be silent, and nothing is unfinished.
        claim: the run.
        clock_ms: now.
        announced: see `Plan.announced`.
    """
    ranges = tuple(replace(planned, start=planned.stop, again=-1) for planned in last.ranges)
    plan = _plan_after(last, claim, clock_ms, last.layout, ranges, last.marks)
    return replace(plan, announced=announced).with_id(last)


def batch_plan(
    flow: CompiledFlow,
    last: Plan,
    claim: Claim,
    part: Part,
    report: Report,
    exclusions: tuple[Exclusion, ...],
    spec: RebuildSpec | None = None,
    *,
    idle_ms: int,
) -> Plan:
    """The plan of a batch that was processed: its ranges with their last records, and the marks at its end.

    Args:
        flow: the flow.
        last: the plan before.
        claim: the run.
        part: what was read.
        report: of the attempt that processed it.
        exclusions: inputs left out.
        spec: what is rebuilt; None: the flow goes on.
        idle_ms: see `Settings.idle_ms`.
    """
    ends = {(end.topic, end.partition): end for end in report.ends}
    ranges = tuple(_with_witness(planned, ends.get(planned.tp)) for planned in part.ranges)
    plan = _plan_after(last, claim, part.clock_ms, last.layout, ranges, marks_after(last, report))
    stops = {mark_name(*tp): stop for tp, stop in part.stops.items()}
    published_until = {
        name: last.published_until[name]
        for name, stop in stops.items()
        if stop < last.published_until.get(name, 0)
    }
    if takes_again(last) and is_behind(last, part.frontier):  # read again, and not yet taken again
        published_until = last.published_until
    times = times_after(last, report) if flow.timed else {}
    found = gated_times(flow, {at_name(name): one for name, one in times.items()})
    caught_up = takes_again(last) and not published_until
    if last.reached is not None and (caught_up or ends_silence(last, part)):
        # So that what is promised from now on is what was promised after it.
        times |= {
            name: replace(one, waiting=times[name].waiting, lanes=times[name].lanes)
            for name, one in last.reached.times.items()
            if name in times
        }
    return replace(
        plan,
        exclusions=exclusions,
        times=times,
        reached=last.reached if part.silent or published_until else None,
        frontier=part.frontier,
        seen=seen_after(last.seen, part.clock_ms, found, idle_ms),
        ticks=part.tick_ms is not None and part.empty,
        ticked_ms=last.ticked_ms if part.tick_ms is None else part.tick_ms,
        timers=timers_after(last, report),
        silent=part.silent,
        silent_until=last.silent_until if part.silent else {},
        unfinished=None if part.due else last.unfinished,
        closing=part.closing is not None,
        closes=closes_after(last, part),
        attempt=spec.number if spec else -1,
        published_until=published_until,
    ).with_id(last)


def portions_of(
    ranges: Sequence[PlannedRange],
    before: Plan,
    exclusions: Sequence[Exclusion],
    times: Mapping[TopicPartition, EventTimes],
    at_end: frozenset[TopicPartition],
    *,
    wakes: bool,
) -> list[Portion]:
    """What the tasks read, with marks, witnesses and exclusions.

    Args:
        ranges: of all partitions.
        before: the plan before.
        exclusions: inputs that are left out.
        times: event time in each partition as the batch begins; empty if the flow does not ask for it.
        at_end: partitions that the batch reads to their end.
        wakes: tasks have something to do though they read nothing.
    """
    known = before.ends()
    found: list[Portion] = []
    for planned in ranges:
        if not (planned.reads or wakes):
            continue
        read = as_range(planned, known[planned.tp].last_epoch)
        marks = before.marks[mark_name(planned.topic, planned.partition)]
        own = tuple(one for one in exclusions if (one.topic, one.partition) == planned.tp)
        begun = times.get(planned.tp)
        if begun is not None and planned.again >= 0:
            begun = replace(begun, waiting=None, lanes={})
        found.append(Portion(read, marks, own, begun, planned.start, planned.tp in at_end))
    return found


def times_after(before: Plan, report: Report) -> dict[str, EventTimes]:
    """Event time at the end of a batch."""
    entered = {
        mark_name(*planned.tp): EventTimes(before.clock_ms)
        for planned in before.ranges
        if mark_name(*planned.tp) not in before.times
    }
    return (
        before.times
        | entered
        | {
            mark_name(end.topic, end.partition): end.times.settled()
            for end in report.ends
            if end.times is not None
        }
    )


def closes_after(before: Plan, part: Part) -> Closes:
    """Each time that all windows were closed, at the end of a batch."""
    if part.closing is None:
        return before.closes
    if before.closes.pending:
        return before.closes.with_done()
    return before.closes.with_new(
        part.closing.event_ms, {mark_name(*tp): stop for tp, stop in part.stops.items()}
    )


def marks_after(before: Plan, report: Report) -> dict[str, PartitionMarks]:
    """The marks at the end of a batch."""
    return before.marks | {mark_name(end.topic, end.partition): end.marks for end in report.ends}


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
