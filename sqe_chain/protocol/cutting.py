"""What the next batch reads, and whether it is published. Pure.

A batch publishes all of its outputs or none. So after a rebuild, as long as any partition still has inputs whose outputs
were published before, only such inputs are read, silently (`Plan.silent_until`). A batch that was published in part is
cut exactly as it was sealed (`Plan.unfinished`): cut otherwise, `changes()` would give other envelopes for the same
inputs. Where all windows were closed before (`Plan.closes`), batches end, and they are closed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqe_chain.ports import Bounds, TopicPartition
from sqe_chain.protocol.inputs import cut, limit_bounds
from sqe_chain.protocol.plan import Plan, PlannedRange, Unfinished, mark_name
from sqe_chain.protocol.settings import RebuildSpec
from sqe_chain.task.closing import Closing
from sqe_chain.task.event_times import Frontier
from sqe_chain.task.exclusion import Exclusion

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Part:
    """What a batch reads.

    Attributes:
        ranges: of every known partition; where nothing is new, all are empty.
        stops: their ends.
        silent: its outputs are not published.
        due: the batch that was sealed before a rebuild, which this one repeats; None: it is new.
        frontier: see `Plan.frontier`.
        caught_up: where everything is read that was there as it begins; a redo need not know.
        at_end: partitions that it reads to their end; a redo need not know.
        tick_ms: up to where timers of the batch's clock fire; None: none do.
        closing: it reads nothing and closes all windows.
        clock_ms: the batch's clock.
    """

    ranges: tuple[PlannedRange, ...]
    stops: Offsets
    silent: bool = False
    due: Unfinished | None = None
    frontier: Frontier | None = None
    caught_up: Mapping[TopicPartition, Mapping[str, int | None]] = field(default_factory=dict)
    at_end: frozenset[TopicPartition] = frozenset()
    tick_ms: int | None = None
    closing: Closing | None = None
    clock_ms: int = 0

    @property
    def left_out(self) -> tuple[Exclusion, ...]:
        """Inputs that were left out when it was sealed before."""
        return () if self.due is None else self.due.exclusions

    @property
    def empty(self) -> bool:
        """Nothing is new, and nothing is closed."""
        return self.closing is None and not any(planned.reads for planned in self.ranges)


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
    offsets = last.next_offsets()
    limits, rest = silent_limits(offsets, last.silent_until), last.unfinished
    due = last.closes.due()
    if due is not None and (spec is None or last.closes.silent):
        stops = {tp: max(offset, due.get(mark_name(*tp), 0)) for tp, offset in offsets.items()}
        if stops == offsets:
            again = rest if rest is not None and rest.closing and not last.closes.silent else None
            part = _part(last, offsets, silent=spec is not None or last.closes.silent, due=again)
            return replace(part, closing=last.closes.again())
        bounds = limit_bounds(bounds, stops)
    if spec is not None:
        return _part(last, cut(offsets, bounds, limit), silent=True)
    if limits is not None or (last.silent_until and is_behind(last, last.frontier)):
        # Up to the limits and no further: receivers have these outputs, and a batch publishes all of its outputs or none.
        return _part(last, cut(offsets, limit_bounds(bounds, limits or offsets), limit), silent=True)
    if rest is None:
        # Not beyond what receivers have: until then they are told no states, which would be older than theirs.
        behind = silent_limits(offsets, last.published_until) or (offsets if takes_again(last) else None)
        return _part(last, cut(offsets, limit_bounds(bounds, behind) if behind else bounds, limit))
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
    return Part(ranges, stops, silent, due, frontier=last.frontier if due is None else due.frontier)


def is_behind(last: Plan, frontier: Frontier | None) -> bool:
    """Whether inputs that had been taken before a rebuild are not yet taken again.

    Args:
        last: a plan since the rebuild.
        frontier: up to where inputs are taken.
    """
    reached = None if last.reached is None else last.reached.frontier
    return reached is not None and (frontier is None or frontier < reached)


def takes_again(last: Plan) -> bool:
    """Whether inputs are published again that receivers have, and are taken as they were then.

    Args:
        last: a plan since a rewind that publishes again.
    """
    return bool(last.published_until) and last.reached is not None


def ends_silence(last: Plan, part: Part) -> bool:
    """Whether the batches after a silent one may be published.

    Args:
        last: the plan before it.
        part: what it reads and takes.
    """
    silent = part.silent and silent_limits(part.stops, last.silent_until) is None
    return silent and not is_behind(last, part.frontier)


def of_plan(plan: Plan, before: Plan) -> Part:
    """What a sealed batch reads and does, for its redo.

    Args:
        plan: of the batch.
        before: the plan before it.
    """
    return Part(
        plan.ranges,
        plan.next_offsets(),
        plan.silent,
        frontier=plan.frontier,
        tick_ms=plan.ticked_ms if plan.ticked_ms > before.ticked_ms else None,
        closing=plan.closes.last() if plan.closing else None,
        clock_ms=plan.clock_ms,
    )


def silent_limits(offsets: Mapping[TopicPartition, int], silent_until: Mapping[str, int]) -> Offsets | None:
    """How far a silent batch may read each partition; None when everything up to there has been read.

    Args:
        offsets: next offset of each partition.
        silent_until: a plan's.
    """
    limits = {tp: max(offset, silent_until.get(mark_name(*tp), 0)) for tp, offset in offsets.items()}
    return limits if limits != offsets else None
