"""How far event time has come in one input partition: its watermark, and a place in the order of times for each input.

A *watermark* is a promise: whatever comes later in the partition has this time or a later one. Of messages that nobody
republished it is the latest time seen, for they are expected in the order of their times. Of republished ones their
writer states it, because a republisher that works off a backlog writes one input partition after the other: each of its
lanes is in order, all of them together are not. What it has published before a batch is complete, so what it writes in
the batch bears the watermark of all that it had read before.

A partition's watermark is the least of its writers'. A writer that has been silent for long, while nothing of it can be
on its way, is *idle*, and is not waited for (`sqe_chain.protocol.idle` decides that).

Source: Flink's watermarks of partitions; that a republisher hands its own on, in each record, is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypedDict

from sqe_chain.flow import Flow
from sqe_chain.flow.stage_kind import STANDARD
from sqe_chain.segment.routes import Hop, with_route
from sqe_chain.stages.stream_time import JumpGuard, StreamTime

ORIGIN: Final = ""
"""The writer of what nobody republished; it states no watermark."""


class Frontier(NamedTuple):
    """The last place in the order of times that is complete: nothing comes any more that belongs before it.

    Attributes:
        at_ms: time.
        topic: at that time, up to this topic,
        partition: and this partition.
    """

    at_ms: int
    topic: str
    partition: int


EVERYTHING: Final = Frontier(1 << 63, "", 0)
"""Beyond all times."""


class Progress(NamedTuple):
    """How far event time has come in one input partition at the end of a batch.

    Attributes:
        topic: topic.
        partition: partition.
        waited_for: whether any of its writers is not idle.
        watermark_ms: of those; None: not known yet.
        latest_ms: the latest time read or stated by a writer: nothing that was read belongs after it; None: none is known.
    """

    topic: str
    partition: int
    waited_for: bool
    watermark_ms: int | None
    latest_ms: int | None


def frontier_of(found: Iterable[Progress]) -> Frontier | None:
    """Up to where the order of times is complete over several partitions; None: nowhere.

    It is the watermark of the partition that is behind. If none is waited for, it is the end of all that was read: a message
    of a new lane belongs where its writer's watermark is, which may be after the latest time.

    Args:
        found: of each partition.
    """
    found = list(found)
    waited_for = [one for one in found if one.waited_for]
    if not waited_for:
        read = [Frontier(one.latest_ms, *one[:2]) for one in found if one.latest_ms is not None]
        return max(read, default=None)
    if any(one.watermark_ms is None for one in waited_for):
        return None
    return min(Frontier(one.watermark_ms, *one[:2]) for one in waited_for if one.watermark_ms is not None)


def furthest(*found: Frontier | None) -> Frontier | None:
    """The last of several frontiers; None if none of them is known."""
    return max((one for one in found if one is not None), default=None)


WHOLE: Final = -1
"""Instead of a state partition: what holds for all of a stage whose input partitions bring records for each of them."""


class WaitingUnits(NamedTuple):
    """What waits for event time in one stage and state partition.

    Attributes:
        units: how many units.
        frontier: up to where units were taken; None: nowhere yet.
    """

    units: int
    frontier: Frontier | None


class WriterRecord(TypedDict, total=False):
    """A writer, for json.dumps."""

    time: tuple[int | None, int, int, int]
    heard: int
    watermark: int
    hops: list[Hop]


class TimesRecord(TypedDict, total=False):
    """The times of a partition, for json.dumps."""

    since: int
    writers: dict[str, WriterRecord]
    lanes: dict[str, int]


@dataclass(slots=True)
class Writer:
    """One writer into a partition.

    Attributes:
        time: the latest time of its records here, with a guard.
        heard_ms: the clock of the last batch with a record of it, here or in another partition of the topic.
        stated_ms: the highest watermark that it stated; None: it states none.
        hops: the republishers that its messages have passed, way after way, it being the last one of each.
    """

    time: StreamTime
    heard_ms: int
    stated_ms: int | None = None
    hops: tuple[Hop, ...] = ()

    @property
    def watermark_ms(self) -> int | None:
        """What it states, or else the latest time of its records."""
        return self.time.now_ms if self.stated_ms is None else self.stated_ms


class Stated(NamedTuple):
    """What a writer has stated in a topic.

    Attributes:
        watermark_ms: the highest watermark.
        heard_ms: clock of the last batch with a record of it.
        hops: see `Writer`.
    """

    watermark_ms: int
    heard_ms: int
    hops: tuple[Hop, ...]


_Run = tuple[int | None, int, int, int]
_Before = tuple[str, Writer | None, _Run, int | None, int, bool, int, int | None]
"""What `EventTimes.observe` has changed: a writer, whether it was idle, and a lane."""


@dataclass(slots=True, eq=False, repr=False)
class EventTimes:
    """Event time in one input partition.

    Attributes:
        since_ms: clock of the plan with which the partition entered.
        writers: name ("flow/output") -> writer; `ORIGIN` for what nobody republished.
        lanes: lane as envelopes state it -> place of its last message, where that is beyond what its writer states; for flows
            with stages that go by event time. What nobody republished has one lane: its writer's time stands for it.
        idle: writers that are not waited for, unless they are heard of; `ORIGIN` while there is none.
        unsure: whether there may be unread messages of a writer that is not known here yet.
        elsewhere: writer -> what it has stated in other partitions of the topic. It holds for what comes after all that was
            there then, so only from the end of the batch on: see `believe`.
        guard: see `guard_of`.
        clock_ms: of the batch.
    """

    since_ms: int
    writers: dict[str, Writer] = field(default_factory=dict)
    lanes: dict[int, int] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    unsure: bool = False
    elsewhere: dict[str, Stated] = field(default_factory=dict)
    guard: JumpGuard | None = None
    clock_ms: int = 0
    _before: _Before | None = None
    _routes: dict[str, tuple[Hop, ...]] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether the same would be kept of both."""
        return isinstance(other, EventTimes) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment] # times move

    def __repr__(self) -> str:
        return f"EventTimes.from_json({self.to_json()})"

    def introduce(self, name: str, hops: tuple[Hop, ...]) -> None:
        """Say which republishers messages of a writer have passed, before `observe` of the first that came by this way."""
        self._routes[name] = with_route(self._routes.get(name, ()), hops)
        if name in self.writers:
            self.writers[name].hops = with_route(self.writers[name].hops, hops)

    def knows(self, name: str) -> bool:
        """Whether it is known which republishers a writer's messages have passed."""
        return name in self._routes or name in self.writers

    def begin(self) -> None:
        """Another message: there is nothing to take back."""
        self._before = None

    def observe(self, name: str, lane: int, timestamp_ms: int, stated_ms: int | None = None) -> int:
        """Move on by one message that is no replay, and say where it belongs in the order of times.

        That is at its own time; but not before a message of its lane that came before it, and, if it is too far ahead
        to be believed, with that one.

        Args:
            name: of its writer.
            lane: as the envelope states it.
            timestamp_ms: its time.
            stated_ms: the watermark that it bears.
        """
        writer, known = self.writers.get(name), self.lanes.get(lane)
        if writer is None:
            self._before = name, None, (None, 0, 0, 0), None, 0, name in self.idle, lane, known
            writer = self.writers[name] = self._new(self.clock_ms, self._routes.get(name, ()))
        else:
            run, heard_ms = writer.time.run, writer.heard_ms
            self._before = name, writer, run, writer.stated_ms, heard_ms, name in self.idle, lane, known
        if stated_ms is not None and (writer.stated_ms is None or stated_ms > writer.stated_ms):
            writer.stated_ms = stated_ms
        writer.heard_ms = self.clock_ms
        self.idle.discard(name)
        floor = writer.watermark_ms if known is None else known
        if not writer.time.observe(timestamp_ms):
            at_ms = -1 if floor is None else floor
        else:
            at_ms = timestamp_ms if floor is None or timestamp_ms > floor else floor
        self.lanes[lane] = at_ms
        return at_ms

    def observe_all(self, name: str, times_ms: Sequence[int], stated_ms: int | None = None) -> None:
        """`observe` for several messages of one writer, where their places in the order of times do not matter.

        Args:
            name: of the writer.
            times_ms: their times, in their order.
            stated_ms: the highest watermark that they bear.
        """
        writer = self.writers.get(name)
        if writer is None:
            writer = self.writers[name] = self._new(self.clock_ms, self._routes.get(name, ()))
        writer.stated_ms = max(writer.stated_ms or 0, stated_ms or 0) or None
        writer.heard_ms = self.clock_ms
        self.idle.discard(name)
        latest_ms, known_ms = max(times_ms), writer.time.now_ms
        if self.guard is None or (known_ms is not None and latest_ms - known_ms <= self.guard.max_jump_ms):
            # Each of them is believed, so the latest stands for all.
            writer.time.observe(latest_ms)
            return
        for at_ms in times_ms:
            writer.time.observe(at_ms)

    def undo(self) -> None:
        """Take back what was observed of the present message: it is left out."""
        if self._before is None:
            return
        name, writer, run, stated_ms, heard_ms, idle, lane, known = self._before
        self._before = None
        if writer is None:
            del self.writers[name]
        else:
            writer.time.run, writer.stated_ms, writer.heard_ms = run, stated_ms, heard_ms
        if idle:
            self.idle.add(name)
        if known is None:
            del self.lanes[lane]
        else:
            self.lanes[lane] = known

    def believe(self) -> EventTimes:
        """The partition is read to its end: what writers had stated elsewhere before holds here, too, for all that comes."""
        for name, found in self.elsewhere.items():
            writer = self.writers.get(name)
            if writer is None:
                writer = self.writers[name] = self._new(found.heard_ms, found.hops)
            writer.hops = with_route(writer.hops, found.hops)
            writer.stated_ms = max(writer.stated_ms or 0, found.watermark_ms)
            writer.heard_ms = max(writer.heard_ms, found.heard_ms)
        self.elsewhere = {}
        return self

    def silent_since(self) -> dict[str, int]:
        """Writer -> clock of the batch that last heard of it; `ORIGIN` while there is no writer."""
        if not self.writers:
            return {ORIGIN: self.since_ms}
        return {name: writer.heard_ms for name, writer in self.writers.items()}

    def watermark_of(self, name: str) -> int | None:
        """The watermark of a writer; None while none is known."""
        return self.writers[name].watermark_ms if name in self.writers else None

    def hops_of(self, name: str) -> tuple[Hop, ...]:
        """The republishers that a writer's messages have passed."""
        return self.writers[name].hops if name in self.writers else ()

    def progress(self, topic: str, partition: int) -> Progress:
        """How far event time has come.

        Args:
            topic: the topic.
            partition: the partition.
        """
        reached = (
            at_ms for writer in self.writers.values() for at_ms in (writer.time.now_ms, writer.stated_ms)
        )
        latest_ms = max((at_ms for at_ms in reached if at_ms is not None), default=None)
        if self.unsure or not self.writers:
            return Progress(topic, partition, self.unsure or ORIGIN not in self.idle, None, latest_ms)
        found = [writer.watermark_ms for name, writer in self.writers.items() if name not in self.idle]
        known = [at_ms for at_ms in found if at_ms is not None]
        least_ms = min(known) if known and len(known) == len(found) else None
        return Progress(topic, partition, bool(found), least_ms, latest_ms)

    def to_json(self) -> TimesRecord:
        """For json.dumps. Lanes that are not beyond what all writers state are left out: that stands for them."""
        found: TimesRecord = {"since": self.since_ms}
        if self.writers:
            found["writers"] = {name: _writer_record(one) for name, one in sorted(self.writers.items())}
        stated = [writer.stated_ms or -1 for name, writer in self.writers.items() if name != ORIGIN]
        least_ms = min(stated, default=-1)
        lanes = {
            f"{lane:016x}": at_ms for lane, at_ms in sorted(self.lanes.items()) if lane and at_ms > least_ms
        }
        if lanes:
            found["lanes"] = lanes
        return found

    @classmethod
    def from_json(cls, record: TimesRecord) -> EventTimes:
        """What `to_json` wrote.

        Raises:
            KeyError, ValueError, TypeError: the record was not written by `to_json`.
        """
        found = cls(record["since"])
        for name, one in record.get("writers", {}).items():
            time = StreamTime()
            now_ms, ahead, lowest_ms, highest_ms = one["time"]
            time.run = now_ms, ahead, lowest_ms, highest_ms
            hops = tuple((flow, topic) for flow, topic in one.get("hops", ()))
            found.writers[name] = Writer(time, one["heard"], one.get("watermark"), hops)
        found.lanes = {int(lane, 16): at_ms for lane, at_ms in record.get("lanes", {}).items()}
        return found

    def copy(self, *, clock_ms: int, guard: JumpGuard | None = None) -> EventTimes:
        """An independent copy for a batch.

        Args:
            clock_ms: the batch's clock.
            guard: see `guard_of`.
        """
        lanes, idle = dict(self.lanes), set(self.idle)
        found = EventTimes(self.since_ms, {}, lanes, idle, self.unsure, dict(self.elsewhere), guard, clock_ms)
        found.writers = {name: found._copied(writer) for name, writer in self.writers.items()}
        return found

    def settled(self) -> EventTimes:
        """A copy as it is kept when the batch is over: what is read back from a plan."""
        return EventTimes.from_json(self.to_json())

    def _copied(self, writer: Writer) -> Writer:
        found = self._new(writer.heard_ms, writer.hops)
        found.time.run, found.stated_ms = writer.time.run, writer.stated_ms
        return found

    def _new(self, heard_ms: int, hops: tuple[Hop, ...]) -> Writer:
        return Writer(StreamTime(guard=self.guard, clock_ms=self.clock_ms), heard_ms, hops=hops)


def _writer_record(writer: Writer) -> WriterRecord:
    found: WriterRecord = {"time": writer.time.run, "heard": writer.heard_ms}
    if writer.stated_ms is not None:
        found["watermark"] = writer.stated_ms
    if writer.hops:
        found["hops"] = list(writer.hops)
    return found


def guard_of(flow: Flow) -> JumpGuard | None:
    """The guard of event time before any stage: the widest that a stage has, for what no stage believes moves nothing.

    Args:
        flow: the flow.
    """
    guards: list[Any] = [
        stage.stage_kind.time_guard for stage in flow.stages() if stage.stage_kind.order == "times"
    ]
    if any(guard is None for guard in guards):
        return None
    known = [JumpGuard() if guard == STANDARD else guard for guard in guards] or [JumpGuard()]
    return JumpGuard(
        max_jump_ms=max(guard.max_jump_ms for guard in known),
        confirmations=max(guard.confirmations for guard in known),
    )
