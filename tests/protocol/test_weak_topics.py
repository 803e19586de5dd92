"""Outputs that acknowledge what stands on one broker only are refused, unless that is accepted by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import ConfigurationError, WeakDurability
from sqe_chain.flow import Flow
from sqe_chain.protocol.settings import Settings
from sqe_chain.testing import Rehearsal


def passing_on() -> Rehearsal:
    flow = Flow("pass-on")
    flow.source("in", Int64Value).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.log.configure("out", replicas=3, min_insync_replicas=1)
    return rehearsal


def test_three_replicas_of_which_one_acknowledges_are_refused() -> None:
    with pytest.raises(WeakDurability, match=r"out.*min\.insync\.replicas"):
        passing_on().start(Settings())


def test_it_can_be_accepted_and_is_said() -> None:
    rehearsal = passing_on()
    rehearsal.start(replace(Settings(), allow_weak_durability=True))
    assert "min.insync.replicas=1" in str(rehearsal.events("notice"))


def test_a_single_copy_is_said_but_not_refused() -> None:
    rehearsal = passing_on()
    rehearsal.log.configure("out", replicas=1, min_insync_replicas=1)
    rehearsal.start(Settings())
    assert "1 replicas" in str(rehearsal.events("notice"))


def test_a_stage_that_wants_an_unknown_store_is_named() -> None:
    flow = Flow("sums")
    flow.source("in", Int64Value).aggregate(
        "sum", key=lambda _: "all", state=Int64Value, fold=lambda total, number: None, store="big"
    )
    with pytest.raises(ConfigurationError, match="big"):
        Rehearsal(flow).start()
