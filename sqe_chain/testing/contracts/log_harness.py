"""What the rules of logs need to know of a log: how a test gets one, and how its topics are set."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pytest

from sqe_chain.ports import Log, Message, Output, Range

HOUR: Final = 3_600_000
"""Milliseconds."""
LIMITED: Final = {
    "cleanup.policy": "compact",
    "message.timestamp.before.max.ms": "7200000",
    "message.timestamp.after.max.ms": "3600000",
    "max.message.bytes": "2000",
}
"""Settings with every limit for which a broker refuses records."""
APPEND_TIME: Final = {
    "message.timestamp.type": "LogAppendTime",
    "message.timestamp.after.max.ms": "3600000",
}


_PATIENCE_S: Final = 200
"""Longer than anything takes, even while other programs have most of the machine: what still lasts, hangs."""


class LogHarness:
    """What differs from log to log: a subclass gives `log`, `configure` and `refused`."""

    @pytest.fixture
    def log(self) -> Iterator[Log]:
        """A log with one broker, whose topics have Kafka's default settings; closed after the test."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'log' that yields a log")

    @pytest.fixture
    def topic(self, log: Log) -> str:
        """A topic that no other test uses, with two partitions."""
        name = f"t-{uuid.uuid4().hex}"
        log.create_topic(name, 2)
        return name

    @pytest.fixture
    def limited(self, log: Log, topic: str) -> str:
        """A topic with every limit for which a broker refuses records."""
        self.configure(log, topic, LIMITED)
        return topic

    def configure(self, log: Log, topic: str, settings: Mapping[str, str]) -> None:
        """Change settings of a topic, by Kafka's names, and wait until they are in effect."""
        raise NotImplementedError(f"{type(self).__name__}.configure: {log}, {topic}, {settings}")

    def refused(self, log: Log, record: Output) -> str:
        """The broker's own refusal of a record, without the checks of a writer; empty: it was accepted."""
        raise NotImplementedError(f"{type(self).__name__}.refused: {log}, {record}")


def outputs(topic: str, count: int, *, partition: int = 0, first: int = 0) -> list[Output]:
    """Records whose values are numbers, one after the other."""
    return [(topic, partition, b"k", b"%d" % n, None, 1_000 + n) for n in range(first, first + count)]


def publish(log: Log, records: Sequence[Output]) -> None:
    """Write records with a writer of their own, and wait for them."""
    writer = log.writer()
    writer.write(records)
    writer.flush()
    writer.close()


def wanted(
    log: Log, topic: str, start: int, stop: int, *, partition: int = 0, leader_epoch: int = 0
) -> Range:
    """A range of a partition."""
    return Range(topic, log.describe([topic])[topic].topic_id, partition, start, stop, leader_epoch)


def read(log: Log, read_range: Range) -> list[Message]:
    """The records of a range."""
    return [message for block in log.read(read_range) for message in block]


def values(log: Log, read_range: Range) -> list[int]:
    """The numbers that records of a range hold."""
    return [int(message.value() or b"-1") for message in read(log, read_range)]


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Ask again and again until a condition holds: brokers learn of a change one after another."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
