"""What the next batch reads and does, or that there is nothing to do: first half of step 3. It asks the broker, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from sqe_chain.ports import Bounds, TopicInfo, TopicPartition
from sqe_chain.protocol.closing import closing_part
from sqe_chain.protocol.cutting import Offsets, Part, ends_silence, next_part
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.event_times import KnownTimes, releases
from sqe_chain.protocol.file_inputs import leaving_files, without_files
from sqe_chain.protocol.idle import IdleWriters
from sqe_chain.protocol.in_step import keep_in_step
from sqe_chain.protocol.plan import Plan, mark_name
from sqe_chain.protocol.ticking import is_timer_due, tick_of
from sqe_chain.protocol.verifying import verify_rest

AllBounds = dict[TopicPartition, Bounds]
Infos = dict[str, TopicInfo]


class RunsInPlace(Protocol):
    """See `Processor.runs_in_place`."""

    def __call__(self, infos: Mapping[str, TopicInfo], *, shuffled: bool) -> bool:
        """See there."""


@dataclass(slots=True)
class NextBatch:
    """Chooses what the next batch does; what it finds out about idle writers is kept from batch to batch.

    Args:
        env: the flow and its ports.
        runs_in_place: whether the next attempt runs level 1 in the reading tasks.
    """

    env: Environment
    runs_in_place: RunsInPlace
    _idle: IdleWriters = field(init=False)

    def __post_init__(self) -> None:
        self._idle = IdleWriters(self.env)

    def part(
        self, last: Plan, bounds: AllBounds, infos: Infos, limit: int, *, at_end: bool, close: bool
    ) -> Part | None:
        """What comes after a plan; None: nothing.

        Args:
            last: the last plan.
            bounds: of its partitions, as far as they may be read.
            infos: the flow's topics.
            limit: records, over all partitions.
            at_end: no more input is expected.
            close: close all windows.
        """
        env = self.env
        part = next_part(last, bounds, max(len(last.ranges), limit), spec=env.settings.rebuild)
        part = without_files(replace(part, clock_ms=env.clock.now_ms()), leaving_files(env.flow, last))
        if close:
            found = self._closing(last, part, bounds)
        elif part.due is not None:
            verify_rest(env, part.due, bounds)
            found = replace(part, clock_ms=part.due.clock_ms, caught_up=part.due.caught_up)
        elif part.closing is not None:
            found = self._closing_again(last, part, infos)
        else:
            found = self._new(last, part, bounds, infos, at_end=at_end)
        if found is None:
            return None
        ends = ends_silence(last, found.stops, silent=found.silent)
        tick_ms = tick_of(env.flow, last, found.clock_ms, silent=found.silent, last_silent=ends)
        return replace(found, tick_ms=tick_ms)

    def _new(self, last: Plan, part: Part, bounds: AllBounds, infos: Infos, *, at_end: bool) -> Part | None:
        """What was not sealed before; None when it would do nothing."""
        flow, clock_ms = self.env.flow, part.clock_ms
        if part.empty and (part.silent or not (last.held or is_timer_due(flow, last, clock_ms))):
            return None
        part = keep_in_step(self.env, part, bounds)
        part = self._with_idle(last, part, bounds, at_end=at_end)
        if not part.empty or (part.caught_up and is_timer_due(flow, last, clock_ms)):
            return part
        return part if self._releases(last, part, infos) else None

    def _releases(self, last: Plan, part: Part, infos: Infos) -> bool:
        in_place = self.runs_in_place(infos, shuffled=last.shuffled)
        return releases(self.env.flow, last, part.caught_up, part.clock_ms, in_place=in_place)

    def _closing(self, last: Plan, part: Part, bounds: AllBounds) -> Part | None:
        """What a batch does that closes all windows; None when nothing was read since they were closed last."""
        offsets, known = last.next_offsets(), KnownTimes.after(last)
        # Looked at anew: what was passed on some time ago proves nothing of what republishers have to read now.
        idle = IdleWriters(self.env).find(known, offsets, bounds, part.clock_ms, at_end=True)
        return closing_part(self.env.flow, last, part, bounds, idle, part.clock_ms)

    def _closing_again(self, last: Plan, part: Part, infos: Infos) -> Part:
        """The same in a rebuild: where it was done first, nobody was waited for, and nothing waited."""
        everybody = KnownTimes.after(last).everybody_in(part.stops, part.clock_ms)
        part = replace(part, caught_up=everybody)
        if last.held and not last.releases_alone(everybody) and self._releases(last, part, infos):
            return replace(part, closing=None)
        return part

    def _with_idle(self, last: Plan, part: Part, bounds: AllBounds, *, at_end: bool) -> Part:
        """The part, with the partitions that it reads to their end, and writers that are not waited for there."""
        if not self.env.flow.timed:
            return part
        known, clock_ms = KnownTimes.after(last), part.clock_ms
        if not part.silent and last.closes.due() is None:
            found = self._idle.find(known, part.stops, bounds, clock_ms, at_end=at_end)
            return replace(part, caught_up=found)
        limits = self._ends(last, part)
        ended = [tp for tp, stop in part.stops.items() if stop >= limits.get(tp, 0)]
        return replace(part, caught_up=known.everybody_in(ended, clock_ms))

    def _ends(self, last: Plan, part: Part) -> Offsets:
        """After a rebuild: where nothing more comes of a partition.

        That is as far as the flow had read it once, or had read it when all windows were closed. Where the rebuild ends
        earlier, the flow goes on.
        """
        spec, due = self.env.settings.rebuild, last.closes.due()
        names = {tp: mark_name(*tp) for tp in part.stops}
        limits: Offsets = {}
        if part.silent:
            limits = {tp: last.silent_until.get(name, 0) for tp, name in names.items()}
            if spec is not None:
                heard = last.published_until
                limits = {
                    tp: max(limits[tp], spec.until.get(tp, 0), heard.get(name, 0))
                    for tp, name in names.items()
                }
        if due is not None:
            closed = {tp: due.get(name, 0) for tp, name in names.items()}
            limits = {tp: min(limits.get(tp, end), end) for tp, end in closed.items()}
        return limits
