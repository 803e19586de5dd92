"""Goal: a replica that replaces its master and lacks acknowledged writes is detected, and lost work is redone if possible.

Method: real servers with real failovers; the log in memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sqe_chain.adapters import open_store
from sqe_chain.errors import StoreInconsistent
from sqe_chain.features.settings import settings_of
from sqe_chain.ports import Header, StateStore
from sqe_chain.task.states import Claim, Transition, persist
from sqe_chain.testing.faults import FaultScript, InjectedFault
from sqe_chain.testing.faulty_ports import faulty_store
from tests.support.memory_pipeline import TotalsPipeline, feed_with_replays, totals_flow
from tests.support.redis_servers import RedisCluster, SentinelGroup, server_info
from tests.support.waiting import eventually, retry_until_available

pytestmark = [pytest.mark.release, pytest.mark.timeout(1500)]

BORN = Header(1, "run-a", 0, "plan-0")
TRANSITION = Transition("chunks", Claim(1, "run-a"), 0, "plan-0")
ROWS = [(b"key-%02d" % number, b"state %d" % number) for number in range(40)]
PARTS = 3


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    """A new group for each test, because a failover cannot be undone."""
    with SentinelGroup() as started:
        yield started


# --- between two chunks --------------------------------------------------------------------------------


def interrupted_by(store: StateStore, happens: Callable[[], None]) -> tuple[StateStore, FaultScript]:
    """The store; something happens after its second chunk."""
    script = FaultScript(injected=[InjectedFault(happens, when="after", writes=True, passes=1)])
    return faulty_store(store, script), script


def persist_with_retries(store: StateStore) -> int:
    def again() -> int:
        return persist(store, TRANSITION, "plan-1", "s", 0, ROWS, BORN)

    return retry_until_available(again)


def test_a_failover_between_two_chunks_continues_after_the_cursor(group: SentinelGroup) -> None:
    store = open_store(group.url, max_rows="10")

    def fail_over() -> None:
        eventually(group.replica_caught_up, "the replica has all")
        group.master.kill()
        eventually(group.replica_is_master, "the replica leads")

    store.write("chunks", "s", 0, None, BORN, [])
    interrupted, script = interrupted_by(store, fail_over)
    persist_with_retries(interrupted)
    assert script.made["store", "write"] >= 4
    last = replace(BORN, number=1, plan_id="plan-1")
    keys = [key for key, _ in ROWS]
    assert store.read("chunks", "s", 0, keys) == (last, [state for _, state in ROWS], last)
    store.close()


def test_a_failover_between_two_chunks_to_a_replica_that_lags_stops(group: SentinelGroup) -> None:
    """The acknowledged cursor is lost: the store does not guess, and writes nothing more."""
    store = open_store(group.url, max_rows="10")
    store.write("chunks", "s", 0, None, BORN, [])
    eventually(group.replica_caught_up, "the replica has the beginning")
    group.replica.kill()

    def fail_over() -> None:
        group.master.kill()
        group.replica.start()
        eventually(group.replica_is_master, "the replica leads")

    interrupted, _ = interrupted_by(store, fail_over)
    with pytest.raises(StoreInconsistent, match="went back in time"):
        persist_with_retries(interrupted)
    assert store.headers("chunks", "s", [0]) == [BORN]
    assert list(store.scan("chunks", "s", 0)) == []
    # Started from the beginning, as recovery does, it succeeds.
    persist(store, TRANSITION, "plan-1", "s", 0, ROWS, BORN)
    assert dict(store.scan("chunks", "s", 0)) == dict(ROWS)
    store.close()


# --- a service -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("running", [False, True])
def test_a_replica_that_lags_takes_over_everything(group: SentinelGroup, running: bool) -> None:
    """The whole store is older. Kafka's commit shows it; the error names an option, which gives exact results."""
    pipeline = TotalsPipeline(totals_flow(2, PARTS), mid=PARTS, store=open_store(group.url))
    feed_with_replays(pipeline)
    pipeline.totals.run_until_caught_up()
    eventually(group.replica_caught_up, "the replica has the first batch")
    group.replica.kill()
    for _ in range(2):
        feed_with_replays(pipeline)
        pipeline.totals.run_until_caught_up()
    group.master.kill()
    group.replica.start()
    eventually(group.replica_is_master, "the replica leads")
    retry_until_available(lambda: pipeline.totals.stores[""].home("totals"))
    if running:
        feed_with_replays(pipeline)
        with pytest.raises(StoreInconsistent):
            pipeline.totals.batch()
    with pytest.raises(StoreInconsistent, match="--accept-rollback"):
        pipeline.totals.restart()
    pipeline.totals.start(settings_of(allow_weak_durability=True, takeover=True, accept_rollback=True))
    feed_with_replays(pipeline)
    pipeline.totals.run_until_caught_up()
    pipeline.check()
    pipeline.totals.stores[""].close()


@pytest.mark.parametrize("running", [False, True])
def test_a_replica_that_lags_takes_over_some_state_partitions(running: bool) -> None:
    """Headers are older than the plan log: lost states are folded again automatically, exactly, and reported."""
    with RedisCluster(replicas=1) as cluster:
        name, lost = _name_whose_states_only_are_on_one_master(cluster)
        pipeline = TotalsPipeline(totals_flow(2, PARTS, name), mid=PARTS, store=open_store(cluster.url))
        feed_with_replays(pipeline)
        pipeline.totals.run_until_caught_up()
        master, replica = cluster.masters[lost], cluster.replicas[lost]

        def in_step() -> bool:
            mine, theirs = server_info(master, "replication"), server_info(replica, "replication")
            return mine.get("master_repl_offset") == theirs.get("slave_repl_offset")

        eventually(in_step, "the replica has the first batch")
        replica.kill()
        for _ in range(2):
            feed_with_replays(pipeline)
            pipeline.totals.run_until_caught_up()
        master.kill()
        replica.start()
        eventually(lambda: server_info(replica, "replication").get("role") == "master", "the replica leads")
        retry_until_available(lambda: pipeline.totals.stores[""].headers(name, "per-robot", range(PARTS)))
        if running:
            feed_with_replays(pipeline)
            with pytest.raises(StoreInconsistent):
                retry_until_available(pipeline.totals.batch)
        pipeline.totals.restart()
        feed_with_replays(pipeline)
        pipeline.totals.run_until_caught_up()
        pipeline.check()
        redone = pipeline.totals.events("recovered")[-1]["redone"]
        assert len(redone) >= 2, redone  # type: ignore[arg-type]
        texts = [str(event["text"]) for event in pipeline.totals.events("notice")]
        assert any("lost acknowledged writes" in text for text in texts)
        pipeline.totals.stores[""].close()


def _name_whose_states_only_are_on_one_master(cluster: RedisCluster) -> tuple[str, int]:
    """A flow, and the number of a master that holds some states of its first stage and nothing else of it."""
    for _ in range(1_000):
        name = f"totals-{uuid.uuid4().hex[:8]}"
        home = cluster.owner(f"sqe:{{{name}}}:home")
        second = [cluster.owner(f"sqe:{{{name}/per-line/{part}}}:header") for part in range(PARTS)]
        first = [cluster.owner(f"sqe:{{{name}/per-robot/{part}}}:header") for part in range(PARTS)]
        for number, master in enumerate(cluster.masters):
            if master in first and master not in (home, *second):
                return name, number
    raise AssertionError("no such name")
