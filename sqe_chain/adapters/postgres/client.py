"""A process's connections to PostgreSQL, with bounded times and no retries of their own.

A connection has no state that a later statement needs: no prepared statements, no settings, no locks. Each call is one
statement, which PostgreSQL commits by itself. So a pooler may give each of them another connection of the server.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.abc import RV, PQGen

from sqe_chain.adapters.address import HostPort, ServerSettings, host_port_text
from sqe_chain.adapters.postgres.faults import error_for
from sqe_chain.adapters.store_rules import raised_as_ours

Row = tuple[Any, ...]
"""Values of one row, in the order of the columns asked for."""

_INTERVAL_S: Final = 0.1
"""How often psycopg looks for Ctrl-C."""

_LEAST_CONNECT_S: Final = 2
"""libpq waits no shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings(ServerSettings):
    """How to reach a database; see `ServerSettings`.

    Attributes:
        servers: host and TCP port of each server; the first one that takes writes is used.
        database: name of the database.
        schema: schema that holds the tables.
        sslmode: libpq's; `verify-full` encrypts, and verifies the server and its name.
    """

    servers: tuple[HostPort, ...] = (("localhost", 5432),)
    database: str = "sqe_chain"
    schema: str = "sqe_chain"
    sslmode: str = "prefer"

    def __str__(self) -> str:
        """The address without its password."""
        user = f"{self.username}@" if self.username else ""
        servers = ",".join(map(host_port_text, self.servers))
        schema = f"?schema={self.schema}" if self.schema != "sqe_chain" else ""
        return f"postgres://{user}{servers}/{self.database}{schema}"

    def parameters(self) -> dict[str, str | int]:
        """What libpq takes. Nothing is sent to the server that poolers do not know."""
        given = {
            "user": self.username,
            "password": self.password,
            "sslrootcert": (self.ca_file or "system") if self.tls else "",
            "sslcert": self.cert_file,
            "sslkey": self.key_file,
        }
        return {
            "host": ",".join(host for host, _ in self.servers),
            "port": ",".join(str(port) for _, port in self.servers),
            "dbname": self.database,
            "sslmode": self.sslmode,
            "target_session_attrs": "read-write",  # a replica may lag behind what was acknowledged
            "client_encoding": "UTF8",
            "connect_timeout": max(_LEAST_CONNECT_S, math.ceil(self.connect_timeout_s)),
            **{name: value for name, value in given.items() if value},
        }


class _Connection(psycopg.Connection[Row]):
    """A connection that waits no longer for an answer than its settings allow."""

    longest_s: float = ServerSettings().timeout_s

    def wait(self, gen: PQGen[RV], interval: float = _INTERVAL_S, timeout: float | None = None) -> RV:
        return super().wait(gen, interval, self.longest_s if timeout is None else timeout)


class PostgresClient:
    """The connections that the threads of one process share: as many as threads that wait at once.

    Every call raises `Unavailable` where there is no answer, and `ConfigurationError` for login, rights, or missing tables.

    Attributes:
        settings: how to reach the database.
        version: of the tables, set by the store once it has read it; 0 before that.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings = settings
        self.version = 0
        self._idle: list[_Connection] = []

    @classmethod
    def of_this_process(cls, settings: PostgresSettings) -> PostgresClient:
        """The process's own client for these settings; a forked child gets a new one."""
        key = (os.getpid(), settings)
        return _clients.get(key) or _clients.setdefault(key, cls(settings))

    @classmethod
    def forget(cls, settings: PostgresSettings) -> None:
        """Close the process's connections, if there are any; one in use is closed when its call ends."""
        client = _clients.pop((os.getpid(), settings), None)
        if client is not None:
            client._close_idle()  # noqa: SLF001 - the class's own

    def rows(self, text: str, values: Mapping[str, object] | None = None) -> list[Row]:
        """Run one statement, which commits by itself.

        Args:
            text: SQL, with names as in `%(flow)s`.
            values: name -> value.

        Returns:
            Its rows; [] of a statement that gives none.

        Raises:
            Unavailable: no answer, or an unknown outcome. Sending it again is safe where the statement compares.
        """
        with self._connected() as connection:
            return _rows(connection, text, values)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[_Connection]:
        """One transaction of several statements, for changes of the schema."""
        with self._connected() as connection, connection.transaction():
            yield connection

    @contextlib.contextmanager
    def _connected(self) -> Iterator[_Connection]:
        with raised_as_ours((psycopg.Error, OSError), error_for, str(self.settings)):
            connection = self._take()
            try:
                yield connection
            except BaseException:
                if connection.broken or connection.pgconn.transaction_status != _IDLE:
                    connection.close()
                    self._close_idle()  # whatever broke it has most likely broken them, too
                else:
                    self._give_back(connection)
                raise
            self._give_back(connection)

    def _take(self) -> _Connection:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        parameters: dict[str, Any] = self.settings.parameters()
        connection = _Connection.connect(autocommit=True, prepare_threshold=None, **parameters)
        connection.longest_s = self.settings.timeout_s
        return connection

    def _give_back(self, connection: _Connection) -> None:
        if _clients.get((os.getpid(), self.settings)) is self:
            self._idle.append(connection)
        else:
            connection.close()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:  # bounded by the threads that give connections back
                self._idle.pop().close()


def _rows(connection: _Connection, text: str, values: Mapping[str, object] | None) -> list[Row]:
    try:
        cursor = connection.execute(text, values, binary=True)
    except errors._WaitTimeout as error:  # noqa: SLF001 - psycopg hands it on to the caller
        connection.close()  # its answer would be taken for that of the next statement
        late = f"no answer within {connection.longest_s:g} s"
        raise psycopg.OperationalError(late) from error
    return cursor.fetchall() if cursor.description else []


_IDLE: Final = psycopg.pq.TransactionStatus.IDLE
_clients: dict[tuple[int, PostgresSettings], PostgresClient] = {}
