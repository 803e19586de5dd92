"""Serves metrics and health of a service on one port: few connections at a time, none of them for long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from sqe_chain.errors import ConfigurationError
from sqe_chain.plans.events import Event, Observer, Recovered, Standby, Stopped

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

LOOPBACK: Final = "127.0.0.1"
MOST: Final = 16
"""Connections at a time; the oldest is closed for one more."""
PATIENCE_S: Final = 5.0
"""How long one may last, whatever it sends."""
STUCK_MS = 15 * 60_000
"""A loop that has neither waited nor made progress for this time is stuck. One step of a batch may take minutes."""

Answer = tuple[bool, str]
"""Yes or no, and a sentence for people."""


@dataclass(slots=True)
class Health(Observer):
    """Knows from its events whether a service is alive and ready.

    Args:
        quiet_ms: returns for how long the loop has made no progress; 0 while it waits (`ServiceClock.quiet_ms`).
    """

    quiet_ms: Callable[[], int]
    _ready: bool = False
    _doing: str = "starting"

    def live(self) -> Answer:
        """Whether the loop makes progress, or waits: as a standby, or for a broker or store that is unavailable."""
        quiet_ms = self.quiet_ms()
        if quiet_ms < STUCK_MS:
            return True, "the service is making progress"
        return False, f"no progress for {quiet_ms // 1_000} s, last event: {self._doing}"

    def ready(self) -> Answer:
        """Whether the flow is claimed and recovered, and this run works on it; a standby is not ready."""
        return self._ready, "at work" if self._ready else self._doing

    def available(self) -> Answer:
        """Whether this run is at work or a standby. Then a supervisor may replace another copy."""
        available = self._ready or self._doing == Standby.name
        return available, self.ready()[1]

    def event(self, event: Event) -> None:
        self._doing = event.name
        if isinstance(event, Recovered):
            self._ready = True
        elif isinstance(event, Standby | Stopped):
            self._ready = False


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401 - the parent's
        self._open: dict[socket.socket, float] = {}  # since when each is there
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the parent's
        while len(self._open) >= MOST:
            self._end(next(iter(self._open), None))
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Called by the loop, twice a second."""
        for request, since_s in list(self._open.items()):
            if time.monotonic() - since_s > PATIENCE_S:
                self._end(request)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - the parent's
        self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for request in list(self._open):
            self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the parent's
        """Nothing: the program that asked is gone."""

    def _end(self, request: socket.socket | None) -> None:
        """Wake the thread of a connection, which ends then."""
        if request is not None and self._open.pop(request, None) is not None:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - the parent's
        """Nothing: requests are not logged."""


@contextmanager
def serve(port: int, registry: CollectorRegistry, health: Health, host: str = LOOPBACK) -> Iterator[None]:
    """Answer ``GET /metrics``, ``/live``, ``/ready`` and ``/available`` while in the context; by default to this machine alone.

    The last three answer 200 for yes and 503 for no, with a sentence. Any other path is 404: a probe with a typo fails.

    Raises:
        ConfigurationError: the port is taken, or this machine does not have the address.
    """
    numbers = make_wsgi_app(registry)
    questions = {"/live": health.live, "/ready": health.ready, "/available": health.available}

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            lines: Iterable[bytes] = numbers(environ, start_response)
            return lines
        question = questions.get(path)
        if question is None:
            status, text = "404 Not Found", "there are /metrics, /live, /ready and /available"
        else:
            well, text = question()
            status = "200 OK" if well else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    try:
        server = make_server(host, port, answer, _Server6 if ":" in host else _Server, handler_class=_Silent)
    except OSError as error:
        raise ConfigurationError(
            f"--metrics-port {port}: cannot listen on it at {host} ({error.strerror}). Expected a free port, and an address of this machine. "
            "If another process has the port, give another one; else check --metrics-host"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="sqe-chain-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
