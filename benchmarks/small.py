"""What is no backlog: a batch of almost nothing, and how fast a store takes rows."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from redis import Redis

from benchmarks.backlog import Backlog
from benchmarks.flows import PARTITIONS
from benchmarks.service import Service
from sqe_chain.engines.spark.session import own_session
from sqe_chain.ports import Header
from sqe_chain.states import Claim, Step, persist
from sqe_chain.stores import open_store

_SCHEMA = "number long"


def empty_jobs(session: SparkSession) -> Iterator[float]:
    """Seconds of one `mapInArrow` job that computes nothing, with as many tasks as a batch has; endlessly."""
    own = own_session(session)
    table = pa.table({"number": pa.array(range(PARTITIONS), pa.int64())})

    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    while True:
        began = time.perf_counter()
        rows = own.createDataFrame(table).mapInArrow(nothing, _SCHEMA).collect()
        assert len(rows) == PARTITIONS
        yield time.perf_counter() - began


def small_batches(service: Service, backlog: Backlog, bootstrap: str) -> Iterator[float]:
    """Seconds of one batch of a few messages; endlessly."""
    while True:
        backlog.write(bootstrap)
        began = time.perf_counter()
        assert service.protocol.batch()
        seconds = time.perf_counter() - began
        assert service.notes.inputs[-1] == backlog.messages
        yield seconds


def store_write(url: str, rows: int, size: int) -> tuple[float, float]:
    """Rows a second: by the protocol's persist, and by a plain pipeline of HSET; each into 4 partitions.

    Args:
        url: address of a Redis.
        rows: how many rows in all.
        size: bytes of a state.
    """
    flow, store = f"bench-store-{uuid.uuid4().hex[:8]}", open_store(url)
    parts = [
        [(f"key-{number:08d}".encode(), bytes(size)) for number in range(part, rows, PARTITIONS)]
        for part in range(PARTITIONS)
    ]
    headers = [Header(1, "run", 0, "0") for _ in parts]
    for part, header in enumerate(headers):
        store.write(flow, "stage", part, None, header, [])
    began = time.perf_counter()
    for part, chunk in enumerate(parts):
        written = persist(
            store, Step(flow, Claim(1, "run"), 0, "0"), "1", "stage", part, chunk, headers[part]
        )
        assert written == len(chunk)
    ours = rows / (time.perf_counter() - began)
    redis: Any = Redis.from_url(url)
    began = time.perf_counter()
    for part, chunk in enumerate(parts):
        pipeline = redis.pipeline(transaction=False)
        for key, state in chunk:
            pipeline.hset(f"{flow}/plain/{part}", key, state)
        pipeline.execute()
    plain = rows / (time.perf_counter() - began)
    assert sum(redis.hlen(f"{flow}/plain/{part}") for part in range(PARTITIONS)) == rows
    return ours, plain
