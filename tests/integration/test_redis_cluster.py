"""What only a real Redis Cluster can show: moving slots, restarted nodes, replicas that take over."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from redis.crc import key_slot
from redis.exceptions import ResponseError

from sqe_chain.adapters import open_store
from sqe_chain.adapters.redis import layout
from sqe_chain.adapters.redis.connections import SingleRedisServer
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ports import Header, Home
from tests.support.redis_servers import RedisCluster, send_command, server_info
from tests.support.waiting import eventually, retry_until_available

pytestmark = pytest.mark.release

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqe_chain.adapters.redis.connections import Answer, Command
    from sqe_chain.ports import StateStore

CLAIM = Home(1, "run-a", "", -1, "")
BORN = Header(1, "run-a", 0, "plan-0")
KEYS = [b"%03d" % key for key in range(50)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Three masters; a test moves only slots of its own flows, and leaves all nodes running."""
    with RedisCluster() as started:
        yield started


@pytest.fixture
def store(cluster: RedisCluster) -> Iterator[StateStore]:
    """A store that has not connected to the cluster yet."""
    opened = open_store(cluster.url)
    opened.close()
    yield opened
    opened.close()


def rows(header: Header) -> list[tuple[bytes, bytes | None]]:
    """Rows that identify the step that wrote them."""
    return [(key, b"%d" % header.number) for key in KEYS]


def step(store: StateStore, flow: str, header: Header) -> Header:
    """Write the next header with its rows."""
    after = replace(header, number=header.number + 1)
    assert store.write(flow, "s", 0, header, after, rows(after)) == after
    return after


def check(store: StateStore, flow: str, header: Header) -> None:
    """Check that the last write is stored completely."""
    assert store.read(flow, "s", 0, KEYS) == (header, [state for _, state in rows(header)], header)


class Move:
    """A state partition whose slot goes from its owner to another node, one command at a time."""

    def __init__(self, cluster: RedisCluster, flow: str) -> None:
        self._cluster = cluster
        self._header = layout.cell_key((flow, "s", 0), "header")
        self._states = layout.cell_key((flow, "s", 0), "states")
        self._slot = key_slot(self._header.encode())
        self.source = cluster.owner(self._header)
        self.target = cluster.masters[cluster.masters.index(self.source) - 1]

    def start(self) -> None:
        self._cluster.start_migration(self._slot, self.source, self.target)

    def header(self) -> None:
        self._cluster.move_key(self._header, self.source, self.target)

    def states(self) -> None:
        self._cluster.move_key(self._states, self.source, self.target)

    def finish(self) -> None:
        self._cluster.finish_migration(self._slot, self.target)


# --- slots -------------------------------------------------------------------------------------------


def test_state_partitions_are_spread_and_each_is_in_one_slot() -> None:
    slots = set()
    for part in range(32):
        header, states = (
            layout.cell_key(("flow", "s", part), "header"),
            layout.cell_key(("flow", "s", part), "states"),
        )
        assert key_slot(header.encode()) == key_slot(states.encode())
        slots.add(key_slot(header.encode()))
    homes = {
        layout.flow_key("flow", "home"),
        layout.flow_key("flow", "beat"),
        layout.flow_key("flow", "plans"),
    }
    assert len({key_slot(key.encode()) for key in homes}) == 1
    assert len(slots) > 24


def test_the_state_partitions_of_a_stage_lie_on_all_masters(cluster: RedisCluster, store: StateStore) -> None:
    headers = [replace(BORN, number=part) for part in range(16)]
    for part, header in enumerate(headers):
        store.write("spread", "s", part, None, header, [])
    assert store.headers("spread", "s", [*range(16), 16]) == [*headers, None]
    for master in cluster.masters:
        found = send_command(master, "KEYS", "sqe:{spread/*")
        assert isinstance(found, list)
        assert found


def test_a_slot_that_moves_with_its_data_while_it_is_written(
    cluster: RedisCluster, store: StateStore
) -> None:
    """At each moment of the move, a step is done completely, or the store is unavailable."""
    move = Move(cluster, "moves")
    store.write("moves", "s", 0, None, BORN, rows(BORN))
    move.start()
    header = step(store, "moves", BORN)  # all keys are still there
    move.header()
    check(store, "moves", header)  # each key has a place, and reads find it
    with pytest.raises(Unavailable, match="TryAgain"):
        step(store, "moves", header)
    check(store, "moves", header)
    move.states()
    check(store, "moves", header)
    header = step(store, "moves", header)  # by ASK; the target has never seen the script
    check(store, "moves", header)
    move.finish()
    header = step(store, "moves", header)  # by MOVED
    check(store, "moves", header)
    assert sorted(store.scan("moves", "s", 0)) == rows(header)
    check(open_store(cluster.url, timeout_s="9"), "moves", header)


def test_a_writer_that_never_stops_while_slots_move(cluster: RedisCluster, store: StateStore) -> None:
    move = Move(cluster, "busy")
    store.write("busy", "s", 0, None, BORN, rows(BORN))
    written, ended, failures = [BORN], threading.Event(), []

    def write() -> None:
        try:
            while not ended.is_set():
                written.append(retry_until_available(lambda: step(store, "busy", written[-1])))
        except BaseException as failure:  # noqa: BLE001 - shown by the test
            failures.append(failure)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for act in (move.start, move.header, move.states, move.finish):
            stood = len(written)
            act()
            if act != move.header:  # header and states are apart: no step is possible
                eventually(lambda: len(written) > stood + 20 or bool(failures), "steps are done")  # noqa: B023
    finally:
        ended.set()
        writer.join(60)
    assert not failures
    check(store, "busy", written[-1])
    assert written[-1].number == len(written) - 1


