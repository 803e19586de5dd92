"""An HTTP endpoint that takes events and loses none: it answers 202 when an event is on the disk.

    INGEST_KAFKA=localhost:9092 python -m services.http_server

    POST /events/{key}      one event, as JSON: 202 with its numbers. It will be in Kafka, and count once.
    POST /batches/{key}     a JSON list of events: all of them are taken, or none.
    GET  /health            200 while events are published; 503 with the reason while they wait. They are taken all the same

400: not JSON, or a key that is not UTF-8. 403: a web page sent it from elsewhere. 408: its body did not end in time. 413: too large. 503 with
Retry-After: not taken, because too much waits for Kafka, for the disk, or in the bodies of others; the client should try again. What a client
sends again because it got no answer is a second event: let events carry an id where that matters (docs/write-ahead-log.md). A directory is for
one process: start more processes with directories of their own. What went wrong is in this process's log, not in answers.

Environment: INGEST_KAFKA; INGEST_DIRECTORY ("ingest-log"), INGEST_TOPIC ("events"), INGEST_PARTITIONS (4),
INGEST_MAX_BYTES of the log (1 GiB), INGEST_ORIGINS of web pages that may send events, separated by commas (none).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sqe_chain.codecs.exact_json import check_depth
from sqe_chain.errors import LogClosed, LogFull, LogUnwritable, RecordTooLarge
from sqe_chain.ext.wal import DurableProducer, Limits, Record

RETRY_AFTER_S: Final = "5"
WAIT_FOR_ROOM_S: Final = 1.0
MAX_BODY_BYTES: Final = 4 << 20
MAX_EVENT_BYTES: Final = 1_000_000
MAX_BATCH_EVENTS: Final = 10_000
MAX_BODIES_BYTES: Final = 64 << 20
"""Of all requests together, while they are read and written."""
BODY_TIMEOUT_S: Final = 10.0
_SEGMENT_BYTES: Final = 32 << 20
_ABSENT: Final = msgspec.Raw(b"")
_BATCH: Final = msgspec.json.Decoder(
    msgspec.defstruct(
        "Batch",
        [(f"event_{number}", msgspec.Raw, _ABSENT) for number in range(MAX_BATCH_EVENTS)],
        array_like=True,
        forbid_unknown_fields=True,
    )
)
"""A list that refuses one element too many when it comes to it; a list with a greatest length is made first."""
_LOGGER: Final = logging.getLogger("sqe_chain.http_ingest")


def application(environment: Mapping[str, str] = os.environ) -> Starlette:
    """The application. It opens the log when it starts, and closes it when it ends."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.producer = await run_in_threadpool(_opened, environment)
        app.state.held_bytes = 0
        app.state.origins = frozenset(filter(None, environment.get("INGEST_ORIGINS", "").split(",")))
        yield
        await run_in_threadpool(app.state.producer.close)

    routes = [
        Route("/events/{key}", take_event, methods=["POST"]),
        Route("/batches/{key}", take_batch, methods=["POST"]),
        Route("/health", health),
    ]
    refusals: dict[Any, Any] = {
        RecordTooLarge: _too_large,
        LogFull: _try_again,
        LogUnwritable: _try_again,
        LogClosed: _try_again,
    }
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=refusals)


def _opened(environment: Mapping[str, str]) -> DurableProducer:
    max_bytes = int(environment.get("INGEST_MAX_BYTES", str(1 << 30)))
    segment_bytes = min(_SEGMENT_BYTES, max_bytes // 4)
    return DurableProducer(
        environment.get("INGEST_DIRECTORY", "ingest-log"),
        environment.get("INGEST_TOPIC", "events"),
        partitions=int(environment.get("INGEST_PARTITIONS", "4")),
        kafka=environment["INGEST_KAFKA"],
        limits=Limits(
            max_bytes,
            segment_bytes,
            max_record_bytes=min(MAX_EVENT_BYTES, segment_bytes),
            group_bytes=min(MAX_BODY_BYTES, segment_bytes),
        ),
        timeout_s=WAIT_FOR_ROOM_S,
    )


async def take_event(request: Request) -> JSONResponse:
    """Take one event."""
    _check_origin(request)
    key = _key(request)
    with _room(request) as room:
        body = await _body(request, room, MAX_EVENT_BYTES)
        _parsed(body)
        receipt = await _producer(request).append_async(body, key=key)
    taken = {"partition": receipt.partition, "epoch": receipt.epoch, "sequence": receipt.sequence}
    return JSONResponse(taken, status_code=202)


async def take_batch(request: Request) -> JSONResponse:
    """Take several events."""
    _check_origin(request)
    key = _key(request)
    with _room(request) as room:
        body = await _body(request, room, MAX_BODY_BYTES)
        events, now_ms = await run_in_threadpool(_events, body), time.time_ns() // 1_000_000
        records = [Record(event, key, timestamp_ms=now_ms) for event in events]
        receipts = await _producer(request).append_many_async(records)
    return JSONResponse({"taken": len(receipts)}, status_code=202)


async def health(request: Request) -> JSONResponse:
    """Show whether events are published, and if not, what kind of error keeps them waiting."""
    status = _producer(request).status
    found = {
        "waiting": status.waiting,
        "used_bytes": status.used_bytes,
        "max_bytes": status.max_bytes,
        "error": None if status.error is None else type(status.error).__name__,
    }
    return JSONResponse(found, status_code=200 if status.error is None else 503)


def _producer(request: Request) -> DurableProducer:
    producer: DurableProducer = request.app.state.producer
    return producer


def _check_origin(request: Request) -> None:
    """Refuse web pages that were not named: any page can make the browser of its reader send events."""
    origin = request.headers.get("origin")
    if origin is not None and origin not in request.app.state.origins:
        raise HTTPException(403, "this web page may not send events: INGEST_ORIGINS names those that may")


def _key(request: Request) -> bytes:
    """The last part of the path, as it was sent: servers decode it, and make one character of all bytes that are no UTF-8."""
    key = unquote_to_bytes(request.scope["raw_path"].rpartition(b"/")[2])
    try:
        key.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "the key is not UTF-8") from None
    return key


