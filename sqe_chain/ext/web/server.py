"""Serves an ASGI application by uvicorn, which by itself waits for headers without a limit."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sqe_chain.errors import ConfigurationError

HEADER_TIMEOUT_S: Final = 10.0
_HEADER_BYTES: Final = 16 << 10
CONNECTIONS: Final = 1_200
_UNREAD_BYTES: Final = 256 << 10
"""How much of a body is taken after the answer, so that clients that send first and read then get it."""
SLOW_S: Final = 30.0
"""How long a client may take nothing of what is sent to it."""
SEND_BYTES: Final = 64 << 10
"""What the system keeps of an answer that a client has not taken; this process keeps about as much."""


class PromptHeaders(H11Protocol):
    """A connection that is closed when its client does not do its part, so that none holds it without an end.

    The server closes it in these cases:

    - no whole request has arrived in `HEADER_TIMEOUT_S` after its beginning or an answer;
    - the client takes nothing of an answer for `SLOW_S`;
    - it sends more than `_UNREAD_BYTES` of a body after the answer;
    - there are too many others.
    """

    _waiting: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _unread: int = 0

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as uvicorn declares it
        """Wait for the first request."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.abort()
            return
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Parse what has come; the rest of a body that nobody waits for is read to its bound."""
        answered = self.cycle is not None and self.cycle.response_complete
        self._unread = self._unread + len(data) if answered and self.conn.their_state is h11.SEND_BODY else 0
        if self._unread > _UNREAD_BYTES:
            self._drop()
            return
        super().data_received(data)

    def pause_writing(self) -> None:
        """Wait until the client takes something."""
        super().pause_writing()
        self._stuck = self.loop.call_later(SLOW_S, self._drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next one."""
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._waiting, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(HEADER_TIMEOUT_S, self._close)

    def _drop(self) -> None:
        """Close at once: the system, too, forgets what the client has not taken."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _close(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def most_connections() -> int:
    """How many connections there may be: at most half of the files that this process may open, for a service needs them, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, soft // 2)


def server_of(application: Any, host: str, port: int) -> uvicorn.Server:  # noqa: ANN401 - any ASGI application
    """A server for an application, with bounds on connections and headers."""
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        http=PromptHeaders,
        limit_concurrency=most_connections(),
        access_log=False,  # keys are in paths
        log_level="warning",
        h11_max_incomplete_event_size=_HEADER_BYTES,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


@contextmanager
def served(application: Any, host: str, port: int) -> Iterator[int]:  # noqa: ANN401 - any ASGI application
    """Serve in a thread of its own while in the context. Gives the port.

    Raises:
        ConfigurationError: the port is taken, or this machine does not have the address.
    """
    server = server_of(application, host, port)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.run, name="sqe-chain-web", daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.02)
        if not thread.is_alive():
            raise ConfigurationError(
                f"--web {port}: cannot listen at {host}. Expected a free port, and an address of this machine. Give another port"
            )
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(5)
