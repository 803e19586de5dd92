"""Goal: the loop goes by what batches return. Method: a service in memory, whose statistics hear nothing of it."""

from __future__ import annotations

from dataclasses import replace
from time import time

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import Unavailable
from sqe_chain.flow import Flow
from sqe_chain.protocol.events import Sealed
from sqe_chain.runtime.service import Service
from sqe_chain.runtime.statistics import Statistics
from sqe_chain.runtime.stop import ServiceClock, Stop
from sqe_chain.testing import Rehearsal, Settings
from sqe_chain.testing.faults import InjectedFault


def add(total: Int64Value, number: Int64Value) -> None:
    total.value += number.value


def sums() -> Rehearsal:
    flow = Flow("sums", state_partitions=1)
    flow.source("numbers", Int64Value).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
    settings = Settings(max_records=1, interval_ms=3_600_000, takeover=True)
    found = Rehearsal(flow, settings=settings)
    found.feed("numbers", Int64Value(value=1))
    return found


def service(found: Rehearsal, stop: Stop, *, once: bool) -> Service:
    clock = ServiceClock(stop)
    env = replace(found._environment(None), clock=clock)
    return Service(env, clock, stop, Statistics(time), once=once)


def test_batches_run_back_to_back_until_nothing_is_left() -> None:
    found = sums()
    for _ in range(2):
        found.feed("numbers", Int64Value(value=1))
    service(found, Stop(), once=True).run()
    assert found.states("sum")[b"all"].value == 3
    assert [event["lag"] for event in found.events("committed")] == [2, 1, 0]


@pytest.mark.parametrize("finished", [True, False])
def test_a_request_to_stop_while_the_broker_is_away_is_an_error_only_if_a_plan_is_open(
    finished: bool,
) -> None:
    """The plan lets a new partition enter: no `committed` is told of it."""
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
