"""Reads topics from outside while a storm goes on: what the republisher publishes, and the totals. Only what is committed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from benchmarks.storm.facts import fact_in
from benchmarks.storm.oracle import Published, Reader

CLOSER = "closing-"
CLOSERS = 24
"""Robots whose only fact comes behind all others, in each partition of what the republisher publishes."""

PARTITIONS = 4
_BLOCK = 5_000
_WAIT_S = 0.1


@dataclass(slots=True)
class Watcher:
    """Reads both topics in the background, within its context.

    Args:
        bootstrap: Kafka.
        items: topic of the republisher.
        totals: topic of the consumer.

    Attributes:
        published: of the republisher.
        reader: of the totals.
        passed: closing robots whose fact was seen: all that was published before is in `published`.
        closed: closing robots whose total was seen.
    """

    bootstrap: str
    items: str
    totals: str
    published: Published = field(default_factory=Published)
    reader: Reader = field(default_factory=Reader)
    passed: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    _left: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Begin."""
        for topic, take in ((self.items, self._take_item), (self.totals, self._take_total)):
            self._threads.append(threading.Thread(target=self._read, args=(topic, take), daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._left.set()
        for thread in self._threads:
            thread.join()

    def _read(self, topic: str, take: Callable[[str, bytes], None]) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{topic}.watcher",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,  # the broker is killed on purpose
            }
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        while not self._left.is_set():
            for message in consumer.consume(_BLOCK, _WAIT_S):
                if message.error() is None and message.value() is not None:
                    take((message.key() or b"").decode(), message.value() or b"")
        consumer.close()

    def _take_item(self, robot: str, value: bytes) -> None:
        if robot.startswith(CLOSER):
            self.passed.add(robot)
        else:
            self.published.take(fact_in(robot, json.loads(value)["amount"]))

    def _take_total(self, robot: str, value: bytes) -> None:
        if robot.startswith(CLOSER):
            self.closed.add(robot)
        else:
            total = json.loads(value)
            self.reader.take(robot, total["events"], total["sum"])


def wait(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.1) -> bool:
    """Wait until a condition holds; returns whether it did in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(every_s)
    return True
