"""All features: what hangs on the steps of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqe_chain.features.announcing import Announcements
from sqe_chain.features.closing import ClosingWindows
from sqe_chain.features.event_times import EventTime, gated_times, seen_after, times_after
from sqe_chain.features.file_inputs import FileInputs
from sqe_chain.features.overwriting import Overwriting
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.sinks import Tables
from sqe_chain.features.ticking import Timers
from sqe_chain.protocol.cutting import Part, ends_silence, heard_after
from sqe_chain.protocol.feature import Feature
from sqe_chain.protocol.plan import Plan
from sqe_chain.task.results import Behind, Report
from sqe_chain.task.ticks import Ticks


class Rebuilt(Feature):
    """Flows that were folded again or rewound."""

    name = Rebuilding.name

    @property
    def declared(self) -> bool:
        """It is folded again now."""
        return self.env.role.rebuild is not None

    def begin(self, before: Plan) -> Behind | None:
        """Receivers may have newer states."""
        return Behind() if Rebuilding.of(before).published_until else None

    def after(self, last: Plan, part: Part, report: Report) -> Rebuilding:  # noqa: ARG002 - no task says anything of it
        """What is still to be done."""
        before, spec, heard = Rebuilding.of(last), self.env.role.rebuild, heard_after(last, part)
        return Rebuilding(
            silent=part.silent,
            silent_until=before.silent_until if part.silent else {},
            unfinished=None if part.due else before.unfinished,
            attempt=spec.number if spec else -1,
            published_until=heard,
            reached=before.reached if part.silent or heard else None,
        )

    def publishes(self, plan: Plan) -> bool:
        """Not what was published before."""
        return not Rebuilding.of(plan).silent


class Timing(Feature):
    """Event time, which flows with outputs hand on, and stages may take their inputs by."""

    name = EventTime.name

    @property
    def declared(self) -> bool:
        """The flow asks for it."""
        return self.env.flow.timed

    def after(self, last: Plan, part: Part, report: Report) -> EventTime:
        """How far event time has come."""
        flow, before, behind = self.env.flow, EventTime.of(last), Rebuilding.of(last)
        times = times_after(last, report) if flow.timed else {}
        found = gated_times(flow, times)
        caught_up = behind.takes_again and not heard_after(last, part)
        if behind.reached is not None and (caught_up or ends_silence(last, part)):
            # So that what is promised from now on is what was promised after it.
            times |= {
                tp: replace(one, waiting=times[tp].waiting, lanes=times[tp].lanes)
                for tp, one in behind.reached.times.items()
                if tp in times
            }
        seen = seen_after(before.seen, part.clock_ms, found, self.env.settings.idle_ms)
        return EventTime(times, part.frontier, seen)


class Ticking(Feature):
    """Timers of the batch's clock."""

    name = Timers.name

    @property
    def declared(self) -> bool:
        """A stage has them."""
        return bool(self.env.flow.ticking)

    def after(self, last: Plan, part: Part, report: Report) -> Timers:
        """Up to where they have fired, and which are due next."""
        return Timers.of(last).after(part.sections.find(Ticks), report)


FEATURES: Final = (
    FileInputs,
    Tables,
    Overwriting,
    Announcements,
    Timing,
    Ticking,
    ClosingWindows,
    Rebuilt,
)
"""In this order they are asked."""
