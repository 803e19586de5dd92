"""Event time from batch to batch: what each partition begins with, how far a batch may take inputs, what outputs promise. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from sqe_chain.features.decision import BatchDecision, CaughtUp
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.layout import by_name, by_partition
from sqe_chain.plans.plan import Plan, Section, left_by
from sqe_chain.ports import TopicPartition
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.task.event_times import (
    EventTimes,
    Frontier,
    Hop,
    PartitionProgress,
    Stated,
    TimesRecord,
    frontier_of,
    latest_of,
    with_route,
)
from sqe_chain.task.results import Report

NOTHING: Final = 1
"""The watermark that promises nothing, milliseconds since 1970; 0 would be as good as absent."""
Seen = tuple[tuple[int, int], ...]
"""Clocks of batches, in their order, and the latest event time that was known by then."""
_SEEN: Final = 8


@dataclass(frozen=True, slots=True)
class EventTime(Section):
    """How far event time has come, where the flow goes by it.

    Attributes:
        times: event time in each partition at the end of the batch; nobody changes it.
        frontier: the place in the order of times up to which inputs were taken; it never goes back. None: none were.
        seen: clocks of batches, and the latest event time that was known by then, as far back as idle writers make it matter.
        promised: output -> the watermark that its records of the batch bear. A redo publishes the same, though it does not know
            who was silent then.
    """

    name: ClassVar[str] = "event-time"
    times: Mapping[TopicPartition, EventTimes] = field(default_factory=dict)
    frontier: Frontier | None = None
    seen: Seen = ()
    promised: Mapping[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """How many inputs wait for event time."""
        return sum(times.waiting.inputs for times in self.times.values() if times.waiting is not None)

    def carried(self, last: Plan, plan: Plan) -> EventTime:
        """All of it, without partitions that another topic has now."""
        gone = left_by(plan, last)
        return (
            replace(self, times={tp: times for tp, times in self.times.items() if tp not in gone})
            if gone
            else self
        )

    def to_json(self) -> dict[str, Any]:
        members: dict[str, Any] = {
            "times": plain_times(self.times),
            "frontier": self.frontier,
            "seen": self.seen,
            "promised": dict(self.promised),
        }
        return {name: value for name, value in members.items() if value}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        frontier, seen = raw.get("frontier"), raw.get("seen", ())
        return cls(
            times_from(raw.get("times", {})),
            Frontier(*frontier) if frontier else None,
            tuple((clock_ms, latest_ms) for clock_ms, latest_ms in seen),
            raw.get("promised", {}),
        )


def plain_times(times: Mapping[TopicPartition, EventTimes]) -> dict[str, TimesRecord]:
    """For json.dumps."""
    return {name: times.to_json() for name, times in by_name(times).items()}


def times_from(raw: Mapping[str, TimesRecord]) -> dict[TopicPartition, EventTimes]:
    """What `plain_times` gave."""
    return {tp: EventTimes.from_json(times) for tp, times in by_partition(raw).items()}


def times_after(before: Plan, report: Report) -> dict[TopicPartition, EventTimes]:
    """Event time at the end of a batch."""
    known = EventTime.of(before).times
    entered = {
        planned.tp: EventTimes(before.clock_ms) for planned in before.ranges if planned.tp not in known
    }
    ended = {(end.topic, end.partition): end.times.settled() for end in report.ends if end.times is not None}
    return {**known, **entered, **ended}


def waiting_offsets(plan: Plan) -> dict[TopicPartition, int]:
    """The first offset of each partition in which inputs wait after a plan."""
    times = EventTime.of(plan).times
    return {tp: times.waiting.offset for tp, times in times.items() if times.waiting is not None}


def needed_offsets(plan: Plan) -> Mapping[TopicPartition, int]:
    """The first offset of each partition that is still to be read after a plan, for the first time or again."""
    if EventTime.name not in plan.sections:
        return plan.next_offsets()
    return {**plan.next_offsets(), **waiting_offsets(plan)}


def frontier_after(last: Plan, decision: BatchDecision) -> Frontier | None:
    """Up to where inputs are taken after a batch."""
    return EventTime.of(last).frontier if decision.taken is None else decision.taken.frontier


@dataclass(frozen=True, slots=True)
class KnownTimes:
    """Event time in all input partitions at the end of a batch.

    Args:
        times: event time in each partition; see `EventTime.times`.
        since_ms: since when partitions that have given no time yet have been watched.
        frontier: up to where inputs were taken; see `EventTime.frontier`.
    """

    times: Mapping[TopicPartition, EventTimes]
    since_ms: int
    frontier: Frontier | None = None
    _stated: dict[str, dict[str, Stated]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for (topic, _), times in self.times.items():
            stated = self._stated.setdefault(topic, {})
            for writer, known in times.writers.items():
                if known.stated_ms is not None:
                    before = stated.get(writer, Stated(0, 0, known.hops))
                    watermark_ms = max(known.stated_ms, before.watermark_ms)
                    heard_ms = max(known.heard_ms, before.heard_ms)
                    # Each partition knows the ways by which its own messages have come: the writer may be behind on any of them.
                    stated[writer] = Stated(watermark_ms, heard_ms, with_route(before.hops, known.hops))

    @classmethod
    def after(cls, plan: Plan) -> KnownTimes:
        """What is known after a plan."""
        kept = EventTime.of(plan)
        return cls(kept.times, plan.clock_ms, kept.frontier)

    def at(
        self, tp: TopicPartition, caught_up: CaughtUp, clock_ms: int, *, for_good: bool = False
    ) -> EventTimes:
        """Event time in one partition as the next batch begins.

        What a writer has stated in another partition of the topic holds in this one too, if everything that was there then is
        read: it was looked for after the batch before was finished.

        Args:
            tp: the partition.
            caught_up: where everything is read.
            clock_ms: the batch's clock.
            for_good: nothing more will come there.
        """
        before = self.times.get(tp) or EventTimes(self.since_ms)
        times_after = before.copy(clock_ms=clock_ms)
        if tp in caught_up:
            times_after.settle(for_good=for_good)
        for writer, stated in sorted(self._stated.get(tp[0], {}).items()):
            if tp in caught_up:
                times_after.hear(writer, stated)
            elif writer not in before.writers:
                times_after.unsure = True
        times_after.idle = dict(caught_up.get(tp, {}))
        return times_after

    def all_at(
        self, tps: Iterable[TopicPartition], caught_up: CaughtUp, clock_ms: int, *, for_good: bool = False
    ) -> dict[TopicPartition, EventTimes]:
        """Event time in several partitions as the next batch begins; see `at`."""
        return {tp: self.at(tp, caught_up, clock_ms, for_good=for_good) for tp in tps}

    def everybody_in(self, tps: Iterable[TopicPartition], clock_ms: int) -> CaughtUp:
        """All writers of these partitions: nothing more comes there."""
        ended: CaughtUp = {tp: {} for tp in tps}
        return {tp: dict.fromkeys(self.at(tp, ended, clock_ms).silent_since()) for tp in ended}


def progress_of(times: Mapping[TopicPartition, EventTimes]) -> list[PartitionProgress]:
    """How far event time has come in partitions."""
    return [times.progress(*tp) for tp, times in times.items()]


def gated_times(flow: CompiledFlow, times: Mapping[TopicPartition, EventTimes]) -> list[PartitionProgress]:
    """How far event time has come in the partitions whose inputs are taken in the order of their times."""
    return [times.progress(*tp) for tp, times in times.items() if flow.declared_topic[tp[0]] in flow.gated]


def routes_of(flow: CompiledFlow, times: Mapping[TopicPartition, EventTimes]) -> tuple[Hop, ...]:
    """By which republishers all that a flow reads has come, as far as it knows, the flow itself as the last of each."""
    before = {
        (topic, hops)
        for (topic, _), known in times.items()
        for hops in {writer.hops for writer in known.writers.values()} or {()}
    }
    known_topics = {topic for topic, _ in before}
    before |= {(topic, ()) for topic in flow.input_topics if topic not in known_topics}
    routes = tuple[Hop, ...]()
    for topic, hops in sorted(before):
        routes = with_route(routes, (*hops, (flow.declared_name, topic)))
    return routes


def seen_after(seen: Seen, clock_ms: int, progress: Iterable[PartitionProgress], idle_ms: int) -> Seen:
    """The latest event times known by some clocks, with that of a batch.

    Few are kept, so a clock may give what was known a little earlier.

    Args:
        seen: before the batch.
        clock_ms: the batch's clock.
        progress: how far event time has come after it.
        idle_ms: how long is to be looked back.
    """
    latest_ms = latest_of(progress)
    if latest_ms is None or (seen and latest_ms <= seen[-1][1]):
        return seen
    if seen and clock_ms <= seen[-1][0]:  # the clock has not moved, or has gone back
        return (*seen[:-1], (seen[-1][0], latest_ms))
    apart_ms = idle_ms // _SEEN
    if len(seen) > 1 and clock_ms - seen[-2][0] <= apart_ms:
        seen = seen[:-1]
    kept = [sighting for sighting in seen if clock_ms - sighting[0] < idle_ms]
    older = seen[: len(seen) - len(kept)]
    return (*older[-1:], *kept, (clock_ms, latest_ms))


def seen_by(seen: Seen, clock_ms: int) -> int | None:
    """The latest event time that was known by a clock; None: none was, or it is not known any more."""
    return max((latest_ms for at_ms, latest_ms in seen if at_ms <= clock_ms), default=None)


def watermarks_of(
    flow: CompiledFlow, progress: Sequence[PartitionProgress], frontier: Frontier | None
) -> dict[str, int]:
    """What each output may promise: whatever it writes from now on has this time or a later one.

    Nothing that is still to be read belongs before the watermark of its partition, and nothing that still waits before the
    frontier. An output promises `NOTHING` as long as no time is known: its readers then wait. A writer
    without any promise is an older one: readers assume that its records are in the order of their times.

    Args:
        flow: the flow.
        progress: how far event time has come in all input partitions, before the batch.
        frontier: of the batch before.
    """
    promised, files = dict[str, int](), {file_source.name for file_source in flow.file_sources}
    for output in flow.outputs:
        topics = flow.topics_before[output.index]
        if flow.partitions is not None or files & topics:
            # Nobody knows what other readers read, or which files are still to come.
            promised[output.name] = NOTHING
            continue
        limits = [frontier] if topics & flow.gated else []
        if free := topics - flow.gated:
            limits.append(frontier_of([partition for partition in progress if partition.topic in free]))
        known = [limit.reached_ms for limit in limits if limit is not None]
        promised[output.name] = max(NOTHING, min(known)) if len(known) == len(limits) else NOTHING
    return promised


def is_far_ahead(times: EventTimes, before: Frontier | None, guard: JumpGuard | None) -> bool:
    """Whether an input waits that is so far ahead that its clock may be wrong. What comes next on its lane may show it.

    Args:
        times: of the partition.
        before: the frontier of the batch before.
        guard: see `guard_of`.
    """
    known_ms = -1 if before is None else before.at_ms
    return guard is not None and max(times.lanes.values(), default=-1) > known_ms + guard.max_jump_ms
