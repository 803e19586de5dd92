"""An HTTP endpoint that takes events and loses none: it answers 202 when an event is on the disk.

    INGEST_KAFKA=localhost:9092 uvicorn --factory services.http_ingest:application

    POST /events/{key}      one event, as JSON: 202 with its numbers. It will be in Kafka, and count once
    POST /batches/{key}     a JSON list of events: all of them are taken, or none
    GET  /health            200 while events are published; 503 with the reason while they wait. They are taken all the same

400: not JSON. 413: too large. 503 with Retry-After: not taken, because too much waits for Kafka, or for the disk; the client
should try again. What a client sends again because it got no answer is a second event: let events carry an id where that
matters (docs/write-ahead-log.md). A directory is for one process: start more processes with directories of their own.

Environment: INGEST_KAFKA; INGEST_DIRECTORY ("ingest-log"), INGEST_TOPIC ("events"), INGEST_PARTITIONS (4),
INGEST_MAX_BYTES of the log (1 GiB).
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sqe_chain.errors import LogClosed, LogFull, LogUnwritable, RecordTooLarge
from sqe_chain.wal import DurableProducer, Limits, Record

RETRY_AFTER_S: Final = "5"
WAIT_FOR_ROOM_S: Final = 1.0
MAX_BODY_BYTES: Final = 4 << 20
MAX_EVENT_BYTES: Final = 1_000_000
_SEGMENT_BYTES: Final = 32 << 20


def application(environment: Mapping[str, str] = os.environ) -> Starlette:
    """The application. It opens the log when it starts, and closes it when it ends."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.producer = await run_in_threadpool(_opened, environment)
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
    body = await _body(request)
    _parsed(body, Any)  # what is not JSON would stop whoever reads the topic
    receipt = await _producer(request).append_async(body, key=request.path_params["key"])
    taken = {"partition": receipt.partition, "epoch": receipt.epoch, "sequence": receipt.sequence}
    return JSONResponse(taken, status_code=202)


async def take_batch(request: Request) -> JSONResponse:
    """Take several events."""
    body = await _body(request)
    _parsed(body, list[Any])
    key, now_ms = request.path_params["key"].encode(), time.time_ns() // 1_000_000
    records = [Record(bytes(event), key, timestamp_ms=now_ms) for event in _parsed(body, list[msgspec.Raw])]
    receipts = await _producer(request).append_many_async(records)
    return JSONResponse({"taken": len(receipts)}, status_code=202)


async def health(request: Request) -> JSONResponse:
    """Say whether events are published, and if not, why."""
    status = _producer(request).status
    found = {
        "waiting": status.waiting,
        "used_bytes": status.used_bytes,
        "max_bytes": status.max_bytes,
        "error": None if status.error is None else str(status.error),
    }
    return JSONResponse(found, status_code=200 if status.error is None else 503)


def _producer(request: Request) -> DurableProducer:
    producer: DurableProducer = request.app.state.producer
    return producer


async def _body(request: Request) -> bytes:
    """The body, if it is not too large: nobody shall fill the memory."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"more than {MAX_BODY_BYTES} bytes")
    return bytes(body)


def _parsed(body: bytes, wanted: Any) -> Any:  # noqa: ANN401 - any JSON
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"not the JSON that is expected: {error}") from None


async def _too_large(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status_code=413)


async def _try_again(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status_code=503, headers={"Retry-After": RETRY_AFTER_S})
