"""Connections to single servers: commands are sent together, raw replies come back in order.

redis-py's connections and pools are used, but not its clients and pipelines: a pipeline of its cluster
client cannot run scripts, and repeats redirected commands out of order. Both of its pipelines put the
commands, and so the states, into error texts.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

from sqe_chain.adapters.redis.faults import Meaning, meaning_of
from sqe_chain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager


HostPort: TypeAlias = tuple[str, int]
"""Host and port of a server."""


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """How to reach the server or servers. Pickled with a store, passwords included, so that tasks can log in.

    Attributes:
        kind: one server, a Redis Cluster, or the master behind sentinels.
        host: name or address; for one server only.
        port: TCP port; for one server only.
        nodes: for a cluster: nodes to begin with, any one of them is enough. With sentinels: these.
        service: the sentinels' name for the master.
        db: number of the database; 0 in a cluster.
        username: ACL user; empty for the default user.
        password: empty for none; never shown.
        sentinel_username: ACL user of the sentinels.
        sentinel_password: password for the sentinels; empty for none; never shown.
        tls: encrypt, and verify the server's certificate and name.
        ca_file: certificates to trust; empty for the system's.
        cert_file: the client's own certificate; empty for none.
        key_file: its key.
        protocol: 2 or 3, the version of RESP; 0: what redis-py prefers.
        timeout_s: longest wait for an answer, in seconds.
        connect_timeout_s: longest wait for a connection, in seconds.
        wait_replicas: replicas that must have a write before it counts as acknowledged (WAIT); 0: none.
        wait_aof_replicas: replicas that must have it on disk (WAITAOF, Redis 7.2); 0: none.
        wait_ms: longest wait for these replicas, in milliseconds; shorter than `timeout_s`.
    """

    kind: Literal["server", "cluster", "sentinel"] = "server"
    host: str = "localhost"
    port: int = 6379
    nodes: tuple[HostPort, ...] = ()
    service: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    protocol: int = 0
    timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    wait_replicas: int = 0
    wait_aof_replicas: int = 0
    wait_ms: int = 1_000

    def __str__(self) -> str:
        """The address without its passwords."""
        scheme = "rediss" if self.tls else "redis"
        user = f"{self.username}@" if self.username else ""
        nodes = ",".join(map(shown, self.nodes))
        match self.kind:
            case "cluster":
                return f"{scheme}+cluster://{user}{nodes}"
            case "sentinel":
                return f"{scheme}+sentinel://{user}{nodes}/{self.service}/{self.db}"
            case _:
                return f"{scheme}://{user}{shown((self.host, self.port))}/{self.db}"


def shown(address: HostPort) -> str:
    """Host and port as written in an address.

    >>> shown(("::1", 7000))
    '[::1]:7000'
    """
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


Argument: TypeAlias = bytes | str | int
Command: TypeAlias = "Sequence[Argument]"
Reply: TypeAlias = "bytes | int | list[Reply] | dict[bytes, Reply] | None"
"""What Redis answers, undecoded."""
Answer: TypeAlias = "Reply | ResponseError"
"""A reply, or the error that the server sent instead of one."""


class Servers(Protocol):
    """One server or several, as the store sees them. Errors of redis-py pass through."""

    def exchange(self, commands: Sequence[Command]) -> list[Answer]:
        """Send commands in one round trip; those on keys of one slot are executed in their order."""

    def exchange_in_slot(self, commands: Sequence[Command]) -> list[Answer]:
        """The same for commands on one slot, that of the first command's key, over one connection."""

    def pinned(self, key: str) -> AbstractContextManager[Callable[[Command], Reply]]:
        """One connection to the key's server, for commands whose cursors are valid only there."""

    def each(self, command: Command) -> dict[str, Answer]:
        """Send a command to every server that takes writes; its address -> its answer."""

    def masters(self) -> Sequence[Server]:
        """All servers that take writes, as they are known now."""

    def failover(self) -> bool | None:
        """Whether a replica may replace a server without having all its acknowledged writes; None: unknown."""

    def close(self) -> None:
        """Close all connections; a later call opens them again."""


