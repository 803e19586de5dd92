"""A process's connections to Redis, with bounded times and no retries of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import cast

from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError

from sqe_chain.adapters.redis.cluster import RedisCluster
from sqe_chain.adapters.redis.connections import (
    Answer,
    Argument,
    Command,
    RedisServers,
    RedisSettings,
    Reply,
    SingleRedisServer,
    error_for,
    reply_of,
)
from sqe_chain.adapters.redis.scripts import Script
from sqe_chain.adapters.store_rules import SizeLimits, raised_as_ours
from sqe_chain.errors import ConfigurationError, Unavailable


class RedisClient:
    """The connections that the threads of one process share.

    Every call raises `Unavailable` where there is no answer, and `ConfigurationError` for login, rights, or the kind of server.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._limits: SizeLimits | None = None
        cluster = settings.kind == "cluster"
        self._servers: RedisServers = RedisCluster(settings) if cluster else SingleRedisServer(settings)

    @classmethod
    def of_this_process(cls, settings: RedisSettings) -> RedisClient:
        """The process's own client for these settings; a forked child gets a new one."""
        key = (os.getpid(), settings)
        # No lock: of two threads that make one at once, the later one is dropped before it has connected.
        return _clients.get(key) or _clients.setdefault(key, cls(settings))

    @classmethod
    def forget(cls, settings: RedisSettings) -> None:
        """Close the process's connections, if there are any."""
        client = _clients.pop((os.getpid(), settings), None)
        if client is not None:
            with client._mapped():  # noqa: SLF001 - the class's own
                client._servers.close()  # noqa: SLF001 - the class's own

    def run(
        self,
        script: Script,
        keys: Sequence[str | bytes],
        arguments: Sequence[Argument],
        *,
        lasting: bool = True,
    ) -> Reply:
        """Run a script; atomic, and all its keys in one slot.

        Redis forgets scripts when it restarts. Then the text is sent, which also makes it known again.

        Args:
            script: the script.
            keys: its keys.
            arguments: its other arguments.
            lasting: wait for the replicas that the settings ask for, even if the script changed nothing: replicas may lack
                what an earlier attempt has changed.

        Raises:
            Unavailable: no answer, an unknown outcome, or too few replicas. Sending again is safe.
        """
        wait = _wait(self._settings) if lasting else []
        with self._mapped():
            call = (len(keys), *keys, *arguments)
            answer, *waited = self._servers.exchange_in_slot([("EVALSHA", script.digest, *call), *wait])
            if isinstance(answer, NoScriptError):
                answer, *waited = self._servers.exchange_in_slot([("EVAL", script.text, *call), *wait])
            reply = reply_of(answer)
            for replicas in waited:
                self._check_replicas(replicas)
            return reply

    def together(self, commands: Sequence[Command]) -> list[Reply]:
        """Send reading commands in one round trip; those on keys of one slot are executed in this order."""
        with self._mapped():
            return [reply_of(answer) for answer in self._servers.exchange(commands)]

    def pages(self, key: str, page_bytes: int) -> Iterator[dict[bytes, bytes]]:
        """All fields of a hash, in pages of about `page_bytes`; a field may come twice.

        A cursor means nothing to another server, nor to the same one after a restart: fields would be
        missed. So all pages come over one connection. `Unavailable`: it is lost, or another server has the key now; begin again.
        """
        with self._mapped(), self._servers.pin(key) as ask:
            cursor, count = 0, 100
            while True:  # Redis guarantees an end as long as the hash stays bounded
                cursor, flat = _page(ask(("HSCAN", key, cursor, "COUNT", count)))
                page = dict(zip(flat[::2], flat[1::2], strict=True))
                yield page
                if cursor == 0:
                    return
                size = sum(map(len, page.values())) // max(len(page), 1) + 1
                count = max(1, min(1_000, page_bytes // size))

    def keys(self, pattern: str) -> Iterator[bytes]:
        """All keys that match a pattern, on all servers that take writes; some may come twice."""
        with self._mapped():
            for server in self._servers.masters():
                with server.pin("") as ask:
                    cursor = -1
                    while cursor:
                        command = ("SCAN", max(cursor, 0), "MATCH", pattern, "COUNT", 1_000)
                        cursor, page = _page(ask(command))
                        yield from page

    def setting(self, name: str) -> dict[str, str | None]:
        """A setting of each server that takes writes; None where it cannot be read."""
        with self._mapped():
            return {
                address: _value(answer)
                for address, answer in self._servers.each(("CONFIG", "GET", name)).items()
            }

    def clocks(self) -> dict[str, int]:
        """The clock of each server that takes writes, in milliseconds since 1970; without those that refuse the command."""
        with self._mapped():
            answers = self._servers.each(("TIME",))
        return {
            address: _time_ms(cast("list[bytes]", answer))
            for address, answer in answers.items()
            if isinstance(answer, list)
        }

    @property
    def limits(self) -> SizeLimits:
        """The servers' limits, read once: the smallest `proto-max-bulk-len`, the longest argument of a command.

        Where it cannot be read, Redis's default, 512 MiB.
        """
        if self._limits is None:
            sizes = self.setting("proto-max-bulk-len").values()
            largest = min((int(size) for size in sizes if size is not None), default=_BULK_BYTES)
            self._limits = SizeLimits(largest, largest, largest)
        return self._limits

    def failover(self) -> bool | None:
        """Whether a replica may replace a server without having all its acknowledged writes; None: unknown."""
        with self._mapped():
            return self._servers.failover()

    def ping(self) -> None:
        """Check that every server answers, and supports the kind of waiting that the settings ask for."""
        with self._mapped():
            for answer in self._servers.each(("PING",)).values():
                reply_of(answer)
            for name, *_ in _wait(self._settings):
                # Waits for no replica: only checks that the command exists, and the right to it.
                nobody = (name, 0, 1) if name == "WAIT" else (name, 0, 0, 1)
                for answer in self._servers.each(nobody).values():
                    self._known(answer)

    def _check_replicas(self, answer: Answer) -> None:
        reply = self._known(answer)
        wanted = self._settings.wait_replicas or self._settings.wait_aof_replicas
        replicas = cast("int", reply[-1] if isinstance(reply, list) else reply)
        local = reply[0] if isinstance(reply, list) else 1
        if replicas < wanted or not local:
            where = "on the disks of" if self._settings.wait_aof_replicas else "on"
            raise Unavailable(
                f"{self._settings}: after {self._settings.wait_ms} ms a write is {where} {replicas} of "
                f"{wanted} replicas; it counts as not acknowledged, and sending it again is safe"
            )

    def _known(self, answer: Answer) -> Reply:
        if isinstance(answer, ResponseError) and "unknown command" in str(answer):
            raise ConfigurationError(
                f"{self._settings}: the server does not have WAITAOF, which the option wait_aof_replicas needs: "
                "use Redis 7.2 or later, or the option wait_replicas"
            )
        return reply_of(answer)

    def _mapped(self) -> AbstractContextManager[None]:
        return raised_as_ours((RedisError, RedisClusterException), error_for, str(self._settings))


_BULK_BYTES = 512 << 20

_clients: dict[tuple[int, RedisSettings], RedisClient] = {}


def _page(reply: Reply) -> tuple[int, list[bytes]]:
    """The next cursor, and what a scan has given; a cursor of 0 ends it."""
    cursor, page = cast("tuple[bytes, list[bytes]]", reply)
    return int(cursor), page


def _wait(settings: RedisSettings) -> list[Command]:
    if settings.wait_aof_replicas:
        return [("WAITAOF", 1, settings.wait_aof_replicas, settings.wait_ms)]
    return [("WAIT", settings.wait_replicas, settings.wait_ms)] if settings.wait_replicas else []


def _value(answer: Answer) -> str | None:
    """The setting in an answer to CONFIG GET: a list in RESP2, a map in RESP3."""
    if isinstance(answer, ResponseError):
        return None
    values = list(answer.values()) if isinstance(answer, dict) else cast("list[bytes]", answer)[1:]
    return cast("bytes", values[0]).decode() if values else None


def _time_ms(answer: Sequence[bytes]) -> int:
    seconds, microseconds = map(int, answer)
    return seconds * 1_000 + microseconds // 1_000
