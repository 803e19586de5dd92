"""Goal: clients that are many, slow or large cost a bounded amount of memory, and the others are answered.

Method: the page runs in a process of its own, beside a flow that makes batches; its resident memory is read from /proc.
"""

from __future__ import annotations

import http.client
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sqe_chain.ext.web import server

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[4]
STREAMS = 1_000
MIB = 1 << 20
PATIENCE_S = 60


class Page:
    """A page in another process.

    Args:
        slow_s: how long its clients may take nothing.
    """

    def __init__(self, slow_s: float) -> None:
        command = [sys.executable, "-m", "tests.support.web_process", str(slow_s)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def memory(self) -> int:
        """Its resident bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1_024
        raise AssertionError("it has no memory")

    def batches(self) -> int:
        """The number of its next batch: it makes batches still."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def ask(self, path: str) -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status

    def connect(self, *, receives: int | None = None) -> socket.socket:
        """A connection whose system keeps few of the bytes that nobody reads."""
        connection = socket.socket()
        if receives is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        connection.settimeout(PATIENCE_S)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def open_stream(self, *, receives: int | None = None) -> socket.socket:
        connection = self.connect(receives=receives)
        connection.sendall(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection

    @contextmanager
    def streams(self, count: int, *, receives: int | None = None) -> Iterator[list[socket.socket]]:
        opened = [self.open_stream(receives=receives) for _ in range(count)]
        try:
            yield opened
        finally:
            for connection in opened:
                connection.close()


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    opened = Page(getattr(request, "param", 60.0))
    yield opened
    opened.close()


def read_until(connection: socket.socket, wanted: bytes) -> None:
    received = b""
    while wanted not in received:
        block = connection.recv(65_536)
        assert block, received[-200:]
        received = received[-len(wanted) :] + block


@pytest.fixture
def many_files() -> None:
    """This process opens a thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4 * STREAMS:
        if hard < 4 * STREAMS:
            pytest.skip("this system allows too few open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (4 * STREAMS, hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_readers_all_get_news_and_cost_little_memory(page: Page) -> None:
    page.ask("/api/flows")
    before = page.memory
    with page.streams(STREAMS) as streams:
        for connection in streams:
            read_until(connection, b"event: flows")
        assert page.memory - before < 100 * MIB
        assert page.ask("/api/flows/totals") == 200
        number = page.batches()
        assert page.batches() > number
        read_until(streams[-1], b"event: flows")


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("page", [2.0], indirect=True)
def test_readers_that_never_read_cost_bounded_memory_and_are_closed(page: Page) -> None:
    page.ask("/api/flows")
    before = page.memory
    with page.streams(300, receives=4_096) as streams, page.streams(1) as reading:
        left, most, deadline = set(streams), 0, time.monotonic() + 150
        while left and time.monotonic() < deadline:
            read_until(reading[0], b"event: flows")  # somebody else gets all news
            most = max(most, page.memory - before)
            left = {connection for connection in left if not is_closed(connection)}
        assert not left
        assert most < 300 * 2 * server.SEND_BYTES + 50 * MIB
    assert page.ask("/api/flows") == 200


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection, without reading what it has sent."""
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    established = 1
    return state != established


@pytest.mark.parametrize("path", ["/api/flows/totals/dead-letters", "/api/flows", "/nothing"])
@pytest.mark.parametrize("length", [f"Content-Length: {1 << 30}", "Transfer-Encoding: chunked"])
def test_a_body_of_a_gigabyte_is_not_read(page: Page, path: str, length: str) -> None:
    page.ask("/api/flows")
    before, sent = page.memory, 0
    chunk = b"x" * 65_536
    framed = b"%x\r\n%b\r\n" % (len(chunk), chunk) if "chunked" in length else chunk
    with closing(page.connect()) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode())
        try:
            while sent < 1 << 30:
                connection.sendall(framed)
                sent += len(chunk)
        except ConnectionError:
            pass
    assert sent < 16 * MIB
    assert page.memory - before < 30 * MIB
    assert page.ask("/api/flows") == 200


def test_connections_beyond_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert server.most_connections() == min(server.CONNECTIONS, soft // 2)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, hard))
    assert server.most_connections() == 512
