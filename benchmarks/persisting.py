"""How fast a store writes changed states: step 6 of the protocol against the plain client writing the same rows.

The plain client compares nothing, and uses its fastest way. For Redis, that is HSET with many fields at a time. For
Cassandra, many concurrent prepared updates, or unlogged batches of one partition, whichever is faster.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent
from cassandra.policies import RoundRobinPolicy
from cassandra.query import BatchStatement, BatchType
from redis import Redis

from benchmarks.flows import PARTITIONS
from sqe_chain.ports import Header, StateStore
from sqe_chain.task.states import Claim, Transition, persist

_CHUNK = 1_000
_UPDATE = "UPDATE sqe_chain.sqe_states SET state = ? WHERE flow = ? AND stage = ? AND part = ? AND key = ?"

Rows = list[tuple[bytes, bytes | None]]


@dataclass(frozen=True, slots=True)
class Rates:
    """Rows per second.

    Attributes:
        ours: by the protocol.
        plain: by the plain client.
        how: what the plain client did.
    """

    ours: float
    plain: float
    how: str


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
