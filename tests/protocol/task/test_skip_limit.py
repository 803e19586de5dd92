"""Goal: a typo does not send everything away; a few bad inputs among many do not stop a service."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import TooManyExcluded
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.plans.settings import Settings
from sqe_chain.task.exclusion import Exclusion, SkipLimit
from sqe_chain.testing import Rehearsal
from tests.support.number_flows import add


def refuse_negative(value: Int64Value) -> Int64Value:
    if value.value < 0:
        raise AttributeError("distanc")
    return value


def flow_of(policy: PoisonPolicy, where: str) -> Flow:
    flow = Flow("flights", state_partitions=1, poison=policy)
    source = flow.source("numbers", Int64Value)
    if where == "republish":
        source.map(refuse_negative).to("out", partitions=1)
    elif where == "fold":
        source.aggregate(
            "sum",
            key=lambda _: "all",
            state=Int64Value,
            fold=lambda state, value: add(state, refuse_negative(value)),
        )
    else:
        source.map(refuse_negative).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
    return flow


def feed(rehearsal: Rehearsal, bad: int, good: int) -> None:
    for number in range(bad + good):
        rehearsal.feed("numbers", Int64Value(value=-1 if number < bad else 1))


@pytest.mark.parametrize("where", ["republish", "map", "fold"])
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_a_typo_stops_the_service_and_nothing_is_skipped(policy: PoisonPolicy, where: str) -> None:
    rehearsal = Rehearsal(flow_of(policy, where))
    feed(rehearsal, 403, 0)
    for _ in range(2):
        with pytest.raises(TooManyExcluded, match=r"403 of .*AttributeError.*numbers\[0\]@0"):
            rehearsal.run_until_caught_up()
        assert rehearsal.events("sealed") == []
        assert rehearsal.log.records(rehearsal.flow.dead_letter_topic) == []
        assert all(commit.offset == 0 for commit in rehearsal.commits().values())
        rehearsal.service = None


@pytest.mark.parametrize("where", ["republish", "map", "fold"])
def test_small_batches_are_no_way_around_it(where: str) -> None:
    rehearsal = Rehearsal(flow_of("dead_letter", where), settings=Settings(max_records=10))
    feed(rehearsal, 403, 0)
    with pytest.raises(TooManyExcluded):
        rehearsal.run_until_caught_up()
    assert len(rehearsal.log.records("flights.dead-letters")) == 100


@pytest.mark.parametrize("where", ["republish", "map", "fold"])
@pytest.mark.parametrize(
    ("bad", "good", "settings"),
    [
        (100, 0, Settings()),
        (101, 1_000, Settings()),
        (403, 0, Settings(max_excluded=403)),
        (403, 0, Settings(max_excluded_share=1.0)),
        (30, 30, Settings(max_excluded=0, max_excluded_share=0.5)),
    ],
    ids=["few", "many among very many", "more allowed", "no limit", "a share of few"],
)
def test_what_the_policy_is_for_goes_on(where: str, bad: int, good: int, settings: Settings) -> None:
    rehearsal = Rehearsal(flow_of("dead_letter", where), settings=settings)
    feed(rehearsal, bad, good)
    rehearsal.run_until_caught_up()
    assert len(rehearsal.log.records("flights.dead-letters")) == bad
    if where != "republish":
        states: Any = rehearsal.states("sum")
        assert {key: state.value for key, state in states.items()} == ({b"all": good} if good else {})


def test_replays_do_not_hide_how_much_of_what_is_new_fails() -> None:
    """A share of all records would be small whenever a republisher publishes its records again."""
    up = Flow("up")
    up.source("numbers", Int64Value).to("published", partitions=1)
    first = Rehearsal(up)
    flow = Flow("flights", state_partitions=1, poison="skip")
    flow.source("published", Int64Value).map(refuse_negative).aggregate(
        "sum", key=lambda _: "all", state=Int64Value, fold=add
    )
    settings = Settings(max_excluded=2, max_excluded_share=0.5)
    rehearsal = Rehearsal(flow, log=first.log, settings=settings)
    feed(first, 0, 10)
    first.run_until_caught_up()
    rehearsal.run_until_caught_up()
    first.rewind({("numbers", 0): 0})
    first.run_until_caught_up()
    feed(first, 12, 0)
    first.run_until_caught_up()
    with pytest.raises(TooManyExcluded, match="12 of the last 22"):
        rehearsal.run_until_caught_up()


def exclusions(count: int) -> list[Exclusion]:
    return [Exclusion("t", 0, offset, "skip", "ValueError", "no") for offset in range(count)]


@pytest.mark.parametrize(
    ("count", "inputs", "stops"), [(11, 110, False), (11, 109, True), (10, 10, False), (0, 0, False)]
)
def test_both_limits_have_to_be_passed(count: int, inputs: int, stops: bool) -> None:
    limit = SkipLimit(10, 0.1)
    if stops:
        with pytest.raises(TooManyExcluded):
            limit.check("f", exclusions(count), inputs)
    else:
        limit.check("f", exclusions(count), inputs)


def test_old_batches_fade() -> None:
    """A service that ran well for years notices a typo all the same, after about as many inputs as a new one."""
    limit = SkipLimit(10, 0.1)
    for _ in range(10_000):
        limit = limit.after(0, 1_000)
    assert limit.inputs < 4_000
    with pytest.raises(TooManyExcluded):
        limit.check("f", exclusions(400), 400)


def test_a_batch_without_exclusions_is_never_stopped() -> None:
    SkipLimit(0, 0.0, excluded=50, inputs=50).check("f", [], 0)
