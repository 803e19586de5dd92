"""Step 5 of a transactional flow: readers of committed records that know nothing of positions get each output once.

All that a plan publishes is one transaction, by the one producer of the flow. The last record of the transaction is a marker, the
plan's number and id, in a compacted topic of the flow's own. So a marker that is committed proves that receivers have all of the
plan; without one they have nothing of it, and never will.

Each plan notes the marker that was there when it was sealed, and the topic's id. So a topic of markers that was created again, emptied or
put back is noticed: it has neither that marker nor the plan's own. It proves nothing, and an operator has to look into the outputs.

A newer run fences the producer of an older one *before it looks at the claim again*, and reads the markers after that. So a run
that woke late finds that it is superseded. It may have fenced the newer run, which then makes a producer again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqe_chain.errors import (
    ChainError,
    LostOffsets,
    MarkersLost,
    RecreatedTopic,
    StoreInconsistent,
    TruncatedInput,
    Unavailable,
)
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.plans.plan import NotedMarker, Plan
from sqe_chain.ports import Output, Range, TopicInfo, TransactionalWriter
from sqe_chain.protocol.claim import check_claim
from sqe_chain.task.states import Claim

LOOK_BACK: Final = 256
"""Offsets at the end of the markers that are read first. Each publication takes two, and each one that was aborted, too."""


class Marker(NamedTuple):
    """The last plan whose outputs are committed.

    Attributes:
        number: of the plan; -1: nothing was published in a transaction yet.
        plan_id: of the plan.
        unpublished: id of a plan that is not published, as an operator has found; see `MarkersLost`.
    """

    number: int = -1
    plan_id: str = ""
    unpublished: str = ""

    def to_output(self, topic: str, flow: str) -> Output:
        """The record."""
        return topic, 0, flow.encode(), self.to_text().encode(), None, 0

    def to_text(self) -> str:
        """The value of the record."""
        known = {"plan": self.number, "id": self.plan_id}
        return json.dumps(known | ({"unpublished": self.unpublished} if self.unpublished else {}))


NO_MARKER: Final = Marker()


@dataclass(slots=True)
class Transactions:
    """Publishes plans, each in one transaction.

    Args:
        env: the flow and its ports.
        claim: of this run.

    Attributes:
        marker: the newest one. Invariant: it is known from `open` on, since nobody else publishes for a run that owns the flow.
    """

    env: Environment
    claim: Claim
    marker: Marker = NO_MARKER
    _writer: TransactionalWriter | None = None
    _topic_id: bytes = b""  # of the topic in which the marker was found, or was looked for

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
            self._topic_id, self.marker = read_marker(env)
        except ChainError:
            self.close()
            raise

    @property
    def noted(self) -> NotedMarker:
        """What a plan notes that is sealed now."""
        return NotedMarker(self.marker.number, self.marker.plan_id, self._topic_id.hex())

    def look(self, infos: Mapping[str, TopicInfo]) -> None:
        """Find out whether the topic of markers was created again. All plans are finished then, so nothing of the old one is needed.

        Args:
            infos: the topics, as they are now.

        Raises:
            Superseded: a newer run owns the flow.
        """
        topic, known = self.env.flow.marker_topic, self._topic_id
        if infos[topic].topic_id == known:
            return
        self.close()
        self.env.retry.call("begin transactions", self.open)
        if self._topic_id != known:
            text = f"topic {topic!r} was created again. All plans are finished, so the flow goes on without what it had"
            self.env.emit(Notice(text))

    def has_published(self, plan: Plan) -> bool:
        """Whether the outputs of a plan are committed; open it first.

        Raises:
            StoreInconsistent: those of a later plan are, or of another one of this number: the store went back in time.
        """
        marker = self.marker
        if marker[:2] == (plan.number, plan.plan_id):
            return True
        if marker.number >= plan.number:
            raise StoreInconsistent(
                f"flow {self.env.flow.name!r}: the metadata store's last plan is {plan.number} ({plan.plan_id}), but topic "
                f"{self.env.flow.marker_topic!r} has plan {marker.number} ({marker.plan_id}). The store went back as a whole. What was "
                "published since would be published again, perhaps otherwise. Restore the store. If the flow was forgotten, delete that topic, "
                "too. If another deployment has a flow of this name here, give one of them another name"
            )
        return False

    def publish(self, plan: Plan, outputs: Callable[[], Iterable[Sequence[Output]]]) -> None:
        """Publish a sealed plan, unless it is published. Safe to repeat.

        Raises:
            Superseded, StoreInconsistent: see `open` and `has_published`.
            MarkersLost: the topic of markers is not the one that it was, so nobody knows whether it is published.
            Unavailable: it is not known whether it is published; a repetition finds out.
        """
        if self._writer is None:
            self.open()
        if self._writer is None:
            raise AssertionError("open() makes one")
        if self.has_published(plan):
            return
        self._check_kept(plan)
        flow, marker = self.env.flow, Marker(plan.number, plan.plan_id)
        try:
            for records in outputs():
                self._writer.write(records)
            self._writer.write([marker.to_output(flow.marker_topic, flow.name)])
            self._writer.commit()
        except ChainError:
            self.close()
            raise
        self.marker = marker
        if self._writer.worn:
            self.close()

    def _check_kept(self, plan: Plan) -> None:
        """Check that the markers are those that were there when the plan was sealed."""
        flow, before = self.env.flow.name, plan.marker
        # None: an older version has sealed it.
        if before is None or before == self.noted or self.marker.unpublished == plan.plan_id:
            return
        topic, now = self.env.flow.marker_topic, self.noted
        yes, no = Marker(plan.number, plan.plan_id), Marker(before.number, before.plan_id, plan.plan_id)
        raise MarkersLost(
            f"flow {flow!r}: plan {plan.number} was sealed and is not finished, and topic {topic!r} cannot show whether it was published. "
            f"Expected the topic with id {before.topic_id} and {_shown(before)}, found id {now.topic_id} and {_shown(now)}. So it was created "
            f"again, emptied, or restored from a copy. Look into the outputs for the plan's records. Then write a "
            f"record with key {flow} into the topic, and start again: {yes.to_text()} if they are there, else {no.to_text()}"
        ).at(topic, 0)

    def close(self) -> None:
        """Release the producer; a transaction that is open is aborted."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _shown(noted: NotedMarker) -> str:
    return f"a marker of plan {noted.number}" if noted.number >= 0 else "no marker"


