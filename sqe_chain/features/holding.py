"""Who holds back what waits for event time, and a notice when it takes long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sqe_chain.errors import ConfigurationError
from sqe_chain.features.event_times import EventTime, KnownTimes
from sqe_chain.features.observing import BatchObserver
from sqe_chain.flow.compiled import CompiledFlow, takes_times
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.plans.layout import mark_name
from sqe_chain.plans.look import Infos
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.results import BatchResult
from sqe_chain.plans.stored_plans import plan_of_a_run
from sqe_chain.ports import StateStore
from sqe_chain.task.event_times import ORIGIN

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


class WaitingInputs(NamedTuple):
    """What waits for event time in one input partition.

    Attributes:
        topic: topic.
        partition: partition.
        units: how many records.
        taken_to_ms: up to where records of all partitions were taken, in event time; None: none yet.
        holder: who holds them back; None when nothing waits.
    """

    topic: str
    partition: int
    units: int
    taken_to_ms: int | None
    holder: Holder | None


def holder_of(flow: CompiledFlow, plan: Plan) -> Holder | None:
    """Who holds back what waits after a plan: the partition that is behind all others; None when nothing waits."""
    if not EventTime.of(plan).waiting:
        return None
    holders, times_after = list[Holder](), KnownTimes.after(plan)
    for planned in plan.ranges:
        if flow.declared_topic[planned.topic] not in flow.gated:
            continue
        times = times_after.at(planned.tp, {planned.tp: {}}, plan.clock_ms)
        known = {writer: times.watermark_of(writer) for writer in times.silent_since()}
        writer = min(known, key=lambda name: (known[name] is not None, known[name] or 0, name))
        holders.append(Holder(*planned.tp, writer, known[writer]))
    return min(
        holders,
        key=lambda holder: (holder.watermark_ms is not None, holder.watermark_ms or 0, holder[:2]),
        default=None,
    )


def waiting_of(flow: CompiledFlow, stage: StageNode, plan: Plan) -> list[WaitingInputs]:
    """What waits for event time after a plan in each input partition that a stage takes records of."""
    topics, holder, time = flow.topics_before[stage.index], holder_of(flow, plan), EventTime.of(plan)
    held = []
    for planned in plan.ranges:
        if flow.declared_topic[planned.topic] in topics:
            times = time.times.get(planned.tp)
            count = 0 if times is None or times.waiting is None else times.waiting.inputs
            taken_ms = time.frontier and time.frontier.at_ms
            held.append(WaitingInputs(*planned.tp, count, taken_ms, holder if count else None))
    return held


def waiting_in(home: StateStore, flow: CompiledFlow, stage: StageNode) -> list[WaitingInputs]:
    """The same, as of the last plan in the metadata store; reading it disturbs nobody.

    Raises:
        ConfigurationError: the flow has not run with this store, or the stage takes its records as they come.
        StoreInconsistent: its last plan is missing.
        Unavailable: the store does not answer.
    """
    if not takes_times(stage):
        raise ConfigurationError(
            f"stage {stage.name!r} takes its records as they come, so none waits for event time; only windows, joins and filters by "
            "event time do"
        )
    return waiting_of(flow, stage, plan_of_a_run(home, flow.name))


@dataclass(slots=True)
class Holding:
    """Reports when the same partition has held back all others for long."""

    env: Environment
    _holder: Holder | None = None
    _since_ms: int = 0
    _next_ms: int = 0

    def look(self, plan: Plan) -> Holder | None:
        """Look at the last plan, after each batch and whenever there is nothing to do. Returns who holds back."""
        holder, now_ms = holder_of(self.env.flow, plan), self.env.clock.now_ms()
        if holder is None or holder != self._holder:
            self._holder, self._since_ms, self._next_ms = holder, now_ms, now_ms + NOTICE_MS
        elif now_ms >= self._next_ms:
            what = "has brought nothing" if holder.watermark_ms is None else "has not come any further"
            hint = (
                "look whether that flow runs" if holder.writer != ORIGIN else "look whether its producer runs"
            )
            self.env.emit(
                Notice(
                    f"{EventTime.of(plan).waiting} records wait for event time: {holder} {what} for {(now_ms - self._since_ms) // 1_000} s; {hint}"
                )
            )
            self._next_ms = now_ms + 2 * (now_ms - self._since_ms)
        return holder


class HoldingReports(BatchObserver):
    """Reports what waits for event time, and who holds it back."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._holding = Holding(env)

    def result(self, result: BatchResult, plan: Plan, infos: Infos) -> BatchResult:  # noqa: ARG002 - see `BatchObserver`
        if not self.env.flow.by_time:
            return result
        holder = self._holding.look(plan)
        name = None if holder is None else mark_name(holder.topic, holder.partition)
        return replace(
            result, held=EventTime.of(plan).waiting, holder=name, watermark_ms=holder and holder.watermark_ms
        )

    def idle(self, last: Plan) -> None:
        self._holding.look(last)
