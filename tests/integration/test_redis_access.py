"""Users, rights, protocols and certificates on a real Redis, and settings that cannot be read without rights."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sqe_chain.adapters import open_store
from sqe_chain.adapters.redis import layout
from sqe_chain.errors import ChainError, ConfigurationError, Unavailable
from sqe_chain.ext.dev.redis import RedisServer
from sqe_chain.ext.dev.server import HOST
from sqe_chain.ports import Header, Home, Views
from tests.support.ports import own_port
from tests.support.redis_servers import (
    LEAST_RIGHTS,
    RedisCluster,
    SentinelGroup,
    send_command,
    server_info,
    tls_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqe_chain.ports import StateStore

CLAIM = Home(1, "run-a", "", -1, "")
BORN = Header(1, "run-a", 0, "plan-0")
NEXT = replace(BORN, number=1)
SECRET = "s3cret-9Qz"  # noqa: S105  opens nothing but a server of this test

OTHER_RIGHTS = {
    "a database": ("+select",),
    "a cluster": ("+cluster|slots", "+asking"),
    "waiting": ("+wait",),
    "hashes": ("+del",),
}
READING_RIGHTS = ("+config|get", "+cluster|nodes")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server whose users belong to these tests."""
    with RedisServer() as started:
        yield started


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """A cluster whose users belong to these tests."""
    with RedisCluster() as started:
        yield started


def allow(server: RedisServer, name: str, *rights: str) -> None:
    """Make a user who has these rights only, on our keys only."""
    send_command(server, "ACL", "SETUSER", name, "reset", "on", f">{SECRET}", "~sqe:*", *rights)


def do_everything(store: StateStore, flow: str) -> None:
    """Call whatever a service and its commands call."""
    store.check()
    sealed = replace(CLAIM, number=1)
    assert store.set_home(flow, None, CLAIM) == CLAIM
    assert store.set_home(flow, CLAIM, sealed, b"plan", drop_below=1) == sealed
    assert store.beat(flow, 1, "run-a")
    assert store.home(flow) == (sealed, 1)
    assert store.plan(flow, 1) == b"plan"
    assert store.write(flow, "s", 0, None, BORN, [(b"k", b"1"), (b"l", b"2")]) == BORN
    assert store.write(flow, "s", 0, BORN, NEXT, [(b"k", None)]) == NEXT
    assert store.headers(flow, "s", range(8)) == [NEXT, *[None] * 7]
    assert store.read(flow, "s", 0, [b"k", b"l"]) == (NEXT, [None, b"2"], NEXT)
    assert list(store.scan(flow, "s", 0)) == [(b"l", b"2")]


# --- rights --------------------------------------------------------------------------------------------


def test_the_least_rights_are_the_documented_ones() -> None:
    document = (Path(__file__).parents[2] / "docs" / "stores.md").read_text(encoding="utf-8")
    document = document.replace("\\|", "|")  # in tables
    assert f"~sqe:* {' '.join(LEAST_RIGHTS)}\n" in document
    for rights in (*OTHER_RIGHTS.values(), *((right,) for right in READING_RIGHTS)):
        assert all(f"`{right}`" in document for right in rights)


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_least_rights_are_enough(server: RedisServer, protocol: int) -> None:
    allow(server, "least", *LEAST_RIGHTS)
    send_command(server, "SCRIPT", "FLUSH")
    store = open_store(f"redis://least:{SECRET}@{HOST}:{server.port}?protocol={protocol}")
    do_everything(store, f"enough{protocol}")
    store.close()


@pytest.mark.parametrize("missing", LEAST_RIGHTS)
def test_none_of_the_least_rights_can_be_omitted(server: RedisServer, missing: str) -> None:
    allow(server, "less", *(right for right in LEAST_RIGHTS if right != missing))
    send_command(server, "SCRIPT", "FLUSH")
    store = open_store(f"redis://less:{SECRET}@{HOST}:{server.port}")
    with pytest.raises(ConfigurationError, match=r"(?i)permission|may not run|can't run"):
        do_everything(store, f"less.{missing[1:]}")
    store.close()


