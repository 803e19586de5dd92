"""Timers of the batch's clock: up to where they fire in a batch, and whether one is due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.rebuilding import Rebuilding, ends_silence
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.layout import by_name, by_partition
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.task.results import Report
from sqe_chain.task.roots import TIMERS, Ticks


@dataclass(frozen=True, slots=True)
class Timers(Section):
    """When timers of the batch's clock are due.

    Attributes:
        ticked_ms: up to where they have fired; it never goes back, whatever the clock does. 0: none have.
        due: stage and state partition -> when the batch's clock reaches the next of its timers.
    """

    name: ClassVar[str] = TIMERS
    ticked_ms: int = 0
    due: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def carried(self, last: Plan, plan: Plan) -> Timers:  # noqa: ARG002 - nothing depends on them
        """All of them."""
        return self

    def after(self, ticks: Ticks | None, report: Report) -> Timers:
        """What holds after a batch."""
        due = {**self.due, **report.sections.get(TIMERS, {})}
        return Timers(
            self.ticked_ms if ticks is None else ticks.tick_ms,
            {at: due_ms for at, due_ms in due.items() if due_ms >= 0},
        )

    def to_json(self) -> list[Any]:
        """For json.dumps."""
        return [self.ticked_ms, by_name(self.due)] if self.ticked_ms or self.due else []

    @classmethod
    def from_json(cls, raw: list[Any]) -> Self:
        """What `to_json` gave."""
        ticked_ms, due = raw
        return cls(ticked_ms, by_partition(due))


def fire(flow: CompiledFlow, last: Plan, decision: BatchDecision) -> BatchDecision:
    """Step 3: timers fire up to the batch's clock. One that is due is enough for a batch. Pure."""
    due = decision.due or (not decision.silent and is_timer_due(flow, last, decision.clock_ms))
    return replace(decision, due=due, ticks=ticks_of(flow, last, decision))


def ticks_again(plan: Plan, before: Plan) -> Ticks | None:
    """Up to where timers fire in a sealed plan, for its redo; None: none do. Pure."""
    ticked_ms, timers = Timers.of(plan).ticked_ms, Timers.of(before)
    return Ticks(ticked_ms, timers.due) if ticked_ms > timers.ticked_ms else None


def ticks_of(flow: CompiledFlow, before: Plan, decision: BatchDecision) -> Ticks | None:
    """Up to where timers of the batch's clock fire in a batch; None: none do.

    It rises with each batch, even if the clock goes back, for it is the position of what they give. After a batch none is left
    that was set for a time up to there. So while a flow is folded again, all that had fired by then fires in the last silent
    batch, and nothing else.
    """
    # What a release gives has lanes of its own, which are not those of timers.
    if not flow.ticking or decision.releasing is not None:
        return None
    timers = Timers.of(before)
    if decision.silent:
        reached = Rebuilding.of(before).ahead(silent=True)
        reached_ms = 0 if reached is None else reached.ticked_ms
        fire = reached_ms > timers.ticked_ms and ends_silence(before, decision)
        return Ticks(reached_ms, timers.due) if fire else None
    return Ticks(max(decision.clock_ms, timers.ticked_ms + 1), timers.due)


def is_timer_due(flow: CompiledFlow, last: Plan, clock_ms: int) -> bool:
    """Whether a batch that reads nothing would fire a timer."""
    return any(
        due_ms <= clock_ms and stage in flow.ticking for (stage, _), due_ms in Timers.of(last).due.items()
    )
