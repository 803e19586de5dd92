"""Reads the states of a stage directly from the store, by the layout in docs/stores.md.

It uses the database's own client and nothing of sqe-chain, as any other program would.
"""

from __future__ import annotations

import json
import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import redis
from cassandra import ConsistencyLevel, DriverException
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import RoundRobinPolicy

UNREADABLE = (
    *(redis.RedisError, sqlite3.Error, psycopg.Error, DriverException, NoHostAvailable),
    *(OSError, ValueError),
)
"""Errors that reading may raise: no such server, file or layout."""


_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One key of one stage."""

    part: int
    key: bytes
    state: bytes


def stored_states(store: str, flow: str, stage: str) -> Iterator[StoredRow]:
    """All states of a stage, in no particular order; not a consistent snapshot while a service runs.

    After a rebuild it finds them only in the flow's metadata store: the last plan there names where they are.

    Raises:
        ValueError: another kind of address.
        FileNotFoundError: no such SQLite file.
    """
    scheme = urlsplit(store).scheme
    if scheme in ("redis", "rediss"):
        return _from_redis(store, flow, stage)
    if scheme == "cassandra":
        return _from_cassandra(store, flow, stage)
    if scheme == "postgres":
        return _from_postgres(store, flow, stage)
    if scheme == "sqlite":
        return _from_sqlite(store, flow, stage)
    raise ValueError(
        f"{store.partition(':')[0]!r}: the audit cannot read it. Expected redis://, cassandra://, postgres:// or sqlite://"
    )


def _name(plan: bytes | str | None, flow: str, stage: str) -> str:
    """The flow name under which a stage is stored, from the last plan: a rebuild changes it."""
    stored = json.loads(plan)["layout"]["stages"].get(stage, {}) if plan else {}
    return str(stored.get("flow") or flow)


def _from_redis(store: str, flow: str, stage: str) -> Iterator[StoredRow]:
    with closing(redis.Redis.from_url(store)) as client:
        number = client.hget(f"sqe:{{{flow}}}:home", "number")
        flow = _name(client.hget(f"sqe:{{{flow}}}:plans", number) if number else None, flow, stage)
        name = re.compile(rf"sqe:\{{{re.escape(flow)}/{re.escape(stage)}/(\d+)\}}:states")
        for hash_name in client.scan_iter(match=f"sqe:{{{flow}/{stage}/*}}:states", count=1000):
            matched = name.fullmatch(hash_name.decode())  # MATCH is a glob, which has no "digits only"
            if matched is None:
                continue
            for key, state in client.hscan_iter(hash_name, count=1000):
                yield StoredRow(int(matched[1]), key, state)


@contextmanager
def cassandra_session(address: str) -> Iterator[Session]:
    """A session with the keyspace of an address; its rows are tuples with names."""
    url = urlsplit(address)
    profile = ExecutionProfile(
        RoundRobinPolicy(), consistency_level=ConsistencyLevel.QUORUM, request_timeout=_TIMEOUT_S
    )
    with Cluster(
        [url.hostname or "localhost"],
        port=url.port or 9042,
        protocol_version=5,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    ) as cluster:
        session = cluster.connect(url.path.strip("/").partition("/")[0])
        session.default_fetch_size = 1000
        yield session


def _from_cassandra(store: str, flow: str, stage: str) -> Iterator[StoredRow]:
    with cassandra_session(store) as session:
        last = session.execute("SELECT plan FROM sqe_flows WHERE flow = %s LIMIT 1", (flow,)).one()
        flow = _name(last.plan if last else None, flow, stage)
        # All state partitions; each has one row without a state, for itself.
        select = "SELECT part, key, state FROM sqe_states WHERE flow = %s AND stage = %s ALLOW FILTERING"
        for part, key, state in session.execute(select, (flow, stage)):
            if state is not None:
                yield StoredRow(part, key, state)


def _from_postgres(store: str, flow: str, stage: str) -> Iterator[StoredRow]:
    with closing(psycopg.connect(store, autocommit=True)) as connection:
        last = connection.execute(
            "SELECT plan FROM sqe_chain.sqe_plans JOIN sqe_chain.sqe_homes USING (flow, number) WHERE flow = %s",
            (flow,),
        ).fetchone()
        flow = _name(last[0] if last else None, flow, stage)
        select = "SELECT part, key, state FROM sqe_chain.sqe_states WHERE flow = %s AND stage = %s"
        for part, key, state in connection.execute(select, (flow, stage)):
            yield StoredRow(part, key, state)


def _from_sqlite(store: str, flow: str, stage: str) -> Iterator[StoredRow]:
    parts = urlsplit(store)
    path = Path(unquote(parts.netloc + parts.path))
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        last = connection.execute(
            "SELECT plan FROM plans JOIN homes USING (flow, number) WHERE flow = ?", (flow,)
        ).fetchone()
        flow = _name(last[0] if last else None, flow, stage)
        select = "SELECT part, key, state FROM states WHERE flow = ? AND stage = ?"
        for part, key, state in connection.execute(select, (flow, stage)):
            yield StoredRow(part, key, state)
