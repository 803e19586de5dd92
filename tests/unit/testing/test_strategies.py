"""Goal: what the strategies draw is valid, and reaches the limits of the format; schedules are run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from sqe_chain import Flow, read
from sqe_chain.chain import Chain
from sqe_chain.envelope.message import Envelope
from sqe_chain.errors import NotExact
from sqe_chain.testing import Feed, Schedule, prove_schedule
from sqe_chain.testing.strategies import chains, envelopes, feeds, schedules
from tests.support.number_flows import add

FEW = settings(max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


MANY = settings(FEW, max_examples=200, phases=[Phase.generate])


@FEW
@given(envelopes(st.builds(Int64Value, value=st.integers(0, 9))))
def test_every_envelope_is_valid(value: bytes) -> None:
    envelope = read(value, strict=True)
    assert isinstance(envelope, Envelope)
    assert len(envelope.chain) <= 4
    assert 0 <= envelope.payload_as(Int64Value).value <= 9


def test_chains_reach_their_length_and_their_limits() -> None:
    assert len(find(chains(max_links=3), lambda chain: len(chain) == 3, settings=MANY)) == 3
    assert find(chains(), lambda chain: any(link.shard is None for link in chain), settings=MANY)
    assert find(chains(), lambda chain: chain == Chain(), settings=MANY) == Chain()


def flow_of(fold: Any = add) -> Flow:
    flow = Flow("drawn", state_partitions=2)
    stage = flow.source("in", Int64Value).aggregate(
        "sum", key=lambda n: str(n.value % 3), state=Int64Value, fold=fold
    )
    stage.changes().to("sums", partitions=1)
    return flow


@FEW
@given(st.data())
def test_a_flow_is_exact_in_whatever_is_drawn(data: st.DataObject) -> None:
    inputs = data.draw(feeds({"in": st.builds(Int64Value, value=st.integers(0, 9))}, max_records=6))
    prove_schedule(flow_of(), inputs, data.draw(schedules(len(inputs), upstream=True)))


def test_hypothesis_finds_a_planted_defect() -> None:
    calls = [0]

    def forgetful(state: Int64Value, number: Int64Value) -> None:
        calls[0] += 1
        state.value += number.value + calls[0]

    def shows(drawn: tuple[list[Feed], Schedule]) -> bool:
        try:
            prove_schedule(flow_of(forgetful), *drawn)
        except NotExact:
            return True
        return False

    inputs, schedule = find(
        feeds({"in": st.builds(Int64Value, value=st.integers(0, 9))}, max_records=2).flatmap(
            lambda found: st.tuples(st.just(found), schedules(len(found), max_faults=1, max_calls=9))
        ),
        shows,
        settings=settings(FEW, max_examples=10, phases=[Phase.generate]),
    )
    assert schedule.inputs == tuple(range(len(inputs)))


def test_without_hypothesis_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import sqe_chain.testing\n"
        "from sqe_chain.errors import ConfigurationError\n"
        "try: import sqe_chain.testing.strategies\n"
        "except ConfigurationError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'sqe-chain[prove]'" in done.stdout


def test_schedules_have_what_was_asked_for() -> None:
    found = find(schedules(2, upstream=True), lambda one: bool(one.faults and one.rewinds), settings=MANY)
    assert (found.inputs, found.upstream) == ((0, 1), True)
    with pytest.raises(NoSuchExample):
        find(schedules(2), lambda one: one.upstream, settings=settings(max_examples=30, database=None))
