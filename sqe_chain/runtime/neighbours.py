"""Finds out which kind of server answers at an address, so that a wrong address is reported at once, not after retries.

Sends one request of each protocol, before any login. Only over plain TCP: with TLS the drivers notice by themselves.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from sqe_chain.errors import ConfigurationError

TIMEOUT_S = 0.5
"""Longest wait for a connection, and for an answer. A slower server is accepted unchecked."""

_CORRELATION = 0x5351_4543
_QUESTIONS: Mapping[str, bytes] = MappingProxyType(
    {
        "kafka": struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1),  # ApiVersions 0, no client id
        "redis": b"PING\r\n",
        "cassandra": bytes([4, 0, 0, 0, 5, 0, 0, 0, 0]),  # OPTIONS in protocol 4
        "postgres": struct.pack(">ii", 8, 80_877_103),  # SSLRequest
    }
)
_PORTS = MappingProxyType({"redis": 6379, "cassandra": 9042, "postgres": 5432, "kafka": 9092})


def who_answers(host: str, port: int, expected: str) -> str:
    """The kind of server that answers: `kafka`, `redis`, `cassandra` or `postgres`; empty: no answer, or none of these. The expected one is asked first."""
    for kind in sorted(_QUESTIONS, key=lambda kind: kind != expected):
        answer = _answer(host, port, _QUESTIONS[kind])
        if answer is None:
            return ""
        if _speaks(kind, answer):
            return kind
    return ""


def check_kafka(bootstrap: str) -> None:
    """Refuse broker addresses where another kind of server certainly answers.

    Raises:
        ConfigurationError: one does.
    """
    for address in bootstrap.split(","):
        _check(address.strip().rpartition("://")[2], "kafka", f"--kafka {address.strip()}")


def check_stores(urls: Iterable[str]) -> None:
    """Refuse store addresses where another kind of server certainly answers. TLS and files are not checked.

    Raises:
        ConfigurationError: one does.
    """
    for url in urls:
        scheme, _, _ = url.partition("://")
        kind = {"redis+cluster": "redis", "postgresql": "postgres"}.get(scheme, scheme)
        if kind not in ("redis", "cassandra", "postgres"):
            continue
        for address in urlsplit(url).netloc.rpartition("@")[2].split(","):
            _check(address, kind, f"the store {scheme}://{address}")


def _check(address: str, expected: str, named: str) -> None:
    host, _, port = address.rpartition(":") if address.rpartition(":")[2].isdigit() else (address, "", "")
    kind = who_answers(host.strip("[]"), int(port or _PORTS[expected]), expected)
    if kind not in ("", expected):
        raise ConfigurationError(
            f"{named}: {kind.capitalize()} answers there. Expected {expected.capitalize()}. Check host and port"
        )


def _answer(host: str, port: int, question: bytes) -> bytes | None:
    """The first bytes of an answer; None when there is no connection."""
    try:
        connection = socket.create_connection((host, port), timeout=TIMEOUT_S)
    except (OSError, UnicodeError):
        return None
    with connection:
        try:
            connection.sendall(question)
            return connection.recv(64)
        except OSError:
            return b""


def _speaks(kind: str, answer: bytes) -> bool:
    if kind == "kafka":
        return answer[4:8] == struct.pack(">i", _CORRELATION)
    if kind == "redis":
        return answer.startswith(
            (b"+PONG", b"-NOAUTH", b"-DENIED", b"-ERR", b"-LOADING", b"-MASTERDOWN", b"-NOPERM")
        )
    if kind == "postgres":
        return answer in (b"S", b"N")
    return len(answer) > 4 and answer[0] in (0x83, 0x84, 0x85) and answer[4] in (0, 6)  # noqa: PLR2004 - an opcode
