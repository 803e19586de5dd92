"""Logins, TLS, tables and durability of a real Cassandra: what is refused, and with which error."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sqe_chain import Flow
from sqe_chain.adapters import open_store
from sqe_chain.adapters.cassandra import CassandraStore, durability, schema
from sqe_chain.adapters.cassandra.client import CassandraClient
from sqe_chain.cli.commands import application
from sqe_chain.errors import ConfigurationError, Unavailable, WeakDurability
from sqe_chain.ext.dev import CassandraServer
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Header, Home, Location, Locations
from sqe_chain.protocol.claim import check_stores
from sqe_chain.runtime.trying import try_writes
from sqe_chain.testing import Rehearsal
from tests.support.table_flows import table_flow
from tests.support.waiting import PATIENCE_S
from tests.support.word_flows import words_by_first_letter

CLAIM = Home(1, "run-a", "", -1, "")
BORN = Header(1, "run-a", 0, "plan-0")
SECRET = "s3cret-9Qz"  # noqa: S105  opens nothing but a server of this test

LEAST_RIGHTS = ("SELECT", "MODIFY")
"""The rights that a service needs, as docs/stores.md lists them."""


def opened(url: str) -> CassandraStore:
    store = open_store(url)
    assert isinstance(store, CassandraStore)
    return store


def command(*arguments: str) -> tuple[int, str]:
    """Exit status and output of `sqe-chain store …`, in this process."""
    result = CliRunner().invoke(application(), ["store", *arguments])
    return result.exit_code, result.output


# --- tables ----------------------------------------------------------------------------------------------


def test_missing_tables_are_named_with_the_command_that_makes_them(cassandra_url: str) -> None:
    url = cassandra_url.replace("/sqe_chain", "/nowhere")
    store = opened(url)
    for call in (store.check, lambda: store.home("flow"), lambda: store.headers("flow", "s", [0])):
        with pytest.raises(ConfigurationError, match=rf"sqe-chain store init {url}"):
            call()
    assert store.schema_version() == (0, 3)
    with pytest.raises(ConfigurationError, match="--replication 3"):
        store.make_schema({})
    store.close()


def test_the_command_makes_tables_and_reports_what_it_found(cassandra_url: str) -> None:
    url = cassandra_url.replace("/sqe_chain", "/by_command")
    assert command("init", url, "--check") == (
        1,
        "tables: version 0, the newest is 3\ncreate or upgrade them with: sqe-chain store init\n",
    )
    assert command("init", url, "--replication", "1") == (
        0,
        (
            "keyspace by_command: 'replication_factor': 1\n"
            "tables of keyspace by_command: version 1\ntables of keyspace by_command: version 2\n"
            "tables of keyspace by_command: version 3\n"
        ),
    )
    assert command("init", url) == (0, "the tables already exist\n")
    assert command("init", url, "--check") == (
        0, "tables: version 3, the newest is 3\ndurable: acknowledged writes are kept\n",
    )  # fmt: skip
    assert command("init", url, "--replication", "1", "--datacenter-replication", "dc=1")[0] == 2
    by_center = cassandra_url.replace("/sqe_chain", "/by_center")
    assert command("init", by_center, "--datacenter-replication", "datacenter1=1")[0] == 0
    assert command("init", by_center, "--datacenter-replication", "datacenter1=none")[0] == 2
    assert command("init", f"{by_center}?datacenter=elsewhere", "--check")[0] == 2


def test_other_stores_need_no_tables(tmp_path: Path) -> None:
    assert command("init", f"sqlite://{tmp_path}/a.db")[0] == 0
    assert command("init", f"sqlite://{tmp_path}/a.db", "--check") == (
        0,
        "durable: acknowledged writes are kept\n",
    )
    status, output = command("init", "memory://any", "--check")
    assert status == 1
    assert output.startswith("weak: ")


NEXT = schema.Migration(4, ("ALTER TABLE {keyspace}.sqe_flows ADD IF NOT EXISTS colour text STATIC",))


def test_tables_are_brought_from_version_to_version(cassandra_url: str) -> None:
    store = opened(cassandra_url.replace("/sqe_chain", "/grows"))
    store.make_schema({"": 1})
    store.set_home("flow", None, CLAIM)
    client = CassandraClient.of_this_process(store.settings)
    both = (*schema.MIGRATIONS, NEXT)
    with pytest.raises(ConfigurationError, match=r"version 3, 4 is needed; run: sqe-chain store init"):
        schema.check(client, both)
    assert schema.migrate(client, {}, both) == ["tables of keyspace grows: version 4"]
    assert schema.migrate(client, {}, both) == []
    schema.check(client, both)
    assert client.rows(("SELECT colour FROM grows.sqe_flows WHERE flow = 'flow'", ())) == [(None,)]
    assert store.home("flow") == (CLAIM, 0)
    store.close()
    with pytest.raises(ConfigurationError, match=r"version 4, this sqe-chain supports 3"):
        store.home("flow")
    store.close()


def test_tables_of_an_older_version_work_without_what_came_later(cassandra_url: str) -> None:
    """A service that is updated goes on before the tables are; then readers find states under permanent names."""
    store = opened(cassandra_url.replace("/sqe_chain", "/older"))
    client = CassandraClient.of_this_process(store.settings)
    assert schema.migrate(client, {"": 1}, schema.MIGRATIONS[:1]) == [
        *("keyspace older: 'replication_factor': 1", "tables of keyspace older: version 1"),
    ]
    here = Locations(1, 0, {"s": Location("flow", 8, 1, "aggregate")})
    assert store.set_home("flow", None, CLAIM) == CLAIM
    assert (store.locations("flow"), store.set_locations("flow", here)) == (None, None)
    assert store.forget_locations("flow", here) is None
    assert any("store init" in remark for remark in store.remarks())
    assert store.make_schema({}) == [f"tables of keyspace older: version {number}" for number in (2, 3)]
    store.close()
    assert store.set_locations("flow", here) == store.locations("flow") == here
    assert not any("store init" in remark for remark in store.remarks())
    assert store.home("flow") == (CLAIM, 0)
    store.close()


def test_programs_that_migrate_at_once_take_turns(cassandra_url: str) -> None:
    store = opened(cassandra_url.replace("/sqe_chain", "/at_once"))
    client = CassandraClient.of_this_process(store.settings)
    schema.migrate(client, {"": 1}, schema.MIGRATIONS)
    done: list[str] = []
    both = (*schema.MIGRATIONS, NEXT)
    threads = [
        threading.Thread(target=lambda: done.extend(schema.migrate(client, {}, both))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == ["tables of keyspace at_once: version 4"]
    store.close()


def test_a_migration_waits_for_one_that_died(cassandra_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(cassandra_url.replace("/sqe_chain", "/dies"))
    client = CassandraClient.of_this_process(store.settings)
    store.make_schema({"": 1})
    claim = "UPDATE dies.sqe_schema USING TTL 60 SET holder = ? WHERE name = 'sqe-chain' IF version = ? AND holder = null"
    assert client.compare_and_set([(claim, ("somebody", 3))])
    monkeypatch.setattr(schema, "_WAIT_S", 1)
    both = (*schema.MIGRATIONS, NEXT)
    with pytest.raises(Unavailable, match="another program"):
        schema.migrate(client, {}, both)
    # The claim has a time to live; the test uses a shorter one than a minute.
    client.compare_and_set(
        [
            (
                "UPDATE dies.sqe_schema USING TTL 2 SET holder = 'somebody' WHERE name = 'sqe-chain' IF EXISTS",
                (),
            )
        ]
    )
    monkeypatch.setattr(schema, "_WAIT_S", PATIENCE_S)
    assert schema.migrate(client, {}, both) == ["tables of keyspace dies: version 4"]
    store.close()


# --- logins and TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ca.pem (it is its own authority, for 127.0.0.1), key.pem, and both as keystore.p12."""
    directory = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=sqe-chain-test", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(directory / "key.pem"), "-out", str(directory / "ca.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(
        ["openssl", "pkcs12", "-export", "-in", str(directory / "ca.pem"), "-inkey", str(directory / "key.pem"),
         "-out", str(directory / "keystore.p12"), "-passout", f"pass:{SECRET}"],
        check=True, capture_output=True,
    )  # fmt: skip
    return directory


