"""Real servers for every test that asks for one, started once a session and only when asked for.

They are shared: a test uses topics, groups, flows and keys that no other test uses, and changes no
setting of a server. A test that kills, pauses or reconfigures a server starts its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sqe_chain.dev import KafkaServer, RedisServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """Address of a real broker, as `host:port`."""
    with KafkaServer() as server:
        yield server.bootstrap


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a real, durable Redis."""
    with RedisServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session on two cores of this machine."""
    from sqe_chain.engines.spark import open_session  # noqa: PLC0415 - unit tests never load Spark

    session = open_session("local[2]", "tests")
    yield session
    session.stop()
