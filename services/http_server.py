"""Serves the HTTP endpoint by uvicorn, which by itself waits for headers without a limit.

INGEST_KAFKA=localhost:9092 python -m services.http_server --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_TIMEOUT_S: Final = 10.0
HEADER_BYTES: Final = 16 << 10
CONNECTIONS: Final = 500


class PromptHeaders(H11Protocol):
    """A connection that is closed when `HEADER_TIMEOUT_S` after its beginning, or after an answer, no request has arrived whole."""

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


def main(arguments: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Serves the HTTP endpoint of services.http_ingest")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args(arguments)
    uvicorn.run(
        "services.http_ingest:application",
        factory=True,
        host=given.host,
        port=given.port,
        http=PromptHeaders,
        limit_concurrency=CONNECTIONS,
        access_log=False,  # keys stand in paths
        h11_max_incomplete_event_size=HEADER_BYTES,
    )


if __name__ == "__main__":
    main()
