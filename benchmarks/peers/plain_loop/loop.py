"""The workloads as one plain, tuned loop, at least once, in an environment of its own: it imports nothing of the project.

    python loop.py WORKLOAD BOOTSTRAP GROUP SOURCE TARGET REDIS_URL

It runs until it is killed, and prints "first" with its first block. Once a second it writes the totals that have changed
to Redis, publishes them, and commits. A crash repeats up to a second of records, and nothing takes out what was
added twice. One process has all keys, so two stages need no shuffle.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import orjson
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from redis import Redis

BLOCK = 1_000
COMMIT_INTERVAL_S = 1.0
FIELDS = ("events", "fastened", "failed")

Value = dict[str, Any]


class Publisher:
    """Hands records over to the client.

    Args:
        bootstrap: Kafka.
        target: the output topic.
    """

    def __init__(self, bootstrap: str, target: str) -> None:
        self._target = target
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 5,  # the default, which plain loops have
                "compression.type": "lz4",
                "linger.ms": 5,
                "partitioner": "murmur2",
                "queue.buffering.max.messages": 200_000,
                "queue.buffering.max.kbytes": 65536,
            }
        )
        self.flush = self._producer.flush
        self.poll = self._producer.poll

    def publish(self, key: str | bytes, value: bytes) -> None:
        """Publish a record; wait while the client's queue is full."""
        while True:
            try:
                self._producer.produce(self._target, value, key)
            except BufferError:
                self._producer.poll(0.01)
            else:
                return


class Totals:
    """Sums by key, in memory, and in a hash of Redis once an interval."""

    def __init__(self, redis: Redis, name: str) -> None:
        self._redis = redis
        self._name = name
        self._sums: dict[bytes, list[int]] = {}
        self._changed: set[bytes] = set()

    def add(self, pairs: Iterable[tuple[bytes, Value]]) -> None:
        """Add records to their keys."""
        sums, changed = self._sums, self._changed
        for key, value in pairs:
            total = sums.get(key)
            if total is None:
                total = sums[key] = [0, 0, 0]
            total[0] += 1
            total[1] += value["fastened"]
            total[2] += value["failed"]
            changed.add(key)

    def store(self) -> dict[bytes, bytes]:
        """Write what has changed to Redis; returns it as JSON."""
        written = {
            key: orjson.dumps(dict(zip(FIELDS, self._sums[key], strict=True))) for key in self._changed
        }
        if written:
            self._redis.hset(self._name, mapping=written)
        self._changed.clear()
        return written


class Workload(Protocol):
    """What is done with a block of records, and before each commit."""

    def take(self, block: Sequence[Message]) -> None:
        """Process records."""

    def finish(self) -> None:
        """Write and publish what is left."""


class FlatMap:
    """W1."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def take(self, block: Sequence[Message]) -> None:
        """Publish two values with two keys for each record."""
        loads, dumps, publish = orjson.loads, orjson.dumps, self._publisher.publish
        for message in block:
            value = loads(message.value())
            robot, common = value["robot"], {"joint": value["joint"], "report": value["report"]}
            other = robot + "!"
            publish(robot, dumps({"robot": robot, **common, "screws": value["fastened"]}))
            publish(other, dumps({"robot": other, **common, "screws": value["failed"]}))
        self._publisher.poll(0)

    def finish(self) -> None:
        """Nothing is left."""


class Fold:
    """W2, and the second half of W3."""

    def __init__(self, publisher: Publisher, totals: Totals) -> None:
        self._publisher = publisher
        self._totals = totals

    def take(self, block: Sequence[Message]) -> None:
        """Add records to their robots."""
        loads = orjson.loads
        self._totals.add([(message.key(), loads(message.value())) for message in block])

    def finish(self) -> None:
        """Store and publish the totals that have changed."""
        for key, value in self._totals.store().items():
            self._publisher.publish(key, value)


class TwoStages:
    """W3."""

    def __init__(self, publisher: Publisher, robots: Totals, lines: Totals) -> None:
        self._robots = robots
        self._lines = lines
        self._published = Fold(publisher, lines)

    def take(self, block: Sequence[Message]) -> None:
        """Add records to their robots and to their lines."""
        loads = orjson.loads
        values = [(message.key(), loads(message.value())) for message in block]
        self._robots.add(values)
        self._lines.add([(value["line"].encode(), value) for _, value in values])

    def finish(self) -> None:
        """Store all totals, and publish those of lines."""
        self._robots.store()
        self._published.finish()


def run(consumer: Consumer, source: str, workload: Workload, publisher: Publisher) -> None:
    """Consume without end."""
    partitions = consumer.list_topics(source).topics[source].partitions
    ends = dict.fromkeys(partitions, 0)
    consumer.assign([TopicPartition(source, number, 0) for number in partitions])
    begun, open_since = False, 0.0
    while True:
        block = consumer.consume(BLOCK, 0.1)
        now = time.monotonic()
        for message in block:
            if message.error():
                raise RuntimeError(message.error())
            ends[message.partition()] = message.offset() + 1
        if block and not begun:
            begun = True
            print("first", flush=True)
        workload.take(block)
        open_since = open_since or (now if block else 0.0)
        if open_since and (not block or now - open_since >= COMMIT_INTERVAL_S):
            workload.finish()
            publisher.flush()
            consumer.commit(
                offsets=[TopicPartition(source, number, end) for number, end in ends.items()],
                asynchronous=False,
            )
            open_since = 0.0


def main(arguments: list[str]) -> None:
    """Run one workload."""
    name, bootstrap, group, source, target, redis_url = arguments
    publisher, redis = Publisher(bootstrap, target), Redis.from_url(redis_url)
    robots, lines = Totals(redis, f"{group}/robots"), Totals(redis, f"{group}/lines")
    workloads: dict[str, Workload] = {
        "w1-flat-map": FlatMap(publisher),
        "w2-fold": Fold(publisher, robots),
        "w3-two-stages": TwoStages(publisher, robots, lines),
    }
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 2,
        }
    )
    run(consumer, source, workloads[name], publisher)


if __name__ == "__main__":
    main(sys.argv[1:])
