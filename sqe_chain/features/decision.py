"""What step 3 decides about a batch. A redo makes the same decision from the plan, so nothing of it is sealed twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqe_chain.features.decided import Decided
from sqe_chain.plans.look import Offsets
from sqe_chain.plans.plan import PlannedRange
from sqe_chain.ports import TopicPartition
from sqe_chain.task.event_times import EventTimes, Frontier
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.parking import Releasing
from sqe_chain.task.roots import Closing, Moments, Ticks

CaughtUp = Mapping[TopicPartition, Mapping[str, int | None]]
"""Partitions that were read to the end that they had when a batch began -> their idle writers; see `EventTimes.idle`."""


@dataclass(frozen=True, slots=True)
class Taken:
    """How far a batch takes inputs, and why.

    Attributes:
        frontier: see `EventTime.frontier`.
        caught_up: where everything is read that was there as it begins; a redo need not know.
        times: event time in each partition as it begins.
        promised: see `EventTime.promised`, in a redo; empty: it is decided now.
    """

    frontier: Frontier | None = None
    caught_up: CaughtUp = field(default_factory=dict)
    times: Mapping[TopicPartition, EventTimes] = field(default_factory=dict)
    promised: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """What a batch reads and does.

    Attributes:
        ranges: of every known partition; where nothing is new, all are empty. Invariant: they begin where the plan before ends.
        clock_ms: the batch's clock; in a redo the sealed one, or timers and contexts would give something else.
        silent: its outputs are not published: receivers have them, from before a rebuild or a rewind.
        sealed: skipped inputs when it was sealed before, with these ranges: in a redo, and after a rebuild. None: it is new. Empty: it was
            sealed, and skipped nothing.
        due: it is done although it reads nothing. Invariant: true where it closes windows or releases records.
        at_end: partitions that it reads to their end; a redo need not know.
        times: what tasks begin with in each partition, where the flow goes by event time; else empty.
        taken: how far it takes inputs; None: the flow has nothing to do with event time.
        closing: it closes all windows, and reads nothing; None: it does not.
        moments: what is due by event time, and up to where. None: nothing falls due in the flow, or inputs cause it, as in older plans.
        ticks: up to where timers of the batch's clock fire; None: none do.
        routed: records bear their routes; false in the redo of a plan of an older version.
        releasing: records that have waited, which it processes. It reads nothing then. None: it releases nothing.
        decided: with `releasing`, what it decides about dead-letter records; None: the records were parked.
    """

    ranges: tuple[PlannedRange, ...]
    clock_ms: int = 0
    silent: bool = False
    sealed: tuple[Exclusion, ...] | None = None
    due: bool = False
    at_end: frozenset[TopicPartition] = frozenset()
    times: Mapping[TopicPartition, EventTimes] = field(default_factory=dict)
    taken: Taken | None = None
    closing: Closing | None = None
    moments: Moments | None = None
    ticks: Ticks | None = None
    routed: bool = True
    releasing: Releasing | None = None
    decided: Decided | None = None

    @property
    def stops(self) -> dict[TopicPartition, int]:
        """Where the ranges end."""
        return {planned.tp: planned.stop for planned in self.ranges}

    @property
    def reads(self) -> bool:
        """Whether it reads anything."""
        return any(planned.reads for planned in self.ranges)

    @property
    def wakes(self) -> bool:
        """Whether stages may have something to do, though they get nothing."""
        return self.wakes_all or (self.moments is not None and bool(self.moments.parts))

    @property
    def wakes_all(self) -> bool:
        """Whether they may in all state partitions."""
        return self.closing is not None or self.ticks is not None or self.releasing is not None

    def with_stops(self, stops: Offsets) -> BatchDecision:
        """The same, with ranges that end elsewhere."""
        ranges = tuple(replace(planned, stop=stops.get(planned.tp, planned.stop)) for planned in self.ranges)
        return replace(self, ranges=ranges)
