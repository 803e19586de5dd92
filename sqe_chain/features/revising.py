"""Reports revisions of the inputs that a flow meets and does not follow, and counts what it ignores."""

from __future__ import annotations

from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.events import Ignored, NewerRevision
from sqe_chain.features.observing import BatchObserver
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.look import Infos
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.results import BatchResult
from sqe_chain.plans.revisions import Revisions
from sqe_chain.task.results import Report


class RevisionReports(BatchObserver):
    """Reports each newer revision once in a run, and after each batch what was ignored."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        # Family -> the highest revision that this run has reported.
        self._reported: dict[str, int] = {}

    def looked(self, last: Plan | None, infos: Infos) -> None:  # noqa: ARG002 - see `BatchObserver`
        if last is not None and Revisions.name in last.sections:
            self._report(Revisions.of(last))

    def committed(self, plan: Plan, decision: BatchDecision, report: Report, result: BatchResult) -> None:  # noqa: ARG002 - see `BatchObserver`
        superseded = sum(end.superseded for end in report.ends)
        newer = sum(end.newer.total() for end in report.ends)
        if superseded or newer:
            self.env.emit(Ignored(plan.number, superseded, newer))
        if newer:
            self._report(Revisions.of(plan))

    def _report(self, revisions: Revisions) -> None:
        for family, met in sorted(revisions.newer.items()):
            if met.number > self._reported.get(family, 0):
                self._reported[family] = met.number
                self.env.emit(NewerRevision(family, met.number, revisions.follows(family)))