class _Room:
    """The bytes of one request, which count until it is answered."""

    def __init__(self, state: Any) -> None:  # noqa: ANN401 - of Starlette
        self._state, self._bytes = state, 0

    def take(self, count: int) -> None:
        """Count some bytes more."""
        if self._state.held_bytes + count > MAX_BODIES_BYTES:
            raise _ended(503, "too many requests at a time: try again", {"Retry-After": RETRY_AFTER_S})
        self._state.held_bytes += count
        self._bytes += count

    def leave(self) -> None:
        """Count none of them any more."""
        self._state.held_bytes -= self._bytes


@contextmanager
def _room(request: Request) -> Iterator[_Room]:
    room = _Room(request.app.state)
    try:
        yield room
    finally:
        room.leave()


async def _body(request: Request, room: _Room, most: int) -> bytes:
    """The body, if it is not too large, and comes in time: nobody shall fill the memory."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                if len(body) + len(chunk) > most:
                    raise _ended(
                        413, f"more than {most} bytes (max_record_bytes of an event: {MAX_EVENT_BYTES})"
                    )
                room.take(len(chunk))
                body += chunk
    except TimeoutError:
        raise _ended(408, f"the body has not ended after {BODY_TIMEOUT_S} s") from None
    except ClientDisconnect:  # else every client that goes away would write a traceback into the log
        raise _ended(400, "the body has not ended") from None
    return bytes(body)


def _ended(status: int, text: str, headers: Mapping[str, str] | None = None) -> HTTPException:
    """The refusal of a body that is not read to its end."""
    return HTTPException(status, text, {"Connection": "close", **(headers or {})})


def _events(body: bytes) -> list[bytes]:
    """The events of a batch. More than may be there are refused before anything is made of them: an empty one takes forty times its bytes."""
    try:
        found = msgspec.structs.astuple(_BATCH.decode(body))
    except msgspec.ValidationError as error:
        many = body.lstrip().startswith(b"[")
        raise HTTPException(
            413 if many else 400, f"a list of at most {MAX_BATCH_EVENTS} events: {error}"
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise HTTPException(400, f"not the JSON that is expected: {error}") from None
    events = [bytes(event) for event in found if event is not _ABSENT]
    if any(len(event) > MAX_EVENT_BYTES for event in events):
        raise HTTPException(413, f"an event has more than {MAX_EVENT_BYTES} bytes (max_record_bytes)")
    for event in events:
        _parsed(event)
    return events


def _parsed(body: bytes) -> None:
    """Refuse what is not JSON: it would stop the readers of the topic."""
    try:
        check_depth(body)
        msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise HTTPException(400, f"not the JSON that is expected: {error}") from None


async def _too_large(_: Request, error: Exception) -> JSONResponse:
    _LOGGER.info("refused: %s", error)
    return JSONResponse({"error": "an event is larger than max_record_bytes of the log"}, status_code=413)


async def _try_again(_: Request, error: Exception) -> JSONResponse:
    _LOGGER.warning("not taken: %s", error)  # it may name folders of this machine
    text = (
        "the log is full: too much waits for Kafka" if isinstance(error, LogFull) else "not taken by the disk"
    )
    return JSONResponse({"error": text}, status_code=503, headers={"Retry-After": RETRY_AFTER_S})
