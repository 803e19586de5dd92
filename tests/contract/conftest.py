"""What contracts run on: a real broker, and each engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.engines.spark import SparkEngine
from sqe_chain.engines.workers import Team, WorkersEngine
from tests.support.engine_runs import Made, in_process


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    """Two workers, for one flow after the other."""
    found = Team(2, "workers of a test")
    yield found
    found.close()


@pytest.fixture(params=["in process", "workers", "spark"])
def engine(request: pytest.FixtureRequest) -> Made:
    """Makes each engine in turn."""
    if request.param == "in process":
        return in_process
    if request.param == "workers":
        team: Team = request.getfixturevalue("team")
        return lambda flow, log, stores: WorkersEngine(flow.compile(), log, stores, team)
    spark: SparkSession = request.getfixturevalue("spark")
    return lambda flow, log, stores: SparkEngine(flow.compile(), log, stores, spark)


@pytest.fixture
def log(kafka: str) -> Iterator[KafkaLog]:
    """The broker, as long as a test."""
    found = KafkaLog(kafka)
    yield found
    found.close()
