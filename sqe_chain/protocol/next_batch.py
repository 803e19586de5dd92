"""What the next batch reads and does, or that there is nothing to do: first half of step 3. It asks the broker, and changes nothing.

Input partitions are kept in step by time while a backlog is worked off, for stages that go by event time. A batch takes about as many
records from each partition, whatever times they have. Where one partition has fewer records an hour than another, it would be days
ahead after some batches, and what the other one then brings would be late. So no partition is read beyond the time at which a
partition with more to come ends in this batch. Partitions whose records are in the order of their times are then in step wherever
batches end.

Source: Kafka Streams takes the next record from the partition whose next one is the earliest; this does it for batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqe_chain.features.closes import Closes
from sqe_chain.features.closing import closing_part
from sqe_chain.features.event_times import CaughtUp, EventTime, KnownTimes, frontier_at
from sqe_chain.features.file_inputs import leaving_files, without_files
from sqe_chain.features.idle import IdleWriters
from sqe_chain.features.rebuilding import Offsets, Rebuilding
from sqe_chain.features.ticking import is_timer_due, ticks_of
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import TopicIdPartition
from sqe_chain.ports import Bounds, Message, Range, TopicPartition
from sqe_chain.protocol.cutting import Part, ends_silence, is_behind, next_part
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.plan import Plan, PlannedRange
from sqe_chain.protocol.verifying import verify_rest
from sqe_chain.task.closing import Closing
from sqe_chain.task.event_times import EventTimes
from sqe_chain.task.frontier import Frontier, furthest
from sqe_chain.task.records import Records
from sqe_chain.task.results import Sections
from sqe_chain.task.source_times import SourceTimes
from sqe_chain.task.wrong_clocks import guard_of

_LOOK_BACK = 10
"""Offsets read to find a range's last record: the very last ones may be markers of transactions."""


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
    times = {planned.tp: found[-1].timestamp()[1] for planned, found in last_records(env, behind)}
    if not times:
        return part
    last = min(times, key=lambda tp: (times[tp], tp))
    limits = env.log.offsets_at([planned.tp for planned in ranges], times[last] + 1)
    stops = part.stops | {
        planned.tp: max(planned.start, min(planned.stop, limits[planned.tp]))
        for planned in ranges
        if planned.tp != last  # else nothing might be left to read where its own records are not in order
    }
    shorter = tuple(replace(planned, stop=stops[planned.tp]) for planned in part.ranges)
    return replace(part, ranges=shorter, stops=stops)


def without_far_ahead(
    flow: CompiledFlow, last: Plan, part: Part, bounds: Mapping[TopicPartition, Bounds], limit: int
) -> Part:
    """The batch without more of partitions of which a whole batch waits already, as long as others have more to come.

    Args:
        flow: the flow.
        last: the plan before.
        part: what the batch reads; not one that was sealed before.
        bounds: of its partitions, as far as they may be read.
        limit: records of a batch.
    """
    far = {
        tp
        for tp, times in EventTime.of(last).times.items()
        if times.waiting is not None and times.waiting.inputs >= limit
    }
    others = [
        planned
        for planned in part.ranges
        if flow.declared_topic[planned.topic] in flow.gated and planned.tp not in far
    ]
    if not far or not any(planned.start < bounds[planned.tp].stable_end for planned in others):
        return part
    stops = part.stops | {planned.tp: planned.start for planned in part.ranges if planned.tp in far}
    return replace(
        part, ranges=tuple(replace(planned, stop=stops[planned.tp]) for planned in part.ranges), stops=stops
    )


