"""Flows that were folded again, or rewound: what their receivers have already, and what the next batches read because of it.

A batch publishes all of its outputs or none. So as long as any partition has inputs whose outputs were published before, only such
inputs are read, silently (`Rebuilding.silent_until`). Then a batch that was published in part is repeated exactly as it was sealed
(`Rebuilding.unfinished`). Cut otherwise, `changes()` would give other envelopes for the same inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

from sqe_chain.errors import ServiceStopped
from sqe_chain.features.decision import BatchDecision, Taken
from sqe_chain.features.event_times import EventTime, frontier_after, plain_times, times_from
from sqe_chain.plans import inputs, same_inputs
from sqe_chain.plans.environment import Environment, Refold
from sqe_chain.plans.layout import by_name, by_partition
from sqe_chain.plans.look import Look
from sqe_chain.plans.plan import Plan, PlannedRange, Section, left_by, plain_exclusions, plain_ranges
from sqe_chain.ports import Bounds, TopicPartition
from sqe_chain.task.event_times import EventTimes, Frontier
from sqe_chain.task.exclusion import Exclusion

_Known = TypeVar("_Known")
Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A batch that was sealed, and perhaps published in part, when the flow was folded again from its inputs.

    It is the first batch to be published afterwards, exactly as it was sealed. Receivers that had a part of it get the
    same envelopes again, and ignore them.

    Attributes:
        clock_ms: the batch's clock.
        ranges: of the input partitions.
        exclusions: skipped inputs.
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
            tuple(PlannedRange(**planned) for planned in raw["ranges"]),
            tuple(Exclusion(**exclusion) for exclusion in raw["exclusions"]),
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

    def without(self, gone: Collection[TopicPartition]) -> Reached:
        """The same, without partitions that another topic has now."""
        return replace(self, times=_without(self.times, gone))

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
        attempt: number of the first plan of the attempt at folding again that sealed this plan, or -1 if the flow itself sealed
            it. The attempt can be resumed as long as this is the last plan in its home record.
        published_until: up to where receivers have outputs. Set after a rewind to publish them again, until the flow has passed
            it: until then its states are older than what receivers have.
        reached: how far event time had come where the plans *after* this one may cease to be silent. What had been released
            there was published, and what had not must be.
        heard: how far it had come at `published_until`.
    """

    name: ClassVar[str] = "rebuild"
    silent: bool = False
    silent_until: Mapping[TopicPartition, int] = field(default_factory=dict)
    unfinished: Unfinished | None = None
    attempt: int = -1
    published_until: Mapping[TopicPartition, int] = field(default_factory=dict)
    reached: Reached | None = None
    heard: Reached | None = None

    @property
    def takes_again(self) -> bool:
        """Whether inputs are published again that receivers have, and are taken as they were then."""
        return self.heard is not None and bool(self.published_until)

    def ahead(self, *, silent: bool) -> Reached | None:
        """How far event time had come before, while inputs are taken again, in silence or not; None: they are not."""
        return (self.reached or self.heard) if silent else self.heard

    def carried(self, last: Plan, plan: Plan) -> Rebuilding:
        """All that is to be done, without partitions that another topic has now: what was known of the old one holds no more."""
        gone = left_by(plan, last)
        return replace(
            self,
            silent=False,
            attempt=-1,
            silent_until=_without(self.silent_until, gone),
            published_until=_without(self.published_until, gone),
            reached=self.reached and self.reached.without(gone),
            heard=self.heard and self.heard.without(gone),
        )

    def to_json(self) -> dict[str, Any]:
        members = {
            "silent": self.silent,
            "silent_until": by_name(self.silent_until),
            "unfinished": self.unfinished and self.unfinished.to_json(),
            "published_until": by_name(self.published_until),
            "reached": self.reached and self.reached.to_json(),
            "heard": self.heard and self.heard.to_json(),
        }
        own = {"attempt": self.attempt} if self.attempt >= 0 else {}
        return own | {name: value for name, value in members.items() if value}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        unfinished, reached, heard = raw.get("unfinished"), raw.get("reached"), raw.get("heard")
        return cls(
            raw.get("silent", False),
            by_partition(raw.get("silent_until", {})),
            unfinished and Unfinished.from_json(unfinished),
            raw.get("attempt", -1),
            by_partition(raw.get("published_until", {})),
            reached and Reached.from_json(reached),
            heard and Reached.from_json(heard),
        )


