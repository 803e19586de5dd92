"""A wire that loses what it is told to lose: between a client and a server on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

HOST = "127.0.0.1"


class LossyWire:
    """Forwards bytes to a server; on order, the next request or the next answer never arrives.

    One call of the client at a time: what one `recv` gives is taken for one message.

    Args:
        port: of the server.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server((HOST, 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.lose_requests = 0
        self.lose_answers = 0

    @property
    def port(self) -> int:
        """Where the client connects to."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._server))
            except OSError:
                return
            self._open += [client, server]
            for source, target, what in (
                (client, server, "lose_requests"),
                (server, client, "lose_answers"),
            ):
                threading.Thread(target=self._forward, args=(source, target, what), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if not self._lost(what):
                    target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _lost(self, what: str) -> bool:
        with self._lock:
            left = int(getattr(self, what))
            setattr(self, what, max(0, left - 1))
            return left > 0
