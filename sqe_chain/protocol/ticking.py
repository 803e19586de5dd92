"""Timers of the batch's clock: up to where they fire in a batch, and whether one is due. Pure."""

from __future__ import annotations

from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.protocol.plan import Plan, at_name, mark_name
from sqe_chain.task.results import Report


def tick_of(
    flow: CompiledFlow, before: Plan, clock_ms: int, *, silent: bool, last_silent: bool
) -> int | None:
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
    if silent:
        reached_ms = 0 if before.reached is None else before.reached.ticked_ms
        return reached_ms if last_silent and reached_ms > before.ticked_ms else None
    return max(clock_ms, before.ticked_ms + 1)


def is_timer_due(flow: CompiledFlow, last: Plan, clock_ms: int) -> bool:
    """Whether a batch that reads nothing would fire a timer.

    Args:
        flow: the flow.
        last: the plan before.
        clock_ms: the batch's clock.
    """
    return any(
        due_ms <= clock_ms and at_name(name)[0] in flow.ticking for name, due_ms in last.timers.items()
    )


def timers_after(before: Plan, report: Report) -> dict[str, int]:
    """When the next timers are due, after a batch."""
    timers = before.timers | {mark_name(*at): due_ms for at, due_ms in report.timers.items()}
    return {name: due_ms for name, due_ms in timers.items() if due_ms >= 0}
