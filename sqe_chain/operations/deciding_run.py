"""A run of a flow with plans that decides about failed records, and does nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from sqe_chain.errors import ChainError
from sqe_chain.features.decided import Decided
from sqe_chain.features.parking import Parking, known_partitions
from sqe_chain.operations.announcement import check_caught_up
from sqe_chain.operations.failed_letters import LettersReleased
from sqe_chain.operations.processing_letters import parked_record
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.planning import plan_after
from sqe_chain.plans.results import BatchResult
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.stages.record import Reason
from sqe_chain.task.dead_letters import Identity
from sqe_chain.task.failed_log import Letter

_DROPPED: Final = frozenset({*Reason} - {Reason.GAP, Reason.MALFORMED})
"""What of `BatchResult.dropped` is dropped, and not only noticed."""


@dataclass(slots=True)
class DecidingRun:
    """A run that has claimed and recovered a flow; what it decides is sealed by plans.

    Attributes:
        env: the flow and its ports.
        service: the run.
    """

    env: Environment
    service: StagedService

    @property
    def last(self) -> Plan:
        """The last plan."""
        return self.service.owned.last

    def release(self, partition: int, letters: Sequence[Letter]) -> LettersReleased:
        """Process dead-letter records, and publish that they are released.

        Args:
            partition: the partition of the dead-letter topic that has them.
            letters: in the order in which the flow has read them.

        Raises:
            NotCaughtUp: after a rebuild or rewind, receivers have newer outputs than the flow; nothing was done.
            PoisonError, Superseded, ServiceStopped, Unavailable: as a batch.
        """
        check_caught_up(self.env.flow, self.last)
        identities = tuple(letter.dead.identity for letter in letters)
        result = self.batch(Decided("release", partition, identities, tuple(map(parked_record, letters))))
        decided = Parking.of(self.last).decided
        again = frozenset(() if decided is None else decided.failed)
        why = {
            (skipped.topic, skipped.partition, skipped.offset): f"{skipped.error}: {skipped.text}"
            for skipped in self.last.exclusions
        }
        failed = {(topic, part, offset): why[topic, part, offset] for topic, _, part, offset in again}
        dropped = {at: count for at, count in result.dropped.items() if at.rpartition("/")[2] in _DROPPED}
        return LettersReleased(result.outputs, dropped, failed)

    def batch(self, decided: Decided | None = None) -> BatchResult:
        """The next batch, which decides; acknowledged when this returns."""
        self.service.request.decided = decided
        try:
            result = self.service.batch()
        finally:
            self.service.request.decided = None
        self.env.commits.settle()
        return result

    def discard(self, partition: int, letters: Sequence[Identity]) -> None:
        """Publish that dead-letter records are discarded.

        Raises:
            NotCaughtUp, Superseded, ServiceStopped, Unavailable: as `release`.
        """
        check_caught_up(self.env.flow, self.last)
        self.seal(replace(self._parking(), decided=Decided("discard", partition, tuple(letters))))

    def seal(self, parking: Parking) -> None:
        """Seal and finish a plan that reads nothing."""
        last = self.last
        ranges = last.ended_ranges()
        now_ms = self.env.clock.now_ms()
        plan = plan_after(last, self.service.owned.claim, now_ms, last.layout, ranges, last.marks)
        self.service.owned.apply_empty(plan.carried_from(last, (parking,)).with_id(last))

    def reason_stuck(self, letter: Letter) -> str:
        """Why this run cannot process a record; empty: it can."""
        dead = letter.dead
        if (dead.topic, dead.topic_id.hex(), dead.partition) in known_partitions(self.last):
            return ""
        return (
            f"the flow does not read {dead.topic}[{dead.partition}] any more, or it was created again since"
        )

    def _parking(self) -> Parking:
        return Parking.of(self.last).left(self.last.ranges)


@contextmanager
def deciding_run(env: Environment) -> Iterator[DecidingRun]:
    """Claim the flow, so that its other runs are fenced off, and recover; give it back at the end.

    Raises:
        Superseded: another run has claimed the flow.
        ServiceStopped: as `StagedService.start`.
    """
    env = replace(env, role=replace(env.role, decides=True))
    service = StagedService(env)
    try:
        service.start()
        yield DecidingRun(service.env, service)
    finally:
        with suppress(ChainError):  # then the next run waits until the heartbeat has stopped
            service.leave()
