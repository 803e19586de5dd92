"""Goal: every filter drops duplicates and loses nothing, through kills of its service.

Method: real processes on real servers. A producer publishes much twice, at two offsets. A republisher in between, killed
before its commits, publishes everything again. The service with all filters is killed at chosen events.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from services._proto.fastening_pb2 import Fastening
from services.stored import stored_states
from sqe_chain import wrap
from sqe_chain.envelope.sqe_key import SqeKey
from tests.support.filter_flows import BRANCHES, HEARTBEAT_PREFIX, HOUR_MS
from tests.support.service_processes import Deployment
from tests.support.suites import some

pytestmark = pytest.mark.timeout(1500)

AT = ("recovered,sealed", "claimed,published", "recovered,sealed,persisted", "recovered,committed")
SPARK = ("--master", "local[2]", "--spark-conf", "spark.driver.memory=512m")
ROBOTS = 5


class Filters(Deployment):
    """The messages of one test."""

    def __init__(self, kafka: str, store: str, directory: Path) -> None:
        super().__init__(
            "tests.support.filter_flows", kafka, store, directory, {"direct": 2, "relayed": 2, "dropped": 1}
        )
        self.facts: Counter[str] = Counter()
        self.published: Counter[str] = Counter()
        self._random = random.Random(7)

    def feed(self, count: int) -> None:
        """Facts of some robots, each in its own order; half of them are repeated at once."""
        for _ in range(count):
            robot = f"robot-{self._random.randrange(ROBOTS)}"
            self.facts[robot] += 1
            self.publish(robot, self.facts[robot], 1 + self._random.randrange(2))

    def publish(self, robot: str, report: int, times: int, at_ms: int = 0) -> None:
        fastening, number = Fastening(robot=robot, report=report), int(robot.rpartition("-")[2])
        at_ms = at_ms or 1_000_000 + report * 100
        key = SqeKey(number, 0, report).to_bytes()
        self.published[robot] += times
        self.produce("direct", [(number % 2, wrap(fastening, key=key, timestamp_ms=at_ms))] * times, key)

    def move_time_on(self) -> None:
        """Move event time far beyond all windows, in every state partition."""
        for number in range(12):
            self.publish(f"{HEARTBEAT_PREFIX}-{100 + number}", 1, 1, at_ms=1_000_000 + 2 * HOUR_MS)

    def counted(self, branch: str) -> dict[str, int]:
        return {
            row.key.decode(): Int64Value.FromString(row.state).value
            for row in stored_states(self.store, f"{self.name}-filters", f"n-{branch}")
            if not row.key.startswith(HEARTBEAT_PREFIX.encode())
        }


@pytest.fixture
def filters(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[Filters]:
    made = Filters(kafka, redis_url, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("engine", ["inprocess", pytest.param("spark", marks=pytest.mark.release)])
def test_each_filter_is_exact_through_kills(filters: Filters, engine: str) -> None:
    more = SPARK if engine == "spark" else ()
    kills, every = (AT[:3], 3) if engine == "spark" else (AT, 4)
    for at in some(f"kills of filters, {engine}", kills, every):
        filters.feed(15)
        filters.run_until_killed("relay", at="published")
        filters.run_until_killed("filters", *more, at=at, engine=engine)
    filters.run_once("relay")
    filters.run_once("filters", *more, engine=engine)
    filters.move_time_on()  # only now: records read after that are late
    filters.run_once("relay")
    filters.run_once("filters", *more, engine=engine)
    found = {branch: filters.counted(branch) for branch in BRANCHES}
    facts = dict(filters.facts)
    published = {robot: filters.published[robot] for robot in facts}
    assert published != facts
    assert found == dict.fromkeys(BRANCHES, facts) | {
        # The root's path alone does not show that a producer published a record twice: two offsets are two facts.
        "roots": published,
        # The republisher's records are keyed by robot, so that each one's order is kept: without SQE's key they pass.
        "replays": {robot: count + published[robot] for robot, count in facts.items()},
    }
