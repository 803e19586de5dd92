"""Stages that take their inputs in the order of event time: how far a batch reads, and which inputs it takes.

Input partitions are kept in step by time while a backlog is worked off. A batch takes about as many records from each partition,
whatever times they have. A partition with fewer records an hour than another would be days ahead after some batches. What the
other one brings then would be late. So no partition is read beyond the time at which a partition with more to come ends in this
batch. Partitions whose records are in the order of their times are then in step wherever batches end.

Source: Kafka Streams takes the next record from the partition whose next one is the earliest; this does it for batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqe_chain.features.closing import Closes
from sqe_chain.features.decision import BatchDecision, CaughtUp, Taken
from sqe_chain.features.due import may_be_reached
from sqe_chain.features.event_times import (
    EventTime,
    KnownTimes,
    Seen,
    frontier_after,
    gated_times,
    is_far_ahead,
    progress_of,
    routes_of,
    seen_after,
    times_after,
    watermarks_of,
)
from sqe_chain.features.lanes import Lanes
from sqe_chain.features.rebuilding import Rebuilding, ends_with, is_behind
from sqe_chain.features.ticking import is_timer_due
from sqe_chain.features.waiting import IdleWriters
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import TopicIdPartition
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment, Refold
from sqe_chain.plans.look import Look, Offsets
from sqe_chain.plans.plan import Plan, PlannedRange
from sqe_chain.ports import Bounds, Message, Range, TopicPartition
from sqe_chain.task.event_times import EventTimes, Frontier, Taking, frontier_of, furthest, guard_of, last_of
from sqe_chain.task.gate import SourceTimes
from sqe_chain.task.records import Records
from sqe_chain.task.results import Report

_READS_ON = 16
"""How often a batch reads on at most, and which part of it has to be free for that. Each time costs a look at the ends of ranges."""
_LOOK_BACK = 10
"""Offsets read to find a range's last record: the very last ones may be markers of transactions."""


