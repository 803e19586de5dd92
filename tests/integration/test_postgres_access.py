"""TLS, logins and restored backups of a real PostgreSQL: what is trusted, and what ends by name."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters import open_store
from sqe_chain.adapters.postgres import PostgresStore
from sqe_chain.errors import ConfigurationError, StoreInconsistent, WeakDurability
from sqe_chain.ext.dev import PostgresServer
from sqe_chain.flow import Flow
from sqe_chain.ports import Home
from sqe_chain.runtime.trying import try_writes
from sqe_chain.testing import Rehearsal
from tests.support.waiting import eventually

SECRET = "s3cret-9Qz"  # noqa: S105  opens nothing but a server of this test
RIGHTS = (
    "CREATE ROLE {0} LOGIN; GRANT USAGE ON SCHEMA sqe_chain TO {0};"
    " GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA sqe_chain TO {0}"
)
LOGINS = """\
hostssl all totals 127.0.0.1/32 scram-sha-256
hostssl all service 127.0.0.1/32 cert
host all sqe 127.0.0.1/32 trust
"""


def authority(directory: Path) -> Path:
    """A directory with ca.pem, an authority that is its own server for 127.0.0.1, and the certificate of client `service`."""
    directory.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=directory)

    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=sqe-chain-test",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.pem")  # fmt: skip
    openssl("req", *key, "-subj", "/CN=service", "-keyout", "service.key", "-out", "service.csr")
    openssl("x509", "-req", "-in", "service.csr", "-CA", "ca.pem", "-CAkey", "key.pem", "-set_serial", "7",
            "-days", "2", "-out", "service.pem")  # fmt: skip
    for name in ("key.pem", "service.key"):
        (directory / name).chmod(0o600)
    return directory


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return authority(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def server(trusted: Path) -> Iterator[PostgresServer]:
    (trusted / "logins").write_text(LOGINS, encoding="utf-8")
    files = {
        "ssl_cert_file": "ca.pem",
        "ssl_key_file": "key.pem",
        "ssl_ca_file": "ca.pem",
        "hba_file": "logins",
    }
    settings = [f"{name}={trusted / file}" for name, file in files.items()]
    with PostgresServer(
        extra_args=[part for each in ("ssl=on", *settings) for part in ("-c", each)]
    ) as running:
        store = open_store(running.url)
        assert isinstance(store, PostgresStore)
        store.make_schema({})
        store.close()
        with contextlib.closing(psycopg.connect(running.url, autocommit=True)) as session:
            session.execute(RIGHTS.format("totals"))
            session.execute(RIGHTS.format("service"))
            session.execute(f"ALTER ROLE totals PASSWORD '{SECRET}'")
        yield running


def address(server: PostgresServer, user: str, *options: str, host: str = "127.0.0.1") -> str:
    return f"postgres://{user}@{host}:{server.port}/postgres?{'&'.join(options)}"


def test_a_login_over_tls_with_a_password_from_a_file(
    server: PostgresServer, trusted: Path, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text(f"{SECRET}\n", encoding="utf-8")
    own = (f"ca_file={trusted / 'ca.pem'}", f"password_file={tmp_path / 'password'}")
    for mode in ("verify-full", "verify-ca"):
        store = open_store(address(server, "totals", f"sslmode={mode}", *own))
        assert SECRET not in repr(store)
        assert (store.check(), try_writes(store, "tls", "r")) == ([], [])
        with contextlib.closing(psycopg.connect(server.url, autocommit=True)) as session:
            encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'totals'"
            assert session.execute(encrypted).fetchone() == (True,)
        store.close()


def test_a_client_shows_its_own_certificate(server: PostgresServer, trusted: Path) -> None:
    own = [
        f"{name}={trusted / file}"
        for name, file in (("cert_file", "service.pem"), ("key_file", "service.key"))
    ]
    verified = ("sslmode=verify-full", f"ca_file={trusted / 'ca.pem'}")
    store = open_store(address(server, "service", *verified, *own))
    assert try_writes(store, "mutual", "r") == []
    store.close()
    with pytest.raises(ConfigurationError, match="certificate"):
        open_store(address(server, "service", *verified)).check()


def test_what_is_not_trusted_ends_by_name(server: PostgresServer, trusted: Path, tmp_path: Path) -> None:
    other = authority(tmp_path / "other")
    for text, url in (
        ("certificate", address(server, "sqe", "sslmode=verify-full", f"ca_file={other / 'ca.pem'}")),
        ("certificate", address(server, "sqe", "sslmode=verify-ca", f"ca_file={other / 'ca.pem'}")),
        ("certificate", address(server, "sqe", "sslmode=verify-full")),
        ("certificate", address(server, "sqe", "sslmode=verify-full", f"ca_file={trusted / 'ca.pem'}", host="localhost")),
        ("password authentication failed", address(server, f"totals:not-{SECRET}")),
        ("no encryption", address(server, "totals", "sslmode=disable")),
    ):  # fmt: skip
        store = open_store(url)
        with pytest.raises(ConfigurationError, match=text) as raised:
            store.check()
        assert SECRET not in str(raised.value)


def test_a_server_without_tls_is_refused_where_it_is_wanted(postgres_url: str, trusted: Path) -> None:
    plain = postgres_url.partition("?")[0]
    store = open_store(f"{plain}?sslmode=verify-full&ca_file={trusted / 'ca.pem'}")
    with pytest.raises(ConfigurationError, match="does not support SSL"):
        store.home("flow")


# --- a database that went back in time ---------------------------------------------------------------------


def add(total: Int64Value, one: Int64Value) -> None:
    total.value += one.value


def test_a_restored_backup_ends_by_name_before_and_after_it_is_accepted(tmp_path: Path) -> None:
    flow = Flow("restored", state_partitions=2)
    flow.source("numbers", Int64Value).aggregate("sums", state=Int64Value, fold=add)
    place, backup = tmp_path / "server", tmp_path / "backup"
    server = PostgresServer(place)
    with server:
        store = open_store(server.url)
        assert isinstance(store, PostgresStore)
        store.make_schema({})
        service = Rehearsal(flow, store=store)
        service.settings = replace(service.settings, allow_weak_durability=False)
        service.feed("numbers", Int64Value(value=1), key="a")
        service.run_until_caught_up()
        source = ("-h", "127.0.0.1", "-p", str(server.port), "-U", "sqe", "-X", "stream", "-c", "fast")
        subprocess.run(
            [*server._program("pg_basebackup"), "-D", str(backup), *source],
            check=True,
            capture_output=True,
        )
        service.feed("numbers", Int64Value(value=2), key="a")
        service.run_until_caught_up()
        store.close()
    shutil.rmtree(place / "data")
    backup.rename(place / "data")
    (place / "data" / "recovery.signal").touch()  # as a restored backup is started
    with (place / "data" / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
        settings.write("restore_command = 'false'\n")
    with server:
        eventually(lambda: _takes_writes(store), "the backup is restored")
        service.service = None
        with pytest.raises(WeakDurability, match="is on timeline 00000002, and was on 00000001"):
            service.start()
        store.make_schema({})
        service.service = None
        with pytest.raises(StoreInconsistent, match="The store went back as a whole"):
            service.start()
        store.close()


def _takes_writes(store: PostgresStore) -> bool:
    with contextlib.suppress(Exception):
        before = store.home("probe")[0]
        return store.set_home("probe", before, Home(1, "", "", -1, "")) is not None
    return False
