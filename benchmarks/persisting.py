"""How fast a store writes changed states: step 6 of the protocol against the plain client writing the same rows.

The plain client compares nothing, and uses its fastest way. For Redis, that is HSET with many fields at a time. For
Cassandra, many concurrent prepared updates, or unlogged batches of one partition, whichever is faster.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent
from cassandra.policies import RoundRobinPolicy
from cassandra.query import BatchStatement, BatchType
from redis import Redis

from benchmarks.flows import PARTITIONS
from sqe_chain.adapters import open_store
from sqe_chain.ext.dev import CassandraServer
from sqe_chain.ports import Header, StateStore, WithSchema
from sqe_chain.task.states import Claim, Transition, persist

if TYPE_CHECKING:
    from benchmarks.__main__ import Bench

_ROWS, _BYTES = 100_000, 64
_CHUNK = 1_000
_UPDATE = "UPDATE sqe_chain.sqe_states SET state = ? WHERE flow = ? AND stage = ? AND part = ? AND key = ?"

Rows = list[tuple[bytes, bytes | None]]


def compare_stores(bench: Bench) -> None:
    """How fast Redis and Cassandra store changed states, and how many bytes they write for them."""
    with CassandraServer() as server:
        cassandra = open_store(server.url)
        assert isinstance(cassandra, WithSchema)
        cassandra.make_schema({"": 1})
        _compare(bench, "Redis", open_store(bench.redis), partial(plain_redis, bench.redis), 0.7)
        _compare(bench, "Cassandra", cassandra, partial(plain_cassandra, server.url), 0.5)
        cassandra.close()
    with redis_bytes(bench.redis, _ROWS * (_BYTES + len("key-00000000"))) as grown:
        by_protocol(open_store(bench.redis), _ROWS, _BYTES)
    what = "bytes written by Redis, for each of keys and states"
    bench.table.add_row(what, f"{grown[0]:.2f}", "", "", "", f"and {grown[1]:.2f} received")


def _compare(
    bench: Bench, name: str, store: StateStore, plain: Callable[[int, int], tuple[float, str]], target: float
) -> None:
    by_protocol(store, _ROWS // 10, _BYTES)
    pairs = [(by_protocol(store, _ROWS, _BYTES), *plain(_ROWS, _BYTES)) for _ in range(bench.rounds)]
    mine, theirs = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    ratios = ", ".join(f"{ours / other:.2f}" for ours, other, _ in pairs)
    bench.table.add_row(
        f"changed states persisted, {name}",
        f"{mine / 1e3:,.0f} k/s",
        f"{theirs / 1e3:,.0f} k/s",
        f"{median(ours / other for ours, other, _ in pairs):.2f}",
        f">= {target}",
        f"{_ROWS:,} of {_BYTES} bytes; plain: {pairs[-1][2]}; rounds {ratios}",
    )


def _parts(rows: int, size: int) -> list[Rows]:
    return [
        [
            (f"key-{number:08d}".encode(), bytes([number % 251]) * size)
            for number in range(part, rows, PARTITIONS)
        ]
        for part in range(PARTITIONS)
    ]


def by_protocol(store: StateStore, rows: int, size: int) -> float:
    """Rows per second of step 6, one state partition after another."""
    flow, parts = f"bench-store-{uuid.uuid4().hex[:8]}", _parts(rows, size)
    headers = [Header(1, "run", 0, "0") for _ in parts]
    for part, header in enumerate(headers):
        store.write(flow, "stage", part, None, header, [])
    transition = Transition(flow, Claim(1, "run"), 0, "0")
    began = time.perf_counter()
    for part, chunk in enumerate(parts):
        assert persist(store, transition, "1", "stage", part, chunk, headers[part]) == len(chunk)
    return rows / (time.perf_counter() - began)


def plain_redis(url: str, rows: int, size: int) -> tuple[float, str]:
    """Rows per second of HSET with 1,000 fields at a time."""
    client, name = Redis.from_url(url), f"plain-{uuid.uuid4().hex[:8]}"
    parts: Any = _parts(rows, size)
    began = time.perf_counter()
    for part, chunk in enumerate(parts):
        for start in range(0, len(chunk), _CHUNK):
            client.hset(f"{name}/{part}", mapping=dict(chunk[start : start + _CHUNK]))
    rate = rows / (time.perf_counter() - began)
    assert sum(client.hlen(f"{name}/{part}") for part in range(PARTITIONS)) == rows
    client.close()
    return rate, f"HSET of {_CHUNK:,} fields"


def plain_cassandra(url: str, rows: int, size: int) -> tuple[float, str]:
    """Rows per second of the faster of two ways."""
    with _session(url) as session:
        update = session.prepare(_UPDATE)

        def single(flow: str) -> None:
            calls = [
                (update, (state, flow, "plain", part, key))
                for part, chunk in enumerate(_parts(rows, size))
                for key, state in chunk
            ]
            execute_concurrent(session, calls, concurrency=128, raise_on_first_error=True)

        def batches(flow: str) -> None:
            for part, chunk in enumerate(_parts(rows, size)):
                for start in range(0, len(chunk), _CHUNK):
                    batch = BatchStatement(BatchType.UNLOGGED)
                    for key, state in chunk[start : start + _CHUNK]:
                        batch.add(update, (state, flow, "plain", part, key))
                    session.execute(batch)

        found = []
        for write, how in (
            (single, "single updates, 128 under way"),
            (batches, f"unlogged batches of {_CHUNK:,}"),
        ):
            began = time.perf_counter()
            write(f"plain-{uuid.uuid4().hex[:8]}")
            found.append((rows / (time.perf_counter() - began), how))
        return max(found)


@contextmanager
def _session(url: str) -> Iterator[Any]:
    address = urlsplit(url)
    profile = ExecutionProfile(
        RoundRobinPolicy(), consistency_level=ConsistencyLevel.LOCAL_QUORUM, request_timeout=30
    )
    with Cluster(
        [address.hostname],
        port=address.port,
        protocol_version=5,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    ) as cluster:
        yield cluster.connect()


@contextmanager
def redis_bytes(url: str, states: int) -> Iterator[list[float]]:
    """Bytes that the server appends to its file, and that it receives, for each byte of keys and states."""
    client: Any = Redis.from_url(url)

    def now() -> tuple[int, int]:
        return client.info("persistence")["aof_current_size"], client.info("stats")["total_net_input_bytes"]

    before, found = now(), list[float]()
    yield found
    found += [(after - start) / states for start, after in zip(before, now(), strict=True)]
    client.close()
