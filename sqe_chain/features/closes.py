"""When all windows were closed: kept in each plan, so that a flow that is folded again closes them there again. Pure.

What a closing does is a function of the states before it and of one number, the latest event time read. So where the inputs are
folded again, they are read as far as they had been read then, and no further; then it is done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from sqe_chain.ports import TopicPartition
from sqe_chain.protocol.layout import by_name, by_partition
from sqe_chain.protocol.plan import Plan, Section, left_by
from sqe_chain.task.closing import Closing

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
        published: how many of them receivers have heard, so that they are done again in silence.
    """

    name: ClassVar[str] = "closes"
    times_ms: tuple[int, ...] = ()
    stops: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    done: int = 0
    published: int = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self.times_ms)

    @property
    def pending(self) -> bool:
        """Whether one of them has to be done again."""
        return self.done < len(self)

    @property
    def silent(self) -> bool:
        """Whether the next one that has to be done again is not published."""
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
        """How far each partition has to be read before the next one is done again; None: none has to be."""
        return self.stops_at(self.done) if self.pending else None

    def again(self) -> Closing:
        """The next one that has to be done again."""
        return Closing(self.done + 1, self.times_ms[self.done])

    def last(self) -> Closing:
        """The last one that is done."""
        return Closing(self.done, self.times_ms[self.done - 1])

    def known(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether nothing has been read since the last one."""
        return bool(self.done) and self.stops_at(self.done - 1) == dict(offsets)

    def with_done(self) -> Closes:
        """With the next one done again."""
        return replace(self, done=self.done + 1, published=max(self.published, self.done + 1))

    def with_new(self, event_ms: int, offsets: Mapping[TopicPartition, int]) -> Closes:
        """With one more; none has to be done again.

        Args:
            event_ms: the latest event time read.
            offsets: how far each partition has been read.
        """
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
        """For json.dumps."""
        return [self.times_ms, by_name(self.stops), self.done, self.published] if self else []

    @classmethod
    def from_json(cls, raw: list[Any]) -> Self:
        """What `to_json` gave."""
        times_ms, stops, done, published = raw
        return cls(
            tuple(times_ms),
            {tp: tuple(own) for tp, own in by_partition(stops).items()},
            done,
            published,
        )