@pytest.fixture(scope="module")
def guarded(certificate: Path) -> Iterator[CassandraServer]:
    """A server that requires a login, offers TLS, and loses its last writes when killed."""
    properties = {
        "authenticator": "PasswordAuthenticator",
        "authorizer": "CassandraAuthorizer",
        "commitlog_sync": "periodic",
        "commitlog_sync_period": "10000ms",
        "client_encryption_options": {
            "enabled": True, "optional": True, "keystore": str(certificate / "keystore.p12"),
            "keystore_password": SECRET, "store_type": "PKCS12",
        },
    }  # fmt: skip
    with CassandraServer(properties=properties) as server:
        deadline = time.monotonic() + PATIENCE_S
        while True:  # the first login is made shortly after the start
            try:
                opened(address(server, "cassandra:cassandra@")).make_schema({"": 1})
                break
            except (ConfigurationError, Unavailable):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        yield server


def address(server: CassandraServer, login: str = "", query: str = "", scheme: str = "cassandra") -> str:
    """The server's address with a login and options."""
    return f"{scheme}://{login}127.0.0.1:{server.port}/sqe_chain{query}"


@pytest.mark.release
@pytest.mark.parametrize("login", ["", f"cassandra:{SECRET}@", f"nobody:{SECRET}@"])
def test_a_wrong_login_is_named_without_showing_it(guarded: CassandraServer, login: str) -> None:
    with pytest.raises(ConfigurationError, match=r"(?i)authentication|password") as caught:
        opened(address(guarded, login)).check()
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__)
    assert str(guarded.port) in str(caught.value)


