"""Addresses of PostgreSQL: what is understood, what is refused, and that no secret is ever shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sqe_chain.adapters import open_store
from sqe_chain.adapters.postgres import PostgresSettings, PostgresStore
from sqe_chain.errors import ConfigurationError

SECRET = "s3cret-9Qz"  # noqa: S105  opens nothing


def settings_of(url: str, **options: str) -> PostgresSettings:
    store = open_store(url, **options)
    assert isinstance(store, PostgresStore)
    return store.settings


def test_an_address_is_taken_apart() -> None:
    found = settings_of(f"postgres://an%40a:{SECRET}%23@one,two:5433,[::1]/totals?schema=s", timeout_s="2")
    assert found.servers == (("one", 5432), ("two", 5433), ("::1", 5432))
    assert (found.username, found.password) == ("an@a", f"{SECRET}#")
    assert (found.database, found.schema, found.sslmode, found.timeout_s) == ("totals", "s", "prefer", 2.0)
    assert str(found) == "postgres://an@a@one:5432,two:5433,[::1]:5432/totals?schema=s"
    assert found == settings_of(
        f"postgresql://an%40a:{SECRET}%23@one,two:5433,[::1]/totals?schema=s&timeout_s=2"
    )


def test_parts_missing_in_an_address_have_defaults() -> None:
    found = settings_of("postgres:///sqe_chain")
    assert found == PostgresSettings()
    assert found.parameters() == {
        "host": "localhost",
        "port": "5432",
        "dbname": "sqe_chain",
        "sslmode": "prefer",
        "target_session_attrs": "read-write",
        "client_encoding": "UTF8",
        "connect_timeout": 5,
    }


def test_servers_are_verified_where_that_is_asked_for(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    with_system = settings_of("postgres://one/db?sslmode=verify-full").parameters()
    assert (with_system["sslmode"], with_system["sslrootcert"]) == ("verify-full", "system")
    with_own = settings_of(f"postgres://one/db?sslmode=verify-full&ca_file={ca}").parameters()
    assert with_own["sslrootcert"] == str(ca)
    with pytest.raises(ConfigurationError, match="ca_file with sslmode=prefer, which verifies no server"):
        settings_of(f"postgres://one/db?ca_file={ca}")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("postgres://one", "must be a database, as in /totals"),
        ("postgres://one/", "must be a database"),
        ("postgres://one/a/b", "'a/b'"),
        ("postgres://one/db?schema=a;drop", "'a;drop'"),
        ("postgres://one/db?schema=S", "schema='S'"),
        ("postgres://one/db?sslmode=require", "sslmode must be one of prefer, disable, verify-full"),
        ("postgres://one/db?colour=red", "colour"),
        ("postgres://one,,two/db", "cannot be read"),
        ("postgres://one/db?password_env=NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE"),
        (f"postgres://u:{SECRET}@one/db?password_env=HOME", "once"),
    ],
)
def test_what_is_wrong_is_named(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert text in str(caught.value)
    assert SECRET not in str(caught.value)


def test_no_secret_is_shown() -> None:
    store = open_store(f"postgres://u:{SECRET}@one/db")
    copy = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own
    for shown in (repr(store), repr(copy), str(copy.settings), repr(copy.settings)):
        assert SECRET not in shown
    assert copy.settings.password == SECRET
