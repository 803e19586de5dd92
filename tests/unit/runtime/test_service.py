"""Goal: the loop goes by what batches return. Method: a service in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import Unavailable
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.plans.events import Sealed
from sqe_chain.plans.results import BatchResult
from sqe_chain.plans.retrying import Committing
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.runtime.service import FIRST_IDLE_MS, IDLE_MS, Service
from sqe_chain.runtime.stop import ServiceClock, Stop
from sqe_chain.testing import Rehearsal, Settings
from sqe_chain.testing.faults import InjectedFault
from tests.support.environments import environment_of
from tests.support.number_flows import add


def sums() -> Rehearsal:
    flow = Flow("sums", state_partitions=1)
    flow.source("numbers", Int64Value).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
    settings = settings_of(max_records=1, interval_ms=3_600_000, takeover=True)
    rehearsal = Rehearsal(flow, settings=settings)
    rehearsal.feed("numbers", Int64Value(value=1))
    return rehearsal


def service(rehearsal: Rehearsal, stop: Stop, *, once: bool) -> Service:
    clock = ServiceClock(stop)
    env = replace(environment_of(rehearsal), clock=clock)
    return Service(env, clock, once=once)


def test_batches_run_back_to_back_until_nothing_is_left() -> None:
    rehearsal = sums()
    for _ in range(2):
        rehearsal.feed("numbers", Int64Value(value=1))
    service(rehearsal, Stop(), once=True).run()
    assert rehearsal.states("sum")[b"all"].value == 3
    assert [event["lag"] for event in rehearsal.events("committed")] == [2, 1, 0]


@pytest.mark.parametrize("finished", [True, False])
def test_a_request_to_stop_while_the_broker_is_away_is_an_error_only_if_a_plan_is_open(
    finished: bool,
) -> None:
    """The plan lets a new partition enter: the service emits no `committed` for it."""
    found, stop = sums(), Stop()
    found.run_until_caught_up()
    found.log.grow("numbers", 2)

    def away() -> None:
        sealed = [event for event in found.script.events if isinstance(event, Sealed)]
        committed = found.script.written[-1].startswith(("commit of", "locations of"))  # these come after it
        if sealed[-1].plan == 2 and committed == finished:
            stop.request("SIGTERM")
            raise Unavailable("no broker")

    found.script.injected.append(InjectedFault(away, of="broker", calls=10_000))
    run = service(found, stop, once=False)
    if finished:
        run.run()
    else:
        with pytest.raises(Unavailable):
            run.run()
    assert stop.reason == "SIGTERM"


class Script:
    """A service whose batches have these results, then it is asked to stop; and what its loop does."""

    def __init__(self, stop: Stop, worked: list[bool]) -> None:
        self.did: list[object] = []
        self._stop, self._worked = stop, worked

    def batch(self) -> BatchResult:
        self.did.append("batch")
        worked = self._worked.pop(0)
        if not self._worked:
            self._stop.request("end")
        return BatchResult(worked=worked)


def looped(
    monkeypatch: pytest.MonkeyPatch, worked: list[bool], *, stateful: bool, batch_ms: int
) -> list[object]:
    """What the loop does between batches that take so long: pauses in milliseconds, and commits that are waited for."""
    stop = Stop()
    found, now = Script(stop, worked), [0]

    def ticks(_: ServiceClock) -> int:
        now[0] += batch_ms
        return now[0]

    monkeypatch.setattr(ServiceClock, "ticks_ms", ticks)
    monkeypatch.setattr(ServiceClock, "wait", lambda _, milliseconds: found.did.append(milliseconds))
    monkeypatch.setattr(Committing, "settle", lambda _: found.did.append("settle"))
    rehearsal = sums()
    env = replace(environment_of(rehearsal), settings=Settings(interval_ms=100))
    clock = ServiceClock(stop)
    Service(env, clock)._batches(cast("Republisher", found), stateful=stateful)
    return found.did


def test_without_stages_the_next_batch_follows_at_once_while_the_commit_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert looped(monkeypatch, [True, True], stateful=False, batch_ms=7) == ["batch", "batch", "settle"]


def test_pauses_grow_while_nothing_comes_and_commits_are_acknowledged_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worked = [False] * 7 + [True, False, False]
    did = looped(monkeypatch, worked, stateful=False, batch_ms=1)
    pauses = [one for one in did if isinstance(one, int)]
    assert pauses[:6] == [FIRST_IDLE_MS, 10, 20, 40, 80, IDLE_MS]
    assert pauses[6:] == [IDLE_MS, FIRST_IDLE_MS, 10], "after a batch it begins again"
    assert all(did[at - 1] == "settle" for at, one in enumerate(did) if isinstance(one, int))


@pytest.mark.parametrize(("batch_ms", "pause"), [(30, ["settle", 70]), (130, [])])
def test_an_interval_counts_from_the_beginning_of_the_batch_before(
    monkeypatch: pytest.MonkeyPatch, batch_ms: int, pause: list[object]
) -> None:
    did = looped(monkeypatch, [True, True], stateful=True, batch_ms=batch_ms)
    assert did[: 2 + len(pause)] == ["batch", *pause, "batch"]
