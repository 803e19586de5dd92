"""Commits for a group without members, through a consumer that never joins.

Not through the admin client: one of its group requests may time out while the coordinator is looked up. Then librdkafka
2.16 aborts the whole process with a failed assertion when the late answer arrives.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as DriverPartition

from sqe_chain.adapters.kafka._clients import CONFIGURATION, KafkaClient, Pool, error_for
from sqe_chain.adapters.kafka._settings import READER, KafkaSettings
from sqe_chain.errors import ChainError
from sqe_chain.ports import Commit, TopicPartition

_SLICE_S = 0.002
RETRY = {
    "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "REQUEST_TIMED_OUT",
    "_TIMED_OUT", "_TRANSPORT", "_WAIT_COORD",
}  # fmt: skip
"""Transient errors: the coordinator is being looked up, is starting, or has just moved."""

_REQUEST_BYTES: Final = 512 * 1024
"""Of one commit. The broker writes it as one batch, and refuses one beyond `max.message.bytes` of its own topic, 1 MiB by default."""
_RECORD_BYTES: Final = 100
"""What a partition's commit takes there beside names and metadata, at most."""


def requests(group: str, commits: Mapping[TopicPartition, Commit]) -> list[list[DriverPartition]]:
    """What is committed by one request each: all of it, unless that is more than a broker takes."""
    made, size = [list[DriverPartition]()], 0
    for (topic, partition), commit in commits.items():
        own = len(group) + len(topic) + len(commit.metadata) + _RECORD_BYTES
        if size + own > _REQUEST_BYTES and made[-1]:
            made.append([])
            size = 0
        made[-1].append(DriverPartition(topic, partition, commit.offset, commit.metadata))
        size += own
    return made


class KafkaGroup(KafkaClient):
    """A consumer with the name of one group."""

    def __init__(self, settings: KafkaSettings, name: str) -> None:
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
        config = {**settings.client(fixed, {}), "on_commit": self._on_commit}
        super().__init__(settings, Consumer, config)

    def close(self) -> None:
        # Not the driver's close(): that would wait for a commit to a broker that does not answer. There is no group to leave.
        self.driver = None

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Commit]:
        doing = f"Reading the commits of group {self._name}"
        asked = [DriverPartition(topic, partition) for topic, partition in partitions]
        deadline = time.monotonic() + self._settings.timeout_s
        slice_s = 1.0  # short at first, so that a refused login is reported soon
        while True:  # until the deadline, which `_check_retry` knows
            left = deadline - time.monotonic()
            try:
                answer = self.driver.committed(asked, timeout=max(min(slice_s, left), _SLICE_S))
            except KafkaException as error:
                self._check_retry(error.args[0], doing, deadline)
                slice_s *= 2
                continue
            failed = first_error(answer)
            if failed is None:
                return {
                    (offset.topic, offset.partition): Commit(offset.offset, offset.metadata or "")
                    for offset in answer
                    if offset.offset >= 0
                }
            self._check_retry(failed, doing, deadline)

    def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        deadline = time.monotonic() + self._settings.timeout_s
        for offsets in requests(self._name, commits):
            self._request(offsets, deadline)

    def _request(self, offsets: list[DriverPartition], deadline: float) -> None:
        doing = f"Committing for group {self._name}"
        while True:  # until the deadline, which `_check_retry` knows
            self._replies.clear()
            try:  # a synchronous commit has no timeout
                self.driver.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                raise error_for(error, doing, self._settings) from None
            while not self._replies:
                self._serve(_SLICE_S, doing)
                self._faults.raise_refusal()
                if time.monotonic() > deadline:
                    raise self.no_answer(doing)
            whole, answer = self._replies.pop()
            failed = whole or first_error(answer)
            if failed is None:
                return
            self._check_retry(failed, doing, deadline)

    def _serve(self, wait_s: float, doing: str) -> None:
        """Serve the reports of the client's threads; raise what no retry helps against.

        The driver answers nothing while it looks for the coordinator, also when the broker refuses to name one. It reports that
        in a message without content.
        """
        try:
            message = self.driver.poll(wait_s)
        except KafkaException as error:
            raise error_for(error, doing, self._settings) from None
        failed = None if message is None else message.error()
        if failed is not None and failed.name() in CONFIGURATION:
            raise error_for(failed, doing, self._settings)

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[DriverPartition]) -> None:
        self._replies.append((error, partitions))

    def _check_retry(self, error: KafkaError, doing: str, deadline: float) -> None:
        """Return if a retry may help and there is time left, else raise."""
        self._serve(0, doing)
        self._faults.raise_refusal()
        if error.name() not in RETRY:
            raise error_for(error, doing, self._settings)
        if time.monotonic() > deadline:
            raise self.no_answer(doing)
        time.sleep(_SLICE_S)


def first_error(offsets: Sequence[DriverPartition]) -> KafkaError | None:
    """The first error among the partitions of an answer."""
    return next((offset.error for offset in offsets if offset.error is not None), None)


POOL: Pool[KafkaGroup] = Pool()
atexit.register(POOL.close)


@contextmanager
def group_of(settings: KafkaSettings, name: str) -> Iterator[KafkaGroup]:
    """A group's consumer, which is kept unless something goes wrong."""
    group = POOL.take((settings, name), lambda: KafkaGroup(settings, name))
    try:
        yield group
    except ChainError:
        group.close()
        raise
    POOL.give_back((settings, name), group)
