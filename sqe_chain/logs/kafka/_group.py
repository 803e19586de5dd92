"""Commits of a group that has no members: by a consumer that never joins.

Not by the admin client: in librdkafka 2.16 its calls about groups, when they time out while the
coordinator is looked up, end the whole process by a failed assertion as soon as the late answer comes.
"""

from __future__ import annotations

import atexit
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as DriverPartition

from sqe_chain.errors import ChainError, Unavailable
from sqe_chain.logs.kafka._clients import Pool, made
from sqe_chain.logs.kafka._errors import mapped
from sqe_chain.logs.kafka._settings import READER, Settings
from sqe_chain.ports import Commit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SLICE_S = 0.002
_RETRY = {
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "REQUEST_TIMED_OUT",
    "_TIMED_OUT",
    "_TRANSPORT",
    "_WAIT_COORD",
}
"""What is said of a coordinator that is looked for, starts, or has just moved."""


class Group:
    """A consumer with one group's name."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._replies: list[tuple[KafkaError | None, Sequence[DriverPartition]]] = []
        timeout_ms = str(max(int(settings.timeout_s * 1000), 10))
        fixed = {
            **READER,
            "group.id": name,
            "socket.timeout.ms": timeout_ms,
            # How long a commit is kept back while there is no coordinator; the end of the client waits for it.
            "session.timeout.ms": timeout_ms,
        }
        self._consumer: Any
        self._consumer, self._faults = made(
            Consumer, {**settings.client(fixed, {}), "on_commit": self._replied}, settings
        )

    def close(self) -> None:
        """End the consumer."""
        # Not close(): that would wait for a commit whose broker is silent. This one never joined.
        self._consumer = None

    def committed(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, Commit]:
        """See `Log.committed`."""
        doing = f"Reading the commits of group {self._name}"
        asked = [DriverPartition(topic, partition) for topic, partition in places]
        deadline = time.monotonic() + self._settings.timeout_s
        slice_s = 1.0  # short at first, to see a refused login soon
        while True:
            left = deadline - time.monotonic()
            try:
                answer = self._consumer.committed(asked, timeout=max(min(slice_s, left), _SLICE_S))
            except KafkaException as error:
                self._again(error.args[0], doing, deadline)
                slice_s *= 2
                continue
            failed = next((place.error for place in answer if place.error is not None), None)
            if failed is None:
                return {
                    (place.topic, place.partition): Commit(place.offset, place.metadata or "")
                    for place in answer
                    if place.offset >= 0
                }
            self._again(failed, doing, deadline)

    def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        """See `Log.commit`."""
        doing = f"Committing for group {self._name}"
        offsets = [
            DriverPartition(topic, partition, commit.offset, commit.metadata)
            for (topic, partition), commit in commits.items()
        ]
        deadline = time.monotonic() + self._settings.timeout_s
        while True:
            self._replies.clear()
            try:
                self._consumer.commit(offsets=offsets, asynchronous=True)  # the other way has no timeout
            except KafkaException as error:
                raise mapped(error, doing, self._settings) from None
            while not self._replies:
                self._serve(_SLICE_S, doing)
                self._faults.raise_refusal()
                if time.monotonic() > deadline:
                    raise self._silent(doing)
            whole, answer = self._replies.pop()
            failed = whole or next((place.error for place in answer if place.error is not None), None)
            if failed is None:
                return
            self._again(failed, doing, deadline)

    def _replied(self, error: KafkaError | None, places: Sequence[DriverPartition]) -> None:
        self._replies.append((error, places))

    def _again(self, error: KafkaError, doing: str, deadline: float) -> None:
        """Return if it is worth trying again within the bounded time, else raise."""
        self._serve(0, doing)
        self._faults.raise_refusal()
        if error.name() not in _RETRY:
            raise mapped(error, doing, self._settings)
        if time.monotonic() > deadline:
            raise self._silent(doing)
        time.sleep(_SLICE_S)

    def _serve(self, wait_s: float, doing: str) -> None:
        """Serve the reports of the client's threads."""
        try:
            self._consumer.poll(wait_s)
        except KafkaException as error:
            raise mapped(error, doing, self._settings) from None

    def _silent(self, doing: str) -> Unavailable:
        return Unavailable(
            f"{doing}: Kafka at {self._settings.bootstrap} did not answer within "
            f"{self._settings.timeout_s:g} s.{self._faults.why()} Is it running, and reachable from here?"
        )


POOL: Pool[Group] = Pool()
atexit.register(POOL.close)


def committed(
    settings: Settings, name: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Commit]:
    """See `Log.committed`."""
    places = list(partitions)
    if not places:
        return {}
    group = POOL.take((settings, name), lambda: Group(settings, name))
    try:
        found = group.committed(places)
    except ChainError:
        group.close()
        raise
    POOL.give_back((settings, name), group)
    return found


def commit(settings: Settings, name: str, commits: Mapping[TopicPartition, Commit]) -> None:
    """See `Log.commit`."""
    if not commits:
        return
    group = POOL.take((settings, name), lambda: Group(settings, name))
    try:
        group.commit(commits)
    except ChainError:
        group.close()
        raise
    POOL.give_back((settings, name), group)
