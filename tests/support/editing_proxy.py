"""A proxy between clients and a real broker, which edits some answers. So the broker looks like that of another vendor.

The broker must advertise the proxy's port, else clients connect to the broker itself.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from tests.support.forwarding import ForwardingProxy

METADATA: Final = 3
API_VERSIONS: Final = 18
OFFSET_FOR_LEADER_EPOCH: Final = 23
DESCRIBE_CONFIGS: Final = 32
_FLEXIBLE_API_VERSIONS: Final = 3
_FLEXIBLE_CONFIGS: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """What a broker lacks.

    Attributes:
        newest: request -> the newest version that it takes, None: it does not know the request.
        reported: the settings of topics and brokers that it reports; None: all.
    """

    newest: Mapping[int, int | None] = field(default_factory=dict)
    reported: frozenset[str] | None = None


class EditingProxy(ForwardingProxy):
    """Forwards to the broker at `server` what clients send to `port`.

    Args:
        port: where clients connect.
        server: the broker's port.
        shape: what it seems to lack.

    Attributes:
        edited: how many answers were edited, by request.
    """

    def __init__(self, port: int, server: int, shape: Shape) -> None:
        super().__init__(server, port)
        self._shape = shape
        self.edited = {API_VERSIONS: 0, DESCRIBE_CONFIGS: 0}

    def connect(self, client: socket.socket, server: socket.socket) -> None:
        asked: dict[int, tuple[int, int]] = {}
        for target, arguments in ((self._ask, (client, server)), (self._answer, (server, client))):
            threading.Thread(target=target, args=(*arguments, asked), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, asked: dict[int, tuple[int, int]]) -> None:
        """Forward requests; note which they are, by their correlation ids."""
        with _ending(server), client.makefile("rb") as stream:
            while frame := _frame(stream):
                request, version, correlation = struct.unpack_from(">hhi", frame)
                asked[correlation] = request, version
                server.sendall(struct.pack(">i", len(frame)) + frame)

    def _answer(
        self, server: socket.socket, client: socket.socket, asked: dict[int, tuple[int, int]]
    ) -> None:
        """Forward answers, some of them edited."""
        with _ending(client), server.makefile("rb") as stream:
            while frame := _frame(stream):
                request, version = asked.pop(*struct.unpack_from(">i", frame))
                edited = frame[:4] + self._edit(request, version, frame[4:])
                client.sendall(struct.pack(">i", len(edited)) + edited)

    def _edit(self, request: int, version: int, body: bytes) -> bytes:
        if request == API_VERSIONS:
            self.edited[request] += 1
            return _without_versions(body, version, self._shape.newest)
        if request == DESCRIBE_CONFIGS and self._shape.reported is not None:
            self.edited[request] += 1
            return _without_settings(body, version, self._shape.reported)
        return body


class _Reader:
    """Reads fields of Kafka's protocol, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def numbers(self, layout: str) -> tuple[int, ...]:
        found: tuple[int, ...] = struct.unpack_from(f">{layout}", self._data, self.at)
        self.at += struct.calcsize(f">{layout}")
        return found

    def varint(self) -> int:
        number = shift = 0
        while True:  # a byte below 128 is the last one
            (byte,) = self.numbers("B")
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    def text(self) -> str:
        (length,) = self.numbers("h")
        start, self.at = self.at, self.at + max(length, 0)
        return self._data[start : self.at].decode()


def _without_versions(body: bytes, version: int, newest: Mapping[int, int | None]) -> bytes:
    """An answer to ApiVersions, without the requests and versions that the shape lacks."""
    reader = _Reader(body)
    flexible = version >= _FLEXIBLE_API_VERSIONS and body[:2] == b"\0\0"  # a refusal is in the oldest version
    reader.numbers("h")
    count = reader.varint() - 1 if flexible else reader.numbers("i")[0]
    kept = []
    for _ in range(count):
        request, least, most = reader.numbers("hhh")
        if flexible:
            assert reader.varint() == 0, "this proxy knows no tagged fields"
        limit = newest.get(request, most)
        if limit is not None:
            kept.append(struct.pack(">hhh", request, least, min(most, limit)) + b"\0" * flexible)
    size = _varint(len(kept) + 1) if flexible else struct.pack(">i", len(kept))
    return body[:2] + size + b"".join(kept) + body[reader.at :]


def _without_settings(body: bytes, version: int, reported: frozenset[str]) -> bytes:
    """An answer to DescribeConfigs, without the settings that the shape does not report."""
    assert version < _FLEXIBLE_CONFIGS, "this proxy knows the versions that the client has"
    reader = _Reader(body)
    _, results = reader.numbers("ii")
    pieces, copied = list[bytes](), 0
    for _ in range(results):
        reader.numbers("h")
        reader.text()
        reader.numbers("b")
        reader.text()
        before = reader.at
        (count,) = reader.numbers("i")
        kept = [entry for name, entry in _entries(reader, body, count, version) if name in reported]
        pieces += [body[copied:before], struct.pack(">i", len(kept)), *kept]
        copied = reader.at
    return b"".join((*pieces, body[copied:]))


def _entries(reader: _Reader, body: bytes, count: int, version: int) -> Sequence[tuple[str, bytes]]:
    found = []
    for _ in range(count):
        start = reader.at
        name = reader.text()
        reader.text()
        reader.numbers("bbb")
        if version >= 1:
            for _ in range(*reader.numbers("i")):
                reader.text()
                reader.text()
                reader.numbers("b")
        if version >= 3:
            reader.numbers("b")
            reader.text()
        found.append((name, body[start : reader.at]))
    return found


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 128:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes((*made, number))


def _frame(stream: BinaryIO) -> bytes:
    """The next request or answer; empty at the end."""
    size = stream.read(4)
    return stream.read(*struct.unpack(">i", size)) if len(size) == 4 else b""


@contextlib.contextmanager
def _ending(target: socket.socket) -> Iterator[None]:
    """In this context one direction is forwarded; at its end, the other side learns of it."""
    with contextlib.suppress(OSError, ValueError):
        yield
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
