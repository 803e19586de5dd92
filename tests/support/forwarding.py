"""Accepts connections and opens one to a server for each: what proxies between a client and a server on this machine have in common."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from typing import Self

HOST = "127.0.0.1"


class ForwardingProxy(ABC):
    """Runs as long as the context lasts.

    Args:
        server: the server's port.
        port: where clients connect; 0: a free one.
    """

    def __init__(self, server: int, port: int = 0) -> None:
        self._server = server
        self._listener = socket.create_server((HOST, port))
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        close_end(self._listener)
        self._accepting.join()  # so that no connection comes after those that are closed here
        for end in self._open:
            close_end(end)

    @abstractmethod
    def connect(self, client: socket.socket, server: socket.socket) -> None:
        """Begin to forward between two ends, in threads of its own."""

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._server))
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            self.connect(client, server)


def close_end(end: socket.socket) -> None:
    """Close an end of a connection for both sides; one that is closed already stays so."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
