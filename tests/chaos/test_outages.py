"""Servers that die, come back, or come back with older data: services wait, or stop with a clear error.

Goal: what can be continued exactly is continued, everything else is named. Method: real servers that are
killed, emptied, or given an older copy of their data directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev import KafkaServer, RedisServer
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.ports import Commit
from tests.support.brokers import Admin, restore_backup_afterwards, second_broker
from tests.support.service_processes import ServiceProcess
from tests.support.totals_deployment import TotalsDeployment
from tests.support.waiting import PATIENCE_S

Deploy = Callable[..., TotalsDeployment]


@pytest.fixture
def kafka(broker: KafkaServer) -> str:
    """Of a broker that tests here may harm."""
    return broker.bootstrap


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """Of a Redis that tests here may harm."""
    return redis_server.url


def both(deployment: TotalsDeployment) -> tuple[ServiceProcess, ServiceProcess]:
    """Both services, running and without lag."""
    standard, totals = deployment.start("standard"), deployment.start("totals")
    deployment.feed(20)
    deployment.wait_until_caught_up(standard, totals)
    return standard, totals


def republish(deployment: TotalsDeployment, count: int = 20) -> None:
    """New messages, through the republisher."""
    deployment.feed(count)
    deployment.run_once("standard")


# --- killed and restarted -------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("away", [("broker",), ("redis",), ("broker", "redis")], ids="+".join)
def test_services_wait_for_killed_servers_and_go_on(
    deployment: TotalsDeployment, broker: KafkaServer, redis_server: RedisServer, away: tuple[str, ...]
) -> None:
    """Kafka, Redis or both are killed under load: services report it, wait, and lose nothing."""
    standard, totals = both(deployment)
    seen, servers = len(totals.lines()), {"broker": broker, "redis": redis_server}
    deployment.feed(300)
    for name in away:
        servers[name].kill()
    if "broker" not in away:
        deployment.feed(20)
    totals.wait_for("waiting", after=seen)
    if "broker" in away:
        standard.wait_for("waiting")
    for name in away:
        servers[name].start()
    deployment.feed(20)
    deployment.wait_until_caught_up(standard, totals)
    assert [standard.terminate(), totals.terminate()] == [0, 0]
    deployment.check()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[KafkaServer, KafkaServer]]:
    """Two brokers of one cluster; the first one coordinates all groups."""
    directory = tmp_path / "second"
    directory.mkdir()
    with KafkaServer(fast_boot=True) as first:
        log = KafkaLog(first.bootstrap)
        log.create_topic("first", 1)
        log.commit("first", {("first", 0): Commit(0)})  # creates the topic of all commits, on this broker
        with second_broker(first, directory) as second:
            yield first, second
            second.kill()


@pytest.mark.release
def test_too_few_replicas_in_sync_are_waited_for_and_nothing_is_lost(
    pair: tuple[KafkaServer, KafkaServer], deploy: Deploy
) -> None:
    """A plan is sealed while its outputs have too few replicas: it is published when they are back."""
    first, second = pair
    deployment = deploy(broker=first.bootstrap, topics={})
    admin = Admin(first.bootstrap)
    for topic, partitions in (("raw", 2), ("mid", 3)):
        admin.create(deployment.topic(topic), [[1]] * partitions)
    for topic, partitions in (("deltas", 2), ("lines", 1)):
        admin.create(deployment.topic(topic), [[1, 2]] * partitions, min_insync_replicas="2")
    for topic, partitions in (("raw", 2), ("mid", 3), ("deltas", 2), ("lines", 1)):
        deployment.log.create_topic(deployment.topic(topic), partitions)  # waits for its leaders
    standard, totals = both(deployment)
    second.kill()
    assert wait_until(lambda: admin.brokers_in_sync(deployment.topic("deltas")) == {1}, PATIENCE_S)
    seen = len(totals.lines())
    deployment.feed(20)
    plan = totals.wait_for("sealed", after=seen)["plan"]
    deployment.wait_for_no_lag(standard, "standard", "raw")  # the republisher's topic has enough
    assert not wait_until(lambda: totals.names()[-1] != "sealed", 3)
    second.start()
    totals.wait_for("published", plan=plan)
    deployment.wait_until_caught_up(standard, totals)
    assert [standard.terminate(), totals.terminate()] == [0, 0]
    deployment.check()


# --- older copies ---------------------------------------------------------------------------------


@pytest.mark.few(1, of="older copies")
def test_a_log_restored_from_an_older_copy_stops_by_name(
    deploy: Deploy, broker: KafkaServer, tmp_path: Path
) -> None:
    """A broker comes back with an older copy of its data: services that read further stop, running or started again.

    Also when the log has grown beyond what was read: its records are others.
    """
    running, resting = deploy(), deploy("sqlite")
    for deployment in (running, resting):
        republish(deployment)
        deployment.run_once("totals")
    with restore_backup_afterwards(broker, tmp_path / "copy"):
        run = running.start("totals")
        republish(running)
        running.wait_for_no_lag(run)
        republish(resting)
        resting.run_once("totals")
    assert "truncated" in run.stopped_by("TruncatedInput")
    assert "truncated" in resting.start("totals").stopped_by("TruncatedInput")
    republish(resting, 200)
    assert "written again" in resting.start("totals").stopped_by("TruncatedInput")


@pytest.mark.few(1, of="older copies")
def test_a_redis_restored_from_an_older_copy_stops_by_name_and_may_be_accepted(
    deploy: Deploy, redis_server: RedisServer, tmp_path: Path
) -> None:
    """All states are older: a service stops, running or started again; with --accept-rollback it continues exactly."""
    running, resting = deploy(), deploy()
    for deployment in (running, resting):
        republish(deployment)
        deployment.run_once("totals")
    with restore_backup_afterwards(redis_server, tmp_path / "copy"):
        run = running.start("totals")
        republish(running)
        running.wait_for_no_lag(run)
        for _ in range(2):
            republish(resting)
            resting.run_once("totals")
    republish(running)
    run.stopped_by("StoreInconsistent")
    republish(resting)
    for deployment in (running, resting):
        assert "--accept-rollback" in deployment.start("totals").stopped_by("StoreInconsistent")
        deployment.run_once("totals", "--accept-rollback")
        deployment.check()


# --- emptied --------------------------------------------------------------------------------------


def empty(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()


def test_an_emptied_redis_stops_by_name(deployment: TotalsDeployment, redis_server: RedisServer) -> None:
    """All counts are gone, but Kafka still has a commit: the service does not start at zero by itself."""
    republish(deployment)
    deployment.run_once("totals")
    empty(redis_server)
    assert "emptied" in deployment.start("totals").stopped_by("StoreEmpty")


def test_a_redis_emptied_under_a_running_service_stops_it_by_name(
    deployment: TotalsDeployment, redis_server: RedisServer
) -> None:
    """An idle service notices it by its heartbeat, and reports an emptied store, not a newer run."""
    republish(deployment)
    totals = deployment.start("totals")
    deployment.wait_for_no_lag(totals)
    empty(redis_server)
    assert "emptied" in totals.stopped_by("StoreInconsistent")
    deployment.start("totals").stopped_by("StoreEmpty")
