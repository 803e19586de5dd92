"""Servers that all processes of one run of tests share: the first that asks for one has it started, the run's end stops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Client, Connection, Listener
from threading import Lock, Thread
from typing import Final

from sqe_chain.adapters import open_store
from sqe_chain.ext.dev import CassandraServer, KafkaServer, PostgresServer, RedisServer


def _kafka(run: ExitStack) -> str:
    return run.enter_context(KafkaServer(fast_boot=True)).bootstrap


def _redis(run: ExitStack) -> str:
    return run.enter_context(RedisServer()).url


def _redis_cluster(run: ExitStack) -> str:
    from tests.support.redis_servers import RedisCluster  # noqa: PLC0415 - unit tests load no driver

    return run.enter_context(RedisCluster()).url


def _cassandra(run: ExitStack) -> str:
    from sqe_chain.adapters.cassandra import CassandraStore  # noqa: PLC0415 - unit tests load no driver
    from sqe_chain.adapters.cassandra.client import CassandraClient  # noqa: PLC0415

    server = run.enter_context(CassandraServer(heap_mb=768))  # for the tables of all tests of a run
    store = open_store(server.url)
    assert isinstance(store, CassandraStore)
    store.make_schema({"": 1})
    CassandraClient.forget(store.settings)
    return server.url


def _postgres(run: ExitStack) -> str:
    from sqe_chain.adapters.postgres import PostgresStore  # noqa: PLC0415 - unit tests load no driver

    server = run.enter_context(PostgresServer())
    store = open_store(server.url)
    assert isinstance(store, PostgresStore)
    store.make_schema({})
    store.close()
    return server.url


STARTS: Final[dict[str, Callable[[ExitStack], str]]] = {
    "kafka": _kafka,
    "redis": _redis,
    "redis cluster": _redis_cluster,
    "cassandra": _cassandra,
    "postgres": _postgres,
}


class SharedServers:
    """Servers by name; each is started when it is asked for first, by whatever thread."""

    def __init__(self) -> None:
        self._run = ExitStack()
        self._addresses: dict[str, str] = {}
        self._starting = {name: Lock() for name in STARTS}

    def address(self, name: str) -> str:
        """Where a server listens: `host:port` of Kafka, URLs of stores."""
        with self._starting[name]:
            if name not in self._addresses:
                self._addresses[name] = STARTS[name](self._run)
            return self._addresses[name]

    def close(self) -> None:
        """Stop those that were started."""
        self._run.close()

    @contextmanager
    def served(self) -> Iterator[str]:
        """Answer other processes of this user; gives the address for `ask`."""
        listener = Listener(family="AF_UNIX")
        Thread(target=self._serve, args=(listener,), daemon=True).start()
        with listener:
            yield str(listener.address)

    def _serve(self, listener: Listener) -> None:
        while True:
            try:
                connection = listener.accept()
            except OSError:
                return
            Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            try:
                connection.send(self.address(connection.recv()))
            except Exception as error:  # noqa: BLE001 - the process that asked raises it
                connection.send(error)


def ask(run: str, name: str) -> str:
    """Where the server is that another process shares.

    Args:
        run: what `SharedServers.served` gave.
        name: of the server.
    """
    with Client(run, family="AF_UNIX") as connection:
        connection.send(name)
        answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return str(answer)
