"""A topic without envelopes that is created again is another root: it is read from 0, loudly."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import RecreatedTopic
from sqe_chain.flow import Flow
from sqe_chain.testing import Crash, Rehearsal


def decode(value: bytes) -> Int64Value:
    return Int64Value(value=int(value))


def add(total: Int64Value, number: Int64Value) -> None:
    total.value += number.value


def summing() -> Flow:
    flow = Flow("sums")
    flow.source("raw", decode, raw=True).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
    return flow


def test_a_raw_topic_created_again_is_counted_from_its_beginning() -> None:
    rehearsal = Rehearsal(summing())
    for number in (1, 2, 3):
        rehearsal.feed("raw", str(number).encode())
    rehearsal.run_until_caught_up()
    rehearsal.log.recreate("raw")
    rehearsal.feed("raw", b"10")
    rehearsal.run_until_caught_up()
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert rehearsal.states("sum")[b"all"].value == 16


def test_with_an_unfinished_plan_on_it_the_service_stops() -> None:
    rehearsal = Rehearsal(summing())
    rehearsal.feed("raw", b"1")
    rehearsal.crash(step=6)
    with pytest.raises(Crash):
        rehearsal.batch()
    rehearsal.log.recreate("raw")
    with pytest.raises(RecreatedTopic, match="raw"):
        rehearsal.start()


def test_a_republisher_reads_it_from_the_beginning_too() -> None:
    flow = Flow("pass-on")
    flow.source("raw", decode, raw=True).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("raw", b"1")
    rehearsal.run_until_caught_up()
    rehearsal.log.recreate("raw")
    rehearsal.feed("raw", b"2")
    rehearsal.run_until_caught_up()
    rehearsal.log.recreate("raw")
    rehearsal.feed("raw", b"3")
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    found = [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")]
    assert found == [1, 2, 3]
    assert len({envelope.lane for envelope in rehearsal.published("out")}) == 3
