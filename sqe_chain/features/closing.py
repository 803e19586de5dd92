"""Closing all windows at the end of a finite input (`--once --close-windows`).

It is a batch that reads nothing. What it does follows from the states before it and from one number, the latest event time
read, so a redo repeats it. Each plan lists all closings: a flow that is folded again reads as far as it had read then, and closes
its windows there again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from sqe_chain.errors import START_OVER, ConfigurationError, NotCaughtUp, ServiceStopped
from sqe_chain.features.decision import BatchDecision, Taken
from sqe_chain.features.event_times import EventTime, KnownTimes, progress_of
from sqe_chain.features.events import WindowsClosed
from sqe_chain.features.observing import BatchObserver
from sqe_chain.features.rebuilding import Rebuilding, silent_limits
from sqe_chain.features.waiting import IdleWriters
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import by_name, by_partition
from sqe_chain.plans.look import Look, Offsets
from sqe_chain.plans.plan import Plan, Section, left_by
from sqe_chain.plans.results import BatchResult
from sqe_chain.ports import Bounds, TopicPartition
from sqe_chain.task.event_times import PartitionProgress
from sqe_chain.task.results import Report
from sqe_chain.task.roots import Closing

MAX_CLOSES: Final = 1_000
"""How many times a flow's windows may be closed: each plan lists all of them."""


