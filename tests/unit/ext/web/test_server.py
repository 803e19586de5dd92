"""Goal: a client that sends no whole headers does not hold a connection of the HTTP endpoint. A client that is answered does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn

from sqe_chain.ext.web import server as http_server
from sqe_chain.ext.web.server import PromptHeaders

PATIENCE_S = 20


async def slow(scope: Any, receive: Any, send: Any) -> None:
    """Answers when its headers would have been late."""
    assert scope["type"] == "http"
    await receive()
    await asyncio.sleep(0.6)
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def answers(*parts: bytes) -> bytes:
    """What the endpoint sends to a client that sends these parts, until it closes the connection."""
    config = uvicorn.Config(slow, port=0, http=PromptHeaders, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname()[:2])
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.05)
    found = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    server.should_exit = True
    await serving
    return found


REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "answered"),
    [
        ((), 0),
        ((b"GET / HTTP/1.1\r\n",), 0),
        ((b"GET / HTTP/1.1\r\n", b"X: y\r\n", b"Z: z\r\n"), 0),
        ((REQUEST,), 1),
        ((REQUEST, b"GET / HTTP/1.1\r\n"), 1),
        ((REQUEST, REQUEST), 2),
    ],
)
def test_headers_that_do_not_end_close_the_connection(
    parts: tuple[bytes, ...], answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEADER_TIMEOUT_S", 0.4)
    found = asyncio.run(answers(*parts))
    assert found.count(b"HTTP/1.1 202") == answered
