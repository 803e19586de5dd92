"""Who holds back what waits for event time, and a notice when it takes long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.event_times import KnownTimes
from sqe_chain.protocol.events import Notice
from sqe_chain.protocol.plan import Plan, mark_name
from sqe_chain.segment.event_times import ORIGIN

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


def holder_of(plan: Plan) -> Holder | None:
    """Who holds back what waits after a plan; None when nothing waits, or nobody is waited for."""
    if not plan.held:
        return None
    found, times_after = list[Holder](), KnownTimes.after(plan)
    for planned in plan.ranges:
        name = mark_name(*planned.tp)
        times = times_after.at(planned.tp, plan.caught_up, plan.clock_ms)
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
