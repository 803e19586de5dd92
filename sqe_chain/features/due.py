"""What is due when event time reaches a moment: a window's end, a left join's value that found no partner, a timer.

Event time is one for a flow, the frontier. So what is due by it is done in all state partitions, whether or not an input comes there.
That is before the first input with a place at that moment or later, or at the end of the batch whose frontier reaches it. It goes
out under a root of its own: the stage, the state partition and the moment (`task.roots.moment_origin`). Which input came, when, and
where batches end, changes no lane and no position.

A plan keeps when something is due next in each state partition of each stage. So a batch visits only those in which something is due,
and one moment that is reached is enough for a batch.

Source: timers of Flink and Apache Beam, which fire by the watermark alone; the root of a moment is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.event_times import EventTime, frontier_after, gated_times
from sqe_chain.features.lanes import UPGRADED, Lanes
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.task.event_times import latest_of
from sqe_chain.task.results import Report
from sqe_chain.task.roots import DUE, NEVER_MS, Moments

_ANY_MS = -NEVER_MS
"""Before every moment: what an older version has left has to be looked at."""


@dataclass(frozen=True, slots=True)
class DueMoments(Section):
    """When something is due next by event time.

    Attributes:
        by_moments: moments have caused what was due. False: an older version has made the plan, by which inputs have.
        due: stage and state partition -> the moment, in milliseconds since 1970; absent: nothing is due there.
    """

    name: ClassVar[str] = DUE
    by_moments: bool = False
    due: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def carried(self, last: Plan, plan: Plan) -> DueMoments:  # noqa: ARG002 - nothing depends on them
        """All of them."""
        return self

    def to_json(self) -> dict[str, Any]:
        """By stages and moments: the windows of most state partitions end together."""
        if not self.by_moments:
            return {}
        stages: dict[str, dict[int, list[int]]] = {}
        for (stage, part), due_ms in sorted(self.due.items()):
            stages.setdefault(stage, {}).setdefault(due_ms, []).append(part)
        return {"stages": {stage: sorted(moments.items()) for stage, moments in stages.items()}}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        stages = raw["stages"].items()
        return cls(
            by_moments=True,
            due={
                (stage, part): due_ms
                for stage, moments in stages
                for due_ms, parts in moments
                for part in parts
            },
        )


def goes_by_moments(last: Plan) -> bool:
    """Whether moments have caused what was due before a plan. False: an older version has made it, by which inputs have."""
    return DueMoments.of(last).by_moments or EventTime.of(last).frontier is None


def may_be_reached(flow: CompiledFlow, last: Plan) -> bool:
    """Whether a batch that reads nothing may reach a moment, as far as the plan before it knows of event time."""
    if not flow.falling:
        return False
    if not goes_by_moments(last):
        return True
    next_ms = min(DueMoments.of(last).due.values(), default=NEVER_MS)
    latest_ms = latest_of(gated_times(flow, EventTime.of(last).times))
    return latest_ms is not None and next_ms <= latest_ms


def reach_moments(flow: CompiledFlow, last: Plan, decision: BatchDecision) -> BatchDecision:
    """Step 3: what is due up to the frontier is done. One moment that is reached is enough for a batch. Pure."""
    if not flow.falling:
        return decision
    moments = _moments(flow, last, decision)
    reached = not decision.silent and bool(moments.parts)
    return replace(decision, due=decision.due or reached, moments=moments)


def moments_again(flow: CompiledFlow, plan: Plan, before: Plan, decision: BatchDecision) -> BatchDecision:
    """The same of a sealed plan, for its redo; of one that an older version has sealed, as that has done it. Pure."""
    if not flow.falling or not DueMoments.of(plan).by_moments:
        return decision
    return replace(decision, moments=_moments(flow, before, decision))


def moments_after(
    flow: CompiledFlow, last: Plan, decision: BatchDecision, report: Report
) -> Iterator[DueMoments]:
    """When something is due next after a batch, where something falls due in the flow. Pure."""
    if not flow.falling:
        return
    until = frontier_after(last, decision)
    # What was due, and could not be done because event time has not moved, is done as soon as it does.
    least_ms = _ANY_MS if until is None else until.reached_ms + 1
    visited = {at: max(due_ms, least_ms) for at, due_ms in report.sections.get(DUE, {}).items()}
    due = {**DueMoments.of(last).due, **visited}
    yield DueMoments(
        by_moments=True,
        due={at: due_ms for at, due_ms in due.items() if due_ms < NEVER_MS and at[0] in flow.falling},
    )


def lanes_after_upgrade(flow: CompiledFlow, last: Plan) -> Lanes | None:
    """Since when results go out under moments, if inputs have caused them before; None: they did not. Pure."""
    if not flow.falling or not flow.outputs or goes_by_moments(last):
        return None
    return Lanes.of(last).moved(last.next_offsets(), EventTime.of(last).frontier, {UPGRADED: 1})


def _moments(flow: CompiledFlow, last: Plan, decision: BatchDecision) -> Moments:
    begun, until = EventTime.of(last).frontier, frontier_after(last, decision)
    due = DueMoments.of(last).due
    if not goes_by_moments(last):
        due = {(stage, part): _ANY_MS for stage in flow.falling for part in range(flow.state_partitions)}
    return Moments(begun and begun.reached_ms, until and until.reached_ms, begun and begun.at_ms - 1, due)
