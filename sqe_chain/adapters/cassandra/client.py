"""A process's connections to one Cassandra cluster, with bounded times and bounded concurrency."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.concurrent import execute_concurrent
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    HostDistance,
    TokenAwarePolicy,
)
from cassandra.query import BatchStatement, BatchType, PreparedStatement, SimpleStatement, tuple_factory

from sqe_chain.adapters.address import HostPort, ServerSettings, host_port_text
from sqe_chain.adapters.cassandra.faults import RAISED, error_for
from sqe_chain.adapters.store_rules import SizeLimits, raised_as_ours
from sqe_chain.errors import ChainError, ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class CassandraSettings(ServerSettings):
    """How to reach a cluster; see `ServerSettings`.

    Attributes:
        nodes: host and TCP port of some nodes; the others are found.
        keyspace: the keyspace that holds the tables.
        datacenter: the data centre whose nodes are used; empty: that of the first node that answers.
        consistency: of reads of rows, and of the commit of a conditional write.
        serial_consistency: of conditional writes, and of reads of homes and headers.
        check_hostname: whether a certificate must name the address that was connected to.
        protocol_version: of the native protocol: 5, or 4 for servers that have no other.
        batch_statements: most statements of one batch that the servers take.
    """

    nodes: tuple[HostPort, ...] = (("localhost", 9042),)
    keyspace: str = "sqe_chain"
    datacenter: str = ""
    consistency: str = "LOCAL_QUORUM"
    serial_consistency: str = "LOCAL_SERIAL"
    check_hostname: bool = True
    protocol_version: int = 5
    batch_statements: int = 1 << 31

    def __str__(self) -> str:
        """The address without its password."""
        user = f"{self.username}@" if self.username else ""
        nodes = ",".join(map(host_port_text, self.nodes))
        return f"{'cassandras' if self.tls else 'cassandra'}://{user}{nodes}/{self.keyspace}"


Row = tuple[Any, ...]
"""Values of one row, in the order of the columns asked for."""

Statement = tuple[str, "Sequence[object]"]
"""CQL with question marks, and their values."""

_IN_FLIGHT: Final = 16
_ROUND: Final = 64
"""Batches that are made together."""
_RECONNECT_S: Final = 0.5
_LOST_S: Final = 10.0

# The driver logs each lost connection as a warning. An operator who wants to see that sets up logging.
logging.getLogger("cassandra").addHandler(logging.NullHandler())


class CassandraClient:
    """The connections that the threads of one process share.

    Every call raises `Unavailable` where there is no answer, or too few nodes. It raises `ConfigurationError` for login, rights,
    certificate, data centre, kind of server, or a table that is not there.

    Attributes:
        settings: how to reach the cluster.
        version: of the tables, set by the store once it has read it; 0 before that.
        limits: largest sizes that the nodes accept, set by the store; None before that.
    """

    def __init__(self, settings: CassandraSettings) -> None:
        self.settings = settings
        self.version = 0
        self.limits: SizeLimits | None = None
        self._serial = ConsistencyLevel.name_to_value[settings.serial_consistency]
        self._prepared: dict[tuple[str, bool], PreparedStatement] = {}
        self._lost_at: float | None = None
        self._policy = TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.datacenter))
        with self._mapped():
            self._cluster = self._make_cluster()
        try:
            with self._mapped():
                self._session = self._connect()
        except BaseException:
            self._cluster.shutdown()
            raise

    @classmethod
    def of_this_process(cls, settings: CassandraSettings) -> CassandraClient:
        """The process's own client for these settings; a forked child gets a new one."""
        key = (os.getpid(), settings)
        with _locks[os.getpid()]:
            client = _clients.get(key)
            if client is not None and client.lost:
                _clients.pop(key)._cluster.shutdown()  # noqa: SLF001 - the class's own
                client = None
            if client is None:
                client = _clients[key] = cls(settings)
            return client

    @classmethod
    def forget(cls, settings: CassandraSettings) -> None:
        """Close the process's connections, if there are any."""
        with _locks[os.getpid()]:
            client = _clients.pop((os.getpid(), settings), None)
        if client is not None:
            client._cluster.shutdown()  # noqa: SLF001 - the class's own

    @property
    def lost(self) -> bool:
        """Whether no node was reachable for a while: host names may have got other addresses."""
        return self._lost_at is not None and time.monotonic() - self._lost_at > _LOST_S

    def rows(self, statement: Statement, *, serial: bool = False) -> list[Row]:
        """All rows of a reading statement.

        Args:
            statement: what to read.
            serial: first complete or supersede any conditional write in progress, so that the result is
                final, and every later read sees it.
        """
        return self.together([statement], serial=serial)[0]

    def together(
        self, statements: Sequence[Statement], *, serial: bool = False, count: int | None = None
    ) -> list[list[Row]]:
        """Rows of several reading statements, at most 16 at a time, executed in any order.

        Args:
            statements: what to read.
            serial: see `rows`.
            count: rows of a page; None: the driver's default, 5,000.
        """
        with self._mapped():
            calls = []
            for text, values in statements:
                bound = self._statement(text, serial=serial).bind(values)
                if count is not None:
                    bound.fetch_size = count
                calls.append((bound, None))
            done = execute_concurrent(self._session, calls, concurrency=_IN_FLIGHT, raise_on_first_error=True)
            return [list(result) for _, result in done]

    def write(self, batches: Iterable[Sequence[Statement]]) -> None:
        """Write without conditions, many batches at a time, in any order. When it returns all of them stay.

        Args:
            batches: statements that go together, to one partition each; up to a mebibyte. After `Unavailable` some may be
                done, not done, or done later.
        """
        most = self.settings.batch_statements
        waiting = (batch[at : at + most] for batch in batches for at in range(0, len(batch), most))
        # Rounds, because the driver would ask an iterator for more in its own threads.
        while ready := list(islice(waiting, _ROUND)):
            with self._mapped():
                calls = [(self._batch(batch), None) for batch in ready]
                execute_concurrent(self._session, calls, concurrency=_IN_FLIGHT, raise_on_first_error=True)

    def compare_and_set(self, statements: Sequence[Statement]) -> bool:
        """One conditional write to one partition: all statements or none; at least one has a condition.

        After `Unavailable` it may be done, not done, or done later. A serial read of the partition settles it.

        Returns:
            Whether the conditions held, so that everything was written.
        """
        if len(statements) > self.settings.batch_statements:
            raise ConfigurationError(
                f"{self.settings}: {len(statements)} statements have to be done as one batch. Expected at most "
                f"batch_statements={self.settings.batch_statements}. Raise that if the server takes larger ones, else use another"
            )
        with self._mapped():
            if len(statements) == 1:
                ((text, values),) = statements
                return bool(self._session.execute(self._statement(text), values).one()[0])
            return bool(self._session.execute(self._batch(statements)).one()[0])

    def _batch(self, statements: Sequence[Statement]) -> BatchStatement:
        batch = BatchStatement(BatchType.UNLOGGED)  # one partition: it needs no batch log
        for text, values in statements:
            batch.add(self._statement(text), values)
        return batch

    def page(self, statement: Statement, state: bytes | None, count: int) -> tuple[list[Row], bytes | None]:
        """One page of about `count` rows, and where the next one begins (None: there is none)."""
        text, values = statement
        with self._mapped():
            bound = self._statement(text).bind(values)
            bound.fetch_size = count
            result = self._session.execute(bound, paging_state=state)
            return list(result.current_rows), result.paging_state

    def change_schema(self, text: str) -> None:
        """Run a statement of data definition, and wait until the nodes agree on the schema.

        After `Unavailable` a statement with IF NOT EXISTS may be sent again.
        """
        with self._mapped():
            self._session.execute(SimpleStatement(text))

    def of_each_node(self, text: str) -> list[tuple[str, list[Row] | ChainError]]:
        """Rows of a local or virtual table of each node of the data centre.

        Returns:
            (address, rows) of each node; instead of rows the error, where it did not answer or may not be asked.
        """
        answers: list[tuple[str, list[Row] | ChainError]] = []
        for host in self._cluster.metadata.all_hosts():
            if self._policy.distance(host) == HostDistance.IGNORED:
                continue  # in another data centre
            try:
                answer: list[Row] | ChainError = list(self._session.execute(SimpleStatement(text), host=host))
            except RAISED as error:
                answer = error_for(error, str(self.settings)) or ConfigurationError(str(error))
            answers.append((f"{host.address}:{host.endpoint.port}", answer))
        return sorted(answers, key=lambda node: node[0])

    def _make_cluster(self) -> Cluster:
        settings = self.settings
        return Cluster(
            contact_points=settings.nodes,
            port=settings.nodes[0][1],  # of nodes that are found later and do not report their port
            protocol_version=settings.protocol_version,
            auth_provider=PlainTextAuthProvider(settings.username, settings.password)
            if settings.username
            else None,
            ssl_context=_ssl_context(settings) if settings.tls else None,
            # Otherwise the last packet of a large batch waits 40 ms for the acknowledgement of the packet before.
            sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            connect_timeout=settings.connect_timeout_s,
            control_connection_timeout=settings.timeout_s,
            # By default the driver waits longer and longer, up to ten minutes.
            reconnection_policy=ConstantReconnectionPolicy(_RECONNECT_S, max_attempts=None),
            execution_profiles={
                EXEC_PROFILE_DEFAULT: ExecutionProfile(
                    load_balancing_policy=self._policy,
                    consistency_level=ConsistencyLevel.name_to_value[settings.consistency],
                    serial_consistency_level=self._serial,
                    request_timeout=settings.timeout_s,
                    row_factory=tuple_factory,
                    # Keep the driver's own retry policy: it asks another node once, and sending a conditional
                    # write twice is safe.
                )
            },
        )

    def _connect(self) -> Session:
        wanted = self.settings.datacenter
        try:
            session = self._cluster.connect()
        except NoHostAvailable:
            self._check_datacenter(wanted)
            raise
        self._check_datacenter(wanted)
        session._default_timeout = self.settings.timeout_s  # noqa: SLF001 - prepare() takes no timeout
        return session

    def _check_datacenter(self, wanted: str) -> None:
        known = sorted({host.datacenter for host in self._cluster.metadata.all_hosts() if host.datacenter})
        if wanted and known and wanted not in known:
            raise ConfigurationError(
                f"{self.settings}: there is no data centre {wanted!r}; the cluster has {', '.join(known)}"
            )

    def _statement(self, text: str, *, serial: bool = False) -> PreparedStatement:
        prepared = self._prepared.get((text, serial))
        if prepared is None:
            prepared = self._session.prepare(text)
            if serial:
                prepared.consistency_level = self._serial
            self._prepared[text, serial] = prepared
        return prepared

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        with raised_as_ours(RAISED, error_for, str(self.settings)):
            try:
                yield
            except NoHostAvailable:
                self._lost_at = self._lost_at or time.monotonic()
                raise
            self._lost_at = None


def _ssl_context(settings: CassandraSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    context.check_hostname = settings.check_hostname
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file or None)
    return context


_clients: dict[tuple[int, CassandraSettings], CassandraClient] = {}
_locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
"""By process: the thread that held the lock of the parent does not exist in a forked child."""

# The driver's C code crashes a forked child that frees, by its garbage collection, watchers of its parent's event loop.
os.register_at_fork(after_in_child=gc.freeze)