def _without(
    known: Mapping[TopicPartition, _Known], gone: Collection[TopicPartition]
) -> dict[TopicPartition, _Known]:
    return {tp: offset_known for tp, offset_known in known.items() if tp not in gone}


def silent_limits(
    offsets: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int]
) -> Offsets | None:
    """How far a silent batch may read each partition; None when everything up to there has been read.

    Args:
        offsets: next offset of each partition.
        until: up to where receivers have outputs.
    """
    # A partition that is there already does not move: what comes after is for a batch that publishes.
    limits = {tp: max(offset, until.get(tp, 0)) for tp, offset in offsets.items()}
    return limits if limits != offsets else None


def is_behind(known: Reached | None, frontier: Frontier | None) -> bool:
    """Whether inputs that had been taken before a rebuild are not yet taken again."""
    reached = None if known is None else known.frontier
    return reached is not None and (frontier is None or frontier < reached)


def heard_after(last: Plan, decision: BatchDecision) -> Mapping[TopicPartition, int]:
    """Up to where receivers have outputs after a batch, where it has not passed that yet; see `Rebuilding.published_until`."""
    before, stops = Rebuilding.of(last), decision.stops
    if before.takes_again and is_behind(before.heard, frontier_after(last, decision)):
        return (
            before.published_until
        )  # inputs are read again by now, but wait for event time as they did then
    return {tp: until for tp, until in before.published_until.items() if stops.get(tp, until) < until}


def ends_silence(last: Plan, decision: BatchDecision) -> bool:
    """Whether the batches after a silent one may be published."""
    before = Rebuilding.of(last)
    silent = decision.silent and silent_limits(decision.stops, before.silent_until) is None
    return silent and not is_behind(before.ahead(silent=True), frontier_after(last, decision))


def ends_with(last: Plan, decision: BatchDecision) -> Reached | None:
    """How far event time had come before, if a batch is the last one that takes inputs again; else None."""
    before = Rebuilding.of(last)
    ends = ends_silence(last, decision) or (before.takes_again and not heard_after(last, decision))
    return before.ahead(silent=decision.silent) if ends else None


def _is_silent(last: Plan) -> bool:
    """Whether the next batch reads only what was published before, and takes only what was taken before."""
    behind = Rebuilding.of(last)
    unread = silent_limits(last.next_offsets(), behind.silent_until) is not None
    ahead = behind.ahead(silent=True)
    return unread or (bool(behind.silent_until) and is_behind(ahead, EventTime.of(last).frontier))


def _is_next(rest: Unfinished, offsets: Mapping[TopicPartition, int]) -> bool:
    """Whether a batch that was sealed before can be repeated now: everything before it is read again."""
    return all(offsets[planned.tp] >= planned.start for planned in rest.ranges)


def needs_as_it_was(last: Plan, planned: PlannedRange) -> bool:
    """Whether a topic that was created again is needed as it was.

    An unfinished batch needs its inputs as they were, and so does a flow that reads again what it had published.
    """
    behind = Rebuilding.of(last)
    return behind.unfinished is not None or planned.stop < behind.silent_until.get(planned.tp, 0)


def limits_behind(last: Plan) -> Offsets | None:
    """Up to where the next batch may read: as far as receivers have outputs, or up to the batch that was published in part. Pure.

    Returns:
        None: as far as there is anything.
    """
    offsets, behind = dict(last.next_offsets()), Rebuilding.of(last)
    rest = behind.unfinished
    if _is_silent(last):
        # Up to there and no further: receivers have these outputs, and a batch publishes all of its outputs or none.
        return silent_limits(offsets, behind.silent_until) or offsets
    if rest is None:
        # Not beyond what receivers have: until then they get no states, which would be older than theirs.
        heard = silent_limits(offsets, behind.published_until)
        return heard or (offsets if behind.takes_again else None)
    begins = {planned.tp: planned.start for planned in rest.ranges}
    return None if _is_next(rest, offsets) else offsets | begins  # else: rewound with --republish