@pytest.mark.release
def test_a_user_with_the_least_rights_can_do_everything_but_make_tables(
    guarded: CassandraServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = CassandraClient.of_this_process(opened(address(guarded, "cassandra:cassandra@")).settings)
    root.change_schema(f"CREATE ROLE IF NOT EXISTS least WITH PASSWORD = '{SECRET}' AND LOGIN = true")
    for right in LEAST_RIGHTS:
        root.change_schema(f"GRANT {right} ON KEYSPACE sqe_chain TO least")
    monkeypatch.setenv("STORE_PASSWORD", SECRET)
    store = opened(address(guarded, "least@", "?password_env=STORE_PASSWORD"))
    assert store.set_home("least", None, CLAIM) == CLAIM
    assert store.beat("least", 1, "run-a")
    assert store.write("least", "s", 0, None, BORN, [(b"k", b"1"), (b"l", b"2")]) == BORN
    assert store.read("least", "s", 0, [b"k"]) == (BORN, [b"1"], BORN)
    assert list(store.scan("least", "s", 0)) == [(b"k", b"1"), (b"l", b"2")]
    assert store.check() != []
    assert SECRET not in "".join((*store.check(), repr(store)))
    with pytest.raises(ConfigurationError, match=r"(?i)permission|unauthorized"):
        opened(
            address(guarded, "least@", "?password_env=STORE_PASSWORD").replace("/sqe_chain", "/more")
        ).make_schema({"": 1})
    store.close()


def test_the_least_rights_are_the_documented_ones() -> None:
    text = (Path(__file__).parents[2] / "docs" / "stores.md").read_text(encoding="utf-8")
    assert all(f"GRANT {right} ON KEYSPACE sqe_chain TO totals;" in text for right in LEAST_RIGHTS)
    assert text.count(" ON KEYSPACE sqe_chain TO totals;") == len(LEAST_RIGHTS)


@pytest.mark.release
def test_missing_rights_are_a_configuration_error(guarded: CassandraServer) -> None:
    root = CassandraClient.of_this_process(opened(address(guarded, "cassandra:cassandra@")).settings)
    root.change_schema(f"CREATE ROLE IF NOT EXISTS reader WITH PASSWORD = '{SECRET}' AND LOGIN = true")
    root.change_schema("GRANT SELECT ON KEYSPACE sqe_chain TO reader")
    store = opened(address(guarded, f"reader:{SECRET}@"))
    with pytest.raises(ConfigurationError, match="MODIFY"):
        store.set_home("reader", None, CLAIM)
    assert store.home("reader") == (None, 0)
    store.close()


@pytest.mark.release
@pytest.mark.parametrize("lacking", [*LEAST_RIGHTS, ""])
def test_the_doctors_writes_need_the_rights_of_a_service(guarded: CassandraServer, lacking: str) -> None:
    """Without one of them the attempt is refused, and with both it leaves nothing behind."""
    root = CassandraClient.of_this_process(opened(address(guarded, "cassandra:cassandra@")).settings)
    name = f"lacks_{lacking.lower() or 'nothing'}"
    root.change_schema(f"CREATE ROLE IF NOT EXISTS {name} WITH PASSWORD = '{SECRET}' AND LOGIN = true")
    for right in LEAST_RIGHTS:
        if right != lacking:
            root.change_schema(f"GRANT {right} ON KEYSPACE sqe_chain TO {name}")
    store = opened(address(guarded, f"{name}:{SECRET}@"))
    if lacking:
        with pytest.raises(ConfigurationError, match=lacking):
            try_writes(store, "tried", "run")
    else:
        assert try_writes(store, "tried", "run") == []
        assert [flow for flow in store.flows() if flow.startswith("tried")] == []
    store.close()


@pytest.mark.release
def test_tls_is_used_and_the_certificate_is_verified(guarded: CassandraServer, certificate: Path) -> None:
    def over_tls(query: str, host: str = "127.0.0.1") -> CassandraStore:
        url = address(guarded, "cassandra:cassandra@", query, "cassandras")
        return opened(url.replace("127.0.0.1", host))

    trusting = over_tls(f"?ca_file={certificate / 'ca.pem'}")
    assert trusting.set_home("tls", None, CLAIM) == CLAIM
    trusting.close()
    with pytest.raises(ConfigurationError, match="CERTIFICATE_VERIFY_FAILED"):
        over_tls("").home("tls")


# --- durability ------------------------------------------------------------------------------------------


@pytest.mark.release
def test_a_periodic_commit_log_is_refused_with_one_replica(guarded: CassandraServer) -> None:
    store = opened(address(guarded, "cassandra:cassandra@"))
    (sentence,) = store.check()
    assert "commitlog_sync is periodic and states have one replica" in sentence
    assert "set it to batch. --allow-weak-durability accepts that" in sentence
    assert store.remarks() == []
    status, output = command("check", address(guarded, "cassandra:cassandra@"))
    assert (status, "weak: " in output) == (1, True)

    flow = Flow("weak")
    words_by_first_letter(flow)
    env = Rehearsal(flow, store=store).start().env
    env.settings = Settings()
    with pytest.raises(WeakDurability, match=r"commitlog_sync is periodic.*--allow-weak-durability"):
        check_stores(env)
    store.close()


@pytest.mark.release
def test_a_periodic_commit_log_is_a_remark_with_three_replicas(guarded: CassandraServer) -> None:
    """One node cannot keep three replicas, but it accepts the setting."""
    client = client_of(guarded, "three")
    client.change_schema(
        "CREATE KEYSPACE IF NOT EXISTS three WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"
    )
    assert durability.weaknesses(client) == []
    (sentence,) = durability.remarks(client)
    assert "commitlog_sync is periodic: each of 3 replicas" in sentence


@pytest.mark.release
def test_a_keyspace_without_durable_writes_is_refused(guarded: CassandraServer) -> None:
    client = client_of(guarded, "light")
    client.change_schema(
        "CREATE KEYSPACE IF NOT EXISTS light WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3} AND durable_writes = false"
    )
    (sentence,) = durability.weaknesses(client)
    assert "durable_writes = false" in sentence
    assert "--allow-weak-durability" in sentence


@pytest.mark.release
def test_a_setting_that_cannot_be_read_counts_as_weak(
    guarded: CassandraServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(guarded, "sqe_chain")
    monkeypatch.setattr(
        durability, "_SETTING", "SELECT value FROM system_views.settings WHERE name = 'no_such'"
    )
    (sentence,) = durability.weaknesses(client)
    assert "commitlog_sync cannot be read, so it may be weak; it should be batch" in sentence
    assert "--allow-weak-durability accepts that" in sentence
    monkeypatch.setattr(durability, "_SETTING", "SELECT value FROM system_views.no_such_table")
    assert durability.weaknesses(client) == [sentence]


@pytest.mark.release
def test_a_node_that_is_away_counts_as_periodic(
    guarded: CassandraServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no service could start while one of three nodes is restarted."""
    client = client_of(guarded, "sqe_chain")
    monkeypatch.setattr(client, "of_each_node", lambda text: [("node-2:9042", Unavailable("gone"))])
    (sentence,) = durability.weaknesses(client)
    assert sentence.startswith("node-2:9042: the node does not answer, so its commitlog_sync may be periodic")
    assert durability.remarks(client) == []
    client.change_schema(
        "CREATE KEYSPACE IF NOT EXISTS three WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"
    )
    of_three = client_of(guarded, "three")
    monkeypatch.setattr(of_three, "of_each_node", client.of_each_node)
    assert durability.weaknesses(of_three) == []
    (sentence,) = durability.remarks(of_three)
    assert sentence.startswith("node-2:9042: the node does not answer")


def client_of(server: CassandraServer, keyspace: str) -> CassandraClient:
    """A client whose keyspace may lack our tables."""
    url = address(server, "cassandra:cassandra@").replace("/sqe_chain", f"/{keyspace}")
    return CassandraClient.of_this_process(opened(url).settings)


# --- durability of tables --------------------------------------------------------------------------------


def into(server: CassandraServer, keyspace: str, settings: str = "") -> Rehearsal:
    """A flow whose table is in a keyspace of its own; its store is elsewhere, and durable."""
    client_of(server, keyspace).change_schema(
        f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}}{settings}"
    )
    place = address(server, "cassandra:cassandra@").replace("/sqe_chain", f"/{keyspace}")
    opened(place).make_schema({})
    return Rehearsal(table_flow(place), store=open_store(f"sqlite://{server.data_dir}/{keyspace}.db"))


@pytest.mark.release
def test_a_table_is_refused_where_a_store_would_be(guarded: CassandraServer) -> None:
    periodic = into(guarded, "table_periodic")
    with pytest.raises(
        WeakDurability,
        match=r"'readings'.*commitlog_sync is periodic",
    ):
        periodic.start(Settings())
    light = into(guarded, "table_light", " AND durable_writes = false")
    with pytest.raises(WeakDurability, match=r"'readings'.*durable_writes"):
        light.start(Settings())


@pytest.mark.release
def test_a_table_with_weak_settings_starts_where_that_is_accepted(guarded: CassandraServer) -> None:
    accepted = into(guarded, "table_accepted")
    accepted.start(Settings(allow_weak_durability=True))
    assert "weak durability accepted" in str(accepted.events("notice"))
    assert "rows have one replica" in str(accepted.events("notice"))


@pytest.mark.release
def test_a_keyspace_without_tables_is_named_at_the_start(guarded: CassandraServer) -> None:
    place = address(guarded, "cassandra:cassandra@").replace("/sqe_chain", "/table_nowhere")
    nowhere = Rehearsal(table_flow(place), store=open_store(f"sqlite://{guarded.data_dir}/nowhere.db"))
    with pytest.raises(ConfigurationError, match="sqe-chain store init"):
        nowhere.start(Settings())
