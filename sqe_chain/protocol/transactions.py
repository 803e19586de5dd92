"""Step 5 of a transactional flow: readers of committed records that know nothing of positions get each output once.

All that a plan publishes is one transaction, by the one producer of the flow. The last record of the transaction is a marker, the
plan's number and id, in a compacted topic of the flow's own. So a marker that is committed proves that receivers have all of the
plan; without one they have nothing of it, and never will.

A newer run fences the producer of an older one *before it looks at the claim again*, and reads the markers after that. So a run
that woke late finds that it is superseded. It may have fenced the newer run, which then makes a producer again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqe_chain.errors import ChainError, StoreInconsistent
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Output, Range, TransactionalWriter
from sqe_chain.protocol.claim import check_claim
from sqe_chain.task.states import Claim

LOOK_BACK: Final = 256
"""Offsets at the end of the markers that are read first. Each publication takes two, and each one that was aborted, too."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The last plan whose outputs are committed.

    Attributes:
        number: of the plan; -1: nothing was published in a transaction yet.
        plan_id: of the plan.
    """

    number: int = -1
    plan_id: str = ""

    def to_output(self, topic: str, flow: str) -> Output:
        """The record."""
        value = json.dumps({"plan": self.number, "id": self.plan_id}).encode()
        return topic, 0, flow.encode(), value, None, 0


@dataclass(slots=True)
class Transactions:
    """Publishes plans, each in one transaction.

    Args:
        env: the flow and its ports.
        claim: of this run.
    """

    env: Environment
    claim: Claim
    _writer: TransactionalWriter | None = None
    # The newest one; known as long as there is a writer, since nobody else can commit then.
    _marker: Marker = Marker()

    def open(self) -> None:
        """Fence older runs, look whether this run still owns the flow, and find out what is published.

        Raises:
            Superseded: a newer run owns the flow. It may have been fenced by this one, and makes a producer again.
            Unavailable: no answer; nothing is open.
        """
        env = self.env
        self._writer = env.ports.log.transactional_writer(
            transactional_id(env.flow.name), env.flow.written_topics
        )
        try:
            # Not before: a later claim would then fence this run later, too, and an earlier one has been fenced by it.
            check_claim(env, self.claim)
            self._marker = read_marker(env)
        except ChainError:
            self.close()
            raise

    def has_published(self, plan: Plan) -> bool:
        """Whether the outputs of a plan are committed; open it first.

        Raises:
            StoreInconsistent: those of a later plan are, or of another one of this number: the store went back in time.
        """
        marker = self._marker
        if marker == Marker(plan.number, plan.plan_id):
            return True
        if marker.number >= plan.number:
            raise StoreInconsistent(
                f"flow {self.env.flow.name!r}: the metadata store's last plan is {plan.number} ({plan.plan_id}), but topic "
                f"{self.env.flow.marker_topic!r} has plan {marker.number} ({marker.plan_id}). The store went back as a whole. What was "
                "published since would be published again, perhaps otherwise. Restore the store. If the flow was forgotten, delete that topic, too"
            )
        return False

    def publish(self, plan: Plan, outputs: Callable[[], Iterable[Sequence[Output]]]) -> None:
        """Publish a sealed plan, unless it is published. Safe to repeat.

        Raises:
            Superseded, StoreInconsistent: see `open` and `has_published`.
            Unavailable: it is not known whether it is published; a repetition finds out.
        """
        if self._writer is None:
            self.open()
        if self._writer is None:
            raise AssertionError("open() makes one")
        if self.has_published(plan):
            return
        flow, marker = self.env.flow, Marker(plan.number, plan.plan_id)
        try:
            for records in outputs():
                self._writer.write(records)
            self._writer.write([marker.to_output(flow.marker_topic, flow.name)])
            self._writer.commit()
        except ChainError:
            self.close()
            raise
        self._marker = marker
        if self._writer.worn:
            self.close()

    def close(self) -> None:
        """Release the producer; a transaction that is open is aborted."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def transactional_id(flow: str) -> str:
    """The name of a flow's producer, which the cluster knows."""
    return f"{flow}/0"


def read_marker(env: Environment) -> Marker:
    """The last committed marker of a flow. Call it when nobody else can commit: an open transaction would hide what follows it."""
    flow, log = env.flow, env.ports.log
    tp = flow.marker_topic, 0
    topic_id, bound = log.topic_ids([flow.marker_topic])[flow.marker_topic], log.bounds([tp])[tp]
    stop, size, newest = bound.stable_end, LOOK_BACK, Marker()
    while stop > bound.begin and newest.number < 0:
        start = max(bound.begin, stop - size)
        for block in log.read(Range(flow.marker_topic, topic_id, 0, start, stop)):
            for message in block:
                if message.key() == flow.name.encode():
                    known = json.loads(message.value() or b"{}")
                    newest = Marker(int(known.get("plan", -1)), str(known.get("id", "")))
        stop, size = start, 4 * size
    return newest
