"""Real servers for tests that request them: started on first use, once per session.

They are shared: a test uses topics, groups, flows and keys that no other test uses, and changes no
setting of a server. A test that kills, pauses or reconfigures a server starts its own.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from sqe_chain.dev import CassandraServer, KafkaServer, RedisServer
from sqe_chain.stores import open_store
from tests.support import sampling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The same examples for the same code: a commit is green or it is not. `make explore` looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)  # tests assert no times
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

LONGEST = (
    "tests/chaos/",
    "tests/contract/test_store_faults.py",
    "tests/contract/test_lost_workers.py",
    "tests/integration/test_docs_commands.py",
    "tests/integration/test_overwrite.py",
    "tests/integration/test_running.py",
    "tests/integration/test_cli.py",
    "tests/integration/test_files.py",
    "tests/integration/test_peers.py",
)
"""Files with tests that take longest."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `make test` and `make test-fast`."""
    text = "of cases that differ little, run a few, drawn by the commit (default: all)"
    parser.addoption(sampling.OPTION, action="store_true", help=text)
    parser.addoption(
        sampling.FAST, action="store_true", help="the same, few of all tests, and none that is slow"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tell loops in tests, too."""
    sampling.sample_from_now_on(sampling=_samples(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a sample does not run; begin with files that take long, else one core waits for another at the end."""
    if _samples(config):
        without = sampling.left_out(items, fast=config.getoption(sampling.FAST, default=False))
        config.hook.pytest_deselected(items=without)
        left_out = set(without)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))  # the others stay in their order


def _samples(config: pytest.Config) -> bool:
    return any(config.getoption(option, default=False) for option in (sampling.OPTION, sampling.FAST))


def pytest_collection_finish() -> None:
    """Prepare this process, and those that tests start, for running them."""
    # Of two versions of a file within a second, which some tests write, one's bytecode could be taken for the other's.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    # Else every seventh second goes into looking through thousands of tests, again and again, for garbage.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def _stores_closed() -> Iterator[None]:
    """Close stores, because threads of Cassandra's driver raise errors when the interpreter ends before them."""
    yield
    client = sys.modules.get("sqe_chain.stores.cassandra.client")
    if client is not None:
        for settings in {settings for _, settings in client._clients}:
            client.CassandraClient.forget(settings)


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """Address of a real broker, as `host:port`."""
    with KafkaServer(fast_boot=True) as server:
        yield server.bootstrap


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a real, durable Redis."""
    with RedisServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """Address of a real, durable Redis Cluster of three masters."""
    from tests.support.redis_servers import RedisCluster  # noqa: PLC0415 - unit tests load no driver

    with RedisCluster() as cluster:
        yield cluster.url


@pytest.fixture(scope="session")
def cassandra_url() -> Iterator[str]:
    """URL of a real, durable Cassandra with its tables."""
    from sqe_chain.stores.cassandra import CassandraStore  # noqa: PLC0415 - unit tests load no driver

    with CassandraServer() as server:
        store = open_store(server.url)
        assert isinstance(store, CassandraStore)
        store.make_schema({"": 1})
        yield server.url
        store.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session on two cores of this machine."""
    from sqe_chain.engines.spark import open_session  # noqa: PLC0415 - unit tests never load Spark

    session = open_session("local[2]", "tests")
    yield session
    session.stop()
