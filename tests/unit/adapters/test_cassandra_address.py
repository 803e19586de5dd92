"""Addresses of Cassandra: what is understood, what is refused, and that no secret is ever shown."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from sqe_chain.adapters import open_store
from sqe_chain.adapters.cassandra import CassandraSettings, CassandraStore
from sqe_chain.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cret-9Qz"  # noqa: S105  opens nothing


def settings_of(url: str, **options: str) -> CassandraSettings:
    store = open_store(url, **options)
    assert isinstance(store, CassandraStore)
    return store.settings


def test_an_address_is_taken_apart() -> None:
    found = settings_of(
        f"cassandras://an%40a:{SECRET}%23@one,two:9043,[::1]/totals?datacenter=dc1&check_hostname=no",
        timeout_s="2",
    )
    assert found.nodes == (("one", 9042), ("two", 9043), ("::1", 9042))
    assert (found.username, found.password) == ("an@a", f"{SECRET}#")
    assert (found.keyspace, found.datacenter) == ("totals", "dc1")
    assert (found.tls, found.check_hostname, found.timeout_s) == (True, False, 2.0)
    assert str(found) == "cassandras://an@a@one:9042,two:9043,[::1]:9042/totals"


def test_parts_missing_in_an_address_have_defaults() -> None:
    found = settings_of("cassandra:///sqe_chain")
    assert found == CassandraSettings()
    assert (found.consistency, found.serial_consistency) == ("LOCAL_QUORUM", "LOCAL_SERIAL")


@pytest.mark.parametrize(
    ("query", "levels"),
    [
        ("serial_consistency=serial", ("QUORUM", "SERIAL")),
        ("serial_consistency=SERIAL&consistency=all", ("ALL", "SERIAL")),
        ("consistency=QUORUM", ("QUORUM", "LOCAL_SERIAL")),
    ],
)
def test_levels_of_consistency(query: str, levels: tuple[str, str]) -> None:
    found = settings_of(f"cassandra://one/ks?{query}")
    assert (found.consistency, found.serial_consistency) == levels


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("cassandra://one", "must be a keyspace, as in /sqe_chain"),
        ("cassandra://one/", "must be a keyspace"),
        ("cassandra://one/Totals", "'Totals'"),
        ("cassandra://one/a;drop", "'a;drop'"),
        (f"cassandra://one/{'k' * 49}", "48"),
        ("cassandra://one,,two/ks", "cannot be read"),
        ("cassandra://one:port/ks", "cannot be read"),
        ("cassandra://one/ks?colour=red", "colour"),
        ("cassandra://one/ks?consistency=ONE", "LOCAL_QUORUM, QUORUM, ALL"),
        ("cassandra://one/ks?serial_consistency=SERIAL&consistency=LOCAL_QUORUM", "QUORUM, ALL"),
        ("cassandra://one/ks?serial_consistency=ONE", "serial_consistency"),
        ("cassandra://one/ks?timeout_s=0", "timeout_s"),
        ("cassandra://one/ks?max_rows=0", "max_rows"),
        ("cassandras://one/ks?ca_file=/no/such/file", "/no/such/file"),
        ("cassandra://one/ks?password_env=NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE"),
        (f"cassandra://u:{SECRET}@one/ks?password_env=HOME", "once"),
    ],
)
def test_an_address_that_cannot_work_is_refused_with_the_reason(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert text in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_password_is_never_shown_but_goes_with_the_store(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    store = open_store(f"cassandra://totals@one/ks?password_file={file}")
    assert SECRET not in repr(store)
    copy = pickle.loads(pickle.dumps(store))  # noqa: S301  our own bytes
    assert SECRET not in repr(copy.settings)
    assert copy.settings.password == SECRET
