"""The engine that runs every task in this process, one after another: for tests, notebooks, small flows.

It runs the same tasks as Spark, shuffles included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sqe_chain.engines.ahead import ahead
from sqe_chain.engines.task import (
    Applied,
    apply_all,
    collecting_rarely,
    not_ending,
    own_sink,
    publish,
    publish_blocks,
)
from sqe_chain.engines.warming import warm_up
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Header, Log, Output, Sink, StateStore
from sqe_chain.task.reading import run_serially
from sqe_chain.task.results import Block, ChangedStates, Job, Outputs, Portion, Report


class InProcessEngine:
    """Runs all tasks of a batch in this process. Implements `plans.environment.Engine`.

    With `threads` it reads the partitions of a small batch, and writes changed states, at the same time. `sinks` gives where a stage
    writes its rows, if not into the store.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        log: Log,
        stores: Callable[[StageNode], StateStore],
        *,
        threads: bool = False,
        sinks: Callable[[StageNode], Sink | None] = own_sink,
    ) -> None:
        self._flow = flow
        self._log = log
        self._stores = stores
        self._threads = threads
        self._sinks = sinks
        self._job: Job | None = None
        self._outputs: list[list[Output]] = []  # by blocks: a writer takes them faster than all at once
        self._states: list[ChangedStates] = []

    def warm_up(self) -> None:
        """Connect here, and run made-up records."""
        warm_up(self._flow, self._log, self._stores)

    def process(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Run all levels; keep outputs and changed states."""
        self.release()
        self._job = job
        report = Report()
        with collecting_rarely(), not_ending():
            self._keep(self._blocks(job, portions), report)
        return report

    def publish(self) -> None:
        """Write all outputs of `process`."""
        if self._outputs:
            publish(self._log, self._outputs)

    def outputs(self) -> Iterator[Sequence[Output]]:
        """All outputs of `process`."""
        yield from self._outputs

    def persist(self, level: int, plan_id: str, before: Mapping[tuple[int, int], Header]) -> int:
        """Write the changed states of one level."""
        if self._job is None:
            return 0
        states = [changed for changed in self._states if changed.level == level]
        applied = Applied(plan_id, before)
        with not_ending():
            return apply_all(
                self._flow, self._job, self._stores, states, applied, self._sinks, threads=self._threads
            )

    def republish(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Read, transform and publish at once; keep nothing."""
        with collecting_rarely(), not_ending():
            return publish_blocks(self._log, portions, self._blocks(job, portions))

    def release(self) -> None:
        """Discard outputs and states."""
        self._job = None
        self._outputs = []
        self._states = []

    def _blocks(self, job: Job, portions: Sequence[Portion]) -> Iterator[Block]:
        read = ahead(self._log, portions) if self._threads else self._log.read
        return run_serially(self._flow, job, portions, read, self._stores)

    def _keep(self, blocks: Iterable[Block], report: Report) -> None:
        for block in blocks:
            if isinstance(block, Outputs):
                self._outputs.append(block.records)
            elif isinstance(block, ChangedStates):
                self._states.append(block)
            elif isinstance(block, Report):
                report.add(block)