def last_records(
    env: Environment, ranges: Sequence[PlannedRange]
) -> Iterable[tuple[PlannedRange, Sequence[Message]]]:
    """The last records of each range, as far as any are found."""
    ends = [
        Range(
            one.topic,
            bytes.fromhex(one.topic_id),
            one.partition,
            max(one.start, one.stop - _LOOK_BACK),
            one.stop,
        )
        for one in ranges
    ]
    return ((planned, found) for planned, found in zip(ranges, env.log.read_all(ends), strict=True) if found)


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
    nodes = {topic: one for one in flow.sources if one.timestamp is None for topic in one.topics}
    gated = [one for one in part.ranges if one.topic in nodes and nodes[one.topic].name in flow.gated]
    for planned, messages in last_records(env, [one for one in gated if one.start < one.stop]):
        at_end = planned.stop >= bounds[planned.tp].stable_end
        found = SourceTimes(times[planned.tp], nodes[planned.topic], guard, planned.start, at_end=at_end)
        tp = TopicIdPartition(planned.topic, bytes.fromhex(planned.topic_id), planned.partition)
        found.observe(found.facts(Records(tp, messages, None, int), None))


AllBounds = dict[TopicPartition, Bounds]


@dataclass(slots=True)
class NextBatch:
    """Chooses what the next batch does; what it finds out about idle writers is kept from batch to batch.

    Args:
        env: the flow and its ports.
    """

    env: Environment
    _idle: IdleWriters = field(init=False)

    def __post_init__(self) -> None:
        self._idle = IdleWriters(self.env)

    def part(self, last: Plan, bounds: AllBounds, limit: int, *, at_end: bool, close: bool) -> Part | None:
        """What comes after a plan; None: nothing.

        Args:
            last: the last plan.
            bounds: of its partitions, as far as they may be read.
            limit: records, over all partitions.
            at_end: no more input is expected.
            close: close all windows.
        """
        env = self.env
        part = next_part(last, bounds, max(len(last.ranges), limit), spec=env.role.rebuild)
        part = without_files(replace(part, clock_ms=env.clock.now_ms()), leaving_files(env.flow, last))
        if close:
            found = self._closing(last, part, bounds)
        elif part.due is not None:
            verify_rest(env, part.due, bounds)
            found = replace(part, clock_ms=part.due.clock_ms)
        elif Closing in part.sections:
            found = self._closing_again(last, part, bounds)
        else:
            found = self._new(last, part, bounds, limit, at_end=at_end)
        if found is None:
            return None
        ends = ends_silence(last, found)
        ticks = ticks_of(env.flow, last, found.clock_ms, silent=found.silent, last_silent=ends)
        at_ends = frozenset(tp for tp, stop in found.stops.items() if stop >= bounds[tp].stable_end)
        return replace(found, at_end=at_ends).with_section(ticks)

    def _new(self, last: Plan, part: Part, bounds: AllBounds, limit: int, *, at_end: bool) -> Part | None:
        """What was not sealed before; None when it would do nothing."""
        flow, timer_due = self.env.flow, not part.silent and is_timer_due(self.env.flow, last, part.clock_ms)
        if part.empty and not (
            timer_due or EventTime.of(last).waiting or is_behind(last, EventTime.of(last).frontier)
        ):
            return None
        part = keep_in_step(self.env, without_far_ahead(flow, last, part, bounds, limit), bounds)
        part = self._taking(last, part, bounds, at_end=at_end)
        catches_up = is_behind(last, EventTime.of(last).frontier) and not is_behind(last, part.frontier)
        if part.empty and not timer_due and not catches_up:
            return None
        return part

    def _closing(self, last: Plan, part: Part, bounds: AllBounds) -> Part | None:
        """What a batch does that closes all windows; None when nothing was read since they were closed last."""
        offsets, known = last.next_offsets(), KnownTimes.after(last)
        # Looked at anew: what was passed on some time ago proves nothing of what republishers have to read now.
        idle = IdleWriters(self.env).find(
            known, offsets, bounds, part.clock_ms, EventTime.of(last).seen, at_end=True
        )
        return closing_part(self.env.flow, last, part, bounds, idle, part.clock_ms)

    def _closing_again(self, last: Plan, part: Part, bounds: AllBounds) -> Part:
        """The same in a rebuild: where it was done first, nobody was waited for, and nothing waited."""
        if not EventTime.of(last).waiting:
            return part
        everybody = KnownTimes.after(last).everybody_in(part.stops, part.clock_ms)
        return self._taken(last, replace(part, sections=Sections()), everybody, bounds, for_good=True)

    def _taking(self, last: Plan, part: Part, bounds: AllBounds, *, at_end: bool) -> Part:
        """The part, with how far it takes inputs, and what it reads again of those that have waited."""
        if not self.env.flow.timed:
            return self._up_to(last, part, EventTime.of(last).frontier)
        offsets, known = last.next_offsets(), KnownTimes.after(last)
        behind = Rebuilding.of(last)
        again = part.silent or behind.takes_again
        if not again and Closes.of(last).due() is None:
            found = self._idle.find(
                known, offsets, bounds, part.clock_ms, EventTime.of(last).seen, at_end=at_end
            )
            return self._taken(last, part, found, bounds, for_good=at_end)
        limits = self._ends(last, part)
        ended = {tp: offset for tp, offset in offsets.items() if offset >= limits.get(tp, 0)}
        everybody = known.everybody_in(ended, part.clock_ms)
        taken = self._taken(last, part, everybody, bounds, for_good=True)
        gated = {tp for tp in offsets if self.env.flow.declared_topic[tp[0]] in self.env.flow.gated}
        if again and behind.reached is not None and gated <= ended.keys():
            return self._up_to(last, taken, behind.reached.frontier)
        return taken

    def _taken(
        self, last: Plan, part: Part, caught_up: CaughtUp, bounds: AllBounds, *, for_good: bool
    ) -> Part:
        flow = self.env.flow
        frontier = EventTime.of(last).frontier
        if flow.gated:
            times = KnownTimes.after(last).all_at(part.stops, caught_up, part.clock_ms, for_good=for_good)
            look_ahead(self.env, part, times, bounds)
            frontier = furthest(frontier, frontier_at(flow, times))
        behind = Rebuilding.of(last)
        if (part.silent or behind.takes_again) and behind.reached is not None:
            # What had not been taken was not published.
            limit = behind.reached.frontier
            frontier = min(frontier, limit) if frontier and limit else EventTime.of(last).frontier
        return self._up_to(last, replace(part, caught_up=caught_up), frontier)

    def _up_to(self, last: Plan, part: Part, frontier: Frontier | None) -> Part:
        """The part that takes inputs up to a frontier."""
        ranges, flow, known = [], self.env.flow, EventTime.of(last).times
        for planned in part.ranges:
            times = known.get(planned.tp)
            waiting, again = times and times.waiting, -1
            # Of a topic that no stage takes in this order any more, nothing waits any longer.
            waits = flow.declared_topic[planned.topic] in flow.gated
            if waiting and (not waits or waiting.may_be_due(*planned.tp, frontier)):
                again = waiting.offset
            ranges.append(replace(planned, again=again))
        return replace(part, ranges=tuple(ranges), frontier=frontier)

    def _ends(self, last: Plan, part: Part) -> Offsets:
        """After a rebuild: where nothing more comes of a partition.

        That is as far as the flow had read it once, or had read it when all windows were closed. Where the rebuild ends
        earlier, the flow goes on.
        """
        spec, due = self.env.role.rebuild, Closes.of(last).due()
        limits: Offsets = {}
        behind = Rebuilding.of(last)
        if behind.takes_again:
            limits = {tp: behind.published_until.get(tp, 0) for tp in part.stops}
        if part.silent:
            limits = {tp: behind.silent_until.get(tp, 0) for tp in part.stops}
            if spec is not None:
                heard = behind.published_until
                limits = {
                    tp: max(limit, spec.until.get(tp, 0), heard.get(tp, 0)) for tp, limit in limits.items()
                }
        if due is not None:
            closed = {tp: due.get(tp, 0) for tp in part.stops}
            limits = {tp: min(limits.get(tp, end), end) for tp, end in closed.items()}
        return limits
