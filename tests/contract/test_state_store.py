"""Goal: every store keeps the contract that is shipped for all of them: memory, SQLite, a real Redis, Cassandra and PostgreSQL.

Each class gives an address, and what its store can do besides. What an older version has left is SQLite's and Redis's alone.
"""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis

from sqe_chain.adapters import open_store
from sqe_chain.adapters.cassandra.client import CassandraClient
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.adapters.postgres.client import PostgresClient
from sqe_chain.ports import Header, StateStore
from sqe_chain.testing.contracts import StoreContract

BORN = Header(1, "run-a", 0, "plan-0")
OLD = replace(BORN, epoch=2, run_id="older")


class TestMemory(StoreContract):
    notices_lost_states = "any"
    between_processes = False

    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid.uuid4().hex}"

    def lose_states(self, url: str, flow: str, keys: list[bytes] | None) -> None:
        store = MemoryStore(url.removeprefix("memory://"))
        copy = store.copy_part(flow, "s", 0)
        for key in list(copy.states) if keys is None else keys:
            del copy.states[key]
        store.restore_part(flow, "s", 0, copy)

    def shown(self, url: str, flow: str, part: int) -> dict[bytes, object]:
        return dict(MemoryStore(url.removeprefix("memory://")).copy_part(flow, "s", part).views)

    def shown_keys(self, url: str, flow: str, view: str) -> set[bytes]:
        return super().shown_keys(url, flow, "json")


class OlderVersions(StoreContract):
    """Stores that keep a consistency check, which older versions did not have."""

    def write_as_older(self, url: str, flow: str) -> None:
        """Replace the header by `OLD`, and delete the state b"a", without the consistency check."""
        raise NotImplementedError

    def test_what_an_older_version_has_written_is_taken_as_it_is(
        self, url: str, store: StateStore, flow: str
    ) -> None:
        """It leaves a check alone that it finds: users may go back to it, and forward again."""
        store.write(flow, "s", 0, None, BORN, [(b"a", b"1")])
        assert store.headers(flow, "s", [0]) == [BORN]
        self.write_as_older(url, flow)
        assert store.read(flow, "s", 0, [b"a"]) == (OLD, [None], OLD)
        assert store.headers(flow, "s", [0]) == [OLD]
        assert [header.lost for header in store.headers(flow, "s", [0]) if header] == [""]
        new = replace(OLD, epoch=3, run_id="newer")
        assert store.write(flow, "s", 0, OLD, new, [(b"b", b"2")]) == new
        assert store.read(flow, "s", 0, [b"b"]) == (new, [b"2"], new)
        assert [header.lost for header in store.headers(flow, "s", [0]) if header] == [""]


class TestSqlite(OlderVersions):
    notices_lost_states = "any"

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite://{tmp_path}/states.db"

    def file(self, url: str) -> sqlite3.Connection:
        return sqlite3.connect(url.removeprefix("sqlite://"))

    def lose_states(self, url: str, flow: str, keys: list[bytes] | None) -> None:
        where = "flow = ? AND stage = 's' AND part = 0"
        with closing(self.file(url)) as file, file:
            if keys is None:
                file.execute(f"DELETE FROM states WHERE {where}", (flow,))  # noqa: S608 - constants
            for key in keys or ():
                file.execute(f"DELETE FROM states WHERE {where} AND key = ?", (flow, key))  # noqa: S608

    def shown(self, url: str, flow: str, part: int) -> dict[bytes, object]:
        select = (
            "SELECT key, shown FROM states WHERE flow = ? AND stage = 's' AND part = ? AND shown IS NOT NULL"
        )
        with closing(self.file(url)) as file:
            return dict(file.execute(select, (flow, part)).fetchall())

    def write_as_older(self, url: str, flow: str) -> None:
        with closing(self.file(url)) as file, file:
            file.execute("UPDATE headers SET epoch = 2, run_id = 'older' WHERE flow = ?", (flow,))
            file.execute("DELETE FROM states WHERE flow = ?", (flow,))


class TestRedis(OlderVersions):
    notices_lost_states = "any"
    driver: ClassVar[Any] = redis.Redis

    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url

    def server(self, url: str) -> Any:
        return closing(self.driver.from_url(url.replace("+cluster", "").split(",")[0].partition("?")[0]))

    def lose_states(self, url: str, flow: str, keys: list[bytes] | None) -> None:
        name = f"sqe:{{{flow}/s/0}}:states"
        with self.server(url) as server:
            if keys is None:
                server.delete(name)
            else:
                server.hdel(name, *keys)

    def shown(self, url: str, flow: str, part: int) -> dict[bytes, object]:
        with self.server(url) as server:
            return {
                key: view.decode() for key, view in server.hgetall(f"sqe:{{{flow}/s/{part}}}:json").items()
            }

    def shown_keys(self, url: str, flow: str, view: str) -> set[bytes]:
        if view == "json":
            return super().shown_keys(url, flow, view)
        with self.server(url) as server:
            return {key.rpartition(b":")[2] for key in server.scan_iter(f"sqe:{{{flow}/s/*:hash:*")}

    def write_as_older(self, url: str, flow: str) -> None:
        with self.server(url) as server:
            server.hset(f"sqe:{{{flow}/s/0}}:header", mapping={"epoch": f"{2:020d}", "run_id": "older"})
            server.hdel(f"sqe:{{{flow}/s/0}}:states", "a")


class TestRedisCluster(TestRedis):
    driver = redis.RedisCluster

    @pytest.fixture
    def url(self, redis_cluster_url: str) -> str:
        return redis_cluster_url


class TestCassandra(StoreContract):
    """A row that another program deletes alone is not noticed there, as docs/stores.md describes."""

    notices_lost_states = "all"
    notices_after_writes = False

    @pytest.fixture
    def url(self, cassandra_url: str) -> str:
        return cassandra_url

    def client(self, url: str) -> CassandraClient:
        return CassandraClient.of_this_process(open_store(url).settings)  # type: ignore[attr-defined]

    def lose_states(self, url: str, flow: str, keys: list[bytes] | None) -> None:
        assert keys is None
        delete = "DELETE FROM sqe_chain.sqe_states WHERE flow = ? AND stage = 's' AND part = 0 AND key >= 0x"
        self.client(url).rows((delete, (flow,)))

    def shown(self, url: str, flow: str, part: int) -> dict[bytes, object]:
        select = "SELECT key, shown FROM sqe_chain.sqe_states WHERE flow = ? AND stage = 's' AND part = ?"
        rows = self.client(url).rows((select, (flow, part)))
        return {key: view for key, view in rows if view is not None}


class TestPostgres(StoreContract):
    notices_lost_states = "any"

    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url

    def client(self, url: str) -> PostgresClient:
        return PostgresClient.of_this_process(open_store(url).settings)  # type: ignore[attr-defined]

    def lose_states(self, url: str, flow: str, keys: list[bytes] | None) -> None:
        delete = "DELETE FROM sqe_chain.sqe_states WHERE flow = %(flow)s AND stage = 's' AND part = 0"
        if keys is not None:
            delete += " AND key = ANY(%(keys)s)"
        self.client(url).rows(delete, {"flow": flow, "keys": keys})

    def shown(self, url: str, flow: str, part: int) -> dict[bytes, object]:
        select = (
            "SELECT key, shown FROM sqe_chain.sqe_states"
            " WHERE flow = %(flow)s AND stage = 's' AND part = %(part)s AND shown IS NOT NULL"
        )
        return dict(self.client(url).rows(select, {"flow": flow, "part": part}))
