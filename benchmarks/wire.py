"""`python -m benchmarks.wire`: a process that passes TCP connections on to servers, late, and cuts them when asked.

It takes pairs `LISTEN:SERVER` of ports of this machine. On its standard input it reads lines: `delay SECONDS` for each direction of what
arrives from now on, and `cut SERVER` ends all connections to one. It ends with its input.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Self

from sqe_chain.ext.dev.server import HOST

_RESET: Final = struct.pack("ii", 1, 0)
"""With these bytes for SO_LINGER a close resets the connection: what was sent and not read is lost."""


class Wire:
    """That process, seen from here.

    Args:
        ports: where it listens -> the server's port.
    """

    def __init__(self, ports: dict[int, int]) -> None:
        self._ports = ports
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Start it, and wait until it listens."""
        pairs = [f"{listen}:{server}" for listen, server in self._ports.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.wire", *pairs],
            cwd=Path(__file__).resolve().parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        assert self._process is not None
        self._process.communicate(timeout=60)

    def delay(self, seconds: float) -> None:
        """Let each byte take this long, in both directions."""
        self._ask(f"delay {seconds}")

    def cut(self, server: int) -> None:
        """Reset all connections to the server at this port."""
        self._ask(f"cut {server}")

    def _ask(self, line: str) -> None:
        """Returns when it is done."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


class _Forwarding:
    """What the process does."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._open: dict[int, set[socket.socket]] = {}
        self._lock = threading.Lock()

    def listen(self, port: int, server: int) -> None:
        """Accept connections from now on."""
        self._open[server] = set()
        listener = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, args=(listener, server), daemon=True).start()

    def cut(self, server: int) -> None:
        """Reset connections."""
        with self._lock:
            ends, self._open[server] = self._open[server], set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            client, _ = listener.accept()
            try:
                server = socket.create_connection((HOST, port))
            except OSError:
                client.close()  # it is down
                continue
            with self._lock:
                self._open[port] |= {client, server}
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target in ((client, server), (server, client)):
                late: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                threading.Thread(target=self._read, args=(source, late), daemon=True).start()
                threading.Thread(target=_write, args=(target, late), daemon=True).start()

    def _read(self, source: socket.socket, late: SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(1 << 18)
            except OSError:
                data = b""
            late.put((time.monotonic() + self.delay_s, data))


def _write(target: socket.socket, late: SimpleQueue[tuple[float, bytes]]) -> None:
    while True:
        due, data = late.get()
        if (wait_s := due - time.monotonic()) > 0:
            time.sleep(wait_s)
        try:
            if not data:
                target.shutdown(socket.SHUT_RDWR)  # the other direction ends, too
                return
            target.sendall(data)
        except OSError:
            return


def _serve(pairs: Iterable[str], lines: Iterable[str]) -> None:
    forwarding = _Forwarding()
    for pair in pairs:
        listen, _, server = pair.partition(":")
        forwarding.listen(int(listen), int(server))
    print("listening", flush=True)
    for line in lines:
        what, value = line.split()
        if what == "delay":
            forwarding.delay_s = float(value)
        else:
            forwarding.cut(int(value))
        print("done", flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:], sys.stdin)
