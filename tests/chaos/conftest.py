"""Deployments on the servers of the whole run; and a broker and a Redis for a file whose tests kill, pause, empty or restore them.

Each test finds them running; a test has topics, groups and flows of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sqe_chain.ext.dev import KafkaServer, RedisServer
from tests.support.totals_deployment import TotalsDeployment


@pytest.fixture(scope="module")
def _broker() -> Iterator[KafkaServer]:
    with KafkaServer(fast_boot=True) as server:
        yield server


@pytest.fixture(scope="module")
def _redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def broker(_broker: KafkaServer) -> KafkaServer:
    """A broker that tests may kill, pause or empty."""
    if not _broker.running:
        _broker.start()
    return _broker


@pytest.fixture
def redis_server(_redis: RedisServer) -> RedisServer:
    """A Redis that tests may kill, pause or empty."""
    if not _redis.running:
        _redis.start()
    return _redis


@pytest.fixture
def deploy(
    kafka: str, redis_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., TotalsDeployment]]:
    """Deploys the flows of `chaos_flows`; their processes end with the test.

    `store` is `redis`, `postgres` or `sqlite`; everything else is an argument of `TotalsDeployment`.
    """
    made: list[TotalsDeployment] = []

    def make(store: str = "redis", *, broker: str = kafka, **more: object) -> TotalsDeployment:
        url = redis_url if store == "redis" else f"sqlite://{tmp_path}/states.db"
        if store == "postgres":
            url = request.getfixturevalue("postgres_url")
        made.append(TotalsDeployment(broker, url, tmp_path, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for deployment in made:
        deployment.close()


@pytest.fixture
def deployment(deploy: Callable[..., TotalsDeployment]) -> TotalsDeployment:
    """A deployment with Redis."""
    return deploy()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report at the end that the tests in containers did not run: a skipped test is easily overlooked."""
    for report in terminalreporter.stats.get("skipped", []):
        if "test_compose.py" in report.nodeid:
            terminalreporter.section("CHAOS IN DOCKER COMPOSE WAS NOT RUN", sep="!", red=True, bold=True)
            terminalreporter.line(report.longrepr[2], red=True)
