"""Commits for a group without members, through a consumer that never joins.

Not through the admin client: if one of its group requests times out while the coordinator is looked up,
librdkafka 2.16 aborts the whole process with a failed assertion when the late answer arrives.
"""

from __future__ import annotations

import atexit
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as DriverPartition

from sqe_chain.adapters.kafka._clients import Pool, connect
from sqe_chain.adapters.kafka._errors import mapped
from sqe_chain.adapters.kafka._settings import READER, Settings
from sqe_chain.errors import ChainError, Unavailable
from sqe_chain.ports import Commit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_SLICE_S = 0.002
_RETRY = {
    "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "REQUEST_TIMED_OUT",
    "_TIMED_OUT", "_TRANSPORT", "_WAIT_COORD",
}  # fmt: skip
"""Transient errors: the coordinator is being looked up, is starting, or has just moved."""


class Group:
    """A consumer with the name of one group."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._replies: list[tuple[KafkaError | None, Sequence[DriverPartition]]] = []
        timeout_ms = str(max(int(settings.timeout_s * 1000), 10))
        fixed = {
            **READER,
            "group.id": name,
            "socket.timeout.ms": timeout_ms,
            # The driver holds a commit back for this time while there is no coordinator, and closing waits for it.
            "session.timeout.ms": timeout_ms,
        }
        self._consumer: Any
        self._consumer, self._faults = connect(
            Consumer, {**settings.client(fixed, {}), "on_commit": self._on_commit}, settings
        )

    def close(self) -> None:
        """Drop the consumer."""
        # Not its close(): that would wait for a commit to a broker that does not answer. There is no group to leave.
        self._consumer = None

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Commit]:
        doing = f"Reading the commits of group {self._name}"
        asked = [DriverPartition(topic, partition) for topic, partition in partitions]
        deadline = time.monotonic() + self._settings.timeout_s
        slice_s = 1.0  # short at first, so that a refused login is reported soon
        while True:
            left = deadline - time.monotonic()
            try:
                answer = self._consumer.committed(asked, timeout=max(min(slice_s, left), _SLICE_S))
            except KafkaException as error:
                self._check_retry(error.args[0], doing, deadline)
                slice_s *= 2
                continue
            failed = next((one.error for one in answer if one.error is not None), None)
            if failed is None:
                return {
                    (one.topic, one.partition): Commit(one.offset, one.metadata or "")
                    for one in answer
                    if one.offset >= 0
                }
            self._check_retry(failed, doing, deadline)

    def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        doing = f"Committing for group {self._name}"
        offsets = [
            DriverPartition(topic, partition, commit.offset, commit.metadata)
            for (topic, partition), commit in commits.items()
        ]
        deadline = time.monotonic() + self._settings.timeout_s
        while True:
            self._replies.clear()
            try:
                self._consumer.commit(
                    offsets=offsets, asynchronous=True
                )  # a synchronous commit has no timeout
            except KafkaException as error:
                raise mapped(error, doing, self._settings) from None
            while not self._replies:
                self._serve(_SLICE_S, doing)
                self._faults.raise_refusal()
                if time.monotonic() > deadline:
                    raise self._no_answer(doing)
            whole, answer = self._replies.pop()
            failed = whole or next((one.error for one in answer if one.error is not None), None)
            if failed is None:
                return
            self._check_retry(failed, doing, deadline)

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[DriverPartition]) -> None:
        self._replies.append((error, partitions))

    def _check_retry(self, error: KafkaError, doing: str, deadline: float) -> None:
        """Return if a retry may help and there is time left, else raise."""
        self._serve(0, doing)
        self._faults.raise_refusal()
        if error.name() not in _RETRY:
            raise mapped(error, doing, self._settings)
        if time.monotonic() > deadline:
            raise self._no_answer(doing)
        time.sleep(_SLICE_S)

    def _serve(self, wait_s: float, doing: str) -> None:
        """Serve the reports of the client's threads."""
        try:
            self._consumer.poll(wait_s)
        except KafkaException as error:
            raise mapped(error, doing, self._settings) from None

    def _no_answer(self, doing: str) -> Unavailable:
        return Unavailable(
            f"{doing}: Kafka at {self._settings.bootstrap} did not answer within "
            f"{self._settings.timeout_s:g} s.{self._faults.why()} Is it running, and reachable from here?"
        )


POOL: Pool[Group] = Pool()
atexit.register(POOL.close)


def committed(
    settings: Settings, name: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Commit]:
    asked = list(partitions)
    if not asked:
        return {}
    with _group(settings, name) as group:
        return group.committed(asked)


def commit(settings: Settings, name: str, commits: Mapping[TopicPartition, Commit]) -> None:
    if commits:
        with _group(settings, name) as group:
            group.commit(commits)


@contextmanager
def _group(settings: Settings, name: str) -> Iterator[Group]:
    """A group's consumer, which is kept unless something goes wrong."""
    group = POOL.take((settings, name), lambda: Group(settings, name))
    try:
        yield group
    except ChainError:
        group.close()
        raise
    POOL.give_back((settings, name), group)
