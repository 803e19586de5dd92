"""A process's connections to one Redis server, with bounded times and no retries of their own."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError
from redis.retry import Retry

from sqe_chain.stores.redis.faults import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqe_chain.stores.redis.scripts import Script

Argument: TypeAlias = bytes | str | int
Reply: TypeAlias = "bytes | int | list[Reply] | None"
"""What Redis answers, undecoded."""


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """How to reach a server. Pickled with a store, password included, so that tasks can log in.

    Attributes:
        host: name or address.
        port: TCP port.
        db: number of the database.
        username: ACL user; empty for the default user.
        password: empty for none; never shown.
        tls: encrypt, and verify the server's certificate and name.
        ca_file: certificates to trust; empty for the system's.
        cert_file: the client's own certificate; empty for none.
        key_file: its key.
        timeout_s: longest wait for an answer, in seconds.
        connect_timeout_s: longest wait for a connection, in seconds.
    """

    host: str = "localhost"
    port: int = 6379
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    timeout_s: float = 10.0
    connect_timeout_s: float = 5.0

    def __str__(self) -> str:
        """The address without its password."""
        user = f"{self.username}@" if self.username else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{user}{host}:{self.port}/{self.db}"


class RedisClient:
    """The connections that the threads of one process share."""

    def __init__(self, settings: RedisSettings) -> None:
        self._address = str(settings)
        self._redis = Redis(
            host=settings.host,
            port=settings.port,
            db=settings.db,
            username=settings.username or None,
            password=settings.password or None,
            ssl=settings.tls,
            ssl_ca_certs=settings.ca_file or None,
            ssl_certfile=settings.cert_file or None,
            ssl_keyfile=settings.key_file or None,
            socket_timeout=settings.timeout_s,
            socket_connect_timeout=settings.connect_timeout_s,
            # The protocol tries again, and shows that it does; a retry in here would only hide it.
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
            protocol=2,
        )

    @classmethod
    def of_this_process(cls, settings: RedisSettings) -> RedisClient:
        """The process's own client for these settings; a forked child gets a new one."""
        place = (os.getpid(), settings)
        return _clients.get(place) or _clients.setdefault(place, cls(settings))

    @classmethod
    def forget(cls, settings: RedisSettings) -> None:
        """Close the process's connections, if there are any."""
        found = _clients.pop((os.getpid(), settings), None)
        if found is not None:
            with found._mapped():  # noqa: SLF001 - the class's own
                found._redis.close()  # noqa: SLF001 - the class's own

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Reply:
        """Run a script; atomic, and all its keys in one slot.

        Redis forgets scripts when it restarts. Then the text is sent, which also makes it known again.

        Raises:
            Unavailable: no answer, or none that says what happened. Sending again is safe.
            ConfigurationError: login, rights, or the kind of server.
        """
        with self._mapped():
            try:
                return cast("Reply", self._redis.evalsha(script.digest, len(keys), *keys, *arguments))
            except NoScriptError:
                return cast("Reply", self._redis.eval(script.text, len(keys), *keys, *arguments))

    def together(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """Send reading commands in one go, executed in this order; not a transaction.

        Raises:
            Unavailable: no answer.
            ConfigurationError: login, rights, or the kind of server.
        """
        with self._mapped():
            pipeline = self._redis.pipeline(transaction=False)
            queue: Callable[..., object] = pipeline.execute_command  # redis-py leaves it untyped
            for command in commands:
                queue(*command)
            return cast("list[Reply]", pipeline.execute())

    def page(self, key: str, cursor: int, count: int) -> tuple[int, dict[bytes, bytes]]:
        """One page of a hash: the cursor of the next one (0: none), and about `count` fields.

        Raises:
            Unavailable: no answer.
            ConfigurationError: login, rights, or the kind of server.
        """
        with self._mapped():
            following, fields = self._redis.hscan(key, cursor, count=count)
            return int(following), cast("dict[bytes, bytes]", fields)

    def setting(self, name: str) -> str | None:
        """A setting of the server; None when it cannot be read.

        Raises:
            Unavailable: no answer.
            ConfigurationError: the login is wrong.
        """
        with self._mapped():
            try:
                found = cast("dict[bytes | str, bytes | str]", self._redis.config_get(name))
            except ResponseError:
                return None
        values = list(found.values())
        if not values:
            return None
        return values[0].decode() if isinstance(values[0], bytes) else values[0]

    def ping(self) -> None:
        """Ask for an answer.

        Raises:
            Unavailable: there is none.
            ConfigurationError: the login is wrong.
        """
        with self._mapped():
            self._redis.ping()

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, RedisClusterException) as error:
            known = mapped(error, self._address)
            if known is None:
                raise
            raise known from error


_clients: dict[tuple[int, RedisSettings], RedisClient] = {}