class Server(Servers):
    """One server, or the one that the sentinels name now.

    Args:
        settings: login, TLS, times.
        address: host and port. None: settings that name it, or the sentinels.
    """

    def __init__(self, settings: RedisSettings, address: HostPort | None = None) -> None:
        self._settings = settings
        if settings.kind == "sentinel":
            follow: Callable[..., ConnectionPool] = SentinelConnectionPool  # redis-py leaves it untyped
            sentinels = _Sentinels(settings)
            self._pool = follow(settings.service, sentinels, ssl=settings.tls, **_options(settings))
        else:
            self._pool = _pool(settings, address or (settings.host, settings.port))

    def exchange(self, commands: Sequence[Command]) -> list[Answer]:
        # In their order, whatever their slots are
        with self._connection() as line:
            return _exchange(line, commands)

    exchange_in_slot = exchange

    @contextlib.contextmanager
    def pinned(self, key: str) -> Iterator[Callable[[Command], Reply]]:  # noqa: ARG002 - one server has them all
        # A lost connection is an error here, never silently another one
        with self._connection() as line:
            yield lambda command: checked(_exchange(line, [command])[0])

    def each(self, command: Command) -> dict[str, Answer]:
        return {str(self._settings): self.exchange([command])[0]}

    def masters(self) -> Sequence[Server]:
        return [self]

    def failover(self) -> bool:
        # For an address that others move to a replica, it cannot be known
        return self._settings.kind == "sentinel"

    def close(self) -> None:
        self._pool.disconnect()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[_Line]:
        connection = self._pool.get_connection()
        line = cast("_Line", connection)
        try:
            yield line
        except BaseException:
            # Replies may still arrive on it; they must not be taken for those of the next command.
            line.disconnect()
            raise
        finally:
            self._pool.release(connection)


class _Line(Protocol):
    """The methods of redis-py's connections that are used."""

    def send_packed_command(self, command: object) -> None: ...
    def pack_commands(self, commands: Sequence[Command]) -> object: ...
    def read_response(self) -> object: ...
    def disconnect(self) -> None: ...


def checked(answer: Answer) -> Reply:
    """A reply, as it is; an error that the server sent is raised."""
    if isinstance(answer, ResponseError):
        raise answer
    return answer


def _exchange(line: _Line, commands: Sequence[Command]) -> list[Answer]:
    line.send_packed_command(line.pack_commands(commands))
    return [_answer(line) for _ in commands]


def _answer(line: _Line) -> Answer:
    try:
        return cast("Reply", line.read_response())
    except ResponseError as error:
        return error


def _options(settings: RedisSettings) -> dict[str, object]:
    """Options of every connection to a server with data."""
    options: dict[str, object] = {
        "db": settings.db,
        "username": settings.username or None,
        "password": settings.password or None,
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.connect_timeout_s,
        # The protocol retries, and reports it; a retry in here would be hidden.
        "retry": Retry(NoBackoff(), 0),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if settings.protocol:
        options["protocol"] = settings.protocol
    if settings.tls:
        options |= {
            "ssl_ca_certs": settings.ca_file or None,
            "ssl_certfile": settings.cert_file or None,
            "ssl_keyfile": settings.key_file or None,
        }
    return options


def _pool(settings: RedisSettings, address: HostPort) -> ConnectionPool:
    host, port = address
    make: Callable[..., ConnectionPool] = ConnectionPool
    kind = SSLConnection if settings.tls else Connection
    return make(kind, host=host, port=port, **_options(settings))


class _Sentinels:
    """Asks one sentinel after the other who is the master. Replaces `redis.sentinel.Sentinel`."""

    def __init__(self, settings: RedisSettings) -> None:
        login = replace(
            settings, kind="server", db=0,
            username=settings.sentinel_username, password=settings.sentinel_password,
        )  # fmt: skip
        self._sentinels = {address: Server(login, address) for address in settings.nodes}

    def discover_master(self, service_name: str) -> HostPort:
        """The master's address; called for each new connection.

        Raises:
            MasterNotFoundError: no sentinel answers.
            ConfigurationError: they answer, but do not know the name.
        """
        failures = []
        strangers = []
        for address, sentinel in self._sentinels.items():
            try:
                (answer,) = sentinel.exchange([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service_name)])
            except (RedisConnectionError, RedisTimeoutError) as error:
                if meaning_of(error) is Meaning.SETTINGS:  # a wrong password is one of these, too
                    raise
                failures.append(f"{shown(address)}: {error}")
                continue
            found = cast("list[bytes] | None", checked(answer))
            if found is not None:
                return found[0].decode(), int(found[1])
            strangers.append(shown(address))
        if strangers and not failures:
            raise ConfigurationError(
                f"no sentinel knows a master with the name {service_name!r} ({', '.join(strangers)}); "
                "it is the path's first part, as in redis+sentinel://host:26379/NAME/0"
            )
        raise MasterNotFoundError(
            f"no sentinel names the master {service_name!r}: "
            + "; ".join([*failures, *(f"{address} does not know it" for address in strangers)])
        )
