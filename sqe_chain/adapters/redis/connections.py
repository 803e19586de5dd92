"""Connections to single servers: commands are sent together, raw replies come back in order.

redis-py's connections and pools are used, but not its clients and pipelines. A pipeline of its cluster client cannot run
scripts, and repeats redirected commands out of order. Both of its pipelines put the commands, and so the states, into
error texts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, TypeAlias, cast

from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

from sqe_chain.adapters.address import HostPort, ServerSettings, host_port_text
from sqe_chain.adapters.store_rules import CERTIFICATE, Meaning, error_of, meaning_in
from sqe_chain.errors import ChainError, ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings(ServerSettings):
    """How to reach the server or servers; see `ServerSettings`.

    Attributes:
        kind: one server, a Redis Cluster, or the master behind sentinels.
        host: name or address; for one server only.
        port: TCP port; for one server only.
        nodes: for a cluster: nodes to begin with, any one of them is enough. With sentinels: these.
        service: the sentinels' name for the master.
        db: number of the database; 0 in a cluster.
        sentinel_username: ACL user of the sentinels.
        sentinel_password: password for the sentinels; empty for none; never shown.
        protocol: 2 or 3, the version of RESP; 0: what redis-py prefers.
        wait_replicas: replicas that must have a write before it counts as acknowledged (WAIT); 0: none.
        wait_aof_replicas: replicas that must have it on disk (WAITAOF, Redis 7.2); 0: none.
        wait_ms: longest wait for these replicas, in milliseconds; shorter than `timeout_s`.
        durability: `declared`: settings that cannot be read count as strong, because the operator has looked them up.
    """

    kind: Literal["server", "cluster", "sentinel"] = "server"
    host: str = "localhost"
    port: int = 6379
    nodes: tuple[HostPort, ...] = ()
    service: str = ""
    db: int = 0
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)
    protocol: int = 0
    wait_replicas: int = 0
    wait_aof_replicas: int = 0
    wait_ms: int = 1_000
    durability: Literal["checked", "declared"] = "checked"

    def __str__(self) -> str:
        """The address without its passwords."""
        scheme = "rediss" if self.tls else "redis"
        user = f"{self.username}@" if self.username else ""
        nodes = ",".join(map(host_port_text, self.nodes))
        if self.kind == "cluster":
            return f"{scheme}+cluster://{user}{nodes}"
        if self.kind == "sentinel":
            return f"{scheme}+sentinel://{user}{nodes}/{self.service}/{self.db}"
        return f"{scheme}://{user}{host_port_text((self.host, self.port))}/{self.db}"


Argument: TypeAlias = bytes | str | int
Command: TypeAlias = "Sequence[Argument]"
Reply: TypeAlias = "bytes | int | list[Reply] | dict[bytes, Reply] | None"
"""What Redis answers, undecoded."""
Answer: TypeAlias = "Reply | ResponseError"
"""A reply, or the error that the server sent instead of one."""


class RedisServers(Protocol):
    """One server or several, as the store sees them. Errors of redis-py pass through."""

    def exchange(self, commands: Sequence[Command]) -> list[Answer]:
        """Send commands in one round trip; those on keys of one slot are executed in their order."""

    def exchange_in_slot(self, commands: Sequence[Command]) -> list[Answer]:
        """The same for commands on one slot, that of the first command's key, over one connection."""

    def pin(self, key: str) -> AbstractContextManager[Callable[[Command], Reply]]:
        """One connection to the key's server, for commands whose cursors are valid only there."""

    def each(self, command: Command) -> dict[str, Answer]:
        """Send a command to every server that takes writes; its address -> its answer."""

    def masters(self) -> Sequence[SingleRedisServer]:
        """All servers that take writes, as they are known now."""

    def failover(self) -> bool | None:
        """Whether a replica may replace a server without having all its acknowledged writes; None: unknown."""

    def close(self) -> None:
        """Close all connections; a later call opens them again."""


class SingleRedisServer(RedisServers):
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
        with self._connection() as connection:
            return _exchange(connection, commands)

    exchange_in_slot = exchange

    @contextlib.contextmanager
    def pin(self, key: str) -> Iterator[Callable[[Command], Reply]]:  # noqa: ARG002 - one server has them all
        with self._connection() as connection:  # lost, it is an error, never silently another one
            yield lambda command: reply_of(_exchange(connection, [command])[0])

    def each(self, command: Command) -> dict[str, Answer]:
        return {str(self._settings): self.exchange([command])[0]}

    def masters(self) -> Sequence[SingleRedisServer]:
        return [self]

    def failover(self) -> bool:
        # For an address that others move to a replica, it cannot be known.
        return self._settings.kind == "sentinel"

    def close(self) -> None:
        self._pool.disconnect()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[_DriverConnection]:
        pooled = self._pool.get_connection()
        connection = cast("_DriverConnection", pooled)
        try:
            yield connection
        except BaseException:
            # Replies may still arrive on it; they must not be taken for those of the next command.
            connection.disconnect()
            raise
        finally:
            self._pool.release(pooled)


