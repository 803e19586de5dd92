"""Reports the traces of records and outputs, in flows that are declared with `traces=True`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from sqe_chain.features.events import TracesSeen
from sqe_chain.protocol.feature import Feature, Offsets
from sqe_chain.protocol.plan import Plan
from sqe_chain.task.results import Report
from sqe_chain.task.states import Claim
from sqe_chain.task.trace_report import TraceReport


class Traces(Feature):
    """Reports what tasks have seen of traces, when outputs are published; again when a plan is redone."""

    name: ClassVar[str] = "traces"

    @property
    def declared(self) -> bool:
        """Whether the flow is declared so."""
        return self.env.flow.traces

    def publish(self, claim: Claim, plan: Plan, report: Report) -> Iterator[Callable[[], int]]:  # noqa: ARG002 - see `Feature`
        """Report; nothing is published beside outputs."""
        self._tell(report)
        yield from ()

    def done_unplanned(self, stops: Offsets, report: Report, clock_ms: int) -> None:  # noqa: ARG002 - see `Feature`
        """Report."""
        self._tell(report)

    def _tell(self, report: Report) -> None:
        joined = TraceReport()
        for task in report.traces:
            joined.add(task)
        if joined.links or joined.outputs:
            self.env.emit(TracesSeen(joined))
