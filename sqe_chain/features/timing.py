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
from sqe_chain.features.event_times import (
    CaughtUp,
    EventTime,
    KnownTimes,
    Seen,
    Taken,
    frontier_after,
    frontier_at,
    gated_times,
    may_be_due,
    progress_of,
    seen_after,
    times_after,
    watermarks_of,
)
from sqe_chain.features.holding import Holding
from sqe_chain.features.idle import IdleWriters
from sqe_chain.features.lanes import Lanes
from sqe_chain.features.rebuilding import Rebuilding, ends_with, is_behind
from sqe_chain.features.ticking import is_timer_due
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import TopicIdPartition
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.feature import Feature, Infos, Look, Offsets, Part
from sqe_chain.plans.layout import mark_name
from sqe_chain.plans.plan import Plan, PlannedRange
from sqe_chain.plans.results import BatchResult
from sqe_chain.ports import Bounds, Message, Range, TopicPartition
from sqe_chain.task.event_times import EventTimes, guard_of
from sqe_chain.task.frontier import Frontier, Taking, furthest, last_of
from sqe_chain.task.records import Records
from sqe_chain.task.results import Report
from sqe_chain.task.roots import Closing
from sqe_chain.task.source_times import SourceTimes

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


class Timing(Feature):
    """Event time, which flows with outputs hand on, and stages may take their inputs by."""

    name = EventTime.name

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._idle = IdleWriters(env)
        self._holding = Holding(env)

    @property
    def declared(self) -> bool:
        """The flow asks for it."""
        return self.env.flow.timed

    # ------------------------------------------------------------------ the next batch

    def cut(self, last: Plan, part: Part, look: Look) -> Part:
        """How far it reads and takes inputs, unless that was decided when it was sealed before, or all windows are closed."""
        known = KnownTimes.after(last)
        sealed = part.notes.find(Taken)
        if sealed is None:
            decide = self._closing_again if Closing in part.notes else self._new
            part = decide(last, part, known, look)
        elif part.sealed is not None:  # more may wait than waited then
            part = self._up_to(part, known, sealed)
        decided = Taken in part.notes or Closing in part.notes
        return self._with_times(part, known) if decided else part

    def cut_again(self, plan: Plan, before: Plan, part: Part) -> Part:
        sealed = EventTime.of(plan)
        taken = Taken(sealed.frontier, promised=sealed.promised)
        return self._with_times(part.noting(taken), KnownTimes.after(before))

    def _new(self, last: Plan, part: Part, known: KnownTimes, look: Look) -> Part:
        """What was not sealed before; the same part when it would do nothing."""
        flow = self.env.flow
        ahead = Rebuilding.of(last).ahead(silent=part.silent) if Rebuilding.name in last.sections else None
        behind = is_behind(ahead, known.frontier)
        timer_due = flow.ticking and not part.silent and is_timer_due(flow, last, part.clock_ms)
        if not (part.reads or timer_due or EventTime.of(last).waiting or behind):
            return part
        part = keep_in_step(self.env, without_far_ahead(flow, last, part, look), look.bounds)
        part = self._taking(last, part, known, look)
        catches_up = behind and not is_behind(ahead, frontier_after(last, part))
        return replace(part, due=part.due or catches_up)

    def _closing_again(self, last: Plan, part: Part, known: KnownTimes, look: Look) -> Part:
        """In a rebuild: where windows were closed first, nobody was waited for, and nothing waited."""
        if not EventTime.of(last).waiting:
            return part
        everybody = known.everybody_in(part.stops, part.clock_ms)
        return self._taken(last, part.without(Closing), known, everybody, look, for_good=True)

    def _taking(self, last: Plan, part: Part, known: KnownTimes, look: Look) -> Part:
        """The part, with how far it takes inputs, and what it reads again of those that have waited."""
        if not self.env.flow.timed:
            return self._up_to(part, known, Taken(known.frontier))
        offsets = last.next_offsets()
        ahead = Rebuilding.of(last).ahead(silent=part.silent)
        again = part.silent or ahead is not None
        if not again and (Closes.name not in last.sections or Closes.of(last).due() is None):
            seen = EventTime.of(last).seen
            caught_up = self._idle.find(known, offsets, look.bounds, part.clock_ms, seen, at_end=look.at_end)
            return self._taken(last, part, known, caught_up, look, for_good=look.at_end)
        limits = self._ends(last, part)
        ended = {tp: offset for tp, offset in offsets.items() if offset >= limits.get(tp, 0)}
        everybody = known.everybody_in(ended, part.clock_ms)
        taken = self._taken(last, part, known, everybody, look, for_good=True)
        gated = {tp for tp in offsets if self.env.flow.declared_topic[tp[0]] in self.env.flow.gated}
        if ahead is not None and gated <= ended.keys():
            return self._up_to(taken, known, Taken(ahead.frontier, everybody))
        return taken

    def _taken(
        self, last: Plan, part: Part, known: KnownTimes, caught_up: CaughtUp, look: Look, *, for_good: bool
    ) -> Part:
        flow, frontier = self.env.flow, known.frontier
        if flow.gated:
            times = known.all_at(part.stops, caught_up, part.clock_ms, for_good=for_good)
            look_ahead(self.env, part, times, look.bounds)
            frontier = furthest(frontier, frontier_at(flow, times))
            if self.env.role.refold is not None:  # in silence: what comes after it may be published again
                frontier = furthest(frontier, Lanes.of(last).taken_by(part.stops))
        ahead = Rebuilding.of(last).ahead(silent=part.silent)
        if ahead is not None:
            # What had not been taken was not published.
            limit = ahead.frontier
            frontier = min(frontier, limit) if frontier and limit else known.frontier
        return self._up_to(part, known, Taken(frontier, caught_up))

    def _up_to(self, part: Part, known: KnownTimes, taken: Taken) -> Part:
        """The part that takes inputs up to a frontier."""
        ranges, flow, guard = [], self.env.flow, guard_of(self.env.flow)
        for planned in part.ranges:
            times = known.times.get(planned.tp)
            waiting, again = times and times.waiting, -1
            # Of a topic that no stage takes in this order any more, nothing waits any longer.
            waits = flow.declared_topic[planned.topic] in flow.gated
            if (
                times
                and waiting
                and (not waits or may_be_due(planned, times, known.frontier, taken.frontier, guard))
            ):
                again = waiting.offset
            ranges.append(planned if again == planned.again else replace(planned, again=again))
        return replace(part, ranges=tuple(ranges)).noting(taken)

    def _ends(self, last: Plan, part: Part) -> Offsets:
        """After a rebuild: where nothing more comes of a partition.

        That is as far as the flow had read it once, or had read it when all windows were closed. Where the rebuild ends
        earlier, the flow goes on.
        """
        refold, due, tps = self.env.role.refold, Closes.of(last).due(), part.stops
        limits: dict[TopicPartition, int] = {}
        behind = Rebuilding.of(last)
        if behind.takes_again:
            limits = {tp: behind.published_until.get(tp, 0) for tp in tps}
        if part.silent:
            limits = {tp: behind.silent_until.get(tp, 0) for tp in tps}
            if refold is not None:
                heard = behind.published_until
                limits = {
                    tp: max(limit, refold.until.get(tp, 0), heard.get(tp, 0)) for tp, limit in limits.items()
                }
        if due is not None:
            closed = {tp: due.get(tp, 0) for tp in tps}
            limits = {tp: min(limits.get(tp, end), end) for tp, end in closed.items()}
        return limits

    def _with_times(self, part: Part, known: KnownTimes) -> Part:
        """The part, with what tasks begin with."""
        taken = part.notes.find(Taken) or Taken(known.frontier)
        if not self.env.flow.timed:
            return part.noting(taken)
        tps = [planned.tp for planned in part.ranges]
        times = known.all_at(tps, taken.caught_up, part.clock_ms)
        begun = {
            planned.tp: replace(times[planned.tp], waiting=None, lanes={})
            for planned in part.ranges
            if planned.again >= 0
        }
        return replace(part, times={**times, **begun}).noting(replace(taken, times=times))

    def begin(self, before: Plan, part: Part) -> Taking:
        """What outputs promise, and which inputs are taken."""
        taken, frontier = part.notes.find(Taken) or Taken(), EventTime.of(before).frontier
        promised = self._promised(taken, frontier)
        last = frontier and last_of(gated_times(self.env.flow, EventTime.of(before).times), frontier)
        return Taking(promised, taken.frontier, frontier, last)

    def _promised(self, taken: Taken, frontier: Frontier | None) -> Mapping[str, int]:
        """What outputs of a batch promise, after the frontier of the one before."""
        return taken.promised or watermarks_of(self.env.flow, progress_of(taken.times), frontier)

    # ------------------------------------------------------------------ after a batch

    def after(self, last: Plan, part: Part, report: Report) -> EventTime:
        """How far event time has come."""
        flow, before = self.env.flow, EventTime.of(last)
        times = times_after(last, report) if flow.timed else {}
        gated = gated_times(flow, times)
        ahead = ends_with(last, part) if Rebuilding.name in last.sections else None
        if ahead is not None:
            # So that what is promised from now on is what was promised after it.
            times |= {
                tp: replace(held, waiting=times[tp].waiting, lanes=times[tp].lanes)
                for tp, held in ahead.times.items()
                if tp in times
            }
        seen = seen_after(before.seen, part.clock_ms, gated, self.env.settings.idle_ms)
        promised = self._promised(part.notes.find(Taken) or Taken(), before.frontier)
        return EventTime(times, frontier_after(last, part), seen, promised)

    def result(self, result: BatchResult, plan: Plan, infos: Infos) -> BatchResult:  # noqa: ARG002 - see `Feature`
        """With what waits for event time, and who holds it back."""
        if not self.env.flow.by_time:
            return result
        holder = self._holding.look(plan)
        name = None if holder is None else mark_name(holder.topic, holder.partition)
        return replace(
            result, held=EventTime.of(plan).waiting, holder=name, watermark_ms=holder and holder.watermark_ms
        )

    def idle(self, last: Plan) -> None:
        """Somebody may hold back all others."""
        self._holding.look(last)


