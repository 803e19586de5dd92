"""Services killed by SIGKILL at every event, zombies and standbys: real processes on real servers.

Goal: totals, receivers, commits and claims are exact after each. Method: the process itself sends the
signal right after the event's log line (`signal_at_event`), so that each kill hits the window it is meant for.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.service_processes import SUPERSEDED
from tests.support.suites import some
from tests.support.totals_deployment import TotalsDeployment

Deploy = Callable[..., TotalsDeployment]

FRESH = (
    "claimed",
    "recovered",
    "recovered,sealed",
    "recovered,sealed,published",
    "recovered,sealed,persisted",
    "recovered,sealed,persisted,persisted",
    "recovered,committed",
)
"""Kills in a batch of the life's own; the last stage persists first."""

REDONE = ("recovered,sealed", "claimed,published", "claimed,persisted", "claimed,persisted")
"""Kills while a batch that an earlier life sealed is redone: the last stage is persisted once, then the first."""


def feed_twice(deployment: TotalsDeployment) -> None:
    """New messages; half of them arrive twice, because the republisher dies before its commit."""
    deployment.feed(20)
    deployment.republish_and_die()


def finish(deployment: TotalsDeployment, *more: str, engine: str = "inprocess", replays: bool = True) -> None:
    """Let both services process everything, without faults."""
    deployment.run_once("standard")
    last = deployment.run_once("totals", *more, engine=engine)
    assert not replays or sum(line["replays"] for line in last.all("committed")) > 0
    deployment.check()
    deployment.check_no_lag("standard", "raw")


@pytest.mark.few(1)
@pytest.mark.parametrize("store", ["redis", "sqlite", "postgres"])
def test_a_service_killed_at_each_event_is_exact(deploy: Deploy, store: str) -> None:
    """A kill after any event of a life costs only repeated work."""
    deployment = deploy(store)
    for at in some(f"kills at each event, {store}", FRESH, 3):
        feed_twice(deployment)
        deployment.run_until_killed("totals", at=at)
    finish(deployment)


@pytest.mark.few(1)
@pytest.mark.parametrize("store", ["redis", "sqlite", "postgres"])
def test_a_service_killed_at_each_event_of_a_redo_is_exact(deploy: Deploy, store: str) -> None:
    """A plan left open is finished, however often the runs that finish it are killed."""
    deployment = deploy(store)
    feed_twice(deployment)
    first, *others = [deployment.run_until_killed("totals", at=at) for at in REDONE]
    number = first.all("sealed")[-1]["plan"]
    assert [run.all("sealed") for run in others] == [[], [], []]  # no other plan before this one is done
    assert [run.all("published", plan=number, outputs=0) for run in others[1:]] != [[], []]  # it was, once
    assert [run.all("persisted")[0]["level"] for run in others[1:]] == [2, 1]
    finish(deployment)


@pytest.mark.few(1)
@pytest.mark.parametrize(("store", "at"), [("redis", "sealed"), ("sqlite", "published")])
def test_a_zombie_changes_nothing(deploy: Deploy, store: str, at: str) -> None:
    """A run paused between seal and persist while another took over is superseded, and does not change the store."""
    deployment = deploy(store)
    feed_twice(deployment)
    zombie = deployment.start("totals", signal_at=f"recovered,{at}:SIGSTOP")
    zombie.wait_until_paused()
    assert zombie.names()[-1] == at
    number = zombie.all("sealed")[-1]["plan"]
    deployment.feed(10)
    deployment.run_once("standard")
    other = deployment.run_once("totals", "--takeover")
    assert other.all("recovered")[0]["redone"] == [number]
    assert other.all("committed")[-1]["plan"] > number
    assert "standby" not in other.names()
    before = deployment.stored_contents()
    zombie.resume()
    assert zombie.wait() == SUPERSEDED, zombie.text
    assert zombie.lines()[-1]["error"] == "Superseded"
    assert deployment.stored_contents() == before
    deployment.check()


def test_a_silent_run_is_succeeded_without_takeover_and_wakes_as_superseded(
    deployment: TotalsDeployment,
) -> None:
    """A second run waits while the first one's heartbeat advances, and takes over when it stops."""
    first = deployment.start("totals", "--interval", "200ms")
    first.wait_for("caught_up")
    second = deployment.start("totals", "--interval", "200ms")
    second.wait_for("standby")
    feed_twice(deployment)
    deployment.run_once("standard")
    first.wait_for("committed")  # it works on while the other waits
    assert "claimed" not in second.names()
    first.pause()
    deployment.feed(10)
    deployment.run_once("standard")
    second.wait_for("committed")
    first.resume()
    assert first.wait() == SUPERSEDED, first.text
    assert second.terminate() == 0
    finish(deployment, replays=False)


def test_a_killed_run_is_succeeded_by_the_one_that_waits(deployment: TotalsDeployment) -> None:
    """Of two live runs one works; it dies within a batch, and the other finishes that batch."""
    deployment.feed(10)
    deployment.republish_and_die()
    first = deployment.start("totals", signal_at="recovered,committed,sealed,published:SIGKILL")
    first.wait_for("committed")
    second = deployment.start("totals")
    second.wait_for("standby")
    deployment.run_once("standard")  # all of it again: replays are a batch, too
    first.wait()
    number = first.all("sealed")[-1]["plan"]
    assert second.wait_for("recovered")["redone"] == [number]
    feed_twice(deployment)
    deployment.run_once("standard")
    deployment.wait_for_no_lag(second)
    assert second.terminate() == 0
    deployment.check()


def test_sigterm_finishes_the_batch_and_the_next_run_starts_at_once(deployment: TotalsDeployment) -> None:
    """SIGTERM within a batch: that batch is committed, no other is begun, the claim is released."""
    feed_twice(deployment)
    run = deployment.start("totals", signal_at="recovered,sealed:SIGTERM")
    assert run.wait() == 0, run.text
    number = run.all("sealed")[-1]["plan"]
    assert run.names()[-5:] == ["published", "persisted", "persisted", "committed", "stopped"]
    assert run.all("committed")[-1]["plan"] == number
    deployment.check_while_running()
    following = deployment.run_once("totals")
    assert "standby" not in following.names()
    assert following.all("recovered")[0]["redone"] == []
    finish(deployment)


SPARK = ("--master", "local[2]", "--spark-conf", "spark.driver.memory=512m")


def test_a_service_with_workers_killed_between_seal_and_commit_is_exact(deployment: TotalsDeployment) -> None:
    """The same with worker processes, which are killed together with the service."""
    for at in some("kills of workers", ("recovered,sealed", "claimed,published", "claimed,persisted"), 2):
        feed_twice(deployment)
        deployment.run_until_killed("totals", "--workers", "2", at=at)
    finish(deployment, "--workers", "2")


@pytest.mark.release
@pytest.mark.timeout(1500)
def test_a_service_on_spark_killed_between_seal_and_commit_is_exact(deployment: TotalsDeployment) -> None:
    """The same on Spark: driver, JVM and workers die at once, three times within a batch."""
    for at in ("recovered,sealed", "claimed,published", "claimed,persisted"):
        feed_twice(deployment)
        deployment.run_until_killed("totals", *SPARK, at=at, engine="spark")
    finish(deployment, *SPARK, engine="spark")
