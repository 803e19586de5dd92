"""How far event time has come in one input partition, and in a flow: watermarks and the frontier.

A *watermark* is a promise: whatever comes later in the partition has this time or a later one. Of messages that nobody
republished it is the latest time seen, for they are expected in the order of their times. Of republished ones their
writer states it. A republisher that works off a backlog writes one input partition after the other. Each of its
lanes is in order, all of them together are not. But what it has published before a batch is complete. So what it writes
in the batch bears the watermark of all that it had read before.

A partition's watermark is the least of its writers'. A writer is *idle* if it has been silent for long and nothing of it can be on
its way. It then counts as far as all others were that time ago (`sqe_chain.features.waiting`).

The *frontier* is the place up to which a flow has taken its inputs, in the order of their times. It is one for the whole
flow, is fixed before a batch reads anything, and is sealed with it (`EventTime.frontier`). What lies beyond it waits where it
is, in Kafka (`sqe_chain.task.gate`).

Source: Flink's watermarks of partitions; that a republisher hands its own on, in each record, is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypedDict

from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.stage_kind import STANDARD
from sqe_chain.stages.clock import JumpGuard


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

    @property
    def reached_ms(self) -> int:
        """The latest moment that is reached: all inputs before it are taken, and what is due by then is done."""
        # Without a topic it is one beyond what has been seen: all of that is taken, but no time after it has come.
        return self.at_ms if self.topic else self.at_ms - 1

    def limit_ms(self, topic: str, partition: int) -> int:
        """The last time of a partition's inputs that are not beyond it."""
        return self.at_ms if (topic, partition) <= self[1:] else self.at_ms - 1


@dataclass(frozen=True, slots=True)
class Taking:
    """Which inputs a batch takes, where the flow goes by event time, and what its outputs promise.

    Attributes:
        watermarks: output -> what it promises: whatever it writes from now on has this time or a later one.
        frontier: the place in the order of times up to which inputs are taken; None: none are.
        before: that of the batch before.
        last: no input that an earlier batch has taken has its place after this one; None: none was taken.
        routes: of all that the flow has read so far, one after the other; its own hop is the last of each. None: outputs do not bear them.
    """

    watermarks: Mapping[str, int] = field(default_factory=dict)
    frontier: Frontier | None = None
    before: Frontier | None = None
    last: Frontier | None = None
    routes: tuple[tuple[str, str], ...] | None = None


class PartitionProgress(NamedTuple):
    """How far event time has come in one input partition.

    Attributes:
        topic: topic.
        partition: partition.
        waited_for: whether anything more is expected of it.
        watermark_ms: what comes has this time or a later one; None: not known yet.
        latest_ms: the latest time read or stated by a writer: nothing that was read belongs after it; None: none is known.
        shown: whether an input or a writer has shown the watermark. False: a writer is idle, and it is just beyond what others have
            shown.
    """

    topic: str
    partition: int
    waited_for: bool
    watermark_ms: int | None
    latest_ms: int | None
    shown: bool = True

    @property
    def complete(self) -> Frontier | None:
        """Up to where the order of times is complete here; None: nowhere."""
        if self.watermark_ms is None:
            return None
        if not self.shown:
            return _beyond(self.watermark_ms - 1)
        return Frontier(self.watermark_ms, self.topic, self.partition)


def _beyond(at_ms: int) -> Frontier:
    """Behind all that has a time. The next moment is not reached: what windows give at the end of the input has this time."""
    return Frontier(at_ms + 1, "", 0)


def frontier_of(progress: Sequence[PartitionProgress]) -> Frontier | None:
    """Up to where the order of times is complete over several partitions; None: nowhere.

    It is the watermark of the partition that is behind. If none is waited for, it is beyond all that was read.
    """
    waited_for = [partition for partition in progress if partition.waited_for]
    if not waited_for:
        latest_ms = latest_of(progress)
        return None if latest_ms is None else _beyond(latest_ms)
    known = [complete for partition in waited_for if (complete := partition.complete) is not None]
    return min(known) if len(known) == len(waited_for) else None


def furthest(*frontiers: Frontier | None) -> Frontier | None:
    """The last of several frontiers; None if none of them is known."""
    return max((frontier for frontier in frontiers if frontier is not None), default=None)