def test_a_database_needs_one_right_more(server: RedisServer) -> None:
    allow(server, "selects", *LEAST_RIGHTS)
    url = f"redis://selects:{SECRET}@{HOST}:{server.port}/3"
    with pytest.raises(ConfigurationError, match="permission"):
        open_store(url).check()
    allow(server, "selects", *LEAST_RIGHTS, *OTHER_RIGHTS["a database"])
    store = open_store(url)
    do_everything(store, "selects")
    store.close()


def test_hashes_need_one_right_more(server: RedisServer) -> None:
    allow(server, "shows", *LEAST_RIGHTS)
    step = (None, BORN, [(b"k", b"1")], Views("hash", {b"k": {"a": "1"}}))
    store = open_store(f"redis://shows:{SECRET}@{HOST}:{server.port}/0")
    with pytest.raises(ConfigurationError, match="DEL"):
        store.write("hashes", "s", 0, *step)
    assert store.headers("hashes", "s", [0]) == [None]
    allow(server, "shows", *LEAST_RIGHTS, *OTHER_RIGHTS["hashes"])
    assert store.write("hashes", "s", 0, *step) == BORN
    store.close()


def test_other_keys_are_out_of_reach(server: RedisServer) -> None:
    send_command(server, "ACL", "SETUSER", "else", "reset", "on", f">{SECRET}", "~other:*", *LEAST_RIGHTS)
    with pytest.raises(ConfigurationError, match="permission"):
        open_store(f"redis://else:{SECRET}@{HOST}:{server.port}").home("flow")


@pytest.mark.parametrize("protocol", [2, 3])
def test_what_a_user_may_not_read_counts_as_weak(server: RedisServer, protocol: int) -> None:
    allow(server, "reads", *LEAST_RIGHTS)
    url = f"redis://reads:{SECRET}@{HOST}:{server.port}?protocol={protocol}"
    weak = open_store(url).check()
    names = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy")
    assert len(weak) == len(names)
    for name, sentence in zip(names, weak, strict=True):
        assert f"the setting {name} cannot be read" in sentence
        assert "--allow-weak-durability" in sentence
        assert SECRET not in sentence
    allow(server, "reads", *LEAST_RIGHTS, "+config|get")
    assert open_store(url).check() == []


def test_the_least_rights_in_a_cluster(cluster: RedisCluster) -> None:
    """While a slot moves, its keys are requested with ASKING, which needs a right of its own."""
    key = layout.cell_key(("rights", "s", 0), "header")
    source = cluster.owner(key)
    target = cluster.masters[cluster.masters.index(source) - 1]
    slot = int(str(send_command(source, "CLUSTER", "KEYSLOT", key)))
    url = cluster.url.replace("://", f"://member:{SECRET}@") + "?wait_replicas=1&wait_ms=10"
    rights = (*LEAST_RIGHTS, *OTHER_RIGHTS["a cluster"])
    for node in cluster.masters:
        allow(node, "member", *LEAST_RIGHTS)
    with pytest.raises(ConfigurationError, match=r"cluster\|slots"):
        open_store(url).home("rights")
    for node in cluster.masters:
        allow(node, "member", *rights)
    with pytest.raises(ConfigurationError, match="wait"):
        open_store(url).check()
    url = url.partition("?")[0]
    store = open_store(url)
    do_everything(store, "rights")
    cluster.start_migration(slot, source, target)
    cluster.move_key(key, source, target)
    cluster.move_key(layout.cell_key(("rights", "s", 0), "states"), source, target)
    after = replace(NEXT, number=2)
    assert store.write("rights", "s", 0, NEXT, after, []) == after
    allow(target, "member", *LEAST_RIGHTS, "+cluster|slots")
    with pytest.raises(ConfigurationError, match="asking"):
        store.headers("rights", "s", [0])
    cluster.finish_migration(slot, target)
    weak = store.check()
    assert len(weak) == 5
    assert all("cannot be read" in sentence and "--allow-weak-durability" in sentence for sentence in weak)
    for node in cluster.masters:
        allow(node, "member", *rights, *READING_RIGHTS)
    assert store.check() == []
    store.close()


