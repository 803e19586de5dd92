"""Closing all windows at the end of a finite input (`--once --close-windows`): whether it can be done, and with what.

It is a plan that reads nothing. What it does follows from the states before it and the latest event time read, so a redo
repeats it. Plans list all closings (`sqe_chain.features.closes`), so that a rebuild repeats them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqe_chain.errors import START_OVER, ConfigurationError, NotCaughtUp, ServiceStopped
from sqe_chain.features.closes import MAX_CLOSES, Closes
from sqe_chain.features.event_times import CaughtUp, EventTime, KnownTimes, progress_of
from sqe_chain.features.rebuilding import Rebuilding, silent_limits
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Bounds, TopicPartition
from sqe_chain.protocol.cutting import Part
from sqe_chain.protocol.feature import Feature
from sqe_chain.protocol.plan import Plan
from sqe_chain.task.closing import Closing
from sqe_chain.task.frontier import PartitionProgress
from sqe_chain.task.results import Report, Sections


class ClosingWindows(Feature):
    """Windows that were closed at the end of finite input, in the steps of a run."""

    name = Closes.name

    @property
    def declared(self) -> bool:
        """The flow has windows."""
        return any(stage.traits.windowed for stage in self.env.flow.stages)

    def after(self, last: Plan, part: Part, report: Report) -> Closes | None:  # noqa: ARG002 - no task says anything of it
        """Each time that all windows were closed."""
        closing, before = part.sections.find(Closing), Closes.of(last)
        if closing is None:
            return None
        return before.with_done() if before.pending else before.with_new(closing.event_ms, part.stops)

    def commit(self, plan: Plan) -> Mapping[str, object]:
        """How many times: a rebuild that has lost the plans cannot know where."""
        closes = Closes.of(plan)
        return {"closes": len(closes)} if closes else {}


def check_closes(flow: CompiledFlow) -> None:
    """Check that a flow has windows to close.

    Raises:
        ConfigurationError: it has none.
    """
    if not any(stage.traits.windowed for stage in flow.stages):
        raise ConfigurationError(
            f"flow {flow.name!r}: --close-windows (close_windows=True) closes windows, but no stage of the flow has any; leave it out"
        )


def closing_part(
    flow: CompiledFlow,
    last: Plan,
    part: Part,
    bounds: Mapping[TopicPartition, Bounds],
    caught_up: CaughtUp,
    clock_ms: int,
) -> Part | None:
    """The part of a batch that closes all windows; None when nothing has been read since they were closed last, or ever.

    Args:
        flow: the flow.
        last: the last plan; everything that it could release is released.
        part: what the next batch would read.
        bounds: of the input partitions.
        caught_up: where everything is read, and who is not waited for at the end of the input.
        clock_ms: the batch's clock.

    Raises:
        NotCaughtUp: more is expected: from a republisher that is behind, because new records have come, or after a rebuild.
        ServiceStopped: they have been closed too often.
    """
    offsets, behind, closes = last.next_offsets(), Rebuilding.of(last), Closes.of(last)
    if silent_limits(offsets, behind.silent_until) is not None or behind.unfinished or closes.pending:
        raise NotCaughtUp(
            f"flow {flow.name!r}: its windows cannot be closed, because after a rebuild not all is read again that it had read "
            "before; nothing was closed. Start it until it has caught up"
        )
    found = progress_of(KnownTimes.after(last).all_at(offsets, caught_up, clock_ms, for_good=True))
    expected = next((one for one in found if one.waited_for), None)
    if expected is not None or not part.empty or EventTime.of(last).waiting:
        raise NotCaughtUp(
            f"flow {flow.name!r}: its windows cannot be closed, because {_why(expected, offsets, bounds)}; nothing was closed. Start it "
            "again when all is there"
        )
    times_ms = [one.latest_ms for one in found if one.latest_ms is not None]
    if not times_ms or closes.known(offsets):
        return None
    if closes.full:
        raise ServiceStopped(
            f"flow {flow.name!r}: its windows were closed {MAX_CLOSES} times; each plan lists them, so that a rebuild can repeat "
            "them, and holds no more. Nothing was closed. Run it without --close-windows from now on, and close windows by "
            f"heartbeats; or {START_OVER}"
        )
    ranges = tuple(replace(planned, start=planned.stop, again=-1) for planned in last.ranges)
    closing = Closing(closes.done + 1, max(times_ms))
    return Part(
        ranges,
        offsets,
        frontier=EventTime.of(last).frontier,
        caught_up=caught_up,
        sections=Sections.of(closing),
    )


def _why(
    expected: PartitionProgress | None,
    offsets: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
) -> str:
    """Why more is expected."""
    for tp, offset in sorted(offsets.items()):
        if bounds[tp].stable_end > offset:
            return f"new records have come into {tp[0]}[{tp[1]}]"
    if expected is None:
        return "records still wait for event time"
    return f"a republisher has not yet passed on all that it has to bring into {expected.topic}[{expected.partition}]"
