"""What one does with parked records: list them, let them count after a fix, or drop them.

Releasing is a batch of the flow with a plan of its own, as all are, so it is done exactly once through crashes. See
`sqe_chain.features.parking`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from sqe_chain.errors import ConfigurationError
from sqe_chain.features.decided import Place, place_of
from sqe_chain.features.parking import MAX_DISCARDED, RELEASED_TOGETHER, Parking, can_be_released, group_of
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.announcement import check_caught_up
from sqe_chain.operations.deciding_run import DecidingRun, deciding_run
from sqe_chain.operations.patterns import RecordPatterns
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.stored_plans import plan_of_a_run
from sqe_chain.ports import StateStore
from sqe_chain.task.parking import ParkedRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSelection(RecordPatterns):
    """Which parked records are meant; without arguments all of them.

    Attributes:
        topic: the topic where they were read.
    """

    topic: str | None = None

    def __call__(self, record: ParkedRecord) -> bool:
        """Whether a record is one of them."""
        return self.match(record.error, record.record_key) and self.topic in (None, record.topic())


@dataclass(frozen=True, slots=True)
class ParkedResult:
    """What became of parked records.

    Attributes:
        done: how many count now, or are dropped.
        again: how many of the selected ones failed again, or wait behind one that did.
        stuck: how many of the selected ones cannot count, or wait behind one that cannot.
        waiting: how many are parked now.
    """

    plan: int
    done: int = 0
    again: int = 0
    stuck: int = 0
    waiting: int = 0
    outputs: int = 0


def parked_in(home: StateStore, flow: CompiledFlow) -> tuple[ParkedRecord, ...]:
    """The parked records of a flow, as of its last plan. Reading them disturbs nobody.

    Raises:
        ConfigurationError: the flow has not run with this store.
        StoreInconsistent: its last plan is missing.
        Unavailable: the store does not answer.
    """
    return Parking.of(plan_of_a_run(home, flow.name)).records


def check_parks(flow: CompiledFlow) -> None:
    """Check that a flow parks records.

    Raises:
        ConfigurationError: it is declared with another policy.
    """
    if flow.poison != "park":
        raise ConfigurationError(
            f"flow {flow.name!r} is declared with poison={flow.poison!r}. Expected poison='park', with which records are parked"
        )


@dataclass(slots=True)
class ParkedWork:
    """Releases or discards parked records. A run of the flow, which claims and recovers first.

    May be killed and repeated: the next run of this or of the service finishes what was sealed.

    Args:
        env: the flow and its ports.
        selection: which records; records of one key go together.
        discards: they are dropped, and never count.
        stopped: whether to end before anything is sealed.
    """

    env: Environment
    selection: Callable[[ParkedRecord], bool] = ParkedSelection()
    discards: bool = False
    stopped: Callable[[], bool] = lambda: False

    def run(self) -> ParkedResult:
        """Claim, recover, and do it. The flow's own runs are fenced off.

        Raises:
            ConfigurationError: the flow does not park records.
            NotCaughtUp: after a rebuild or rewind, receivers have newer outputs than the flow; nothing was done.
            TooManyParked, PoisonError: as a batch.
            Superseded: another run has claimed the flow.
            ServiceStopped: as `StagedService.start`.
        """
        check_parks(self.env.flow)
        with deciding_run(self.env) as run:
            return self.decide(run)

    def decide(self, run: DecidingRun) -> ParkedResult:
        """The same in a run that has claimed the flow."""
        return self._discard(run) if self.discards else self._release(run)

    def _release(self, run: DecidingRun) -> ParkedResult:
        last = run.last
        check_caught_up(self.env.flow, last)
        records = Parking.of(last).records
        selected = can_be_released(last, self.selection)
        stuck = sum(map(self.selection, records)) - sum(map(self.selection, selected))
        tried, outputs = 0, 0
        try:
            for places in _batches(selected):
                if self.stopped():
                    break
                run.service.request.places = places
                outputs += run.batch().outputs
                tried += len(places)
        finally:
            run.service.request.places = ()
        waiting = len(Parking.of(run.last).records)
        again = waiting - (len(records) - tried)
        return ParkedResult(run.last.number, tried - again, again, stuck, waiting, outputs)

    def _discard(self, run: DecidingRun) -> ParkedResult:
        parking = Parking.of(run.last)
        gone = [place_of(record) for record in parking.records if self.selection(record)]
        if not gone or self.stopped():
            return ParkedResult(run.last.number, waiting=len(parking.records))
        after = parking.without(gone, discarded=True)
        if len(after.discarded) > MAX_DISCARDED:
            raise ConfigurationError(
                f"flow {self.env.flow.name!r}: {len(after.discarded)} records would be discarded. Expected at most {MAX_DISCARDED}: each "
                "plan lists where they were read. Discard fewer, and release the others with code that ignores them"
            )
        run.seal(after)
        return ParkedResult(run.last.number, len(gone), waiting=len(after.records))


def _batches(selected: Sequence[ParkedRecord]) -> Iterator[tuple[Place, ...]]:
    """Where the records of each batch were read: about `RELEASED_TOGETHER` of them, and all of a key together."""
    batch = list[Place]()
    for _, together in groupby(sorted(selected, key=group_of), key=group_of):
        own = [place_of(record) for record in together]
        if batch and len(batch) + len(own) > RELEASED_TOGETHER:
            yield tuple(batch)
            batch = []
        batch += own
    if batch:
        yield tuple(batch)
