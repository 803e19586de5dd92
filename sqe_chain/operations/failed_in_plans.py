"""Failed records of a flow with plans: what waits in its store, what it has skipped, and its dead-letter records.

Both kinds are released by a batch of the flow with a plan of its own, so each counts once. The topic of dead-letter records shows
what was decided about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqe_chain.features.parking import Parking
from sqe_chain.features.readers import read_record
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.deciding_run import DecidingRun, deciding_run
from sqe_chain.operations.failed import (
    DiscardResult,
    FailedRecord,
    FailedSelection,
    ReleaseResult,
    undecided,
)
from sqe_chain.operations.failed_letters import FailedLetters, Selects, list_letters
from sqe_chain.operations.parked import ParkedResult, ParkedWork
from sqe_chain.operations.skipped_inputs import discarded_at, skipped_in_plans
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.stored_plans import plan_of_a_run
from sqe_chain.ports import Log, StateStore
from sqe_chain.task.failed_log import FailedLog, FailedStatus
from sqe_chain.task.parking import ParkedRecord


def list_in_plans(
    flow: CompiledFlow, home: StateStore, log: Log, known: Sequence[FailedLog] | None = None
) -> Iterator[FailedRecord]:
    """What failed of a flow with plans: parked records, then dead-letter records, then what the kept plans skip. Disturbs nobody.

    For the arguments see `list_failed_records`.

    Raises:
        ConfigurationError: the flow has not run with this store.
        StoreInconsistent: its last plan is missing.
        Unavailable: the store or the broker does not answer.
    """
    seen = set[str]()
    readers = read_record(home, flow.name).readers
    names = list(readers.sets.values()) if readers is not None and readers.sets else [flow.name]
    last = [plan_of_a_run(home, name) for name in names]
    for record in _records(flow, last, log, known):
        seen.add(str(record))
        yield record
    for name in names:
        for record in skipped_in_plans(home, name):
            if str(record) not in seen:
                seen.add(str(record))
                yield record


def _records(
    flow: CompiledFlow, last: list[Plan], log: Log, known: Sequence[FailedLog] | None
) -> Iterator[FailedRecord]:
    for plan in last:
        parking = Parking.of(plan)
        yield from map(record_of, parking.records)
        yield from (discarded_at(place, "discard") for place in parking.discarded)
    yield from list_letters(flow, log, known)


def record_of(parked: ParkedRecord) -> FailedRecord:
    """A parked record, as one lists it."""
    status: FailedStatus = "parked" if parked.readable else "unreadable"
    key, time_ms = parked.record_key, parked.timestamp_ms
    return FailedRecord(*parked.at, 0, b"", status, parked.error, parked.text, key, time_ms)


@dataclass(slots=True)
class FailedInPlans:
    """Releases or discards failed records of a flow with plans. It claims the flow, so a service that runs is fenced off.

    May be killed and repeated.

    Args:
        env: the flow and its ports.
        stopped: whether to end before anything more is decided.
    """

    env: Environment
    stopped: Callable[[], bool] = lambda: False
    _run: DecidingRun | None = None

    def release(self, selection: FailedSelection = FailedSelection()) -> ReleaseResult:  # noqa: B008 - frozen
        """Let the selected records count, once.

        Raises:
            NotCaughtUp: after a rebuild or rewind, receivers have newer outputs than the flow; nothing more was done.
            TooManyParked, PoisonError, Superseded, ServiceStopped, Unavailable: as a batch.
        """
        result = ReleaseResult()
        for flow in self._flows():
            with self._claimed(flow) as run:
                if flow.poison == "park":
                    parked = self._parked(run, selection)
                    result.add(ReleaseResult(parked.done, parked.outputs, parked.again, parked.stuck))
                if self._has_letters():
                    result.add(self._decisions(run).release(_of_reader(flow, selection)))
        result.left = undecided(self._list())
        return result

    def discard(self, selection: FailedSelection = FailedSelection()) -> DiscardResult:  # noqa: B008 - frozen
        """Let the selected records never count.

        Raises:
            NotCaughtUp, Superseded, ServiceStopped, Unavailable: as `release`.
            ConfigurationError: more would be discarded than plans can list.
        """
        count = 0
        for flow in self._flows():
            with self._claimed(flow) as run:
                if flow.poison == "park":
                    count += self._parked(run, selection, discards=True).done
                if self._has_letters():
                    count += self._decisions(run).discard(_of_reader(flow, selection)).discarded
        return DiscardResult(count, undecided(self._list()))

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow."""
        return self._run is None or self._run.service.beat()

    def _flows(self) -> Iterator[CompiledFlow]:
        """The flow, or one after the other of its readers."""
        flow = self.env.flow
        readers = read_record(self.env.ports.home, flow.name).readers
        apart = flow.partitions is None and readers is not None and readers.sets
        for own in [flow.reader(partitions) for partitions in readers.sets] if readers and apart else [flow]:
            if not self.stopped():
                yield own

    @contextmanager
    def _claimed(self, flow: CompiledFlow) -> Iterator[DecidingRun]:
        with deciding_run(replace(self.env, flow=flow)) as run:
            self._run = run
            try:
                yield run
            finally:
                self._run = None

    def _parked(
        self, run: DecidingRun, selection: FailedSelection, *, discards: bool = False
    ) -> ParkedResult:
        def selects(parked: ParkedRecord) -> bool:
            return selection(record_of(parked))

        return ParkedWork(run.env, selects, discards=discards, stopped=self.stopped).decide(run)

    def _has_letters(self) -> bool:
        flow = self.env.flow
        return not self.stopped() and flow.dead_letter_topic in self.env.log.describe(
            [flow.dead_letter_topic]
        )

    def _decisions(self, run: DecidingRun) -> FailedLetters:
        env = run.env
        return FailedLetters(env.flow, env.ports.log, env.clock.now_ms, env.new_run_id, self.stopped, run)

    def _list(self) -> Iterator[FailedRecord]:
        return list_in_plans(self.env.flow, self.env.ports.home, self.env.ports.log)


def _of_reader(flow: CompiledFlow, selection: FailedSelection) -> Selects:
    """Of the selected records those that a reader of the flow has read."""
    partitions = flow.partitions
    if partitions is None:
        return selection
    return lambda record: record.partition in partitions and selection(record)
