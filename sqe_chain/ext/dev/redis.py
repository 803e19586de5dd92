"""One Redis server on the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from sqe_chain.ext.dev.packages import RedisProgram, fetch_redis
from sqe_chain.ext.dev.server import HOST, Server

_PROBE_TIMEOUT_S = 1.0

_DURABLE = (
    *("--appendonly", "yes"),
    *("--appendfsync", "always"),
    *("--no-appendfsync-on-rewrite", "no"),
)
_IN_MEMORY = ("--appendonly", "no")


class RedisServer(Server):
    """A real Redis in a process of its own.

    Args:
        data_dir: log and data. None: a temporary directory, removed by `close`.
        port: its port. None: a free one, the same over restarts.
        durable: True: acknowledged writes are on disk (`appendfsync always`), as sqe-chain requires. False: all data is lost when it stops.
        extra_args: more arguments of redis-server; they override the ones set here.
        detached: leave it running when this process ends.

    Raises:
        ConfigurationError: there is no redis-server, and downloading failed; the error names what to install.
    """

    kind: ClassVar[str] = "redis"
    start_timeout_s: ClassVar[float] = 120
    stop_timeout_s: ClassVar[float] = 10

    def __init__(
        self,
        data_dir: Path | str | None = None,
        port: int | None = None,
        *,
        durable: bool = True,
        extra_args: Sequence[str] = (),
        detached: bool = False,
    ) -> None:
        super().__init__(data_dir, port, detached=detached)
        self._durable = durable
        self._extra_args = tuple(extra_args)
        self._found: RedisProgram | None = None

    @property
    def url(self) -> str:
        """Address as `redis://host:port/0`. Raises ConfigurationError: the server was never started."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def _program(self) -> RedisProgram:
        if self._found is None:
            self._found = fetch_redis()
        return self._found

    def _prepare(self) -> None:
        """Nothing to do: all settings are on the command line."""

    def _command(self) -> Sequence[str]:
        return [
            str(self._program.path),
            *("--bind", HOST, "--port", str(self.port)),
            *("--dir", str(self.data_dir), "--daemonize", "no"),
            *("--save", ""),
            *("--maxmemory-policy", "noeviction"),
            *(_DURABLE if self._durable else _IN_MEMORY),
            *self._extra_args,
        ]

    def _environment(self) -> Mapping[str, str]:
        return self._program.environment

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=_PROBE_TIMEOUT_S) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(64)
        except OSError:
            return False
        # -NOAUTH: it is up and has a password. While it is still loading its data it answers -LOADING.
        return answer.startswith((b"+PONG", b"-NOAUTH"))