# --- protocols -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_versions_of_the_protocol_with_every_kind_of_address(
    server: RedisServer, cluster: RedisCluster, protocol: int
) -> None:
    with SentinelGroup() as group:
        for url in (f"redis://{HOST}:{server.port}/5", cluster.url, f"{group.url}?wait_replicas=1"):
            store = open_store(url, protocol=str(protocol))
            assert store.check() == []
            do_everything(store, f"protocol{protocol}")
            store.close()
    store = open_store(f"redis://{HOST}:{server.port}/5", protocol=str(protocol))
    store.home("spoken")
    connections = str(send_command(server, "CLIENT", "LIST")).splitlines()
    (ours,) = [connection for connection in connections if " db=5 " in connection]
    assert f" resp={protocol}" in ours
    store.close()


def test_a_server_without_waitaof_is_refused_by_name(server: RedisServer) -> None:
    """WAITAOF itself is untested: the test servers do not have it."""
    version = str(server_info(server, "server")["redis_version"]).split(".")
    if (int(version[0]), int(version[1])) >= (7, 2):
        pytest.skip("this server has WAITAOF")
    store = open_store(f"{server.url}?wait_aof_replicas=1")
    with pytest.raises(ConfigurationError, match=r"WAITAOF.*Redis 7\.2"):
        store.check()
    with pytest.raises(ConfigurationError, match=r"WAITAOF.*Redis 7\.2"):
        store.write("aof", "s", 0, None, BORN, [])
    store.close()


def test_waiting_for_a_replica_that_does_not_exist(server: RedisServer) -> None:
    store = open_store(f"{server.url}?wait_replicas=1&wait_ms=50")
    with pytest.raises(Unavailable, match="0 of 1 replicas"):
        store.set_home("alone", None, CLAIM)
    # A heartbeat is worth no waiting.
    assert store.beat("alone", 1, "run-a")
    store.close()


# --- TLS -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ca.pem, an authority that is its own server for 127.0.0.1, and a client's certificate."""
    directory = tmp_path_factory.mktemp("certificates")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=directory)

    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=sqe-chain-test",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.pem")  # fmt: skip
    openssl("req", *key, "-subj", "/CN=service", "-keyout", "service.key", "-out", "service.csr")
    openssl("x509", "-req", "-in", "service.csr", "-CA", "ca.pem", "-CAkey", "key.pem", "-set_serial", "7",
            "-days", "2", "-out", "service.pem")  # fmt: skip
    return directory


def test_a_client_shows_its_own_certificate_where_the_server_asks_for_one(certificates: Path) -> None:
    port = own_port()
    arguments = (*tls_arguments(certificates, port), "--tls-auth-clients", "yes")
    with RedisServer(extra_args=arguments):
        trusting = f"rediss://{HOST}:{port}/0?ca_file={certificates / 'ca.pem'}"
        with pytest.raises(ChainError):
            open_store(trusting).check()
        own = f"cert_file={certificates / 'service.pem'}&key_file={certificates / 'service.key'}"
        for protocol in (2, 3):
            store = open_store(f"{trusting}&{own}&protocol={protocol}")
            assert store.check() == []
            do_everything(store, f"mutual{protocol}")
            store.close()


def test_a_cluster_with_tls(certificates: Path) -> None:
    with RedisCluster(certificate=certificates) as cluster:
        store = open_store(f"{cluster.url}?ca_file={certificates / 'ca.pem'}")
        assert store.check() == []
        do_everything(store, "tls")
        headers = [store.write("tls", "t", part, None, BORN, []) for part in range(16)]
        assert headers == store.headers("tls", "t", range(16)) == [BORN] * 16
        store.close()
        with pytest.raises(ConfigurationError, match="CERTIFICATE_VERIFY_FAILED"):
            open_store(cluster.url).check()


def test_sentinels_with_tls(certificates: Path) -> None:
    with SentinelGroup(certificate=certificates) as group:
        store = open_store(f"{group.url}?ca_file={certificates / 'ca.pem'}&wait_replicas=1")
        assert store.check() == []
        do_everything(store, "tls")
        store.close()
        with pytest.raises(ConfigurationError, match="CERTIFICATE_VERIFY_FAILED"):
            open_store(group.url).check()
