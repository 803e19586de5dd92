"""Addresses of stores: what is understood, what is refused, and that no secret is ever shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sqe_chain.adapters import SCHEMES, open_store
from sqe_chain.adapters.address import Address
from sqe_chain.adapters.redis import RedisStore
from sqe_chain.adapters.sqlite import SqliteStore
from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import WithSchema

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cret-9Qz"  # noqa: S105  opens nothing


def test_importing_the_stores_loads_no_driver() -> None:
    program = (
        "import sys, sqe_chain.adapters;"
        "print(sorted({'redis', 'cassandra', 'psycopg', 'sqlite3', 'confluent_kafka', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("url", ["", "states.db", "mysql://host/db", "redis"])
def test_an_unknown_scheme_is_answered_with_the_known_ones(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert all(f"{scheme}://" in str(caught.value) for scheme in SCHEMES)


def test_a_missing_driver_is_answered_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("sqe_chain.adapters.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'sqe-chain\[redis\]'"):
        open_store("redis://localhost")


def test_an_address_of_redis_is_taken_apart() -> None:
    store = open_store(f"rediss://an%40a:{SECRET}%23%2F@Example.org:7000/3?timeout_s=2.5", max_rows="7")
    assert isinstance(store, RedisStore)
    settings = store.settings
    assert (settings.username, settings.password) == ("an@a", f"{SECRET}#/")
    assert (settings.host, settings.port, settings.db, settings.tls) == ("example.org", 7000, 3, True)
    assert (settings.timeout_s, settings.connect_timeout_s) == (2.5, 5.0)
    assert store.max_rows == 7


def test_parts_missing_in_redis_addresses_have_defaults() -> None:
    store = open_store("redis://")
    assert isinstance(store, RedisStore)
    assert str(store.settings) == "redis://localhost:6379/0"
    assert str(open_store("redis://[::1]:7000")) == "RedisStore(redis://[::1]:7000/0)"


def test_a_password_is_pickled_but_never_shown() -> None:
    store = open_store(f"redis://user:{SECRET}@host/1")
    assert isinstance(store, RedisStore)
    assert pickle.loads(pickle.dumps(store)).settings.password == SECRET  # noqa: S301  our own bytes
    assert SECRET not in f"{store} {store!r} {store.settings} {store.settings!r}"
    assert SECRET not in repr(Address.parse(f"redis://:{SECRET}@host", {}))


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:a#{SECRET}@host:6379",
        f"redis://:{SECRET}/{SECRET}@host:6379",
        f"redis://user:{SECRET}@host:port",
        f"redis://user:{SECRET}@[host:6379",
        f"redis://user:{SECRET}@host:6379/name",
        f"redis://user:{SECRET}@host:6379/0?password_env=NO_SUCH_VARIABLE",
        f"redis://user:{SECRET}@host:6379/0?no_such_option=1",
        f"redis://host?password={SECRET}",
        f"redis://host?password_file=/no/such/file&user={SECRET}",
        f"redis://host?ca_file=/no/such/file&user={SECRET}",
        f"redis+cluster://:{SECRET}@host:1,host:{SECRET}",
        f"redis+sentinel://:{SECRET}@host:1,host:2",
        f"redis://:{SECRET}@host?timeout_s=0",
        f"redis://:{SECRET}@host?timeout_s=nan",
        f"redis://:{SECRET}@host?max_rows=-1",
        f"redis://:{SECRET}@host?max_rows={'9' * 5_000}",
        f"redis://:{SECRET}@host/{'9' * 5_000}",
        f"redis://:{SECRET}@host?ca_file={'n' * 300}",
        f"redis://:{SECRET}@host?password_file=a%00b",
        f"sqlite:///{SECRET}%00",
        f"sqlite:///{'n' * 300}/a",
    ],
)
def test_bad_addresses_are_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_unknown_option_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    for url in ("memory://name", f"sqlite://{tmp_path}/x.db", "redis://host"):
        with pytest.raises(ConfigurationError, match=r"colour; known: .*max_bytes, max_rows"):
            open_store(url, colour="red")


def test_a_path_of_sqlite_is_absolute_from_three_slashes_and_relative_from_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Sub").mkdir()
    for url in (f"sqlite://{tmp_path}/Sub/a.db", f"sqlite:///{tmp_path}/Sub/a.db", "sqlite://Sub/a.db"):
        store = open_store(url)
        assert isinstance(store, SqliteStore)
        assert store.path == str(tmp_path / "Sub" / "a.db")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing does not exist"):
        open_store(f"sqlite://{tmp_path}/missing/a.db")
    with pytest.raises(ConfigurationError, match="is a directory"):
        open_store(f"sqlite://{tmp_path}")
    with pytest.raises(ConfigurationError, match="needs a file"):
        open_store("sqlite://")


@pytest.mark.parametrize("url", ["memory://", "memory://a/b"])
def test_memory_needs_a_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match="needs a name"):
        open_store(url)


def test_an_address_of_a_redis_cluster_has_one_node_or_several() -> None:
    store = open_store(f"redis+cluster://ann:{SECRET}@One.example:7000,[::1]:7001,three?wait_replicas=1")
    assert isinstance(store, RedisStore)
    assert store.settings.kind == "cluster"
    assert store.settings.nodes == (("one.example", 7000), ("::1", 7001), ("three", 6379))
    assert (store.settings.wait_replicas, store.settings.wait_ms) == (1, 1000)
    assert str(store) == "RedisStore(redis+cluster://ann@one.example:7000,[::1]:7001,three:6379)"
    assert pickle.loads(pickle.dumps(store)).settings == store.settings  # noqa: S301  our own bytes


def test_an_address_of_sentinels_has_the_masters_name_and_perhaps_a_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SENTINEL_PASSWORD", SECRET)
    store = open_store("rediss+sentinel://a,b:5/totals/3?sentinel_password_env=SENTINEL_PASSWORD&protocol=3")
    assert isinstance(store, RedisStore)
    settings = store.settings
    assert (settings.kind, settings.tls, settings.protocol) == ("sentinel", True, 3)
    assert (settings.nodes, settings.service, settings.db) == ((("a", 26379), ("b", 5)), "totals", 3)
    assert (settings.password, settings.sentinel_password) == ("", SECRET)
    assert str(store) == "RedisStore(rediss+sentinel://a:26379,b:5/totals/3)"
    assert SECRET not in f"{settings} {settings!r}"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://a,b", r"redis\+cluster://"),
        ("redis+cluster://", "needs a host"),
        ("redis+cluster://a:7000,", "cannot be read"),
        ("redis+cluster://a:7000,b:x", "cannot be read"),
        ("redis+cluster://a/1", "only the database 0"),
        ("redis+sentinel://a", "name for the master"),
        ("redis+sentinel://a/totals/x", "database number"),
        ("redis+cluster://a?sentinel_username=x", "has no option sentinel_username"),
        ("redis://a?protocol=4", "2 or 3"),
        ("redis://a?wait_replicas=0", "above 0"),
        ("redis://a?durability=maybe", "one of checked, declared"),
        ("redis://a?wait_replicas=1&wait_aof_replicas=1", "only one of wait_replicas and wait_aof_replicas"),
        ("redis://a?wait_replicas=1&wait_ms=9000&timeout_s=9", "shorter than timeout_s"),
    ],
)
def test_addresses_of_redis_that_contradict_themselves_are_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        open_store(url)


def test_whether_a_store_has_tables_is_known_without_its_server() -> None:
    assert isinstance(open_store("cassandra://127.0.0.1:1/keyspace"), WithSchema)
    assert not isinstance(open_store("redis://127.0.0.1:1"), WithSchema)
