"""What watches the batches of a run, and reports. Nothing of it decides what a batch reads, does or keeps."""

from __future__ import annotations

from sqe_chain.features.decision import BatchDecision
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.look import Infos
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.results import BatchResult
from sqe_chain.task.results import Report


class BatchObserver:
    """Watches the batches of a run. A subclass has the methods that it needs; all others do nothing.

    Attributes:
        env: the flow, its ports, and the observer of its events.
    """

    # ruff: noqa: ARG002 - methods name what they are given

    def __init__(self, env: Environment) -> None:
        self.env = env

    def looked(self, last: Plan | None, infos: Infos) -> None:
        """The topics were looked at; the last plan is None where the flow has none."""

    def result(self, result: BatchResult, plan: Plan, infos: Infos) -> BatchResult:
        """The batch is finished: its result, with what the observer knows of it."""
        return result

    def committed(self, plan: Plan, decision: BatchDecision, report: Report, result: BatchResult) -> None:
        """The commit of the batch is acknowledged."""

    def idle(self, last: Plan) -> None:
        """There was nothing to do."""
