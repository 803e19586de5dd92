"""Which inputs of a partition a batch takes: the gate before the first operator of a flow that goes by event time.

A batch takes what lies up to the frontier (`sqe_chain.task.event_times`), as whole inputs. What lies beyond it has no
effect at all: no output, no state, no dead-letter record. It waits where it is, in Kafka, and is read again when its time has come.
Marks show what of it was taken, as for every replay, because the inputs of a lane are taken in their order.

An input's *place* in the order of times is its time, but never before the place of its predecessor on the lane. A late input
has its place just before the frontier of the batch before. So consecutive batches take consecutive pieces of one order, wherever batches end.

One from a clock that ran ahead takes the place of the next one on its lane, which shows that it was wrong. Where none comes, it
waits until event time gets there. But it does not wait without end, because everything after it would be read again with it.

Source: MillWheel's low watermarks; that what waits stays in the log is ours.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from sqe_chain.stages.stream_time import JumpGuard
from sqe_chain.task.event_times import EventTimes, right_times
from sqe_chain.task.frontier import Frontier, WaitingRange

HOLD_OFFSETS: Final = 10_000
"""After this number of offsets, one that is ahead of all others and was not confirmed is believed to come from a wrong clock."""
# Until then each batch reads again all that lies behind it. More would cost more in each batch, fewer would believe less of a lane
# that is merely slow to write its next record.


class TimeFacts(NamedTuple):
    """What the gate knows of the messages of a partition, side by side.

    Attributes:
        offsets: their offsets.
        times_ms: their event times; None: not known, so they go with the one before them on the lane.
        lanes: their lanes as envelopes state them; None: not known, so they go at once.
        stated_ms: the watermarks that they bear; 0 for none.
    """

    offsets: Sequence[int]
    times_ms: Sequence[int | None]
    lanes: Sequence[int | None]
    stated_ms: Sequence[int]

    @classmethod
    def joined(cls, several: Iterable[TimeFacts]) -> TimeFacts:
        """Those of one run of messages after the other."""
        columns = [list(chain.from_iterable(column)) for column in zip(*several, strict=True)]
        return cls(*columns) if columns else cls((), (), (), ())


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides for one partition.

    Args:
        topic: its topic.
        partition: its number.
        before: the frontier of the batch before; None: nothing was taken yet.
        until: that of this batch.
        guard: see `guard_of`.
        last: see `Taking.last`.
    """

    topic: str
    partition: int
    before: Frontier | None
    until: Frontier | None
    guard: JumpGuard | None
    last: Frontier | None = None
    _least_ms: int = field(init=False)
    _limit_ms: int = field(init=False)

    def __post_init__(self) -> None:
        # What is earlier than the frontier is late, and waits for nothing.
        least_ms = -(1 << 63) if self.before is None else self.before.at_ms - 1
        object.__setattr__(self, "_least_ms", least_ms)
        limit_ms = -(1 << 63) if self.until is None else self.until.limit_ms(self.topic, self.partition)
        object.__setattr__(self, "_limit_ms", limit_ms)

    @property
    def late_ms(self) -> int:
        """The place of a late input: just before the frontier of the batch before."""
        return self._least_ms

    @property
    def limit_ms(self) -> int:
        """The last place that the batch takes."""
        return self._limit_ms

    def take(self, facts: TimeFacts, times: EventTimes, known: Container[int] = ()) -> dict[int, int]:
        """Decide about messages that were read, and note in `times` what waits.

        Args:
            facts: of the messages, in the order of their offsets.
            times: event time of the partition; what it has of inputs that wait holds for those that were not read again.
            known: indexes of those that an earlier batch has taken.

        Returns:
            Index of each message that is taken -> its place.
        """
        rows: dict[int, list[int]] = {}
        taken: dict[int, int] = {}
        waits: dict[int, int] = {}
        for index, lane in enumerate(facts.lanes):
            if index in known:
                continue
            if lane is None:
                taken[index] = self._least_ms
            else:
                rows.setdefault(lane, []).append(index)
        for lane, row in rows.items():
            before_ms = times.lanes.get(lane)
            places = self._places(facts, row, before_ms)
            for index, place_ms in zip(row, places, strict=True):
                # What comes on a lane after one that waits, and was not read again, waits with it.
                due = place_ms <= self._limit_ms and before_ms is None
                (taken if due else waits)[index] = place_ms
            if row[-1] in waits:
                times.lanes[lane] = places[-1]
        if waits:
            before = times.waiting or WaitingRange(1 << 63, 1 << 63, 0)
            first = min(before.offset, facts.offsets[min(waits)])
            least_ms = min(before.least_ms, *waits.values())
            times.waiting = WaitingRange(first, least_ms, before.inputs + len(waits))
        return taken

    def are_late(self, facts: TimeFacts, taken: Iterable[int], reached_ms: int | None) -> bool:
        """Whether any message is taken after what it belongs before, or would be if batches ended elsewhere.

        Args:
            facts: of the messages.
            taken: indexes of those that are taken.
            reached_ms: the latest time of what nobody republished, before the batch: on that lane none belongs before it.
        """
        after = self.last is not None and (self.topic, self.partition) < self.last[1:]
        late_ms = -(1 << 63) if self.last is None else self.last.at_ms - (not after)
        in_order = reached_ms is not None and reached_ms > late_ms
        if in_order and not any(facts.lanes):
            return False
        for index in taken:
            at_ms, stated_ms = facts.times_ms[index], facts.stated_ms[index]
            if at_ms is None or (in_order and facts.lanes[index] == 0):
                continue
            if at_ms <= late_ms or (stated_ms and at_ms < stated_ms):
                return True
        return False

    def _places(self, facts: TimeFacts, row: Sequence[int], before_ms: int | None) -> list[int]:
        """The places of messages of one lane, after the place of the last one that waits and was not read again."""
        given = [facts.times_ms[index] for index in row]
        timed = [at_ms for at_ms in given if at_ms is not None]
        right = iter(right_times(timed if before_ms is None else [before_ms, *timed], self.guard))
        last_ms = self._least_ms if before_ms is None else max(next(right), self._least_ms)
        places = []
        for at_ms in given:
            if at_ms is not None:
                last_ms = max(next(right), last_ms)
            places.append(last_ms)
        if self.guard is not None and before_ms is None and self.until is not None:
            self._release(facts, row, places, self.guard)
        return places

    def _release(self, facts: TimeFacts, row: Sequence[int], places: list[int], guard: JumpGuard) -> None:
        """Release what is far ahead at the end of a lane. Much must have come after it, and all of that far behind it."""
        at, last = len(places), facts.offsets[-1]
        while at and places[at - 1] > self._limit_ms + guard.max_jump_ms:
            at -= 1
        if at == len(places) or last - facts.offsets[row[at]] <= HOLD_OFFSETS:
            return
        later_ms = max(
            (time_ms for time_ms in facts.times_ms[row[-1] + 1 :] if time_ms is not None), default=places[-1]
        )
        for index in range(at, len(places)):
            if places[index] - later_ms > guard.max_jump_ms:
                places[index] = places[index - 1] if index else self._least_ms
