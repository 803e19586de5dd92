"""Failed records of a flow with plans: what waits in its store, what it has skipped, and its dead-letter records.

Parked records are released by a batch of the flow with a plan of its own. Dead-letter records are sent back to where the flow has
read them, as messages that it counts once. Their topic is the log of what was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqe_chain.features.parking import Parking
from sqe_chain.features.readers import read_record
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed import (
    UNDECIDED,
    DiscardResult,
    FailedRecord,
    FailedSelection,
    ReleaseResult,
    undecided,
)
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.operations.parked import ParkedResult, ParkedWork
from sqe_chain.operations.sending_back import sending_back
from sqe_chain.operations.skipped_inputs import discarded_at, skipped_in_plans
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.stored_plans import plan_of_a_run
from sqe_chain.ports import Log, StateStore
from sqe_chain.task.failed_log import FailedStatus
from sqe_chain.task.parking import ParkedRecord


def list_in_plans(flow: CompiledFlow, home: StateStore, log: Log) -> Iterator[FailedRecord]:
    """What failed of a flow with plans: parked records, then dead-letter records, then what the kept plans skip. Disturbs nobody.

    Raises:
        ConfigurationError: the flow has not run with this store.
        StoreInconsistent: its last plan is missing.
        Unavailable: the store or the broker does not answer.
    """
    seen = set[str]()
    readers = read_record(home, flow.name).readers
    names = list(readers.sets.values()) if readers is not None and readers.sets else [flow.name]
    last = [plan_of_a_run(home, name) for name in names]
    for record in _records(flow, last, log):
        seen.add(str(record))
        yield record
    for name in names:
        for record in skipped_in_plans(home, name):
            if str(record) not in seen:
                seen.add(str(record))
                yield record


def _records(flow: CompiledFlow, last: list[Plan], log: Log) -> Iterator[FailedRecord]:
    for plan in last:
        parking = Parking.of(plan)
        yield from map(record_of, parking.records)
        yield from (discarded_at(place, "discard") for place in parking.discarded)
    yield from _letters(flow, log)


def record_of(parked: ParkedRecord) -> FailedRecord:
    """A parked record, as one lists it."""
    status: FailedStatus = "parked" if parked.readable else "unreadable"
    key, time_ms = parked.record_key, parked.timestamp_ms
    return FailedRecord(*parked.at, 0, b"", status, parked.error, parked.text, key, time_ms)


def _letters(flow: CompiledFlow, log: Log) -> Iterator[FailedRecord]:
    """Its dead-letter records, if it has any."""
    if flow.dead_letter_topic in log.describe([flow.dead_letter_topic]):
        yield from _letters_of(flow, log, lambda: 0, str).list()


def _letters_of(
    flow: CompiledFlow,
    log: Log,
    now_ms: Callable[[], int],
    new_name: Callable[[], str],
    stopped: Callable[[], bool] = lambda: False,
) -> FailedLetters:
    """What decides about its dead-letter records: they are sent back, so the flow counts them by a plan of its own."""
    return FailedLetters(flow, log, now_ms, new_name, stopped, sending_back(log.describe(flow.input_topics)))


@dataclass(slots=True)
class FailedInPlans:
    """Releases or discards failed records of a flow with plans. Claims the flow if it parks records.

    May be killed and repeated.

    Args:
        env: the flow and its ports.
        stopped: whether to end before anything more is decided.
    """

    env: Environment
    stopped: Callable[[], bool] = lambda: False
    _work: ParkedWork | None = None

    def release(self, selection: FailedSelection = FailedSelection()) -> ReleaseResult:  # noqa: B008 - frozen
        """Let the selected records count, once.

        Raises:
            ConfigurationError: a dead-letter record was read where a repetition would not be recognised.
            NotCaughtUp, TooManyParked, PoisonError, Superseded, ServiceStopped: as `ParkedWork`.
        """
        result = ReleaseResult()
        parked = self._parked(selection)
        if parked is not None:
            result.released, result.outputs = parked.done, parked.outputs
            result.again, result.stuck = parked.again, parked.stuck
        if self._has_letters(selection):
            sent = self._decisions().release(selection)
            result.released += sent.released
            result.stuck += sent.again + sent.stuck
            for place, reason in sent.reasons:
                result.note(place, reason)
        result.left = undecided(self._list())
        return result

    def discard(self, selection: FailedSelection = FailedSelection()) -> DiscardResult:  # noqa: B008 - frozen
        """Let the selected records never count.

        Raises:
            ConfigurationError, Superseded, ServiceStopped: as `ParkedWork` and `FailedLetters.discard`.
        """
        parked = self._parked(selection, discards=True)
        count = 0 if parked is None else parked.done
        if self._has_letters(selection):
            count += self._decisions().discard(selection).discarded
        return DiscardResult(count, undecided(self._list()))

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow."""
        return self._work is None or self._work.beat()

    def _parked(self, selection: FailedSelection, *, discards: bool = False) -> ParkedResult | None:
        if self.env.flow.poison != "park":
            return None

        def selects(parked: ParkedRecord) -> bool:
            return selection(record_of(parked))

        self._work = ParkedWork(self.env, selects, discards=discards, stopped=self.stopped)
        return self._work.run()

    def _has_letters(self, selection: FailedSelection) -> bool:
        return not self.stopped() and any(record.status in UNDECIDED for record in self._letters(selection))

    def _decisions(self) -> FailedLetters:
        env = self.env
        return _letters_of(env.flow, env.ports.log, env.clock.now_ms, env.new_run_id, self.stopped)

    def _letters(self, selection: FailedSelection) -> Iterator[FailedRecord]:
        return (record for record in _letters(self.env.flow, self.env.ports.log) if selection(record))

    def _list(self) -> Iterator[FailedRecord]:
        return list_in_plans(self.env.flow, self.env.ports.home, self.env.ports.log)
