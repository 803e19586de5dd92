"""Tables, rights, durability, replicas and readers of a real PostgreSQL: what is refused, reported, and seen."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from typer.testing import CliRunner

from sqe_chain.adapters import open_store
from sqe_chain.adapters.postgres import PostgresStore
from sqe_chain.adapters.postgres.client import PostgresClient
from sqe_chain.adapters.postgres.statements import SqlStatements
from sqe_chain.cli.commands import application
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ext.dev import PostgresServer
from sqe_chain.flow import Flow
from sqe_chain.ports import Header, Home
from sqe_chain.runtime.trying import try_writes
from sqe_chain.testing import Rehearsal
from tests.support.waiting import eventually

CLAIM = Home(1, "run-a", "", -1, "")
BORN = Header(1, "run-a", 0, "plan-0")
SECRET = "s3cret-9Qz"  # noqa: S105  opens nothing but a server of this test


def opened(url: str) -> PostgresStore:
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    return store


@contextlib.contextmanager
def session(url: str) -> Iterator[psycopg.Connection]:
    with contextlib.closing(psycopg.connect(url.partition("?")[0], autocommit=True)) as connection:
        yield connection


def command(*arguments: str) -> tuple[int, str]:
    """Exit status and output of `sqe-chain store …`, in this process."""
    result = CliRunner().invoke(application(), ["store", *arguments])
    return result.exit_code, result.output


def as_user(url: str, name: str) -> str:
    return url.replace("//sqe@", f"//{name}@")


# --- tables and rights -----------------------------------------------------------------------------------


def test_the_command_makes_tables_and_reports_what_it_found(postgres_url: str) -> None:
    url = f"{postgres_url}?schema=by_command"
    store = opened(url)
    for call in (store.check, lambda: store.home("flow"), lambda: store.headers("flow", "s", [0])):
        with pytest.raises(ConfigurationError, match=r"the tables are missing; run: sqe-chain store init"):
            call()
    assert command("init", url, "--check") == (
        1,
        "tables: version 0, the newest is 2\ncreate or upgrade them with: sqe-chain store init\n",
    )
    assert command("init", url) == (
        0,
        "schema by_command\ntables of schema by_command: version 1\ntables of schema by_command: version 2\n",
    )
    assert command("init", url) == (0, "the tables already exist\n")
    assert command("init", url, "--check") == (
        0, "tables: version 2, the newest is 2\ndurable: acknowledged writes are kept\n",
    )  # fmt: skip
    assert store.set_home("flow", None, CLAIM) == CLAIM
    with session(url) as server:
        server.execute("UPDATE by_command.sqe_schema SET version = 3")
        store.close()
        with pytest.raises(ConfigurationError, match="version 3, this sqe-chain supports 2"):
            store.home("flow")
        server.execute("DROP TABLE by_command.sqe_homes")
        server.execute("UPDATE by_command.sqe_schema SET version = 2")
    with pytest.raises(ConfigurationError, match="somebody has dropped or altered it"):
        store.home("flow")
    store.close()


def test_a_service_needs_no_more_than_the_documented_rights(postgres_url: str) -> None:
    with session(postgres_url) as server:
        server.execute("CREATE ROLE totals LOGIN")
        server.execute("CREATE ROLE nobody LOGIN")
        server.execute("GRANT USAGE ON SCHEMA sqe_chain TO totals")
        server.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA sqe_chain TO totals")
    store = opened(as_user(postgres_url, "totals"))
    assert (store.check(), store.remarks(), try_writes(store, "tried", "r")) == ([], [], [])
    assert not [flow for flow in store.flows() if flow.startswith("tried")]
    assert len(store.clocks()) == 1
    other = opened(as_user(postgres_url, "nobody"))
    with pytest.raises(ConfigurationError, match="permission denied"):
        other.set_home("flow", None, CLAIM)
    with pytest.raises(ConfigurationError, match="permission denied"):
        opened(f"{as_user(postgres_url, 'nobody')}?schema=others").make_schema({})
    for one in (store, other):
        one.close()


def test_a_login_or_database_that_does_not_exist_is_no_outage(postgres_url: str) -> None:
    for url, text in (
        (as_user(postgres_url, "stranger"), 'role "stranger" does not exist'),
        (postgres_url.replace("/postgres", "/nowhere"), "does not exist"),
    ):
        store = open_store(url)
        with pytest.raises(ConfigurationError, match=text):
            store.check()


# --- durability ------------------------------------------------------------------------------------------


def test_what_may_lose_acknowledged_writes_is_named() -> None:
    with PostgresServer(durable=False) as server:
        store = opened(server.url)
        store.make_schema({})
        with session(server.url) as connection:
            connection.execute("ALTER TABLE sqe_chain.sqe_plans SET UNLOGGED")
        weak = store.check()
        assert [line.split(": ")[1].split(" ")[0] for line in weak] == [
            *("fsync", "full_page_writes", "synchronous_commit", "sqe_plans"),
        ]
        assert all("--allow-weak-durability accepts that" in line for line in weak)
        store.close()


class Replica(PostgresServer):
    """Begins as a copy of another server, which it follows."""

    def __init__(self, place: Path, of: PostgresServer) -> None:
        super().__init__(place)
        self._of = of

    def _prepare(self) -> None:
        if not self._data.exists():
            source = ("-h", "127.0.0.1", "-p", str(self._of.port), "-U", "sqe", "-X", "stream", "-R")
            copy = [*self._program("pg_basebackup"), "-D", str(self._data), "-c", "fast", *source]
            subprocess.run(copy, check=True, capture_output=True)


def test_a_replica_is_refused_and_so_is_a_failover_until_it_is_accepted(tmp_path: Path) -> None:
    """Both servers are named: the store finds the primary, before and after."""
    with PostgresServer(tmp_path / "one") as primary:
        store = opened(primary.url)
        store.make_schema({})
        store.write("flow", "s", 0, None, BORN, [(b"k", b"1")])
        assert store.remarks() == []
        with Replica(tmp_path / "two", primary) as replica:
            alone = opened(replica.url)
            with pytest.raises(Unavailable, match="the server is a replica, or takes no writes"):
                alone.home("flow")
            with session(replica.url) as follower:
                copied = "SELECT count(*) FROM sqe_chain.sqe_states"
                eventually(lambda: follower.execute(copied).fetchone() == (1,), "the replica has the state")
            both = opened(primary.url.replace("@", f"@127.0.0.1:{replica.port},"))
            assert both.read("flow", "s", 0, [b"k"]) == (BORN, [b"1"], BORN)
            eventually(lambda: len(store.remarks()) == 1, "the replica is listed")
            assert "no write waits for one of the 1 replicas" in store.remarks()[0]
            primary.kill()
            with session(replica.url) as follower:
                follower.execute("SELECT pg_promote()")
            eventually(partial(_answers_again, both), "the replica has become primary")
            assert both.read("flow", "s", 0, [b"k"]) == (BORN, [b"1"], BORN)
            (weak,) = both.check()
            assert "on timeline 00000002, and was on 00000001" in weak
            assert both.make_schema({}) == []
            assert (both.check(), both.remarks()) == ([], [])
            for one in (store, alone, both):
                one.close()


def _answers_again(store: PostgresStore) -> bool:
    try:
        store.home("flow")
    except Unavailable:
        return False
    return True


# --- readers ---------------------------------------------------------------------------------------------


def test_sql_finds_states_by_permanent_names_and_by_an_index(postgres_url: str) -> None:
    def add(total: Int64Value, one: Int64Value) -> None:
        total.value += one.value

    flow = Flow("sql-reads-this", state_partitions=2)
    flow.source("numbers", Int64Value).aggregate("per-key", state=Int64Value, fold=add, view="json")
    store = open_store(postgres_url)
    service = Rehearsal(flow, store=store)
    for number in range(6):
        service.feed("numbers", Int64Value(value=number), key=f"line-{number % 3}")
    service.run_until_caught_up()
    one = (
        "SELECT convert_from(key, 'UTF8'), shown::jsonb ->> 'value' FROM sqe_chain.results"
        " WHERE flow = 'sql-reads-this' AND stage = 'per-key' AND place = %s"
    )
    with session(postgres_url) as server:
        server.execute(
            "CREATE VIEW by_line AS SELECT convert_from(key, 'UTF8') AS line, (shown::jsonb ->> 'value')::bigint AS total"
            " FROM sqe_chain.results WHERE flow = 'sql-reads-this' AND stage = 'per-key'"
        )
        server.execute("CREATE TABLE lines AS SELECT 'line-1' AS line, 'paint' AS hall")
        joined = "SELECT hall, total FROM by_line JOIN lines USING (line)"
        for _ in range(2):
            assert server.execute(one, [b"line-1"]).fetchall() == [("line-1", "5")]
            assert server.execute(joined).fetchall() == [("paint", 5)]
            service.rebuild()
        server.execute("SET enable_seqscan = off")
        plan = "\n".join(str(row[0]) for row in server.execute(f"EXPLAIN {one}", [b"line-1"]).fetchall())
    assert "Index Scan using sqe_states_by_key" in plan
    store.close()


def test_a_state_is_found_by_the_index_before_the_table_is_analysed(postgres_url: str) -> None:
    """Else each read and each write would read the whole cell."""
    store = opened(postgres_url)
    header = BORN
    assert store.write("large", "s", 0, None, header, [(b"%04d" % number, b"1") for number in range(4_000)])
    values = {"flow": "large", "stage": "s", "part": 0, "places": [b"%04d" % number for number in range(500)]}
    ((plan,),) = PostgresClient.of_this_process(store.settings).rows(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {SqlStatements('sqe_chain').read_states}", values
    )
    by_key = [node for node in _nodes(plan[0]["Plan"]) if "key" in node.get("Index Cond", "")]
    assert [node["Index Name"] for node in by_key] == ["sqe_states_by_key"]
    assert by_key[0].get("Rows Removed by Filter", 0) == 0
    store.close()


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)