def last_of(progress: Iterable[PartitionProgress], frontier: Frontier | None) -> Frontier | None:
    """The last place that an input up to a frontier may have; None: none was taken."""
    if frontier is None:
        return None
    read = [
        Frontier(partition.latest_ms, partition.topic, partition.partition)
        for partition in progress
        if partition.latest_ms is not None
    ]
    return min(frontier, max(read, default=frontier))


def latest_of(progress: Iterable[PartitionProgress]) -> int | None:
    """The latest time read or stated in several partitions."""
    return max(
        [partition.latest_ms for partition in progress if partition.latest_ms is not None], default=None
    )


class WaitingRange(NamedTuple):
    """The inputs of one partition that were read and wait for event time.

    Attributes:
        offset: of the first.
        least_ms: the least of their places in the order of times.
        inputs: how many.
    """

    offset: int
    least_ms: int
    inputs: int

    def may_be_due(self, topic: str, partition: int, frontier: Frontier | None) -> bool:
        """Whether any of them may lie up to a frontier, so that they have to be read again."""
        return frontier is not None and self.least_ms <= frontier.limit_ms(topic, partition)


Ahead = tuple[int, int, int]
"""Times in a row that are not believed yet: how many, the earliest, the latest."""
NONE_AHEAD: Final = (0, 0, 0)


def believe_times(
    known: tuple[int | None, Ahead], times_ms: Sequence[int], guard: JumpGuard | None, clock_ms: int | None
) -> tuple[int | None, Ahead]:
    """The latest time that is believed after some times, which come in the order of a lane.

    A time that is farther ahead than the guard allows waits for those that come after it, as many as it asks for. They must be near to
    each other, or none may fall back. One that is not ahead of the clock needs no confirmation: a pause in the past is no clock that runs ahead.

    Args:
        known: the latest time that was believed before (None: none), and those that were not yet.
        times_ms: the times.
        guard: None: every time is believed.
        clock_ms: the service's; None: more is there to be read, which will show what is right, so it is not asked.
    """
    now_ms, (count, lowest_ms, highest_ms) = known
    if times_ms and not count and now_ms is not None:  # as a rule: none is far ahead
        latest_ms = max(times_ms)
        if guard is None or latest_ms - now_ms <= guard.max_jump_ms:
            return max(now_ms, latest_ms), NONE_AHEAD
    for at_ms in times_ms:
        if guard is not None and (now_ms is None or at_ms - now_ms > guard.max_jump_ms):
            allowed_ms = guard.max_jump_ms if now_ms is None else 0
            if clock_ms is None or at_ms > clock_ms + allowed_ms:
                near = count and max(highest_ms, at_ms) - min(lowest_ms, at_ms) <= guard.max_jump_ms
                if count and not near and at_ms >= highest_ms:
                    # Records that do not fall back confirm the first of them at any distance: few may come in a day.
                    confirmed = count + 1 >= guard.confirmations
                    now_ms = lowest_ms if confirmed else now_ms
                    count, lowest_ms = (1, highest_ms) if confirmed else (count, lowest_ms)
                    count, highest_ms = min(count + 1, max(1, guard.confirmations - 1)), at_ms
                    continue
                count = count + 1 if near else 1
                lowest_ms = min(lowest_ms, at_ms) if near else at_ms
                highest_ms = max(highest_ms, at_ms) if near else at_ms
                if count < guard.confirmations:
                    continue
                at_ms = highest_ms  # noqa: PLW2901 - confirmed: all of the row are believed
        if guard is not None and count and highest_ms - at_ms <= guard.max_jump_ms:
            at_ms = max(at_ms, highest_ms)  # noqa: PLW2901 - it confirms those that wait
        count = lowest_ms = highest_ms = 0
        now_ms = at_ms if now_ms is None or at_ms > now_ms else now_ms
    return now_ms, (count, lowest_ms, highest_ms)