class _DriverConnection(Protocol):
    """The methods of redis-py's connections that are called here."""

    def send_packed_command(self, command: object) -> None: ...
    def pack_commands(self, commands: Sequence[Command]) -> object: ...
    def read_response(self) -> object: ...
    def disconnect(self) -> None: ...


def reply_of(answer: Answer) -> Reply:
    """A reply, as it is; an error that the server sent is raised."""
    if isinstance(answer, ResponseError):
        raise answer
    return answer


def _exchange(connection: _DriverConnection, commands: Sequence[Command]) -> list[Answer]:
    connection.send_packed_command(connection.pack_commands(commands))
    return [_answer(connection) for _ in commands]


def _answer(connection: _DriverConnection) -> Answer:
    try:
        return cast("Reply", connection.read_response())
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
        self._sentinels = {address: SingleRedisServer(login, address) for address in settings.nodes}

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
                failures.append(f"{host_port_text(address)}: {error}")
                continue
            master = cast("list[bytes] | None", reply_of(answer))
            if master is not None:
                return master[0].decode(), int(master[1])
            strangers.append(host_port_text(address))
        if strangers and not failures:
            raise ConfigurationError(
                f"no sentinel knows a master with the name {service_name!r} ({', '.join(strangers)}); "
                "it is the path's first part, as in redis+sentinel://host:26379/NAME/0"
            )
        raise MasterNotFoundError(
            f"no sentinel names the master {service_name!r}: "
            + "; ".join([*failures, *(f"{address} does not know it" for address in strangers)])
        )


# --- what redis-py's exceptions mean: nothing else decides about them; a test fails when redis-py gains a class ---

MEANINGS: Final[dict[type[BaseException], Meaning]] = {kind: meaning for meaning, kinds in (
    (Meaning.TRY_AGAIN, (
        exceptions.RedisError, exceptions.ConnectionError, exceptions.TimeoutError, exceptions.BusyLoadingError,
        exceptions.MaxConnectionsError, exceptions.InvalidResponse, exceptions.OutOfMemoryError,
        exceptions.ReadOnlyError, exceptions.ExecAbortError, exceptions.TryAgainError, exceptions.ClusterDownError,
        exceptions.MasterDownError, exceptions.ClusterError, exceptions.SlotNotCoveredError,
        exceptions.NoScriptError,
    )),
    (Meaning.SETTINGS, (
        exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError,
        exceptions.AuthorizationError, exceptions.ExternalAuthProviderError, exceptions.NoPermissionError,
        exceptions.ModuleError, exceptions.AskError, exceptions.MovedError, exceptions.ClusterCrossSlotError,
        exceptions.RedisClusterException,
    )),
    (Meaning.REPLY, (
        exceptions.ResponseError,
    )),
    (Meaning.PROGRAM, (
        exceptions.DataError, exceptions.PubSubError, exceptions.WatchError, exceptions.LockError,
        exceptions.LockNotOwnedError, exceptions.ChildDeadlockedError, exceptions.CrossSlotTransactionError,
        exceptions.InvalidPipelineStack, exceptions.NoSuchFieldsetError, exceptions.IncorrectPolicyType,
    )),
) for kind in kinds}  # fmt: skip
"""Exception class of redis-py -> what it means. A class that is missing counts as its parent."""

_SETTINGS_REPLIES: Final = (
    "WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS", "CROSSSLOT", "MOVED", "ASK", "NOPROTO", "ERR unknown command",
    "ERR DB index", "ERR invalid DB index", "ERR AUTH", "ERR Client sent AUTH",
    "ERR This instance has cluster support disabled", "This instance has cluster support disabled",
    "WAITAOF cannot be used", "unknown command", "The user executing the script can't run this command",
    "DB index is out of range",
)  # fmt: skip
"""Beginnings of replies that waiting does not fix. All others (MISCONF, BUSY, NOREPLICAS, …) may pass."""


def meaning_of(error: BaseException) -> Meaning:
    """The meaning of an exception, by its class, its parents, and for a reply its text."""
    meaning = meaning_in(MEANINGS, error)
    if meaning is Meaning.REPLY:
        return Meaning.SETTINGS if str(error).startswith(_SETTINGS_REPLIES) else Meaning.TRY_AGAIN
    return Meaning.SETTINGS if meaning is Meaning.TRY_AGAIN and CERTIFICATE in str(error) else meaning


def error_for(error: BaseException, address: str) -> ChainError | None:
    """Our error for an exception of redis-py; None for programming errors, which must crash."""
    text = f"{address}: {type(error).__name__}: {error}"
    if isinstance(error, exceptions.AskError):
        text += "; this is a node of a Redis Cluster: write redis+cluster:// (with TLS rediss+cluster://)"
    return error_of(meaning_of(error), text)
