"""What the next batch reads, and whether it is published. Pure.

A batch publishes all of its outputs or none. So after a rebuild, as long as any partition still has inputs whose outputs
were published before, only such inputs are read, silently (`Rebuilding.silent_until`). A batch that was published in part is
cut exactly as it was sealed (`Rebuilding.unfinished`): cut otherwise, `changes()` would give other envelopes for the same
inputs. Where all windows were closed before (`Closes`), batches end, and they are closed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sqe_chain.features.closes import Closes
from sqe_chain.features.event_times import CaughtUp, EventTime
from sqe_chain.features.rebuilding import Offsets, Rebuilding, Unfinished, silent_limits
from sqe_chain.features.ticking import Timers
from sqe_chain.ports import Bounds, TopicPartition
from sqe_chain.protocol.inputs import cut, limit_bounds
from sqe_chain.protocol.plan import Plan, PlannedRange
from sqe_chain.protocol.settings import RebuildSpec
from sqe_chain.task.closing import Closing
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.frontier import Frontier
from sqe_chain.task.results import Sections
from sqe_chain.task.ticks import Ticks


@dataclass(frozen=True, slots=True)
class Part:
    """What a batch reads.

    Attributes:
        ranges: of every known partition; where nothing is new, all are empty.
        stops: their ends.
        silent: its outputs are not published.
        due: the batch that was sealed before a rebuild, which this one repeats; None: it is new.
        clock_ms: the batch's clock.
        frontier: see `EventTime.frontier`.
        caught_up: where everything is read that was there as it begins; a redo need not know.
        at_end: partitions that it reads to their end; a redo need not know.
        sections: what tasks get for features, beside event time; see `Job.sections`.
    """

    ranges: tuple[PlannedRange, ...]
    stops: Offsets
    silent: bool = False
    due: Unfinished | None = None
    clock_ms: int = 0
    frontier: Frontier | None = None
    caught_up: CaughtUp = field(default_factory=dict)
    at_end: frozenset[TopicPartition] = frozenset()
    sections: Sections = field(default_factory=Sections)

    @property
    def left_out(self) -> tuple[Exclusion, ...]:
        """Inputs that were left out when it was sealed before."""
        return () if self.due is None else self.due.exclusions

    @property
    def empty(self) -> bool:
        """Nothing is new, and nothing is closed."""
        return Closing not in self.sections and not any(planned.reads for planned in self.ranges)

    @property
    def wakes(self) -> bool:
        """Whether stages have something to do, though nothing is read: timers fire, or windows are closed."""
        return Closing in self.sections or (Ticks in self.sections and self.empty)

    @property
    def needs(self) -> tuple[str, ...]:
        """Features whose sections its plan needs, whatever the plan before has: a redo must not publish what is silent."""
        return (Rebuilding.name,) if self.silent else ()

    def with_section(self, section: object) -> Part:
        """The same, with what tasks get for one more feature; None: with no more."""
        return (
            self if section is None else replace(self, sections=Sections.of(*self.sections.values(), section))
        )


_PENDING: Final = frozenset({Rebuilding.name, Closes.name})
"""Sections that may say what the next batch reads."""


def next_part(
    last: Plan, bounds: Mapping[TopicPartition, Bounds], limit: int, *, spec: RebuildSpec | None = None
) -> Part:
    """The next batch after a plan.

    Args:
        last: the plan.
        bounds: of its partitions, as far as they may be read.
        limit: records, over all partitions.
        spec: what is rebuilt, silently and as far as asked for; None: the flow goes on.
    """
    if spec is None and _PENDING.isdisjoint(last.sections):
        return _part(last, cut(last.next_offsets(), bounds, limit))
    return _pending_part(last, bounds, limit, spec)


def _pending_part(
    last: Plan, bounds: Mapping[TopicPartition, Bounds], limit: int, spec: RebuildSpec | None
) -> Part:
    """The same after a rebuild, in one, or where windows were closed."""
    offsets = last.next_offsets()
    behind, closes = Rebuilding.of(last), Closes.of(last)
    limits, rest, due = silent_limits(offsets, behind.silent_until), behind.unfinished, closes.due()
    if due is not None and (spec is None or closes.silent):
        stops = {tp: max(offset, due.get(tp, 0)) for tp, offset in offsets.items()}
        if stops == offsets:
            again = rest if rest is not None and rest.closing and not closes.silent else None
            part = _part(last, offsets, silent=spec is not None or closes.silent, due=again)
            return part.with_section(closes.again())
        bounds = limit_bounds(bounds, stops)
    if spec is not None:
        return _part(last, cut(offsets, bounds, limit), silent=True)
    if limits is not None or (behind.silent_until and is_behind(last, EventTime.of(last).frontier)):
        # Up to the limits and no further: receivers have these outputs, and a batch publishes all of its outputs or none.
        return _part(last, cut(offsets, limit_bounds(bounds, limits or offsets), limit), silent=True)
    if rest is None:
        # Not beyond what receivers have: until then they are told no states, which would be older than theirs.
        heard = silent_limits(offsets, behind.published_until) or (offsets if behind.takes_again else None)
        return _part(last, cut(offsets, limit_bounds(bounds, heard) if heard else bounds, limit))
    begins = {planned.tp: planned.start for planned in rest.ranges}
    if any(offsets[tp] < begin for tp, begin in begins.items()):  # rewound with --republish
        return _part(last, cut(offsets, limit_bounds(bounds, offsets | begins), limit))
    return _part(last, offsets | {planned.tp: planned.stop for planned in rest.ranges}, due=rest)


def _part(last: Plan, stops: Offsets, *, silent: bool = False, due: Unfinished | None = None) -> Part:
    again = {} if due is None else {planned.tp: planned.again for planned in due.ranges}
    ranges = tuple(
        replace(planned, start=planned.stop, stop=stops[planned.tp], again=again.get(planned.tp, -1))
        for planned in last.ranges
    )
    return Part(
        ranges, stops, silent, due, frontier=EventTime.of(last).frontier if due is None else due.frontier
    )


def is_behind(last: Plan, frontier: Frontier | None) -> bool:
    """Whether inputs that had been taken before a rebuild are not yet taken again.

    Args:
        last: a plan since the rebuild.
        frontier: up to where inputs are taken.
    """
    known = Rebuilding.of(last).reached if Rebuilding.name in last.sections else None
    reached = None if known is None else known.frontier
    return reached is not None and (frontier is None or frontier < reached)


def heard_after(last: Plan, part: Part) -> Mapping[TopicPartition, int]:
    """Up to where receivers have outputs after a batch, where it has not passed that yet; see `Rebuilding.published_until`.

    Args:
        last: the plan before.
        part: what the batch reads and takes.
    """
    before = Rebuilding.of(last)
    if before.takes_again and is_behind(last, part.frontier):  # read again, and not yet taken again
        return before.published_until
    return {tp: until for tp, until in before.published_until.items() if part.stops.get(tp, until) < until}


def ends_silence(last: Plan, part: Part) -> bool:
    """Whether the batches after a silent one may be published.

    Args:
        last: the plan before it.
        part: what it reads and takes.
    """
    silent = part.silent and silent_limits(part.stops, Rebuilding.of(last).silent_until) is None
    return silent and not is_behind(last, part.frontier)


def of_plan(plan: Plan, before: Plan) -> Part:
    """What a sealed batch reads and does, for its redo.

    Args:
        plan: of the batch.
        before: the plan before it.
    """
    ticked_ms, timers, closes = Timers.of(plan).ticked_ms, Timers.of(before), Closes.of(plan)
    ticks = Ticks(ticked_ms, timers.due) if ticked_ms > timers.ticked_ms else None
    closing = closes.last() if closes.done > Closes.of(before).done else None
    return Part(
        plan.ranges,
        plan.next_offsets(),
        Rebuilding.of(plan).silent,
        clock_ms=plan.clock_ms,
        frontier=EventTime.of(plan).frontier,
        sections=Sections.of(ticks, closing),
    )
