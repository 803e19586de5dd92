"""Timers of the batch's clock: up to where they fire in a batch, and whether one is due. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.protocol.layout import by_name, by_partition
from sqe_chain.protocol.plan import Plan, Section
from sqe_chain.task.results import Report
from sqe_chain.task.ticks import TIMERS, Ticks


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
        """What holds after a batch.

        Args:
            ticks: up to where they have fired in it; None: none have.
            report: of the batch.
        """
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


def ticks_of(
    flow: CompiledFlow, before: Plan, clock_ms: int, *, silent: bool, last_silent: bool
) -> Ticks | None:
    """Up to where timers of the batch's clock fire in a batch; None: none do.

    It rises with each batch, even if the clock goes back, for it is the position of what they give. After a batch none is left
    that was set for a time up to there. So while a flow is folded again, all that had fired by then fires in the last silent
    batch, and nothing else.

    Args:
        flow: the flow.
        before: the plan before.
        clock_ms: the batch's clock.
        silent: whether the batch is silent.
        last_silent: whether the batches after it are not.
    """
    if not flow.ticking:
        return None
    timers = Timers.of(before)
    if silent:
        reached = Rebuilding.of(before).reached
        reached_ms = 0 if reached is None else reached.ticked_ms
        return Ticks(reached_ms, timers.due) if last_silent and reached_ms > timers.ticked_ms else None
    return Ticks(max(clock_ms, timers.ticked_ms + 1), timers.due)


def is_timer_due(flow: CompiledFlow, last: Plan, clock_ms: int) -> bool:
    """Whether a batch that reads nothing would fire a timer.

    Args:
        flow: the flow.
        last: the plan before.
        clock_ms: the batch's clock.
    """
    return any(
        due_ms <= clock_ms and stage in flow.ticking for (stage, _), due_ms in Timers.of(last).due.items()
    )