def transactional_id(flow: str) -> str:
    """The name of a flow's producer, which the cluster knows."""
    return f"{flow}/0"


def read_marker(env: Environment) -> tuple[bytes, Marker]:
    """The id of a flow's topic of markers, and the last committed one in it.

    Call it when nobody else can commit: an open transaction would hide what follows it.

    Raises:
        Unavailable: no answer, or the topic was deleted or changed meanwhile.
    """
    topic, log = env.flow.marker_topic, env.ports.log
    with suppress(KeyError, RecreatedTopic, LostOffsets, TruncatedInput):
        topic_id = log.topic_ids([topic])[topic]
        return topic_id, _newest_marker(env, topic_id)
    raise Unavailable(f"Topic {topic!r}: it was deleted or changed while its markers were read.")


def _newest_marker(env: Environment, topic_id: bytes) -> Marker:
    flow, log = env.flow, env.ports.log
    tp = flow.marker_topic, 0
    bound = log.bounds([tp])[tp]
    stop, size, newest = bound.stable_end, LOOK_BACK, NO_MARKER
    while stop > bound.begin and newest.number < 0:
        start = max(bound.begin, stop - size)
        for block in log.read(Range(flow.marker_topic, topic_id, 0, start, stop)):
            for message in block:
                if message.key() == flow.name.encode():
                    known = json.loads(message.value() or b"{}")
                    newest = Marker(
                        int(known.get("plan", -1)),
                        str(known.get("id", "")),
                        str(known.get("unpublished", "")),
                    )
        stop, size = start, 4 * size
    return newest
