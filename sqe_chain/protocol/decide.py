"""Step 3: what a batch reads and does, what its tasks get, and what its plan keeps.

`decide_batch` is to be read from top to bottom: each line narrows or replaces what the lines before it have decided. `decide_again` makes the same
decision from a sealed plan, so a redo gets to its tasks by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sqe_chain.features.closing import Closes, close_now, closed_after, closing_limits
from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.due import lanes_after_upgrade, moments_after, moments_again, reach_moments
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.file_inputs import leaving_files
from sqe_chain.features.lanes import Lanes, late_after
from sqe_chain.features.noting import CodecNotes, given_of_notes
from sqe_chain.features.overwrite import Overwrite
from sqe_chain.features.overwriting import staging_after
from sqe_chain.features.parking import (
    Parking,
    ReleaseRequest,
    given_of_parked,
    parked_after,
    release_only,
    released_again,
)
from sqe_chain.features.rebuilding import Rebuilding, catch_up, limits_behind, sections_behind
from sqe_chain.features.ticking import Timers, fire, ticks_again
from sqe_chain.features.timing import event_time_after, take_by_time, taken_again, taking
from sqe_chain.features.waiting import IdleWriters
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Marks
from sqe_chain.plans.look import Look, Offsets
from sqe_chain.plans.plan import NotedMarker, Plan, PlannedRange, Section
from sqe_chain.plans.planning import plan_after, published_by
from sqe_chain.plans.published import PublishedLanes
from sqe_chain.plans.revisions import Revisions
from sqe_chain.task.digest import CURRENT, ROUTED, VERSION
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import Behind, PartitionEnd, Report, Sections
from sqe_chain.task.states import Claim


def decide_batch(
    env: Environment, idle: IdleWriters, request: ReleaseRequest, last: Plan, look: Look, now_ms: int
) -> BatchDecision | None:
    """Decide about the next batch. Changes nothing, but it may ask the broker.

    Args:
        env: the flow, its ports, and what the run is there for.
        idle: finds the writers that are not waited for.
        request: records that the batch processes instead of reading.
        last: the plan before.
        look: what the batch is cut from.
        now_ms: the batch's clock.

    Returns:
        None: there is nothing to do.

    Raises:
        NotCaughtUp, ServiceStopped: windows cannot be closed, or going on would not be exact.
        Unavailable: asked to stop while waiting for the broker.
    """
    flow, known = env.flow, last.sections
    closes = Closes.name in known or any(stage.traits.windowed for stage in flow.stages)
    behind = Rebuilding.name in known and env.role.refold is None

    # How far it may read. Windows that were closed are closed again at the same place; what receivers have is read before all else.
    bounds, closed_at = look.bounds, _limits_of_closing(env, last) if closes else None
    if closed_at is not None:
        bounds = inputs.limit_bounds(bounds, closed_at)
    if behind and (limits := limits_behind(last)) is not None:
        bounds = inputs.limit_bounds(bounds, limits)
    stops = inputs.cut(last.next_offsets(), bounds, max(len(last.ranges), look.limit))
    # Files that are read to their ends leave the plans.
    left = leaving_files(flow, last)
    decision = BatchDecision(
        tuple(
            [
                replace(planned, start=planned.stop, stop=stops[planned.tp], again=-1)
                for planned in last.ranges
                if planned.topic not in left
            ]
        ),
        now_ms,
    )

    # All windows are closed at the end of the input, and again where that was done before.
    if closes and look.final:
        closing = close_now(env, last, decision, look)
        if closing is None:
            return None
        decision = closing
    elif closed_at is not None and closed_at == last.next_offsets():
        done = Closes.of(last)
        decision = replace(decision, silent=done.silent, due=True, closing=done.again())

    # A flow that is behind works in silence, or repeats a batch as it was sealed.
    if behind or env.role.refold is not None:
        decision = catch_up(env, last, decision, look)

    # A batch that releases records reads nothing else.
    decision = release_only(flow, last, decision, request)

    # Event time: partitions are kept in step, inputs are taken up to where it has come, and what has waited is read again.
    if flow.timed or EventTime.name in known:
        # A flow that is behind reads what it had read in each batch, not more.
        free = None if behind or env.role.refold is not None else bounds
        decision = take_by_time(env, idle, last, decision, look, free)

    # What is due by event time is done up to where it comes, in all state partitions.
    decision = reach_moments(flow, last, decision)

    # Timers of the clock fire last: whether the silence ends with this batch depends on what it takes.
    if flow.ticking or Timers.name in known:
        decision = fire(flow, last, decision)

    if not (decision.reads or decision.due):
        return None
    at_end = [planned.tp for planned in decision.ranges if planned.stop >= look.bounds[planned.tp].stable_end]
    return replace(decision, at_end=frozenset(at_end))


def _limits_of_closing(env: Environment, last: Plan) -> Offsets | None:
    """See `closing_limits`. While the flow is folded again, windows are closed only where receivers have heard of it."""
    again = env.role.refold is None or Closes.of(last).silent
    return closing_limits(last) if again else None


def decide_again(flow: CompiledFlow, plan: Plan, before: Plan) -> BatchDecision:
    """What a sealed batch reads and does, for its redo: what `decide_batch` has decided, as far as it matters. Pure.

    Args:
        flow: the flow.
        plan: the sealed plan.
        before: the plan before it.
    """
    closes = Closes.of(plan)
    closing = closes.last() if closes.done > Closes.of(before).done else None
    ticks = ticks_again(plan, before)
    decision = BatchDecision(plan.ranges, plan.clock_ms, sealed=plan.exclusions, closing=closing, ticks=ticks)
    decision = replace(decision, routed=(plan.gives or {}).get(VERSION, 0) >= ROUTED)
    decision = released_again(plan, before, decision)
    if flow.timed or EventTime.name in plan.sections:
        decision = taken_again(flow, plan, before, decision)
    return moments_again(flow, plan, before, decision)


def given_to_tasks(env: Environment, before: Plan, decision: BatchDecision) -> Sections:
    """What all tasks get in the batch after a plan, the same in a redo. Pure."""
    flow, known = env.flow, before.sections
    return Sections.of(
        staging_after(before) if Overwrite.name in known else None,
        decision.closing,
        # After a rewind that republishes, states are older than those that receivers have, until all is read again.
        Behind() if Rebuilding.name in known and Rebuilding.of(before).published_until else None,
        # `decision.releasing` too: a service that redoes a release neither parks nor decides, and nothing need have waited before it.
        given_of_parked(before, decision) if decision.releasing or _parks(env, before) else None,
        taking(flow, before, decision) if flow.timed or EventTime.name in known else None,
        decision.moments,
        decision.ticks,
        Revisions.of(before).for_tasks() if Revisions.name in known else None,
        Revisions.of(before).for_outputs(flow) if Revisions.name in known else None,
        given_of_notes(flow),
    )


def sections_after(
    env: Environment, last: Plan, decision: BatchDecision, report: Report
) -> Iterator[Section]:
    """What the plan of a batch keeps; of all other sections it keeps what `Section.carried` gives. Pure.

    Raises:
        TooManyParked, PoisonError: see `parked_after`.
    """
    flow, known = env.flow, last.sections
    if decision.closing is not None:
        yield closed_after(last, decision.closing, decision)
    # The last condition is for a flow that was never rebuilt: it, too, closes windows again in silence, and its plan keeps that.
    if env.role.refold is not None or Rebuilding.name in known or decision.silent:
        yield from sections_behind(last, decision, env.role.refold)
    if (flow.gated and flow.outputs) or Lanes.name in known:
        lanes = lanes_after_upgrade(flow, last) or late_after(flow, last, decision, report)
        if lanes is not None:
            yield lanes
    if _parks(env, last):
        yield parked_after(env, last, decision, report)
    if flow.timed or EventTime.name in known:
        yield event_time_after(flow, last, decision, report, env.settings.idle_ms)
    yield from moments_after(flow, last, decision, report)
    if flow.ticking or Timers.name in known:
        yield Timers.of(last).after(decision.ticks, report)
    if any(end.newer for end in report.ends):
        yield Revisions.of(last).noting(report.ends)
    if flow.notes or report.met:
        yield CodecNotes({**flow.notes, **report.met})


def _parks(env: Environment, last: Plan) -> bool:
    """Whether records may wait: the policy is `park`, the run decides about failed records, or something waits already."""
    return env.flow.poison == "park" or env.role.decides or Parking.name in last.sections


def batch_plan(
    env: Environment,
    last: Plan,
    claim: Claim,
    decision: BatchDecision,
    report: Report,
    exclusions: tuple[Exclusion, ...],
    marker: NotedMarker | None = None,
) -> Plan:
    """The plan of a batch that was processed: its ranges with their last records, and the marks at its end.

    Args:
        env: the flow, and what the run is there for.
        last: the plan before.
        claim: the run.
        decision: what the batch has read and done.
        report: of its tasks.
        exclusions: skipped inputs.
        marker: see `Plan.marker`.
    """
    ends = {(end.topic, end.partition): end for end in report.ends}
    ranges = tuple([_with_witness(planned, ends.get(planned.tp)) for planned in decision.ranges])
    plan = plan_after(last, claim, decision.clock_ms, last.layout, ranges, marks_after(last, report))
    wakes = decision.wakes and not decision.reads
    gives = report.gives | {VERSION: CURRENT}
    placed = last.placed and report.placed
    published = _published_after(env.flow, last, decision, report)
    plan = replace(
        plan,
        exclusions=exclusions,
        wakes=wakes,
        gives=gives,
        placed=placed,
        marker=marker,
        published=published,
    )
    return plan.carried_from(last, sections_after(env, last, decision, report)).with_id(last)


def _published_after(
    flow: CompiledFlow, last: Plan, decision: BatchDecision, report: Report
) -> PublishedLanes | None:
    """Where the lanes of outputs end after a batch; None: the flow notes none."""
    if not flow.notes_lanes:
        return None
    known = published_by(last)
    return known if decision.silent else known.after(report.lane_ends, last.number + 1)


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
