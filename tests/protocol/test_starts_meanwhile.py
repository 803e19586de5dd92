"""A run of a republisher starts while another one reads on: at whatever call, it goes on, and nothing is lost."""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal


def passing_on() -> Rehearsal:
    flow = Flow("pass-on")
    flow.source("in", Int64Value).to("out", partitions=1)
    return Rehearsal(flow)


def test_another_run_reads_and_commits_what_is_new_while_this_one_starts() -> None:
    probe = passing_on()
    probe.start()
    calls = probe.script.calls
    assert calls > 3
    for at in range(calls):
        rehearsal = passing_on()
        rehearsal.start()

        def read_on(rehearsal: Rehearsal = rehearsal) -> None:
            rehearsal.feed("in", Int64Value(value=1))
            rehearsal.run_until_caught_up()

        rehearsal.meanwhile(read_on, at=at, when="after")
        rehearsal.start()
        rehearsal.cancel()
        rehearsal.feed("in", Int64Value(value=2))
        rehearsal.run_until_caught_up()
        said = {one.payload_as(Int64Value).value for one in rehearsal.published("out")}
        assert said >= {2}, at
        assert len(rehearsal.log.records("in")) == len(said), at