def right_times(times_ms: Sequence[int], guard: JumpGuard | None) -> Sequence[int]:
    """The times of a lane, with those of wrong clocks replaced by the next right one.

    A clock was wrong if a later record of the lane shows a time so much earlier as none may be ahead.

    >>> right_times([5, 900, 7, 8], JumpGuard(max_jump_ms=100))
    [5, 7, 7, 8]
    """
    if guard is None or not times_ms or max(times_ms) - min(times_ms) <= guard.max_jump_ms:
        return times_ms
    corrected = list(times_ms)
    least_ms = right_ms = corrected[-1]
    for index in range(len(corrected) - 1, -1, -1):
        if corrected[index] - least_ms > guard.max_jump_ms:
            corrected[index] = right_ms
        right_ms, least_ms = corrected[index], min(least_ms, corrected[index])
    return corrected


@lru_cache(maxsize=16)  # it is asked for in each batch and task
def guard_of(flow: CompiledFlow) -> JumpGuard | None:
    """The guard of the flow's event time: the widest that a stage has."""
    guards: list[Any] = [stage.traits.guard for stage in flow.stages if stage.traits.order == "times"]
    if any(guard is None for guard in guards):
        return None
    known = [JumpGuard() if guard == STANDARD else guard for guard in guards] or [JumpGuard()]
    return JumpGuard(
        max_jump_ms=max(guard.max_jump_ms for guard in known),
        confirmations=max(guard.confirmations for guard in known),
    )


Hop = tuple[str, str]
"""A republisher on the way: name of its flow, and a topic that it reads."""


def with_route(known: tuple[Hop, ...], more: tuple[Hop, ...]) -> tuple[Hop, ...]:
    """Ways through republishers, one after the other, with more of them, unless they are among them.

    Republishers are asked in this order, so a path is among others if its republishers occur there in their order. What comes
    of merging what several partitions know is the same for all of them, and does not grow any more.

    Args:
        known: the ways so far.
        more: one way, from the root on; or several, one after the other.

    >>> with_route((("up", "a"),), (("up", "b"),))
    (('up', 'a'), ('up', 'b'))
    >>> with_route((("up", "a"), ("up", "b")), (("up", "b"),))
    (('up', 'a'), ('up', 'b'))
    >>> with_route((("up", "b"),), (("up", "a"), ("up", "b")))
    (('up', 'a'), ('up', 'b'))
    """
    if _is_among(more, known):
        return known
    return more if _is_among(known, more) else known + more


def _is_among(some: tuple[Hop, ...], others: tuple[Hop, ...]) -> bool:
    """Whether these occur among others in their order."""
    left = iter(others)
    return all(hop in left for hop in some)


ORIGIN: Final = ""
"""The writer of what nobody republished; it states no watermark."""


class WriterRecord(TypedDict, total=False):
    """A writer, for json.dumps."""

    latest: int
    ahead: Ahead
    heard: int
    watermark: int
    hops: list[Hop]


class TimesRecord(TypedDict, total=False):
    """The times of a partition, for json.dumps."""

    since: int
    writers: dict[str, WriterRecord]
    waiting: tuple[int, int, int]
    lanes: dict[str, int]


@dataclass(slots=True)
class TopicWriter:
    """One writer into a partition.

    Attributes:
        heard_ms: the clock of the last batch with a record of it, here or in another partition of the topic.
        latest_ms: the latest time of its records here, of those that are believed; None: none is known.
        stated_ms: the highest watermark that it stated; None: it states none.
        hops: the republishers that its messages have passed, way after way, it being the last one of each.
        ahead: times of its last records that are not believed yet.
    """

    heard_ms: int
    latest_ms: int | None = None
    stated_ms: int | None = None
    hops: tuple[Hop, ...] = ()
    ahead: Ahead = NONE_AHEAD

    @property
    def watermark_ms(self) -> int | None:
        """What it states, or else the latest time of its records."""
        return self.latest_ms if self.stated_ms is None else self.stated_ms

    def observe_latest(self, at_ms: int, clock_ms: int) -> None:
        """A record of a lane has this time: it is believed if it is not ahead of the clock, and else remembered."""
        if at_ms <= max(clock_ms, self.latest_ms or 0):
            self.latest_ms = max(at_ms, self.latest_ms or at_ms)
        else:
            self.ahead = (1, at_ms, max(at_ms, self.ahead[2]))