def lost_waiting(last: Plan, planned: PlannedRange) -> str:
    """What waited of a topic that was created again, as a notice: it was in Kafka alone. Empty: nothing."""
    times = EventTime.of(last).times.get(planned.tp)
    if times is None or times.waiting is None:
        return ""
    return (
        f"{planned.topic}[{planned.partition}] was created again while {times.waiting.inputs} of its records waited for "
        "event time: they are gone, and were not counted"
    )


def keep_in_step(env: Environment, part: Part, bounds: Mapping[TopicPartition, Bounds]) -> Part:
    """The batch, shortened where a partition would get ahead of one that has more to come.

    At least one partition that has something keeps all of its range. Times are those of the records in Kafka.

    Args:
        env: the flow and its ports.
        part: what the batch reads; not one that was sealed before.
        bounds: of its partitions, as far as they may be read.

    Raises:
        Unavailable: asked to stop while waiting for the broker.
    """
    if not env.flow.by_time:
        return part
    untimed = {topic for source in env.flow.sources if source.timestamp for topic in source.topics}
    ranges = [planned for planned in part.ranges if env.flow.declared_topic[planned.topic] not in untimed]
    behind = [planned for planned in ranges if planned.start < planned.stop < bounds[planned.tp].stable_end]
    if not behind or len(ranges) == 1:
        return part
    times = {planned.tp: messages[-1].timestamp()[1] for planned, messages in last_records(env, behind)}
    if not times:
        return part
    last = min(times, key=lambda tp: (times[tp], tp))
    limits = env.log.offsets_at([planned.tp for planned in ranges], times[last] + 1)
    return part.with_stops(
        {
            planned.tp: max(planned.start, min(planned.stop, limits[planned.tp]))
            for planned in ranges
            if planned.tp != last  # else nothing might be left to read where its own records are not in order
        }
    )


