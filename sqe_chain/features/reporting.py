"""Reports that stages drop records, at once, and then each minute how many; and the traces of records and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.events import Filtered, TracesSeen
from sqe_chain.features.observing import BatchObserver
from sqe_chain.flow.stage_kind import MATCHED, UNMATCHED
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.results import BatchResult
from sqe_chain.task.results import Report
from sqe_chain.task.trace_report import TraceReport


@dataclass(slots=True)
class Matches:
    """What the values of each join have found in this run."""

    _found: Counter[tuple[str, str]] = field(default_factory=Counter)

    def take(self, counts: Counter[tuple[str, str]]) -> list[str]:
        """Take what a batch has counted; what has found something is no longer listed there.

        Args:
            counts: (stage, reason) -> records.

        Returns:
            A sentence for each join that has found nothing so far, once.
        """
        before = self._found.copy()
        for stage, reason in [at for at in counts if at[1] in (MATCHED, UNMATCHED)]:
            self._found[stage, reason] += counts[stage, reason]
            if reason == MATCHED:
                del counts[stage, reason]
        return [
            f"stage {stage!r}: none of {self._found[stage, UNMATCHED]} values has found anything in the table of its join. Compare "
            "the keys of both streams, and their event times: a value finds what the table had said by its own time. For "
            "reference data without history declare join_table(…, static=True)"
            for stage in sorted({stage for stage, _ in self._found})
            if not before[stage, UNMATCHED] and not self._found[stage, MATCHED]
        ]


NOTICE_MS: Final = 60_000
LOSSES: Final[Mapping[str, str]] = {
    "late": "their time had passed: look whether records come later than lateness_ms and --idle allow, or take late='stop'",
    "ahead": "their clocks run ahead: look at what produces them",
    "malformed": "they have nothing to be judged by: look at what produces them",
    "gap": "records before them are missing: look at what produces them",
}
"""Reasons for which data are lost, unlike those of what was counted before; and what to do."""


class Dropping(BatchObserver):
    """Counts what stages drop, and what joins find."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._matches = Matches()
        self._counts = Counter[tuple[str, str]]()
        self._next_ms: dict[tuple[str, str], int] = {}

    def committed(self, plan: Plan, decision: BatchDecision, report: Report, result: BatchResult) -> None:  # noqa: ARG002 - see `BatchObserver`
        dropped = report.dropped
        self.env.say(self._matches.take(dropped))
        self._counts.update({at: count for at, count in dropped.items() if at[1] in LOSSES})
        self._notice()
        if dropped:
            self.env.emit(Filtered(plan.number, result.dropped))

    def idle(self, last: Plan) -> None:  # noqa: ARG002 - see `BatchObserver`
        self._notice()

    def _notice(self) -> None:
        now_ms = self.env.clock.now_ms()
        for at, count in sorted(self._counts.items()):
            if count and now_ms >= self._next_ms.get(at, 0):
                stage, reason = at
                self.env.emit(
                    Notice(f"stage {stage!r} has dropped {count} records as {reason}: {LOSSES[reason]}")
                )
                self._counts[at], self._next_ms[at] = 0, now_ms + NOTICE_MS


def report_traces(env: Environment, report: Report) -> None:
    """Step 5: report what tasks have seen of traces, when outputs are published; again when a plan is redone."""
    joined = TraceReport()
    for task in report.traces:
        joined.add(task)
    if joined.links or joined.outputs:
        env.emit(TracesSeen(joined))