class Stated(NamedTuple):
    """What a writer has stated in a topic.

    Attributes:
        watermark_ms: the highest watermark.
        heard_ms: clock of the last batch with a record of it.
        hops: see `TopicWriter`.
    """

    watermark_ms: int
    heard_ms: int
    hops: tuple[Hop, ...]


@dataclass(slots=True, eq=False, repr=False)
class EventTimes:
    """Event time in one input partition.

    Attributes:
        since_ms: clock of the plan with which the partition entered.
        writers: name ("flow/output") -> writer; `ORIGIN` for what nobody republished.
        waiting: what was read and waits; None: nothing does.
        lanes: lane as envelopes state it -> place of the last of its inputs that wait.
        idle: writers that have been silent for long, with nothing on its way; `ORIGIN` while there is none. What they
            write next has this time or a later one; None: nothing more comes.
        unsure: whether there may be unread messages of a writer that is not known here yet.
        clock_ms: of the batch.
    """

    since_ms: int
    writers: dict[str, TopicWriter] = field(default_factory=dict)
    waiting: WaitingRange | None = None
    lanes: dict[int, int] = field(default_factory=dict)
    idle: dict[str, int | None] = field(default_factory=dict)
    unsure: bool = False
    clock_ms: int = 0
    _routes: dict[str, tuple[Hop, ...]] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether the same would be kept of both."""
        return isinstance(other, EventTimes) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment] # times move

    def __repr__(self) -> str:
        return f"EventTimes.from_json({self.to_json()})"

    def introduce(self, name: str, hops: tuple[Hop, ...]) -> None:
        """Note which republishers messages of a writer have passed, before `observe` of the first that came by this way."""
        self._routes[name] = with_route(self._routes.get(name, ()), hops)
        if name in self.writers:
            self.writers[name].hops = with_route(self.writers[name].hops, hops)

    def knows(self, name: str) -> bool:
        """Whether it is known which republishers a writer's messages have passed."""
        return name in self._routes or name in self.writers

    def follows(self, name: str, latest_ms: int, guard: JumpGuard | None) -> bool:
        """Whether `observe` believes times of a writer up to this one at once, whatever they are: then the latest of them is enough for it.

        Args:
            name: of the writer.
            latest_ms: the latest of the times; the guard lets all of them be as far from each other as they are.
            guard: see `guard_of`.
        """
        writer = self.writers.get(name)
        if writer is None or writer.latest_ms is None:
            return False
        if writer.stated_ms is not None:
            return True
        return not writer.ahead[0] and (guard is None or latest_ms - writer.latest_ms <= guard.max_jump_ms)

    def observe(
        self,
        name: str,
        times_ms: Sequence[int],
        stated_ms: int = 0,
        *,
        guard: JumpGuard | None = None,
        at_end: bool = False,
    ) -> None:
        """Move on by messages of one writer.

        Args:
            name: of the writer.
            times_ms: their times, in their order.
            stated_ms: the highest watermark that they bear; 0: none.
            guard: see `guard_of`.
            at_end: nothing more is there to be read.
        """
        writer = self.writers.get(name)
        if writer is None:
            writer = self.writers[name] = TopicWriter(self.clock_ms, hops=self._routes.get(name, ()))
        writer.stated_ms = max(writer.stated_ms or 0, stated_ms) or None
        writer.heard_ms = self.clock_ms
        self.idle.pop(name, None)
        known, right_ms = (writer.latest_ms, writer.ahead), right_times(times_ms, guard)
        if writer.stated_ms is not None:  # on its other lanes may be earlier ones, which show nothing
            writer.observe_latest(max(right_ms, default=-1), self.clock_ms)
            return
        clock_ms = self.clock_ms if at_end else None
        writer.latest_ms, writer.ahead = believe_times(known, right_ms, guard, clock_ms)

    def settle(self, *, for_good: bool = False) -> None:
        """All that there is was read: a time that is not ahead of the clock was no wrong one.

        Args:
            for_good: nothing more will come, so nothing can show any more that a time was wrong.
        """
        last_ms = max(self.lanes.values(), default=-1) if for_good else -1
        for writer in self.writers.values():
            if writer.ahead[0] and (for_good or writer.ahead[2] <= self.clock_ms):
                writer.latest_ms, writer.ahead = max(writer.latest_ms or 0, writer.ahead[2]), NONE_AHEAD
            if last_ms >= 0:
                writer.latest_ms = max(writer.latest_ms or 0, last_ms)

    def hear(self, name: str, stated: Stated) -> None:
        """A writer has stated a watermark in a partition of the topic, before this one was read to its end."""
        writer = self.writers.get(name)
        if writer is None:
            writer = self.writers[name] = TopicWriter(stated.heard_ms, hops=stated.hops)
        writer.hops = with_route(writer.hops, stated.hops)
        writer.stated_ms = max(writer.stated_ms or 0, stated.watermark_ms)
        writer.heard_ms = max(writer.heard_ms, stated.heard_ms)

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

    def progress(self, topic: str, partition: int) -> PartitionProgress:
        """How far event time has come."""
        latest_ms: int | None = None
        least: tuple[int, bool] | None = None
        waited_for, known = self.unsure, not self.unsure
        for name, writer in (self.writers or {ORIGIN: TopicWriter(0)}).items():
            for at_ms in (writer.latest_ms, writer.stated_ms):
                if at_ms is not None and (latest_ms is None or at_ms > latest_ms):
                    latest_ms = at_ms
            watermark_ms, shown = writer.watermark_ms, True
            if name in self.idle:
                idle_ms = self.idle[name]
                if idle_ms is None:
                    continue
                shown = watermark_ms is not None and watermark_ms >= idle_ms
                watermark_ms = max(watermark_ms or 0, idle_ms)
            waited_for = True
            if watermark_ms is None:
                known = False
            else:
                own = watermark_ms, shown
                least = own if least is None else min(least, own)
        at_ms, shown = least if known and least is not None else (None, True)
        return PartitionProgress(topic, partition, waited_for, at_ms, latest_ms, shown)

    def to_json(self) -> TimesRecord:
        """For json.dumps."""
        record: TimesRecord = {"since": self.since_ms}
        if self.writers:
            record["writers"] = {
                name: _writer_record(writer) for name, writer in sorted(self.writers.items())
            }
        if self.waiting is not None:
            record["waiting"] = self.waiting
            record["lanes"] = {f"{lane:016x}": at_ms for lane, at_ms in sorted(self.lanes.items())}
        return record

    @classmethod
    def from_json(cls, record: TimesRecord) -> EventTimes:
        """What `to_json` wrote.

        Raises:
            KeyError, ValueError, TypeError: the record was not written by `to_json`.
        """
        times = cls(record["since"])
        for name, writer in record.get("writers", {}).items():
            hops = tuple((flow, topic) for flow, topic in writer.get("hops", ()))
            count, lowest_ms, highest_ms = writer.get("ahead", NONE_AHEAD)
            ahead = (count, lowest_ms, highest_ms)
            times.writers[name] = TopicWriter(
                writer["heard"], writer.get("latest"), writer.get("watermark"), hops, ahead
            )
        if "waiting" in record:
            times.waiting = WaitingRange(*record["waiting"])
            times.lanes = {int(lane, 16): at_ms for lane, at_ms in record["lanes"].items()}
        return times

    def copy(self, *, clock_ms: int) -> EventTimes:
        """An independent copy for a batch."""
        kept = self.settled()
        kept.idle, kept.unsure, kept.clock_ms = dict(self.idle), self.unsure, clock_ms
        return kept

    def settled(self) -> EventTimes:
        """A copy as it is kept when the batch is over: what is read back from a plan."""
        writers = {name: replace(writer) for name, writer in self.writers.items()}
        return EventTimes(self.since_ms, writers, self.waiting, dict(self.lanes) if self.waiting else {})


def _writer_record(writer: TopicWriter) -> WriterRecord:
    record: WriterRecord = {"heard": writer.heard_ms}
    if writer.latest_ms is not None:
        record["latest"] = writer.latest_ms
    if writer.ahead[0]:
        record["ahead"] = writer.ahead
    if writer.stated_ms is not None:
        record["watermark"] = writer.stated_ms
    if writer.hops:
        record["hops"] = list(writer.hops)
    return record
