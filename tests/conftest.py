"""Real servers for tests that request them: started on first use, once for all processes of a run.

They are shared: a test uses topics, groups, flows and keys that no other test uses, and changes no
setting of a server. A test that kills, pauses or reconfigures a server starts its own.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import settings

from tests.support import suites
from tests.support.shared_servers import SharedServers, ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The same examples for the same code: a commit is green or it is not. `make explore` looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)  # tests assert no times
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

LONGEST_ON_SERVERS_S: Final = 300
"""What takes longer, hangs: servers and services start within seconds, but beside others. Without servers: see pyproject.toml."""
_RUN: Final = pytest.StashKey[ExitStack]()
_ADDRESS: Final = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make test` and `make test-fast`."""
    choices = (suites.EVERYTHING, suites.COMMIT, suites.FAST)
    text = "which of the tests run (default: everything); see tests/support/suites.py"
    parser.addoption(suites.OPTION, choices=choices, default=suites.EVERYTHING, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Select the suite also for loops in tests."""
    suites.run_suite(config.getoption(suites.OPTION))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the suite does not run; begin with what takes long, else one core waits for another at the end."""
    without = suites.deselected(items)
    config.hook.pytest_deselected(items=[item for item in items if item in without])
    items[:] = suites.ordered([item for item in items if item not in without])
    for item in items:
        if not item.nodeid.startswith(suites.WITHOUT_SERVERS) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONGEST_ON_SERVERS_S))


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
    client = sys.modules.get("sqe_chain.adapters.cassandra.client")
    if client is not None:
        for settings in {settings for _, settings in client._clients}:
            client.CassandraClient.forget(settings)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each process that runs tests the addresses of the shared servers."""
    stash = node.config.stash
    if _RUN not in stash:
        stash[_RUN], servers = ExitStack(), SharedServers()
        stash[_RUN].callback(servers.close)
        stash[_ADDRESS] = stash[_RUN].enter_context(servers.served())
    node.workerinput["servers"] = stash[_ADDRESS]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where files are not torn apart, those that use Spark stay together, too."""
    from tests.support.spark_in_one_process import SparkInOneProcess  # noqa: PLC0415 - only with xdist

    return SparkInOneProcess(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop them."""
    if _RUN in config.stash:
        config.stash[_RUN].close()


@pytest.fixture(scope="session")
def _address(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """The addresses of servers by name; a process that runs tests alone has servers of its own."""
    if hasattr(request.config, "workerinput"):
        yield partial(ask, request.config.workerinput["servers"])
        return
    servers = SharedServers()
    yield servers.address
    servers.close()


@pytest.fixture(scope="session")
def kafka(_address: Callable[[str], str]) -> str:
    """Address of a real broker, as `host:port`."""
    return _address("kafka")


@pytest.fixture(scope="session")
def redis_url(_address: Callable[[str], str]) -> str:
    """URL of a real, durable Redis."""
    return _address("redis")


@pytest.fixture(scope="session")
def redis_cluster_url(_address: Callable[[str], str]) -> str:
    """Address of a real, durable Redis Cluster of three masters."""
    return _address("redis cluster")


@pytest.fixture(scope="session")
def cassandra_url(_address: Callable[[str], str]) -> str:
    """URL of a real, durable Cassandra with its tables."""
    return _address("cassandra")


@pytest.fixture(scope="session")
def postgres_url(_address: Callable[[str], str]) -> str:
    """URL of a real, durable PostgreSQL with its tables."""
    return _address("postgres")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session on two cores of this machine."""
    from sqe_chain.engines.spark import open_session  # noqa: PLC0415 - unit tests never load Spark

    session = open_session("local[2]", "tests")
    yield session
    session.stop()
