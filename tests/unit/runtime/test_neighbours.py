"""An answer shows which server listens at an address; silence, closed ports and unknown servers are not judged."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.runtime import neighbours
from sqe_chain.runtime.neighbours import check_kafka, check_stores, who_answers
from tests.support.ports import own_port

Answer = Callable[[bytes], bytes]


def kafka(question: bytes) -> bytes:
    """The correlation id comes back; what is no request is answered by the end of the connection."""
    return struct.pack(">i", 10) + question[8:12] + bytes(6) if question[4:6] == b"\x00\x12" else b""


def redis(question: bytes) -> bytes:
    return b"+PONG\r\n" if question == b"PING\r\n" else b""


def locked_redis(question: bytes) -> bytes:
    return b"-NOAUTH Authentication required.\r\n" if question.endswith(b"\n") else b""


def cassandra(question: bytes) -> bytes:
    answered = 6 if question[:5] == b"\x04\x00\x00\x00\x05" else 0
    return bytes([0x84, 0, 0, 0, answered, 0, 0, 0, 2, 0, 0])


def postgres(question: bytes) -> bytes:
    return b"N" if question[4:] == b"\x04\xd2\x16\x2f" else b""


def web(_: bytes) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\n\r\n"


@contextmanager
def listening(answer: Answer) -> Iterator[int]:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(answer(connection.recv(100)))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.mark.parametrize("expected", ["kafka", "redis", "cassandra", "postgres"])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (kafka, "kafka"),
        (redis, "redis"),
        (locked_redis, "redis"),
        (cassandra, "cassandra"),
        (postgres, "postgres"),
        (web, ""),
    ],
)
def test_each_server_is_recognized_whichever_was_expected(answer: Answer, kind: str, expected: str) -> None:
    with listening(answer) as port:
        assert who_answers("127.0.0.1", port, expected) == kind


def test_who_is_expected_is_asked_once() -> None:
    asked: list[bytes] = []

    def answer(question: bytes) -> bytes:
        asked.append(question)
        return kafka(question)

    with listening(answer) as port:
        check_kafka(f"PLAINTEXT://127.0.0.1:{port}, 127.0.0.1:{port}")
    assert len(asked) == 2


def test_a_wrong_neighbour_is_named() -> None:
    with (
        listening(redis) as port,
        pytest.raises(ConfigurationError, match=f"--kafka 127.0.0.1:{port}: Redis answers"),
    ):
        check_kafka(f"127.0.0.1:{port}")
    with listening(kafka) as port:
        for url in (
            f"redis://127.0.0.1:{port}/0",
            f"cassandra://me:secret@127.0.0.1:{port}/keyspace?timeout_s=3",
            f"postgresql://me:secret@127.0.0.1:{port}/totals",
        ):
            with pytest.raises(
                ConfigurationError, match=rf"127\.0\.0\.1:{port}: Kafka answers there"
            ) as caught:
                check_stores([url])
            assert "secret" not in str(caught.value)


def test_what_cannot_be_judged_is_left_to_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "TIMEOUT_S", 0.05)
    nobody = own_port()
    check_kafka(f"127.0.0.1:{nobody}")
    check_kafka("no-such-host.invalid:9092")
    check_stores(
        ["sqlite:///tmp/a.db", "memory://a", f"rediss://127.0.0.1:{nobody}", f"redis://127.0.0.1:{nobody}"]
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        check_kafka(f"127.0.0.1:{silent.getsockname()[1]}")
