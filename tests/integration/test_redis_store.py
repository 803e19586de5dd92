"""What only a real Redis can show: forgotten scripts, kills, weak settings, logins, TLS, silence."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from sqe_chain.adapters import open_store
from sqe_chain.adapters.redis import connections
from sqe_chain.adapters.redis.client import RedisClient
from sqe_chain.errors import ConfigurationError, StoreInconsistent, Unavailable
from sqe_chain.ext.dev.redis import RedisServer
from sqe_chain.ports import Header, Home, Rows, Views
from tests.support.ports import own_port
from tests.support.redis_servers import LEAST_RIGHTS
from tests.support.waiting import PATIENCE_S, PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


CLAIM = Home(1, "run-a", "", -1, "")
BORN = Header(1, "run-a", 0, "plan-0")
SECRET = "s3cret-9Qz"  # noqa: S105  opens nothing but a server of this test


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server whose scripts and settings these tests may change, and which they may kill."""
    with RedisServer() as started:
        yield started


def administer(server: RedisServer, *command: str) -> None:
    """Send a command directly, not through the store."""
    with Redis(port=server.port, protocol=2) as client:
        client.execute_command(*command)


def address(server: RedisServer, login: str = "", query: str = "") -> str:
    """The server's address with a login and options."""
    return f"redis://{login}127.0.0.1:{server.port}/0{query}"


def test_scripts_are_sent_again_after_the_server_forgot_them(server: RedisServer) -> None:
    store = open_store(server.url)
    store.set_home("forgets", None, CLAIM)
    store.write("forgets", "s", 0, None, BORN, [(b"k", b"1")])
    assert store.beat("forgets", 1, "run-a")
    administer(server, "SCRIPT", "FLUSH")
    second = replace(CLAIM, epoch=2)
    assert store.beat("forgets", 1, "run-a")
    assert store.set_home("forgets", CLAIM, second) == second
    after = replace(BORN, number=1)
    assert store.write("forgets", "s", 0, BORN, after, [(b"k", b"2")]) == after
    assert store.read("forgets", "s", 0, [b"k"]) == (after, [b"2"], after)
    store.close()


def test_a_new_connection_is_made_after_a_restart_without_an_error(server: RedisServer) -> None:
    store = open_store(server.url)
    store.set_home("restart", None, CLAIM)
    server.kill()
    server.start()
    assert store.home("restart") == (CLAIM, 0)
    store.close()


def test_the_settings_of_our_own_server_are_strong(server: RedisServer) -> None:
    assert open_store(server.url).check() == []


