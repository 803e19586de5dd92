"""Serves an ASGI application by uvicorn, which by itself waits for headers without a limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sqe_chain.errors import ConfigurationError

HEADER_TIMEOUT_S: Final = 10.0
HEADER_BYTES: Final = 16 << 10
CONNECTIONS: Final = 1_200


class PromptHeaders(H11Protocol):
    """A connection that is closed when no whole request has arrived in `HEADER_TIMEOUT_S` after its beginning or an answer."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as uvicorn declares it
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Wait for the next one."""
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(HEADER_TIMEOUT_S, self._close)

    def _close(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def server_of(application: Any, host: str, port: int) -> uvicorn.Server:  # noqa: ANN401 - any ASGI application
    """A server for an application, with bounds on connections and headers."""
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        http=PromptHeaders,
        limit_concurrency=CONNECTIONS,
        access_log=False,  # keys are in paths
        log_level="warning",
        h11_max_incomplete_event_size=HEADER_BYTES,
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
