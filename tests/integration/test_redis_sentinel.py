"""A master, its replica, and real sentinels: what a failover keeps, what it loses, and how the loss is detected."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sqe_chain.adapters import open_store
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ext.dev.server import HOST
from sqe_chain.ports import Header
from tests.support.ports import own_port
from tests.support.redis_servers import SERVICE, SentinelGroup, send_command
from tests.support.waiting import PATIENCE_S, eventually, retry_until_available

pytestmark = pytest.mark.release

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BORN = Header(1, "run-a", 0, "plan-0")
NEXT = replace(BORN, number=1)
SECRET = "s3cret-9Qz"  # noqa: S105  opens nothing but a server of this test


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    """A new group for each test, because a failover cannot be undone."""
    with SentinelGroup() as started:
        yield started


def test_the_new_master_is_found_by_three_sentinels_of_whom_one_is_away() -> None:
    with SentinelGroup(sentinels=3) as group:
        store = open_store(group.url)
        store.write("finds", "s", 0, None, BORN, [(b"k", b"1")])
        eventually(group.replica_caught_up, "the replica has all")
        group.sentinels[0].kill()
        group.master.kill()
        found = retry_until_available(lambda: store.read("finds", "s", 0, [b"k"]))
        assert found == (BORN, [b"1"], BORN)
        # The very scripts are unknown there.
        assert retry_until_available(lambda: store.write("finds", "s", 0, BORN, NEXT, [(b"k", b"2")])) == NEXT
        store.close()


def test_after_a_failover_the_store_reports_what_is_there_also_when_that_is_less(
    group: SentinelGroup,
) -> None:
    """A step that no replica had is lost. The header is older, so the next step is refused."""
    store = open_store(group.url)
    store.write("loses", "s", 0, None, BORN, [(b"k", b"1")])
    eventually(group.replica_caught_up, "the replica has all")
    group.replica.kill()
    assert store.write("loses", "s", 0, BORN, NEXT, [(b"k", b"2")]) == NEXT
    group.master.kill()
    group.replica.start()
    eventually(group.replica_is_master, "the replica leads")
    assert retry_until_available(lambda: store.headers("loses", "s", [0])) == [BORN]
    assert store.write("loses", "s", 0, NEXT, replace(NEXT, number=2), [(b"k", b"3")]) == BORN
    assert store.read("loses", "s", 0, [b"k"]) == (BORN, [b"1"], BORN)
    store.close()


def test_a_step_that_too_few_replicas_have_is_not_acknowledged_and_may_be_sent_again(
    group: SentinelGroup,
) -> None:
    store = open_store(f"{group.url}?wait_replicas=1&wait_ms=300")
    retry_until_available(
        lambda: store.write("waits", "s", 0, None, BORN, [])
    )  # on a busy machine 300 ms are short
    group.replica.pause()
    try:
        # The second attempt finds itself done on the master, which does not make the replica have it.
        for _ in range(2):
            started = time.monotonic()
            with pytest.raises(Unavailable, match="0 of 1 replicas"):
                store.write("waits", "s", 0, BORN, NEXT, [(b"k", b"1")])
            assert 0.25 < time.monotonic() - started < PATIENCE_S / 3
    finally:
        group.replica.resume()
    assert retry_until_available(lambda: store.write("waits", "s", 0, BORN, NEXT, [(b"k", b"1")])) == NEXT
    group.master.kill()
    eventually(group.replica_is_master, "the replica leads")
    assert retry_until_available(lambda: store.read("waits", "s", 0, [b"k"])) == (NEXT, [b"1"], NEXT)
    store.close()


def test_a_failover_may_lose_states_so_it_is_weak_unless_replicas_are_waited_for(
    group: SentinelGroup,
) -> None:
    (sentence,) = open_store(group.url).check()
    assert "wait_replicas=1" in sentence
    assert "--allow-weak-durability" in sentence
    assert open_store(f"{group.url}?wait_replicas=1").check() == []


def test_a_database_of_the_path(group: SentinelGroup) -> None:
    store = open_store(f"{group.url}/3")
    store.write("db", "s", 0, None, BORN, [])
    assert store.headers("db", "s", [0]) == [BORN]
    assert open_store(group.url).headers("db", "s", [0]) == [None]
    store.close()


def test_sentinels_that_are_away_or_know_no_such_master_are_named(group: SentinelGroup) -> None:
    away = own_port()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{away}"):
        open_store(f"redis+sentinel://{HOST}:{away}/{SERVICE}").check()
    known = group.sentinels[0].port
    with pytest.raises(ConfigurationError, match="no sentinel knows") as caught:
        open_store(f"redis+sentinel://{HOST}:{known}/other").check()
    assert str(known) in str(caught.value)
    with pytest.raises(Unavailable, match="does not know it"):
        open_store(f"redis+sentinel://{HOST}:{away},{HOST}:{known}/other").check()


def test_sentinels_have_a_login_of_their_own(group: SentinelGroup, tmp_path: Path) -> None:
    """Theirs needs one command; see docs/stores.md."""
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    sentinel = group.sentinels[0]
    rights = ("-@all", "+sentinel|get-master-addr-by-name")
    send_command(sentinel, "ACL", "SETUSER", "asks", "reset", "on", f">{SECRET}", *rights)
    send_command(sentinel, "ACL", "SETUSER", "default", "on", ">other-7Xq")
    with pytest.raises(ConfigurationError):
        open_store(group.url).check()
    for protocol in (2, 3):
        login = f"sentinel_username=asks&sentinel_password_file={file}&protocol={protocol}"
        store = open_store(f"{group.url}?wait_replicas=1&{login}")
        assert store.check() == []
        assert SECRET not in repr(store)
        store.close()
    with pytest.raises(ConfigurationError) as caught:
        open_store(f"{group.url}?sentinel_username=asks").check()
    assert SECRET not in str(caught.value)