def catch_up(env: Environment, last: Plan, decision: BatchDecision, look: Look) -> BatchDecision:
    """Step 3 after a rebuild or rewind: in silence as long as receivers have it, then as it was sealed.

    Raises:
        TruncatedInput: the inputs are not what the batch that was published in part has read.
    """
    if env.role.refold is not None:
        return replace(decision, silent=True)
    rest, closing = Rebuilding.of(last).unfinished, decision.closing is not None
    if decision.silent or (not closing and _is_silent(last)):
        return replace(decision, silent=True)
    if rest is None or not _is_next(rest, last.next_offsets()):
        return decision
    # Windows are closed only when nothing waits for event time. So a batch that closed them comes after all that waits now.
    others_first = closing and (not rest.closing or EventTime.of(last).waiting)
    return decision if others_first else _as_sealed(env, rest, decision, look)


def _as_sealed(env: Environment, rest: Unfinished, decision: BatchDecision, look: Look) -> BatchDecision:
    """A batch that was sealed before, exactly as it was."""
    # Receivers have a part of it. Of other inputs they would get other content at positions that they take for replays.
    _verify(env, rest, look.bounds)
    then = {planned.tp: planned for planned in rest.ranges}
    ranges = tuple(
        replace(planned, stop=then[planned.tp].stop)
        if planned.tp in then
        else replace(planned, stop=planned.start, again=-1)
        for planned in decision.ranges
    )
    return replace(
        decision,
        ranges=ranges,
        clock_ms=rest.clock_ms,
        sealed=rest.exclusions,
        due=True,
        taken=Taken(rest.frontier),
    )


def behind_after(last: Plan, decision: BatchDecision, refold: Refold | None) -> Rebuilding:
    """What is still to be done after a batch. Pure."""
    before, heard = Rebuilding.of(last), heard_after(last, decision)
    return Rebuilding(
        silent=decision.silent,
        silent_until=before.silent_until if decision.silent else {},
        unfinished=None if decision.sealed is not None else before.unfinished,
        attempt=refold.number if refold else -1,
        published_until=heard,
        reached=before.reached if decision.silent else None,
        heard=before.heard if heard else None,
    )


def sections_behind(last: Plan, decision: BatchDecision, refold: Refold | None) -> Iterator[Section]:
    """What the plan of a batch keeps of a flow that is folded again, or was."""
    yield behind_after(last, decision, refold)
    if refold is not None:
        yield from refold.notes


def check_still_open(env: Environment, last: Plan) -> None:
    """Check that what a run follows for is still a shadow. Call it after the claim, and before a header is stamped.

    Args:
        env: the run's.
        last: the plan that the run would go on from.

    Raises:
        ServiceStopped: the shadow was ended, or its states are the flow's now.
    """
    refold = env.role.refold
    if refold is not None and refold.follows and Rebuilding.of(last).attempt != refold.number:
        raise ServiceStopped(
            f"{env.flow.name}: this shadow was ended, or the flow was switched to it. Expected an open one. Begin another with sqe-chain shadow "
            "start, if you need it"
        )


def _verify(env: Environment, rest: Unfinished, bounds: Mapping[TopicPartition, Bounds]) -> None:
    """Check that the inputs are still what a batch has read that is repeated after a rebuild.

    Raises:
        TruncatedInput: they are not.
    """
    infos = env.log.describe({planned.topic for planned in rest.ranges})
    for planned in rest.ranges:
        inputs.check_bounds(planned.tp, planned.stop, bounds[planned.tp])
    compacted = inputs.compacted_topics(infos)
    kept = [planned for planned in rest.ranges if planned.topic not in compacted]
    same_inputs.check_last_records(env.log, kept, bounds)