@pytest.mark.parametrize(
    ("name", "weak", "strong"),
    [
        ("appendfsync", "everysec", "always"),
        ("appendonly", "no", "yes"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ],
)
def test_each_weak_setting_is_named_with_the_option_that_accepts_it(
    server: RedisServer, name: str, weak: str, strong: str
) -> None:
    administer(server, "CONFIG", "SET", name, weak)
    try:
        (sentence,) = open_store(server.url).check()
    finally:
        administer(server, "CONFIG", "SET", name, strong)
    assert f"{name} is {weak}" in sentence
    assert "--allow-weak-durability" in sentence


def test_steps_larger_than_luas_stack(server: RedisServer) -> None:
    """Lua's unpack() fails beyond about 8,000 values; the option max_rows may exceed that."""
    store = open_store(server.url, max_rows="20000")
    rows = [(b"%06d" % number, b"1") for number in range(20_000)]
    after = replace(BORN, number=1)
    assert store.write("large", "s", 0, None, BORN, rows) == BORN
    assert dict(store.scan("large", "s", 0)) == dict(rows)
    assert store.write("large", "s", 0, BORN, after, [(key, None) for key, _ in rows]) == after
    assert list(store.scan("large", "s", 0)) == []
    store.close()


def test_a_write_between_two_round_trips_of_a_read_is_seen(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So states of two moments are never taken for those of one."""
    store, other = open_store(server.url), open_store(f"{server.url}?timeout_s=9")
    keys = [b"%06d" % number for number in range(20_001)]
    store.write("between", "s", 0, None, BORN, [(keys[0], b"1"), (keys[-1], b"1")])
    after, together, trips = replace(BORN, number=1), RedisClient.together, list[int]()

    def interrupted(client: RedisClient, commands: Sequence[Any]) -> list[Any]:
        found = together(client, commands)
        trips.append(len(commands))
        if len(trips) == 1:
            other.write("between", "s", 0, BORN, after, [(keys[0], b"2"), (keys[-1], b"2")])
        return found

    monkeypatch.setattr(RedisClient, "together", interrupted)
    before, states, standing = store.read("between", "s", 0, keys)
    assert len(trips) == 2
    assert (states[0], states[-1]) == (b"1", b"2")
    assert (before, standing) == (BORN, after)
    monkeypatch.undo()
    store.close()
    other.close()


@pytest.mark.parametrize("missing", ["+hdel", "+hset"])
def test_missing_rights_are_a_matter_of_configuration_and_change_nothing(
    server: RedisServer, missing: str
) -> None:
    """Redis does not undo what a script did before one of its commands was refused, so rights are checked first."""
    fewer = [right for right in LEAST_RIGHTS if right != missing]
    administer(server, "ACL", "SETUSER", "fewer", "reset", "on", f">{SECRET}", "~sqe:*", *fewer)
    flow = f"rights{missing[1:]}"
    full = open_store(server.url)
    full.write(flow, "s", 0, None, BORN, [(b"k", b"1"), (b"l", b"1")])
    full.set_home(flow, None, replace(CLAIM, number=0), b"plan")
    limited = open_store(address(server, f"fewer:{SECRET}@"))
    with pytest.raises(ConfigurationError, match="may not run") as caught:
        limited.write(flow, "s", 0, BORN, replace(BORN, number=1), [(b"k", None), (b"l", b"2")])
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationError, match="may not run"):
        limited.set_home(flow, replace(CLAIM, number=0), replace(CLAIM, number=1), b"next", drop_below=1)
    limited.close()
    assert full.read(flow, "s", 0, [b"k", b"l"]) == (BORN, [b"1", b"1"], BORN)
    assert full.home(flow) == (replace(CLAIM, number=0), 0)
    assert (full.plan(flow, 0), full.plan(flow, 1)) == (b"plan", None)


def test_the_right_to_delete_hashes_is_checked_before_states_are_written(server: RedisServer) -> None:
    """Only flows that show states as hashes need it."""
    administer(server, "ACL", "SETUSER", "no-del", "reset", "on", f">{SECRET}", "~sqe:*", *LEAST_RIGHTS)
    full = open_store(server.url)
    full.write("no-del", "s", 0, None, BORN, [(b"k", b"1")])
    limited = open_store(address(server, f"no-del:{SECRET}@"))
    views = Views("hash", {b"k": {"n": "2"}})
    with pytest.raises(ConfigurationError, match="may not run DEL"):
        limited.write("no-del", "s", 0, BORN, replace(BORN, number=1), [(b"k", b"2")], views)
    limited.close()
    assert full.read("no-del", "s", 0, [b"k"]) == (BORN, [b"1"], BORN)
    full.close()


@pytest.mark.parametrize("login", [f":{SECRET}@", f"nobody:{SECRET}@"])
def test_a_wrong_password_is_named_without_showing_it(server: RedisServer, login: str) -> None:
    administer(server, "CONFIG", "SET", "requirepass", "right")
    try:
        with pytest.raises(ConfigurationError) as caught:
            open_store(address(server, login)).check()
        nameless = open_store(address(server))
        nameless.close()  # existing connections stay logged in
        with pytest.raises(ConfigurationError):
            nameless.check()
        open_store(address(server, ":right@")).check()
    finally:
        with Redis(port=server.port, password="right", protocol=2) as client:  # noqa: S106  of this test
            client.config_set("requirepass", "")
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__)
    assert str(server.port) in str(caught.value)


def test_the_password_may_come_from_a_file_or_the_environment(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    administer(server, "ACL", "SETUSER", "filed", "reset", "on", f">{SECRET}", "~sqe:*", *LEAST_RIGHTS)
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    monkeypatch.setenv("STORE_PASSWORD", SECRET)
    for query in (f"?password_file={file}", "?password_env=STORE_PASSWORD"):
        store = open_store(address(server, "filed@", query))
        assert store.home("filed") == (None, 0)
        assert SECRET not in repr(store)
        store.close()


def test_a_scan_of_a_server_that_is_restarted_ends_with_an_error() -> None:
    """Cursors of the previous process mean nothing to the next one: states would be missed silently."""
    with RedisServer() as server:
        store = open_store(server.url)
        store.write("scan", "s", 0, None, BORN, [(b"%06d" % number, b"1") for number in range(5_000)])
        scan = store.scan("scan", "s", 0)
        next(scan)
        server.restart()
        with pytest.raises(Unavailable):
            list(scan)
        assert len(list(store.scan("scan", "s", 0))) == 5_000
        store.close()


def test_an_abandoned_scan_spoils_no_connection(server: RedisServer) -> None:
    store = open_store(server.url)
    store.write("abandoned", "s", 0, None, BORN, [(b"%06d" % number, b"1") for number in range(5_000)])
    for _ in range(3):
        scan = store.scan("abandoned", "s", 0)
        next(scan)
        del scan
        assert store.headers("abandoned", "s", [0]) == [BORN]
    store.close()


def test_what_is_read_is_never_part_of_an_errors_text(server: RedisServer) -> None:
    """redis-py's own pipelines write the commands into their errors: keys, which may be secret."""
    store = open_store(server.url)
    administer(server, "SET", "sqe:{texts/s/0}:states", "text")
    with pytest.raises(ConfigurationError, match="WRONGTYPE") as caught:
        store.read("texts", "s", 0, [SECRET.encode()])
    assert SECRET not in str(caught.value)
    store.close()


HIDDEN = ("--rename-command", "CONFIG", "")


def test_settings_that_cannot_be_read_count_as_strong_only_if_the_address_declares_them() -> None:
    """Managed services forbid CONFIG; what can be read is checked all the same."""
    with RedisServer(extra_args=HIDDEN) as server:
        doubted, declared = open_store(server.url), open_store(f"{server.url}?durability=declared")
        assert len([line for line in doubted.check() if "cannot be read" in line]) == 4
        assert doubted.remarks() == []
        assert declared.check() == []
        (remark,) = declared.remarks()
        assert "appendfsync" in remark
        assert "declared" in remark
    with RedisServer(extra_args=("--appendfsync", "everysec")) as server:
        readable = open_store(f"{server.url}?durability=declared")
        (weak,) = readable.check()
        assert "appendfsync is everysec" in weak
        assert readable.remarks() == []


def test_a_server_that_is_away_is_noticed_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        open_store(f"redis://127.0.0.1:{own_port()}/0?{PATIENT}").check()
    assert time.monotonic() - started < PATIENCE_S / 3


def test_an_answer_that_nobody_waited_for_is_never_taken_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C while waiting for an answer: the next request must not receive it."""
    with RedisServer() as server:
        store = open_store(server.url)
        store.set_home("late", None, replace(CLAIM, number=0), b"plan")
        server.pause()
        try:
            with monkeypatch.context() as patched:
                patched.setattr(connections, "_answer", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    store.headers("late", "s", [0])
        finally:
            resumed = threading.Timer(0.2, server.resume)
            resumed.start()
        assert store.plan("late", 0) == b"plan"
        resumed.join()
        store.close()


def interrupt(*_: object) -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def test_a_server_without_memory_refuses_the_whole_step(server: RedisServer) -> None:
    store = open_store(server.url)
    store.write("full", "s", 0, None, BORN, [(b"k", b"1")])
    administer(server, "CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Unavailable, match=r"(?i)memory"):
            store.write("full", "s", 0, BORN, replace(BORN, number=1), [(b"a", b"1"), (b"k", b"2")])
    finally:
        administer(server, "CONFIG", "SET", "maxmemory", "0")
    assert store.read("full", "s", 0, [b"a", b"k"]) == (BORN, [None, b"1"], BORN)
    store.close()


def test_keys_of_another_program_are_not_overwritten(server: RedisServer) -> None:
    store = open_store(server.url)
    administer(server, "SET", "sqe:{other/s/0}:header", "text")
    with pytest.raises(ConfigurationError, match="WRONGTYPE"):
        store.write("other", "s", 0, None, BORN, [])
    administer(server, "SET", "sqe:{other/s/2}:states", "text")
    with pytest.raises(ConfigurationError, match="WRONGTYPE"):
        store.write("other", "s", 2, None, BORN, [(b"k", b"1")])
    assert store.headers("other", "s", [2]) == [None], "no header is ahead of its rows"
    administer(server, "HSET", "sqe:{other/s/1}:header", "epoch", "1")
    with pytest.raises(StoreInconsistent, match=r"sqe:\{other/s/1\}:header"):
        store.headers("other", "s", [1])
    store.close()


def test_an_unknown_database_number_is_a_matter_of_configuration(server: RedisServer) -> None:
    with pytest.raises(ConfigurationError, match="DB index"):
        open_store(f"redis://127.0.0.1:{server.port}/999").check()


def test_the_documented_layout(server: RedisServer) -> None:
    """docs/stores.md names these keys, fields and forms for readers in other languages."""
    store = open_store(server.url)
    store.set_home("lay.out", None, CLAIM)
    store.set_home("lay.out", CLAIM, Home(2, "run-b", "{}", 0, "p0"), b"plan")
    store.beat("lay.out", 2, "run-b")
    store.write("lay.out", "s", 7, None, Header(2, "run-b", 0, "p0", "p1", b"\xff"), [(b"k", b"state")])
    with Redis(port=server.port, protocol=2) as client:
        assert client.hgetall("sqe:{lay.out}:home") == {
            b"epoch": b"00000000000000000002", b"run_id": b"run-b", b"owner": b"{}",
            b"number": b"00000000000000000000", b"plan_id": b"p0",
        }  # fmt: skip
        assert client.get("sqe:{lay.out}:beat") == b"1"
        assert client.hgetall("sqe:{lay.out}:plans") == {b"00000000000000000000": b"plan"}
        assert client.hgetall("sqe:{lay.out/s/7}:header") == {
            b"epoch": b"00000000000000000002", b"run_id": b"run-b", b"number": b"00000000000000000000",
            b"plan_id": b"p0", b"begun_id": b"p1", b"cursor": b"\xff",
            b"states": b"00000000000000000001 run-b",
        }  # fmt: skip
        assert client.hgetall("sqe:{lay.out/s/7}:states") == {b"k": b"state"}
        store.write(
            "lay.out", "s", 7, Header(2, "run-b", 0, "p0", "p1", b"\xff"), Header(2, "run-b", 1, "p1"), []
        )
        assert client.hget("sqe:{lay.out/s/7}:header", "cursor") is None
        assert sorted(client.keys("sqe:{lay.out*")) == [
            b"sqe:{lay.out/s/7}:header", b"sqe:{lay.out/s/7}:states",
            b"sqe:{lay.out}:beat", b"sqe:{lay.out}:home", b"sqe:{lay.out}:plans",
        ]  # fmt: skip
    store.close()


def test_the_documented_layout_of_hashes(server: RedisServer) -> None:
    """Each step writes the hash again completely: removed fields are deleted."""
    store = open_store(server.url)
    first = Views("hash", {b"k": {"a": "1", "b": "x"}, b"\xff": {"a": "2"}})
    store.write("hashes", "s", 7, None, BORN, [(b"k", b"1"), (b"\xff", b"2")], first)
    after = replace(BORN, number=1)
    store.write(
        "hashes", "s", 7, BORN, after, [(b"k", b"3"), (b"\xff", None)], Views("hash", {b"k": {"a": "3"}})
    )
    with Redis(port=server.port, protocol=2) as client:
        assert client.hgetall("sqe:{hashes/s/7}:hash:k") == {b"a": b"3"}
        assert not client.exists(b"sqe:{hashes/s/7}:hash:\xff")
        assert client.hgetall("sqe:{hashes/s/7}:states") == {b"k": b"3"}
        rows: Rows = [(b"k", None), (b"u", b"1"), (b"v", b"2"), (b"w", b"3")]
        store.write(
            "hashes", "s", 7, after, replace(after, number=2), rows, Views("hash", {b"v": {"a": "4"}})
        )
        assert client.keys("sqe:{hashes/s/7}:hash:*") == [b"sqe:{hashes/s/7}:hash:v"]
        assert client.hgetall("sqe:{hashes/s/7}:states") == {b"u": b"1", b"v": b"2", b"w": b"3"}
    store.close()


def test_a_view_on_another_programs_key_changes_nothing(server: RedisServer) -> None:
    store = open_store(server.url)
    with Redis(port=server.port, protocol=2) as client:
        client.set("sqe:{taken/s/7}:json", "theirs")
        with pytest.raises(ConfigurationError, match="WRONGTYPE"):
            store.write("taken", "s", 7, None, BORN, [(b"k", b"1")], Views("json", {b"k": "{}"}))
        assert client.keys("sqe:{taken*") == [b"sqe:{taken/s/7}:json"]
    store.close()


# --- TLS -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ca.pem (it is its own authority, for 127.0.0.1) and key.pem."""
    directory = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=sqe-chain-test", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(directory / "key.pem"), "-out", str(directory / "ca.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    return directory


def test_tls_is_used_and_the_certificate_is_verified(certificate: Path) -> None:
    port = own_port()
    arguments = (
        "--tls-port", str(port), "--tls-cert-file", str(certificate / "ca.pem"),
        "--tls-key-file", str(certificate / "key.pem"), "--tls-auth-clients", "no",
    )  # fmt: skip
    with RedisServer(extra_args=arguments):
        trusted = open_store(f"rediss://127.0.0.1:{port}/0?ca_file={certificate / 'ca.pem'}")
        assert trusted.check() == []
        assert trusted.set_home("tls", None, CLAIM) == CLAIM
        trusted.close()
        with pytest.raises(ConfigurationError, match="CERTIFICATE_VERIFY_FAILED"):
            open_store(f"rediss://127.0.0.1:{port}/0").check()
        with pytest.raises(ConfigurationError, match=r"(?i)mismatch|not valid for"):
            open_store(f"rediss://localhost:{port}/0?ca_file={certificate / 'ca.pem'}").check()


def test_it_takes_the_sizes_that_it_promises() -> None:
    with RedisServer(extra_args=("--proto-max-bulk-len", "1mb")) as narrow:
        store = open_store(narrow.url)
        most = store.max_state_bytes
        assert most == store.max_key_bytes == store.max_plan_bytes == 1 << 20
        key, shown = b"k" * 1_000, "v" * 1_000
        state = os.urandom(most - len(key) - len(shown))
        after = replace(BORN, number=1)
        views = Views("json", {key: shown})
        assert store.write("f", "s", 0, None, BORN, [(key, state)], views) == BORN
        assert store.write("f", "s", 0, BORN, after, [(bytes(most), b"")]) == after
        for too_large in ([(b"k", bytes(most))], [(bytes(most + 1), None)]):
            with pytest.raises(ConfigurationError, match=f"at most {most}"):
                store.write("f", "s", 0, after, BORN, too_large)
        sealed = replace(CLAIM, number=0)
        with pytest.raises(ConfigurationError, match=f"at most {most}"):
            store.set_home("f", None, sealed, bytes(most + 1))
        assert store.set_home("f", None, sealed, bytes(most)) == sealed
        store.close()


def test_a_limit_that_cannot_be_read_is_the_default(server: RedisServer) -> None:
    administer(server, "ACL", "SETUSER", "plain", "on", "nopass", "~*", "+@all", "-config")
    store = open_store(address(server, "plain:x@"))
    assert store.max_state_bytes == 512 << 20
    store.close()
