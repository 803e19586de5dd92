"""Small batches: the time of a batch with only a few messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.backlog import Backlog
from benchmarks.flows import PARTITIONS
from benchmarks.service import Service
from sqe_chain.engines.spark.session import own_session

_SCHEMA = "number long"


def empty_jobs(session: SparkSession) -> Iterator[float]:
    """Yields without end the seconds of an empty `mapInArrow` job with as many tasks as a batch."""
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
    """Yields without end the seconds of one batch of a few messages."""
    for time_written in count():
        backlog.write(bootstrap, time_written)
        began = time.perf_counter()
        assert service.protocol.batch().worked
        seconds = time.perf_counter() - began
        assert service.notes.inputs[-1] == backlog.messages
        assert service.notes.rows[-1] == backlog.keys, "replays, or states that were not written"
        yield seconds
