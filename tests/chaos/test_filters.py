"""Goal: every filter drops what was said before and loses nothing, through kills of its service.

Method: real processes on real servers. A producer says much twice, at two offsets; a republisher in between, killed
before its commits, says everything again; the service with all filters is killed at chosen events.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from filter_flows import BRANCHES, END, HOUR_MS
from google.protobuf.wrappers_pb2 import Int64Value
from processes import KILLED, ROOT, TIMEOUT_S, Run

from services._proto.fastening_pb2 import Fastening
from services.stored import stored_states
from sqe_chain import wrap
from sqe_chain.dev import KafkaServer, RedisServer
from sqe_chain.logs.kafka import KafkaLog
from sqe_chain.sqe_key import SqeKey

pytestmark = pytest.mark.timeout(900)

AT = ("recovered,sealed", "claimed,published", "recovered,sealed,persisted", "recovered,committed")
SPARK = ("--engine", "spark", "--master", "local[2]", "--spark-conf", "spark.driver.memory=512m")
ROBOTS = 5


class Filters:
    """Topics, messages and runs of one test."""

    def __init__(self, kafka: str, store: str, directory: Path) -> None:
        self.name = f"filters-{uuid4().hex[:8]}"
        self.kafka, self.store, self.directory = kafka, store, directory
        self.runs: list[Run] = []
        self.facts: Counter[str] = Counter()
        self.said: Counter[str] = Counter()
        self._random = random.Random(self.name)
        log = KafkaLog(kafka)
        for topic, partitions in (("direct", 2), ("relayed", 2), ("dropped", 1)):
            log.create_topic(f"{self.name}.{topic}", partitions)

    def start(self, flow: str, *more: str, trap: str = "") -> Run:
        environment = {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'plant'}",
            "CHAOS_PLANT": self.name,
        } | ({"CHAOS_TRAP": f"{trap}:SIGKILL"} if trap else {})
        where = ("--kafka", self.kafka, "--store", self.store, "--log-json", "--interval", "100ms")
        engine = () if "--engine" in more else ("--engine", "inprocess")
        log = self.directory / f"{len(self.runs):02}-{flow}.log"
        self.runs.append(Run(("run", f"filter_flows:{flow}", *where, *engine, *more), log, environment))
        return self.runs[-1]

    def dies(self, flow: str, *more: str, at: str) -> None:
        run = self.start(flow, *more, trap=at)
        assert run.ended() == KILLED, run.text

    def once(self, flow: str, *more: str) -> Run:
        run = self.start(flow, "--once", *more)
        assert run.ended() == 0, run.text
        return run

    def feed(self, count: int) -> None:
        """Facts of some robots, each in its own order; half of them are said again at once."""
        for _ in range(count):
            robot = f"robot-{self._random.randrange(ROBOTS)}"
            self.facts[robot] += 1
            self.say(robot, self.facts[robot], 1 + self._random.randrange(2))

    def say(self, robot: str, report: int, times: int, at_ms: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.kafka, "enable.idempotence": True})
        fastening, number = Fastening(robot=robot, report=report), int(robot.rpartition("-")[2])
        at_ms = at_ms or 1_000_000 + report * 100
        key = SqeKey(number, 0, report).to_bytes()
        for _ in range(times):
            self.said[robot] += 1
            value = wrap(fastening, key=key, timestamp_ms=at_ms)
            producer.produce(f"{self.name}.direct", value, key=key, partition=number % 2)
        assert producer.flush(TIMEOUT_S) == 0

    def move_time_on(self) -> None:
        """Far beyond all windows, in every state partition."""
        for number in range(12):
            self.say(f"{END}-{100 + number}", 1, 1, at_ms=1_000_000 + 2 * HOUR_MS)

    def counted(self, branch: str) -> dict[str, int]:
        return {
            row.key.decode(): Int64Value.FromString(row.state).value
            for row in stored_states(self.store, f"{self.name}-filters", f"n-{branch}")
            if not row.key.startswith(END.encode())
        }

    def close(self) -> None:
        for run in self.runs:
            run.close()


@pytest.fixture
def filters(broker: KafkaServer, redis_server: RedisServer, tmp_path: Path) -> Iterator[Filters]:
    made = Filters(broker.bootstrap, redis_server.url, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("engine", [(), SPARK], ids=["inprocess", "spark"])
def test_each_filter_is_exact_through_kills(filters: Filters, engine: tuple[str, ...]) -> None:
    for at in AT if not engine else AT[:3]:
        filters.feed(15)
        filters.dies("relay", at="published")
        filters.dies("filters", *engine, at=at)
    filters.once("relay")
    filters.once("filters", *engine)
    filters.move_time_on()  # only now: what is read behind that is late
    filters.once("relay")
    filters.once("filters", *engine)
    found = {branch: filters.counted(branch) for branch in BRANCHES}
    facts = dict(filters.facts)
    said = {robot: filters.said[robot] for robot in facts}
    assert said != facts
    assert found == dict.fromkeys(BRANCHES, facts) | {
        # The root's path alone cannot tell what a producer said twice: two offsets are two facts.
        "roots": said,
        # The republisher's records are keyed by robot, so that each one's order is kept: without SQE's key they pass.
        "replays": {robot: count + said[robot] for robot, count in facts.items()},
    }
