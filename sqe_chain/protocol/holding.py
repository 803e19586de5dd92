"""Who holds back what waits for event time, and a notice when it takes long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqe_chain.errors import ConfigurationError, StoreInconsistent
from sqe_chain.flow import Flow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import StateStore
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.event_times import KnownTimes
from sqe_chain.protocol.events import Notice
from sqe_chain.protocol.plan import Plan, PlannedRange, mark_name
from sqe_chain.segment.event_times import ORIGIN, WHOLE, WaitingUnits, furthest

NOTICE_MS: Final = 60_000
"""After so long the first notice is emitted; each further one after twice the time."""


class Holder(NamedTuple):
    """An input partition that is behind all others.

    Attributes:
        topic: topic.
        partition: partition.
        writer: the writer there that is behind, "flow/output"; empty for what nobody republished, or when nothing has come.
        watermark_ms: up to where it is known; None: nowhere yet.
    """

    topic: str
    partition: int
    writer: str
    watermark_ms: int | None

    def __str__(self) -> str:
        """As texts name it."""
        by = f" (written by {self.writer})" if self.writer else ""
        return f"{self.topic}[{self.partition}]{by}"


class Waiting(NamedTuple):
    """What waits for event time in one state partition of a stage.

    Attributes:
        part: state partition.
        units: how many records.
        taken_to_ms: up to where records were taken, in event time; None: none yet.
        holder: who holds the others back; None when nothing waits, or nobody is waited for any more.
    """

    part: int
    units: int
    taken_to_ms: int | None
    holder: Holder | None


def holder_of(plan: Plan) -> Holder | None:
    """Who holds back what waits after a plan; None when nothing waits, or nobody is waited for."""
    return _behind(plan, plan.ranges) if plan.held else None


def waiting_of(flow: Flow, stage: StageNode, plan: Plan) -> list[Waiting]:
    """What waits for event time in each state partition of a stage after a plan.

    Args:
        flow: the flow.
        stage: one of its stages.
        plan: its last plan.
    """
    topics = flow.topics_before(stage)
    ranges = [one for one in plan.ranges if flow.declared_topic(one.topic) in topics]
    whole = plan.waiting.get(mark_name(stage.name, WHOLE))
    found = []
    for part in range(plan.layout.state_partitions):
        known = plan.waiting.get(mark_name(stage.name, part), WaitingUnits(0, None))
        # Without a shuffle a state partition has input partitions of its own, and waits for no others.
        own = ranges if whole is not None else [one for one in ranges if one.tp[1] == part]
        frontier = furthest(known.frontier, whole and whole.frontier)
        holder = _behind(plan, own) if known.units else None
        found.append(Waiting(part, known.units, frontier and frontier.at_ms, holder))
    return found


def waiting_in(home: StateStore, flow: Flow, stage: StageNode) -> list[Waiting]:
    """The same, as of the last plan in the home store; reading it disturbs nobody.

    Raises:
        ConfigurationError: the flow has not run with this store, or the stage takes its records as they come.
        StoreInconsistent: its last plan is missing.
        Unavailable: the store does not answer.
    """
    if stage.stage_kind.order != "times":
        raise ConfigurationError(
            f"stage {stage.name!r} takes its records as they come, so none waits for event time; only windows, joins and filters by "
            "event time do"
        )
    stored, _ = home.home(flow.name)
    if stored is None or stored.number < 0:
        raise ConfigurationError(f"the store has no flow {flow.name!r}: it has not run with this store yet")
    data = home.plan(flow.name, stored.number)
    if data is None:
        raise StoreInconsistent(f"the home store has no plan {stored.number} of flow {flow.name!r}")
    return waiting_of(flow, stage, Plan.from_bytes(data))


def _behind(plan: Plan, ranges: Iterable[PlannedRange]) -> Holder | None:
    """Who of these partitions is behind after a plan; None when nobody is waited for."""
    found, times_after = list[Holder](), KnownTimes.after(plan)
    for planned in ranges:
        name = mark_name(*planned.tp)
        times = times_after.at(planned.tp, plan.caught_up, plan.clock_ms).believe()
        idle = plan.caught_up.get(name, ())
        known = {writer: times.watermark_of(writer) for writer in times.silent_since() if writer not in idle}
        if known:
            writer = min(known, key=lambda one: (known[one] is not None, known[one] or 0, one))
            found.append(Holder(*planned.tp, writer, known[writer]))
    return min(
        found, key=lambda one: (one.watermark_ms is not None, one.watermark_ms or 0, one[:2]), default=None
    )


@dataclass(slots=True)
class Holding:
    """Says when the same partition has held back all others for long.

    Args:
        env: the flow and its ports.
    """

    env: Environment
    _holder: Holder | None = None
    _since_ms: int = 0
    _next_ms: int = 0

    def look(self, plan: Plan) -> Holder | None:
        """Look at the last plan, after each batch and whenever there is nothing to do. Returns who holds back.

        Args:
            plan: the last one.
        """
        holder, now_ms = holder_of(plan), self.env.clock.now_ms()
        if holder is None or holder != self._holder:
            self._holder, self._since_ms, self._next_ms = holder, now_ms, now_ms + NOTICE_MS
        elif now_ms >= self._next_ms:
            what = "has brought nothing" if holder.watermark_ms is None else "has not come any further"
            hint = (
                "look whether that flow runs" if holder.writer != ORIGIN else "look whether its producer runs"
            )
            self.env.emit(
                Notice(
                    f"{plan.held} records wait for event time: {holder} {what} for {(now_ms - self._since_ms) // 1_000} s; {hint}"
                )
            )
            self._next_ms = now_ms + 2 * (now_ms - self._since_ms)
        return holder