@dataclass(frozen=True, slots=True)
class Closes(Section):
    """Each time that all windows of a flow were closed, in their order.

    Attributes:
        times_ms: the latest event time read before each.
        stops: how far each partition was read before each; of a partition that entered later, before the last ones.
        done: how many of them the states have seen; what is more lies before the flow again, after a rebuild to an earlier
            point.
        published: how many of them receivers have heard, so that they are redone in silence.
    """

    name: ClassVar[str] = "closes"
    times_ms: tuple[int, ...] = ()
    stops: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    done: int = 0
    published: int = 0

    def __len__(self) -> int:
        return len(self.times_ms)

    @property
    def pending(self) -> bool:
        """Whether one of them has to be redone."""
        return self.done < len(self)

    @property
    def silent(self) -> bool:
        """Whether the next one that has to be redone is not published."""
        return self.done < self.published

    @property
    def full(self) -> bool:
        """Whether there may be no more of them."""
        return len(self) >= MAX_CLOSES

    def stops_at(self, index: int) -> dict[TopicPartition, int]:
        """How far each partition was read before one of them; 0 where it had not entered yet."""
        return {
            tp: own[at] if (at := index - len(self) + len(own)) >= 0 else 0 for tp, own in self.stops.items()
        }

    def due(self) -> dict[TopicPartition, int] | None:
        """How far each partition has to be read before the next one is redone; None: none has to be."""
        return self.stops_at(self.done) if self.pending else None

    def again(self) -> Closing:
        """The next one that has to be redone."""
        return Closing(self.done + 1, self.times_ms[self.done])

    def last(self) -> Closing:
        """The last one that is done."""
        return Closing(self.done, self.times_ms[self.done - 1])

    def known(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether nothing has been read since the last one."""
        return bool(self.done) and self.stops_at(self.done - 1) == dict(offsets)

    def with_done(self) -> Closes:
        """With the next one redone."""
        return replace(self, done=self.done + 1, published=max(self.published, self.done + 1))

    def with_new(self, event_ms: int, offsets: Mapping[TopicPartition, int]) -> Closes:
        """With one more; none has to be redone."""
        stops = {
            tp: (*self.stops.get(tp, ()), offsets.get(tp, self.stops.get(tp, (0,))[-1]))
            for tp in sorted({*self.stops, *offsets})
        }
        count = len(self) + 1
        return Closes((*self.times_ms, event_ms), stops, count, count)

    def carried(self, last: Plan, plan: Plan) -> Closes:
        """All of them, without partitions that another topic has now: what was read of the old one is gone."""
        return self.without(left_by(plan, last))

    def without(self, tps: Iterable[TopicPartition]) -> Closes:
        """Without partitions whose topic was created again: what was read of the old one is gone."""
        gone = set(tps)
        if not gone & self.stops.keys():
            return self
        return replace(self, stops={tp: own for tp, own in self.stops.items() if tp not in gone})

    def within(self, until: Mapping[TopicPartition, int]) -> int:
        """How many of them, from the first on, come before offsets."""
        for index in range(len(self)):
            if any(stop > until.get(tp, 0) for tp, stop in self.stops_at(index).items()):
                return index
        return len(self)

    def to_json(self) -> list[Any]:
        return [self.times_ms, by_name(self.stops), self.done, self.published] if self else []

    @classmethod
    def from_json(cls, raw: list[Any]) -> Self:
        times_ms, stops, done, published = raw
        return cls(
            tuple(times_ms),
            {tp: tuple(own) for tp, own in by_partition(stops).items()},
            done,
            published,
        )


def closing_limits(last: Plan) -> Offsets | None:
    """Up to where the next batch may read: to where windows were closed before, and are to be closed again. None: nowhere."""
    due = Closes.of(last).due()
    return None if due is None else {tp: max(at, due.get(tp, 0)) for tp, at in last.next_offsets().items()}


def close_now(env: Environment, last: Plan, decision: BatchDecision, look: Look) -> BatchDecision | None:
    """Step 3 at the end of a finite input: all windows are closed.

    Args:
        env: the flow and its ports.
        last: the last plan; everything that it could release is released.
        decision: what the next batch would read.
        look: what it is cut from.

    Returns:
        None: nothing has been read since they were closed last, or ever.

    Raises:
        NotCaughtUp: more is expected: from a republisher that is behind, because new records have come, or after a rebuild.
        ServiceStopped: they have been closed too often.
    """
    flow, bounds, offsets = env.flow, look.bounds, last.next_offsets()
    behind, closes, known = Rebuilding.of(last), Closes.of(last), KnownTimes.after(last)
    if silent_limits(offsets, behind.silent_until) is not None or behind.unfinished or closes.pending:
        raise NotCaughtUp(
            f"flow {flow.name!r}: its windows cannot be closed, because after a rebuild not all is read again that it had read "
            "before; nothing was closed. Start it until it has caught up"
        )
    # By new `IdleWriters`, which ask all republishers: what the service's own have found some time ago proves nothing now.
    seen = EventTime.of(last).seen
    caught_up = IdleWriters(env).find(known, offsets, bounds, decision.clock_ms, seen, at_end=True)
    progress = progress_of(known.all_at(offsets, caught_up, decision.clock_ms, for_good=True))
    expected = next((partition for partition in progress if partition.waited_for), None)
    if expected is not None or decision.reads or EventTime.of(last).waiting:
        raise NotCaughtUp(
            f"flow {flow.name!r}: its windows cannot be closed, because {_why(expected, offsets, bounds)}; nothing was closed. Start it "
            "again when all is there"
        )
    times_ms = [partition.latest_ms for partition in progress if partition.latest_ms is not None]
    if not times_ms or closes.known(offsets):
        return None
    if closes.full:
        raise ServiceStopped(
            f"flow {flow.name!r}: its windows were closed {MAX_CLOSES} times; each plan lists them, so that a rebuild can repeat "
            "them, and holds no more. Nothing was closed. Run it without --close-windows from now on, and close windows by "
            f"heartbeats; or {START_OVER}"
        )
    ranges = last.ended_ranges()
    closing, taken = Closing(closes.done + 1, max(times_ms)), Taken(EventTime.of(last).frontier, caught_up)
    # Clock 0, because a rebuild closes the windows at another time, and has to give the same.
    return replace(decision, ranges=ranges, clock_ms=0, due=True, closing=closing, taken=taken)


def closed_after(last: Plan, closing: Closing, decision: BatchDecision) -> Closes:
    """Each time that all windows were closed, after a batch that closes them. Pure."""
    before = Closes.of(last)
    return before.with_done() if before.pending else before.with_new(closing.event_ms, decision.stops)


class ClosingReports(BatchObserver):
    """Reports that windows were closed."""

    def committed(self, plan: Plan, decision: BatchDecision, report: Report, result: BatchResult) -> None:  # noqa: ARG002 - see `BatchObserver`
        if decision.closing is not None:
            self.env.emit(WindowsClosed(plan.number, result.outputs, decision.closing.event_ms))


def check_closes(flow: CompiledFlow) -> None:
    """Check that a flow has windows to close.

    Raises:
        ConfigurationError: it has none.
    """
    if not any(stage.traits.windowed for stage in flow.stages):
        raise ConfigurationError(
            f"flow {flow.name!r}: --close-windows (close_windows=True) closes windows, but no stage of the flow has any; leave it out"
        )


def _why(
    expected: PartitionProgress | None,
    offsets: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
) -> str:
    for tp, offset in sorted(offsets.items()):
        if bounds[tp].stable_end > offset:
            return f"new records have come into {tp[0]}[{tp[1]}]"
    if expected is None:
        return "records still wait for event time"
    return f"a republisher has not yet passed on all that it has to bring into {expected.topic}[{expected.partition}]"