def without_far_ahead(flow: CompiledFlow, last: Plan, part: Part, look: Look) -> Part:
    """The batch without partitions that have a whole batch waiting, as long as it reads others.

    Args:
        flow: the flow.
        last: the plan before.
        part: what the batch reads; not one that was sealed before.
        look: what it is cut from.
    """
    far = {
        tp
        for tp, times in EventTime.of(last).times.items()
        if times.waiting is not None and times.waiting.inputs >= look.limit
    }
    others = [
        planned
        for planned in part.ranges
        if flow.declared_topic[planned.topic] in flow.gated and planned.tp not in far
    ]
    if not far or not any(planned.start < planned.stop for planned in others):
        return part
    return part.with_stops({planned.tp: planned.start for planned in part.ranges if planned.tp in far})


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
    part: Part,
    times: dict[TopicPartition, EventTimes],
    bounds: Mapping[TopicPartition, Bounds],
) -> None:
    """Move event time by the last records of what a batch reads, so that it takes what lies before them at once.

    Without that, a batch takes what was read by the batch before it, which is right, too, but later. Where the source's function
    gives the times, that stays so.

    Args:
        env: the flow and its ports.
        part: what the batch reads; not one that was sealed before.
        times: event time as it begins, which moves.
        bounds: of the partitions.
    """
    flow, guard = env.flow, guard_of(env.flow)
    nodes = {topic: source for source in flow.sources if source.timestamp is None for topic in source.topics}
    gated = [
        planned
        for planned in part.ranges
        if planned.topic in nodes and nodes[planned.topic].name in flow.gated
    ]
    for planned, messages in last_records(
        env, [planned for planned in gated if planned.start < planned.stop]
    ):
        at_end = planned.stop >= bounds[planned.tp].stable_end
        source_times = SourceTimes(
            times[planned.tp], nodes[planned.topic], guard, planned.start, at_end=at_end
        )
        tp = TopicIdPartition(planned.topic, bytes.fromhex(planned.topic_id), planned.partition)
        source_times.observe(source_times.facts(Records(tp, messages, None, int), None))
