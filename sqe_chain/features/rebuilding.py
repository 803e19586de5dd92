"""What plans say after a flow was folded again, or rewound: what its receivers have already. Pure.

A batch publishes all of its outputs or none. So as long as any partition has inputs whose outputs were published before, only such
inputs are read, silently (`Rebuilding.silent_until`). A batch that was published in part is then repeated exactly as it was sealed
(`Rebuilding.unfinished`): cut otherwise, `changes()` would give other envelopes for the same inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

from sqe_chain.features.event_times import plain_times, times_from
from sqe_chain.ports import TopicPartition
from sqe_chain.protocol.layout import by_name, by_partition
from sqe_chain.protocol.plan import Plan, PlannedRange, Section, left_by, plain_exclusions, plain_ranges
from sqe_chain.task.event_times import EventTimes
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.frontier import Frontier

_Known = TypeVar("_Known")
Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A batch that was sealed, and perhaps published in part, when the flow was folded again from its inputs.

    It is the first batch to be published afterwards, exactly as it was sealed, so that receivers of a part of it get the
    same envelopes again, which they ignore.

    Attributes:
        clock_ms: the batch's clock.
        ranges: of the input partitions.
        exclusions: inputs left out.
        closing: it read nothing, and closed all windows.
        frontier: the place in the order of times up to which it took inputs.
    """

    clock_ms: int
    ranges: tuple[PlannedRange, ...]
    exclusions: tuple[Exclusion, ...] = ()
    closing: bool = False
    frontier: Frontier | None = None

    def to_json(self) -> dict[str, Any]:
        """For json.dumps."""
        return {
            "clock_ms": self.clock_ms,
            "ranges": plain_ranges(self.ranges),
            "exclusions": plain_exclusions(self.exclusions),
            "closing": self.closing,
            "frontier": self.frontier,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(
            raw["clock_ms"],
            tuple(PlannedRange(**one) for one in raw["ranges"]),
            tuple(Exclusion(**one) for one in raw["exclusions"]),
            raw["closing"],
            Frontier(*raw["frontier"]) if raw["frontier"] else None,
        )


@dataclass(frozen=True, slots=True)
class Reached:
    """How far event time had come.

    Attributes:
        times: see `EventTime.times`.
        frontier: see `EventTime.frontier`.
        ticked_ms: see `Timers.ticked_ms`.
    """

    times: Mapping[TopicPartition, EventTimes]
    frontier: Frontier | None = None
    ticked_ms: int = 0

    def to_json(self) -> list[Any]:
        """For json.dumps."""
        return [plain_times(self.times), self.frontier, self.ticked_ms]

    @classmethod
    def from_json(cls, raw: list[Any]) -> Self:
        """What `to_json` gave."""
        times, frontier, ticked_ms = raw
        return cls(times_from(times), Frontier(*frontier) if frontier else None, ticked_ms)


@dataclass(frozen=True, slots=True)
class Rebuilding(Section):
    """What is still to be done after the flow was folded again, or rewound.

    Attributes:
        silent: this plan's outputs are not published, because they were, before the flow was folded again or rewound.
        silent_until: up to where the plans *after* this one have to be silent; empty as soon as one is published.
        unfinished: the batch that has to be published first, exactly as it was sealed before the flow was folded again.
        attempt: number of the first plan of the attempt at folding again that sealed this plan: as long as it is the
            last plan in the attempt's home record, the attempt can be resumed; -1: the flow itself sealed it.
        published_until: up to where receivers have outputs, where the flow was rewound to publish them again and has not passed
            it yet: its states are older than what they have.
        reached: how far event time had come where the plans *after* this one may cease to be silent: what had been released
            there was published, and what had not must be.
    """

    name: ClassVar[str] = "rebuild"
    silent: bool = False
    silent_until: Mapping[TopicPartition, int] = field(default_factory=dict)
    unfinished: Unfinished | None = None
    attempt: int = -1
    published_until: Mapping[TopicPartition, int] = field(default_factory=dict)
    reached: Reached | None = None

    @property
    def takes_again(self) -> bool:
        """Whether inputs are published again that receivers have, and are taken as they were then."""
        return bool(self.published_until) and self.reached is not None

    def carried(self, last: Plan, plan: Plan) -> Rebuilding:
        """All that is to be done, without partitions that another topic has now: what was known of the old one holds no more."""
        gone, reached = left_by(plan, last), self.reached
        return replace(
            self,
            silent=False,
            attempt=-1,
            silent_until=_without(self.silent_until, gone),
            published_until=_without(self.published_until, gone),
            reached=reached and replace(reached, times=_without(reached.times, gone)),
        )

    def to_json(self) -> dict[str, Any]:
        """For json.dumps."""
        found = {
            "silent": self.silent,
            "silent_until": by_name(self.silent_until),
            "unfinished": self.unfinished and self.unfinished.to_json(),
            "published_until": by_name(self.published_until),
            "reached": self.reached and self.reached.to_json(),
        }
        own = {"attempt": self.attempt} if self.attempt >= 0 else {}
        return own | {name: one for name, one in found.items() if one}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        unfinished, reached = raw.get("unfinished"), raw.get("reached")
        return cls(
            raw.get("silent", False),
            by_partition(raw.get("silent_until", {})),
            unfinished and Unfinished.from_json(unfinished),
            raw.get("attempt", -1),
            by_partition(raw.get("published_until", {})),
            reached and Reached.from_json(reached),
        )


def _without(
    known: Mapping[TopicPartition, _Known], gone: Collection[TopicPartition]
) -> dict[TopicPartition, _Known]:
    return {tp: one for tp, one in known.items() if tp not in gone}


def silent_limits(
    offsets: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int]
) -> Offsets | None:
    """How far a silent batch may read each partition; None when everything up to there has been read.

    Args:
        offsets: next offset of each partition.
        until: up to where receivers have outputs.
    """
    limits = {tp: max(offset, until.get(tp, 0)) for tp, offset in offsets.items()}
    return limits if limits != offsets else None
