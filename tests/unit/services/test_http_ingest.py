"""Goal: what the example endpoint refuses costs little, reveals nothing of this machine, and changes nothing. Method: requests without a server."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from services import http_ingest
from sqe_chain.errors import LogFull, LogUnwritable, RecordTooLarge, Unavailable
from sqe_chain.ext.wal import Record

Answer = tuple[int, Any, dict[str, str]]


@dataclass
class Log:
    """A write-ahead log that keeps records in a list, or fails."""

    taken: list[tuple[bytes, bytes | str | None]] = field(default_factory=list)
    fails: Exception | None = None

    async def append_async(self, value: bytes, key: bytes) -> Any:
        if self.fails:
            raise self.fails
        self.taken.append((key, value))
        return SimpleNamespace(partition=0, epoch=1, sequence=len(self.taken) - 1)

    async def append_many_async(self, records: Sequence[Record]) -> list[Any]:
        return [await self.append_async(record.value or b"", record.key or b"") for record in records]

    @property
    def status(self) -> Any:
        return SimpleNamespace(waiting=1, used_bytes=2, max_bytes=3, error=self.fails)


class Endpoint:
    def __init__(self, origins: Sequence[str] = ()) -> None:
        self.log = Log()
        self.app = http_ingest.application({})
        self.app.state.producer = self.log
        self.app.state.held_bytes = 0
        self.app.state.origins = frozenset(origins)

    async def ask(
        self, path: bytes, body: AsyncIterator[bytes], headers: Sequence[tuple[bytes, bytes]], method: str
    ) -> Answer:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            try:
                return {"type": "http.request", "body": await anext(body), "more_body": True}
            except StopAsyncIteration:
                return {"type": "http.request", "body": b"", "more_body": False}
            except ConnectionError:
                return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path.replace(b"%ff", b"\xff").replace(b"%fe", b"\xfe").decode(errors="replace"),
            "raw_path": path,
            "query_string": b"",
            "headers": list(headers),
        }
        await self.app(scope, receive, send)
        content = b"".join(one.get("body", b"") for one in sent[1:])
        named = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        try:
            return sent[0]["status"], json.loads(content), named
        except ValueError:
            return sent[0]["status"], content.decode(), named

    def asked(
        self, path: bytes, *chunks: bytes, headers: Sequence[tuple[bytes, bytes]] = (), method: str = "POST"
    ) -> Answer:
        return asyncio.run(self.ask(path, _chunks(*chunks), headers, method))


async def _chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def test_events_and_batches_are_taken_with_their_key() -> None:
    endpoint = Endpoint()
    assert endpoint.asked(b"/events/robot%207", b'{"a"', b": 1}")[0] == 202
    assert endpoint.asked(b"/batches/k", b'[1, {"a": [",", "]"]}, "x"]')[1] == {"taken": 3}
    assert endpoint.asked(b"/batches/k", b"[]")[1] == {"taken": 0}
    assert endpoint.log.taken == [
        (b"robot 7", b'{"a": 1}'),
        *((b"k", event) for event in (b"1", b'{"a": [",", "]"]}', b'"x"')),
    ]
    assert endpoint.app.state.held_bytes == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (b"/events/%ff", b"1", 400),
        (b"/events/%fe", b"1", 400),
        (b"/batches/%ff", b"[1]", 400),
        (b"/events/k", b'"\xff"', 400),
        (b"/batches/k", b'["\xff"]', 400),
        (b"/batches/k", b"[1e999]", 400),
        (b"/batches/k", b"[1, 2", 400),
        (b"/batches/k", b'{"a": 1}', 400),
        (b"/events/k", b"[" * 5_000 + b"]" * 5_000, 400),
        (b"/events/k", b"[" * 201 + b"]" * 201, 400),
        (b"/batches/k", b"[" + b"[" * 5_000 + b"]" * 5_000 + b"]", 400),
        (b"/events/k", b"1" * (http_ingest.MAX_EVENT_BYTES + 1), 413),
        (b"/batches/k", b"[1" + b" " * http_ingest.MAX_BODY_BYTES + b"]", 413),
        (b"/batches/k", b'["' + b"x" * http_ingest.MAX_EVENT_BYTES + b'"]', 413),
        (b"/batches/k", b"[" + b"1," * http_ingest.MAX_BATCH_EVENTS + b"1]", 413),
    ],
)
def test_what_is_no_event_is_refused_and_leaves_nothing(path: bytes, body: bytes, status: int) -> None:
    endpoint = Endpoint()
    assert endpoint.asked(path, body)[0] == status
    assert not endpoint.log.taken
    assert endpoint.app.state.held_bytes == 0


def test_a_batch_of_as_many_events_as_allowed_is_taken() -> None:
    endpoint = Endpoint()
    events = [{"a": [1, 2, {"b": "],[", "c": '"'}]}] * http_ingest.MAX_BATCH_EVENTS
    assert endpoint.asked(b"/batches/k", json.dumps(events).encode())[1] == {"taken": len(events)}


@pytest.mark.parametrize("body", [b"[" + b"[]," * 1_300_000 + b"[]]", b"[[" + b"[]," * 1_300_000 + b"[]]]"])
def test_a_batch_that_is_refused_takes_little_memory(body: bytes) -> None:
    endpoint = Endpoint()
    tracemalloc.start()
    assert endpoint.asked(b"/batches/k", body)[0] == 413
    assert tracemalloc.get_traced_memory()[1] < 5 * len(body)
    tracemalloc.stop()


def test_bodies_have_a_limit_of_all_together_and_leave_it_when_they_end() -> None:
    endpoint = Endpoint()
    chunk = b"[" + b" " * (1 << 20)

    async def held() -> tuple[list[int], Answer]:
        over = asyncio.Event()

        async def waiting() -> AsyncIterator[bytes]:
            yield chunk
            await over.wait()
            yield b"]"

        tasks = [asyncio.create_task(endpoint.ask(b"/batches/k", waiting(), (), "POST")) for _ in range(100)]
        while endpoint.app.state.held_bytes + len(chunk) <= http_ingest.MAX_BODIES_BYTES:  # noqa: ASYNC110
            await asyncio.sleep(0)
        refused = await endpoint.ask(b"/batches/k", _chunks(chunk), (), "POST")
        over.set()
        return [answer[0] for answer in await asyncio.gather(*tasks)], refused

    statuses, refused = asyncio.run(held())
    assert (refused[0], refused[2]["retry-after"], refused[2]["connection"]) == (503, "5", "close")
    assert set(statuses) == {202, 503}
    assert statuses.count(202) == http_ingest.MAX_BODIES_BYTES // len(chunk)
    assert endpoint.app.state.held_bytes == 0
    assert endpoint.asked(b"/batches/k", b"[1]")[0] == 202


def test_a_body_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_ingest, "BODY_TIMEOUT_S", 0.01)
    endpoint = Endpoint()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.001)

    status, _, headers = asyncio.run(endpoint.ask(b"/events/k", endless(), (), "POST"))
    assert (status, headers["connection"]) == (408, "close")
    assert endpoint.app.state.held_bytes == 0


def test_a_client_that_goes_away_is_no_error_of_the_endpoint() -> None:
    endpoint = Endpoint()

    async def leaving() -> AsyncIterator[bytes]:
        yield b"["
        raise ConnectionError

    for path in (b"/events/k", b"/batches/k"):
        assert asyncio.run(endpoint.ask(path, leaving(), (), "POST"))[0] == 400
    assert not endpoint.log.taken
    assert endpoint.app.state.held_bytes == 0


def test_web_pages_may_send_events_if_they_are_named() -> None:
    endpoint = Endpoint(["https://ours.example"])
    for path in (b"/events/k", b"/batches/k"):
        for origin, status in (
            (b"https://other.example", 403),
            (b"null", 403),
            (b"https://ours.example", 202),
        ):
            assert endpoint.asked(path, b"[1]", headers=[(b"origin", origin)])[0] == status
    assert len(endpoint.log.taken) == 2


@pytest.mark.parametrize(
    ("error", "status"), [(LogFull, 503), (LogUnwritable, 503), (RecordTooLarge, 413), (Unavailable, None)]
)
def test_answers_reveal_nothing_of_this_machine(error: type[Exception], status: int | None) -> None:
    endpoint = Endpoint()
    endpoint.log.fails = error("/var/lib/secret/0.wal: it is full")
    if status is not None:
        found = endpoint.asked(b"/events/k", b"1")
        assert found[0] == status
        assert "secret" not in str(found)
        assert endpoint.app.state.held_bytes == 0
    found = endpoint.asked(b"/health", method="GET")
    assert found[:2] == (503, {"waiting": 1, "used_bytes": 2, "max_bytes": 3, "error": error.__name__})
    assert "secret" not in str(found)