class UnplannedTimes:
    """Event time of a flow without plans. It is known as far as this run has read.

    Until a new run knows it again, outputs promise nothing.

    Args:
        env: the flow and its ports.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._idle = IdleWriters(env)
        self._began_ms = env.clock.now_ms()
        # Partition -> where the run has read up to, and event time there. What was moved meanwhile is forgotten.
        self._known: dict[TopicPartition, tuple[int, EventTimes]] = {}
        self._seen: Seen = ()

    def begin(
        self, offsets: Offsets, stops: Offsets, bounds: Mapping[TopicPartition, Bounds], clock_ms: int
    ) -> tuple[Mapping[TopicPartition, EventTimes], Taking]:
        """What tasks begin with in each partition, and what outputs promise.

        Args:
            offsets: where the batch begins in each partition.
            stops: where it ends.
            bounds: of the partitions.
            clock_ms: the batch's clock.
        """
        self._known = {tp: known for tp, known in self._known.items() if known[0] == offsets.get(tp)}
        known = KnownTimes({tp: times for tp, (_, times) in self._known.items()}, self._began_ms)
        # Where the batch begins, not where it ends: what it reads belongs before what others have stated meanwhile.
        idle = self._idle.find(known, offsets, bounds, clock_ms, self._seen)
        times = known.all_at(stops, idle, clock_ms)
        return times, Taking(watermarks_of(self._env.flow, progress_of(times), None))

    def done(self, stops: Offsets, report: Report, clock_ms: int) -> None:
        """The batch is published."""
        ends = {
            (end.topic, end.partition): end.times.settled() for end in report.ends if end.times is not None
        }
        times = {tp: times for tp, (_, times) in self._known.items()} | ends
        self._known = {tp: (stops[tp], reached) for tp, reached in times.items() if tp in stops}
        self._seen = seen_after(self._seen, clock_ms, progress_of(times), self._env.settings.idle_ms)


def take_by_time(
    env: Environment,
    idle: IdleWriters,
    last: Plan,
    decision: BatchDecision,
    look: Look,
    free: Mapping[TopicPartition, Bounds] | None,
) -> BatchDecision:
    """Step 3: how far a batch reads and takes inputs by event time.

    That is decided already where it was sealed before, where it releases records, and where all windows are closed.

    Args:
        env: the flow and its ports. The broker may be asked.
        idle: finds who is not waited for.
        last: the plan before.
        decision: what is decided so far.
        look: what the batch is cut from.
        free: up to where it may read more than is decided so far; None: it may not.

    Raises:
        Unavailable: asked to stop while waiting for the broker.
    """
    known, taken = KnownTimes.after(last), decision.taken
    if taken is None and decision.closing is not None:
        decision = _close_again(env, last, decision, known, look)
    elif taken is None:
        decision = _take_new(env, idle, last, decision, known, look, free)
    elif decision.sealed is not None:  # more may wait than waited then
        decision = _up_to(env.flow, decision, known, taken)
    decided = decision.taken is not None or decision.closing is not None
    return with_times(env.flow, decision, known) if decided else decision


def taken_again(flow: CompiledFlow, plan: Plan, before: Plan, decision: BatchDecision) -> BatchDecision:
    """The same of a sealed plan, for its redo. Pure."""
    sealed = EventTime.of(plan)
    taken = Taken(sealed.frontier, promised=sealed.promised)
    return with_times(flow, replace(decision, taken=taken), KnownTimes.after(before))


def _take_new(
    env: Environment,
    idle: IdleWriters,
    last: Plan,
    decision: BatchDecision,
    known: KnownTimes,
    look: Look,
    free: Mapping[TopicPartition, Bounds] | None,
) -> BatchDecision:
    """What was not sealed before; the same decision when it would do nothing."""
    flow = env.flow
    ahead = Rebuilding.of(last).ahead(silent=decision.silent) if Rebuilding.name in last.sections else None
    behind = is_behind(ahead, known.frontier)
    timer_due = flow.ticking and not decision.silent and is_timer_due(flow, last, decision.clock_ms)
    may_do = timer_due or EventTime.of(last).waiting or may_be_reached(flow, last)
    if not (decision.reads or may_do or behind):
        return decision
    decision = keep_in_step(env, without_far_ahead(flow, last, decision, look), look.bounds)
    if free is not None and flow.by_time:
        decision = _read_on(env, last, decision, look, free)
    decision = _take(env, idle, last, decision, known, look)
    catches_up = behind and not is_behind(ahead, frontier_after(last, decision))
    return replace(decision, due=decision.due or catches_up)


def _read_on(
    env: Environment,
    last: Plan,
    decision: BatchDecision,
    look: Look,
    free: Mapping[TopicPartition, Bounds],
) -> BatchDecision:
    """The batch with as many records as it may have, where partitions that are kept in step have left room.

    The partition that is behind alone moves event time. Reading on there, the batch takes what waits, and the next one need not.
    """
    for _ in range(_READS_ON):
        room = look.limit - sum(planned.stop - planned.start for planned in decision.ranges)
        if room * _READS_ON < look.limit:
            break
        stops = inputs.cut(decision.stops, free, max(len(decision.ranges), room))
        piece = replace(
            decision,
            ranges=tuple(
                replace(planned, start=planned.stop, stop=stops[planned.tp], again=-1)
                for planned in decision.ranges
            ),
        )
        piece = keep_in_step(env, without_far_ahead(env.flow, last, piece, look), look.bounds)
        if piece.stops == decision.stops:
            break
        decision = decision.with_stops(piece.stops)
    return decision


def _close_again(
    env: Environment, last: Plan, decision: BatchDecision, known: KnownTimes, look: Look
) -> BatchDecision:
    """In a rebuild: where windows were closed first, nobody was waited for, and nothing waited."""
    if not EventTime.of(last).waiting:
        return decision
    everybody = known.everybody_in(decision.stops, decision.clock_ms)
    # What waits is taken first. Then windows are closed by the batch after this one.
    return _take_known(env, last, replace(decision, closing=None), known, everybody, look, for_good=True)


def _take(
    env: Environment,
    idle: IdleWriters,
    last: Plan,
    decision: BatchDecision,
    known: KnownTimes,
    look: Look,
) -> BatchDecision:
    """The decision, with how far the batch takes inputs, and what it reads again of those that have waited."""
    flow = env.flow
    if not flow.timed:
        return _up_to(flow, decision, known, Taken(known.frontier))
    offsets = last.next_offsets()
    ahead = Rebuilding.of(last).ahead(silent=decision.silent)
    again = decision.silent or ahead is not None
    if not again and (Closes.name not in last.sections or Closes.of(last).due() is None):
        seen = EventTime.of(last).seen
        caught_up = idle.find(known, offsets, look.bounds, decision.clock_ms, seen, at_end=look.at_end)
        return _take_known(env, last, decision, known, caught_up, look, for_good=look.at_end)
    limits = _ends(env.role.refold, last, decision)
    ended = {tp: offset for tp, offset in offsets.items() if offset >= limits.get(tp, 0)}
    everybody = known.everybody_in(ended, decision.clock_ms)
    taken = _take_known(env, last, decision, known, everybody, look, for_good=True)
    gated = {tp for tp in offsets if flow.declared_topic[tp[0]] in flow.gated}
    if ahead is not None and gated <= ended.keys():
        return _up_to(flow, taken, known, Taken(ahead.frontier, everybody))
    return taken


def _take_known(
    env: Environment,
    last: Plan,
    decision: BatchDecision,
    known: KnownTimes,
    caught_up: CaughtUp,
    look: Look,
    *,
    for_good: bool,
) -> BatchDecision:
    """The decision that takes inputs up to where event time has come, by whom is waited for and who is not."""
    flow, frontier = env.flow, known.frontier
    if flow.gated:
        times = known.all_at(decision.stops, caught_up, decision.clock_ms, for_good=for_good)
        look_ahead(env, decision, times, known, look.bounds)
        frontier = furthest(frontier, frontier_of(gated_times(flow, times)))
        if env.role.refold is not None:  # in silence: what comes after it may be published again
            frontier = furthest(frontier, Lanes.of(last).taken_by(decision.stops))
    ahead = Rebuilding.of(last).ahead(silent=decision.silent)
    if ahead is not None:
        # Not further than before the rebuild: inputs beyond that were never taken, so receivers still need their outputs.
        limit = ahead.frontier
        frontier = min(frontier, limit) if frontier and limit else known.frontier
    return _up_to(flow, decision, known, Taken(frontier, caught_up))


def _up_to(flow: CompiledFlow, decision: BatchDecision, known: KnownTimes, taken: Taken) -> BatchDecision:
    """The decision that takes inputs up to a frontier."""
    ranges = []
    for planned in decision.ranges:
        times = known.times.get(planned.tp)
        waiting, again = times and times.waiting, -1
        # Of a topic that no stage takes in this order any more, nothing waits any longer.
        waits = flow.declared_topic[planned.topic] in flow.gated
        if times and waiting and (not waits or waiting.may_be_due(*planned.tp, taken.frontier)):
            again = waiting.offset
        ranges.append(planned if again == planned.again else replace(planned, again=again))
    return replace(decision, ranges=tuple(ranges), taken=taken)


def _ends(refold: Refold | None, last: Plan, decision: BatchDecision) -> Offsets:
    """After a rebuild: where nothing more comes of a partition.

    That is as far as the flow had read it once, or had read it when all windows were closed. Where the rebuild ends
    earlier, the flow goes on.
    """
    due, tps = Closes.of(last).due(), decision.stops
    limits: dict[TopicPartition, int] = {}
    behind = Rebuilding.of(last)
    if behind.takes_again:
        limits = {tp: behind.published_until.get(tp, 0) for tp in tps}
    if decision.silent:
        limits = {tp: behind.silent_until.get(tp, 0) for tp in tps}
        if refold is not None and refold.follows:
            return dict.fromkeys(tps, 1 << 63)  # no partition ends here
        if refold is not None:
            heard = behind.published_until
            limits = {
                tp: max(limit, refold.until.get(tp, 0), heard.get(tp, 0)) for tp, limit in limits.items()
            }
    if due is not None:
        closed = {tp: due.get(tp, 0) for tp in tps}
        limits = {tp: min(limits.get(tp, end), end) for tp, end in closed.items()}
    return limits


def with_times(flow: CompiledFlow, decision: BatchDecision, known: KnownTimes) -> BatchDecision:
    """The decision, with what tasks begin with."""
    taken = decision.taken or Taken(known.frontier)
    if not flow.timed:
        return replace(decision, taken=taken)
    tps = [planned.tp for planned in decision.ranges]
    times = known.all_at(tps, taken.caught_up, decision.clock_ms)
    begun = {
        planned.tp: replace(times[planned.tp], waiting=None, lanes={})
        for planned in decision.ranges
        if planned.again >= 0
    }
    return replace(decision, times={**times, **begun}, taken=replace(taken, times=times))


def taking(flow: CompiledFlow, before: Plan, decision: BatchDecision) -> Taking:
    """What tasks get: what outputs promise, and which inputs are taken. Pure."""
    taken, frontier = decision.taken or Taken(), EventTime.of(before).frontier
    promised = _promised(flow, decision, frontier)
    times = EventTime.of(before).times
    last = frontier and last_of(gated_times(flow, times), frontier)
    return Taking(
        promised, taken.frontier, frontier, last, routes_of(flow, times) if decision.routed else None
    )


def _promised(flow: CompiledFlow, decision: BatchDecision, frontier: Frontier | None) -> Mapping[str, int]:
    """What outputs of a batch promise, after the frontier of the one before."""
    taken = decision.taken or Taken()
    promised = taken.promised or watermarks_of(flow, progress_of(taken.times), frontier)
    if decision.closing is None:
        return promised
    # An older version may have taken event time one beyond the latest input, whose time results of windows that are closed have.
    return {output: min(at_ms, decision.closing.event_ms) for output, at_ms in promised.items()}


def event_time_after(
    flow: CompiledFlow, last: Plan, decision: BatchDecision, report: Report, idle_ms: int
) -> EventTime:
    """How far event time has come after a batch. Pure."""
    before = EventTime.of(last)
    times = times_after(last, report) if flow.timed else {}
    gated = gated_times(flow, times)
    ahead = ends_with(last, decision) if Rebuilding.name in last.sections else None
    if ahead is not None:
        # Watermarks go on from where they were before the rebuild: what outputs promise next is what they promised then.
        times |= {
            tp: replace(held, waiting=times[tp].waiting, lanes=times[tp].lanes)
            for tp, held in ahead.times.items()
            if tp in times
        }
    seen = seen_after(before.seen, decision.clock_ms, gated, idle_ms)
    promised = _promised(flow, decision, before.frontier)
    return EventTime(times, frontier_after(last, decision), seen, promised)


def lost_waiting(last: Plan, planned: PlannedRange) -> str:
    """What waited of a topic that was created again, as a notice: it was in Kafka alone. Empty: nothing."""
    times = EventTime.of(last).times.get(planned.tp)
    if times is None or times.waiting is None:
        return ""
    return (
        f"{planned.topic}[{planned.partition}] was created again while {times.waiting.inputs} of its records waited for "
        "event time: they are gone, and were not counted"
    )


def keep_in_step(
    env: Environment, decision: BatchDecision, bounds: Mapping[TopicPartition, Bounds]
) -> BatchDecision:
    """The batch, shortened where a partition would get ahead of one that has more to come.

    At least one partition that has something keeps all of its range. Times are those of the records in Kafka.

    Args:
        env: the flow and its ports.
        decision: what the batch reads; not one that was sealed before.
        bounds: of its partitions, as far as they may be read.

    Raises:
        Unavailable: asked to stop while waiting for the broker.
    """
    if not env.flow.by_time:
        return decision
    untimed = {topic for source in env.flow.sources if source.timestamp for topic in source.topics}
    ranges = [planned for planned in decision.ranges if env.flow.declared_topic[planned.topic] not in untimed]
    behind = [planned for planned in ranges if planned.start < planned.stop < bounds[planned.tp].stable_end]
    if not behind or len(ranges) == 1:
        return decision
    times = {planned.tp: messages[-1].timestamp()[1] for planned, messages in last_records(env, behind)}
    if not times:
        return decision
    last = min(times, key=lambda tp: (times[tp], tp))
    limits = env.log.offsets_at([planned.tp for planned in ranges], times[last] + 1)
    return decision.with_stops(
        {
            planned.tp: max(planned.start, min(planned.stop, limits[planned.tp]))
            for planned in ranges
            if planned.tp != last  # else nothing might be left to read where its own records are not in order
        }
    )


def without_far_ahead(flow: CompiledFlow, last: Plan, decision: BatchDecision, look: Look) -> BatchDecision:
    """The batch without partitions that have a whole batch waiting, as long as it reads others.

    Args:
        flow: the flow.
        last: the plan before.
        decision: what the batch reads; not one that was sealed before.
        look: what it is cut from.
    """
    far = {
        tp
        for tp, times in EventTime.of(last).times.items()
        if times.waiting is not None and times.waiting.inputs >= look.limit
    }
    others = [
        planned
        for planned in decision.ranges
        if flow.declared_topic[planned.topic] in flow.gated and planned.tp not in far
    ]
    if not far or not any(planned.start < planned.stop for planned in others):
        return decision
    return decision.with_stops(
        {planned.tp: planned.start for planned in decision.ranges if planned.tp in far}
    )


def last_records(
    env: Environment, ranges: Sequence[PlannedRange]
) -> Iterable[tuple[PlannedRange, Sequence[Message]]]:
    """The last records of each range, as far as any are found."""
    ends = [
        Range(
            planned.topic,
            bytes.fromhex(planned.topic_id),
            planned.partition,
            max(planned.start, planned.stop - _LOOK_BACK),
            planned.stop,
        )
        for planned in ranges
    ]
    return (
        (planned, messages)
        for planned, messages in zip(ranges, env.log.read_all(ends), strict=True)
        if messages
    )


def look_ahead(
    env: Environment,
    decision: BatchDecision,
    times: dict[TopicPartition, EventTimes],
    known: KnownTimes,
    bounds: Mapping[TopicPartition, Bounds],
) -> None:
    """Move event time by the last records of what a batch reads, so that it takes what lies before them at once.

    Without that, a batch takes what was read by the batch before it, which is right, too, but later. Where the source's function
    gives the times, that stays so. It stays so, too, where an input waits that is far ahead. If what comes next shows that its clock was
    wrong, both are read again by the next batch, whose frontier has not passed them yet.

    Args:
        env: the flow and its ports.
        decision: what the batch reads; not one that was sealed before.
        times: event time as it begins, which moves.
        known: at the end of the batch before.
        bounds: of the partitions.
    """
    flow, guard = env.flow, guard_of(env.flow)
    nodes = {topic: source for source in flow.sources if source.timestamp is None for topic in source.topics}
    gated = [
        planned
        for planned in decision.ranges
        if planned.topic in nodes
        and nodes[planned.topic].name in flow.gated
        and not is_far_ahead(times[planned.tp], known.frontier, guard)
    ]
    for planned, messages in last_records(
        env, [planned for planned in gated if planned.start < planned.stop]
    ):
        at_end = planned.stop >= bounds[planned.tp].stable_end
        source_times = SourceTimes(
            times[planned.tp], nodes[planned.topic], guard, planned.start, at_end=at_end
        )
        tp = TopicIdPartition(planned.topic, bytes.fromhex(planned.topic_id), planned.partition)
        source_times.observe(
            source_times.shown_by(source_times.facts(Records(tp, messages, None, int), None))
        )
