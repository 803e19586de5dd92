"""Goal: joins on Spark join each value once, with what there was at its own time, through kills of their service.

Method: real processes on real servers. Orders come by a republisher that is killed before its commits, so it publishes them
again. The service with a join with a table and a join of two streams is killed at chosen events. The test compares what
receivers get with loops over all that was ever published.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqe_chain import read
from sqe_chain.ports import Range
from tests.support.join_flows import AFTER_MS, BEFORE_MS, OUTPUTS, Fact
from tests.support.receiving import received
from tests.support.service_processes import Deployment

pytestmark = pytest.mark.timeout(1500)

AT = ("recovered,sealed", "claimed,published+outputs", "claimed,published+outputs,persisted")
SPARK = ("--master", "local[2]", "--spark-conf", "spark.driver.memory=512m")
KEYS = 8
ROUND_MS = 5_000
END = "end"
"""Keys that begin so only move event time on."""
Joined = Counter[tuple[str, int, int | None]]
"""Key, number of the order, number of what it was joined with -> how often."""


class Joins(Deployment):
    """The facts of one test."""

    def __init__(self, kafka: str, store: str, directory: Path) -> None:
        topics = {"orders": 2, "relayed": 2, "customers": 2, "payments": 2, "named": 2, "paid": 2}
        super().__init__("tests.support.join_flows", kafka, store, directory, topics)
        self.published: dict[str, list[Fact]] = {"orders": [], "customers": [], "payments": []}
        self._random = random.Random(7)
        self._now_ms = 1_000_000
        self._unsent: list[tuple[str, Fact]] = []

    def feed(self, count: int) -> None:
        """Orders, payments and changes of customers, in the order of their times; not every key has every kind."""
        for _ in range(count):
            self._now_ms += self._random.randrange(ROUND_MS // count)
            topic = self._random.choice(list(self.published))
            keys = range(KEYS) if topic == "orders" else range(1, KEYS)
            self.publish(topic, f"key-{self._random.choice(keys)}")
        self.move_time_on(0)

    def publish(self, topic: str, key: str) -> None:
        fact = {"key": key, "number": len(self.published[topic]), "at_ms": self._now_ms}
        self.published[topic].append(fact)
        self._unsent.append((topic, fact))

    def move_time_on(self, by_ms: int) -> None:
        """Facts of each kind for each partition, so that all of them go on to the same time; and send all facts."""
        self._now_ms += by_ms
        for topic in self.published:
            for number in range(6):  # the republisher chooses partitions by key
                self.publish(topic, f"{END}-{number}")
        for topic in self.published:
            own = [fact for name, fact in self._unsent if name == topic]
            self.produce(topic, [(partition_of(fact["key"]), json.dumps(fact).encode()) for fact in own])
        self._unsent.clear()

    def received(self, topic: str) -> Joined:
        """What a receiver gets that ignores replays."""
        name, found = self.topic(topic), Joined()
        info = self.log.describe([name])[name]
        places = [(name, partition) for partition in range(info.partitions)]
        ranges = [
            Range(name, info.topic_id, partition, bound.begin, bound.stable_end)
            for (_, partition), bound in self.log.bounds(places).items()
        ]
        messages = (one for read_all in ranges for block in self.log.read(read_all) for one in block)
        for message in received(name, info.topic_id, messages):
            for fact in read(message.value() or b"").payloads_as(dict):
                assert fact is not None
                if not fact["key"].startswith(END):
                    found[fact["key"], fact["order"], fact["other"]] += 1
        return found

    def expected(self) -> dict[str, Joined]:
        """The same, by loops over all facts."""
        named, paid = Joined(), Joined()
        for order in self.published["orders"]:
            if order["key"].startswith(END):
                continue
            place = order["key"], order["number"]
            own = [fact for fact in self.published["customers"] if fact["key"] == order["key"]]
            held = [one["number"] for one in own if one["at_ms"] <= order["at_ms"]]
            named[(*place, held[-1] if held else None)] += 1
            near = [
                fact["number"]
                for fact in self.published["payments"]
                if fact["key"] == order["key"]
                and order["at_ms"] - BEFORE_MS <= fact["at_ms"] <= order["at_ms"] + AFTER_MS
            ]
            for number in near or [None]:
                paid[(*place, number)] += 1
        return {"named": named, "paid": paid}


def partition_of(key: str) -> int:
    """Of the raw topics: not where Kafka's partitioner would put it, so each partition has records for both state partitions."""
    return sum(key.encode()) % 2


@pytest.fixture
def joins(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[Joins]:
    made = Joins(kafka, redis_url, tmp_path)
    yield made
    made.close()


@pytest.mark.release
def test_joins_on_spark_are_exact_through_kills(joins: Joins) -> None:
    for at in AT:
        joins.feed(60)
        # The second batch states how far the first has come, and is republished by the next run.
        joins.run_until_killed("relay", "--max-records", "10", at="committed,published")
        joins.run_until_killed("joins", *SPARK, at=at, engine="spark")
    joins.feed(30)
    joins.move_time_on(2 * AFTER_MS)  # so that no partner can come any more
    joins.run_once("relay")
    last = joins.run_once("joins", *SPARK, engine="spark")
    expected = joins.expected()
    assert {topic: joins.received(topic) for topic in OUTPUTS} == expected
    assert any(other is None for _, _, other in expected["named"])
    assert any(other is None for _, _, other in expected["paid"])
    assert max(Counter(order for _, order, _ in expected["paid"]).values()) > 1, "an order with two payments"
    assert sum(line["replays"] for line in last.all("committed")) > 0
