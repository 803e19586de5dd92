"""A TCP proxy that drops requests or responses on demand, between a client and a server on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.forwarding import ForwardingProxy


class LossyProxy(ForwardingProxy):
    """Forwards bytes to a server, and drops the next requests or responses on demand.

    Only for one client call at a time: the bytes of one `recv` count as one message.

    Args:
        port: of the server.

    Attributes:
        requests_to_drop: how many of the next requests never arrive.
        responses_to_drop: how many of the next responses never arrive.
        only: bytes that a request must have to count, as a response to it does. Drivers send requests of their own at any time.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._lock = threading.Lock()
        self.requests_to_drop = 0
        self.responses_to_drop = 0
        self.only = b""
        self._asked: set[socket.socket] = set()  # servers' ends of connections whose last request counts

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return int(self._listener.getsockname()[1])

    def connect(self, client: socket.socket, server: socket.socket) -> None:
        for source, target, what in (
            (client, server, "requests_to_drop"),
            (server, client, "responses_to_drop"),
        ):
            threading.Thread(target=self._forward, args=(source, target, what), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if not self._lost(what, source, target, data):
                    target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _lost(self, what: str, source: socket.socket, target: socket.socket, data: bytes) -> bool:
        with self._lock:
            if what == "requests_to_drop":
                (self._asked.add if self.only in data else self._asked.discard)(target)
            if (target if what == "requests_to_drop" else source) not in self._asked:
                return False
            left = int(getattr(self, what))
            setattr(self, what, max(0, left - 1))
            return left > 0