def test_what_is_read_while_keys_are_in_two_places_is_read_in_order(
    cluster: RedisCluster, store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header read before must be older than the states, and these older than the header read after."""
    move = Move(cluster, "order")
    store.write("order", "s", 0, None, BORN, rows(BORN))
    move.start()
    move.header()
    answered: list[str] = []
    exchange = SingleRedisServer.exchange

    def record(server: SingleRedisServer, commands: Sequence[Command]) -> list[Answer]:
        answers = exchange(server, commands)
        for command, answer in zip(commands, answers, strict=True):
            if command[0] == "HMGET" and not isinstance(answer, ResponseError):
                answered.append(str(command[1]).rpartition(":")[2])
        return answers

    monkeypatch.setattr(SingleRedisServer, "exchange", record)
    check(store, "order", BORN)
    assert answered[-3:] == ["header", "states", "header"]
    move.states()
    move.finish()


def test_a_scan_whose_slot_moves_ends_with_an_error(cluster: RedisCluster, store: StateStore) -> None:
    """A cursor means nothing to another server: states would be missed silently."""
    move = Move(cluster, "scanned")
    many: list[tuple[bytes, bytes | None]] = [(b"%06d" % number, b"1") for number in range(5_000)]
    store.write("scanned", "s", 0, None, BORN, many)
    scan = store.scan("scanned", "s", 0)
    next(scan)
    move.start()
    move.header()
    move.states()
    move.finish()
    with pytest.raises(Unavailable, match="begin again"):
        list(scan)
    assert len(list(store.scan("scanned", "s", 0))) == 5_000


# --- nodes ---------------------------------------------------------------------------------------------


def test_scripts_are_sent_again_to_nodes_that_were_restarted(
    cluster: RedisCluster, store: StateStore
) -> None:
    header = store.write("restart", "s", 0, None, BORN, rows(BORN))
    assert header is not None
    node = cluster.owner(layout.cell_key(("restart", "s", 0), "header"))
    before = step(store, "restart", header)
    node.kill()
    with pytest.raises(Unavailable):
        step(store, "restart", before)
    node.start()
    assert server_info(node, "memory")["number_of_cached_scripts"] == 0
    header = retry_until_available(lambda: step(store, "restart", before))
    assert server_info(node, "memory")["number_of_cached_scripts"] != 0
    check(store, "restart", header)
    eventually(cluster.is_up, "all nodes see the restarted one")


def test_any_node_of_the_address_is_enough(cluster: RedisCluster) -> None:
    store = open_store(f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.masters[2].port}")
    assert store.check() == []
    with pytest.raises(Unavailable, match="127"):
        open_store("redis+cluster://127.0.0.1:1,127.0.0.1:2").check()
    store.close()


def test_every_master_is_asked_for_its_settings(cluster: RedisCluster, store: StateStore) -> None:
    assert store.check() == []
    for node in cluster.masters:
        send_command(node, "CONFIG", "SET", "appendfsync", "everysec")
        try:
            (sentence,) = store.check()
        finally:
            send_command(node, "CONFIG", "SET", "appendfsync", "always")
        assert f"127.0.0.1:{node.port}: appendfsync is everysec" in sentence
        assert "--allow-weak-durability" in sentence


def test_the_kind_of_server_that_an_address_names_must_be_the_one_that_is_there(
    cluster: RedisCluster, redis_url: str
) -> None:
    single = open_store(f"redis://127.0.0.1:{cluster.masters[0].port}")
    with pytest.raises(ConfigurationError, match=r"write redis\+cluster://"):
        single.headers("kind", "s", range(16))
    with pytest.raises(ConfigurationError, match="cluster support disabled"):
        open_store(redis_url.replace("redis://", "redis+cluster://")).check()


def test_a_replica_takes_over_and_what_was_waited_for_is_there() -> None:
    with RedisCluster(replicas=1) as cluster:
        store = open_store(f"{cluster.url}?wait_replicas=1&wait_ms=5000")
        assert store.check() == []
        hasty = open_store(cluster.url)
        (sentence,) = hasty.check()
        assert "wait_replicas=1" in sentence
        assert "--allow-weak-durability" in sentence
        hasty.close()
        key = layout.cell_key(("failover", "s", 0), "header")
        master = cluster.owner(key)
        replica = cluster.replicas[cluster.masters.index(master)]
        store.write("failover", "s", 0, None, BORN, rows(BORN))
        header = step(store, "failover", BORN)
        master.kill()
        eventually(lambda: server_info(replica, "replication").get("role") == "master", "the replica leads")
        assert retry_until_available(lambda: store.headers("failover", "s", [0])) == [header]
        check(store, "failover", header)
        # Its own replica is away: nothing counts as acknowledged any more.
        with pytest.raises(Unavailable, match="0 of 1 replicas"):
            step(open_store(f"{cluster.url}?wait_replicas=1&wait_ms=100"), "failover", header)
        master.start()
        header = replace(header, number=header.number + 1)
        retry_until_available(
            lambda: store.write("failover", "s", 0, replace(header, number=1), header, rows(header))
        )
        check(store, "failover", header)
        store.close()
