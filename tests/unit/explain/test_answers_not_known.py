"""Goal: what nobody can know any more is not answered. Method: retention, old plans, corrected code and compaction, in memory; what was counted is known."""

from __future__ import annotations

import pytest

from sqe_chain.ext.explain.fate import Fate, find_fate
from sqe_chain.ext.explain.trace import Trace, trace
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.testing import Rehearsal


def add(total: dict[str, int], value: dict[str, int]) -> None:
    total["n"] = total.get("n", 0) + value["n"]


def fate(rehearsal: Rehearsal, topic: str, offset: int) -> Fate:
    return find_fate(rehearsal._environment(None), (topic, 0, offset))


def traced(rehearsal: Rehearsal) -> Trace:
    env = rehearsal._environment(None)
    return trace(env, env.flow.stages[0], [b"x"])


def behind_a_republisher() -> tuple[Rehearsal, Rehearsal]:
    """A service that has counted ten records, and then ignored the same again."""
    up = Flow("up")
    up.source("raw", dict, raw=True).to("mid", key=lambda value: value["k"], partitions=1)
    totals = Flow("totals", state_partitions=2)
    totals.source("mid", dict).aggregate("a", key=lambda value: value["k"], state=dict, fold=add)
    upstream = Rehearsal(up)
    service = Rehearsal(totals, log=upstream.log)
    for _ in range(10):
        upstream.feed("raw", {"k": "x", "n": 1})
    upstream.run_until_caught_up()
    service.run_until_caught_up()
    upstream.rewind({("raw", 0): 0})
    upstream.run_until_caught_up()
    service.run_until_caught_up()
    assert service.states("a") == {b"x": {"n": 10}}
    return upstream, service


def test_a_replay_whose_original_is_gone_is_known_by_the_marks_of_a_kept_plan() -> None:
    upstream, service = behind_a_republisher()
    upstream.log.truncate_before("mid", 0, 10)
    assert fate(service, "mid", 15).verdict == "replay"


def test_where_no_plan_is_kept_from_that_time_it_is_not_known() -> None:
    upstream, service = behind_a_republisher()
    for _ in range(30):
        upstream.feed("raw", {"k": "x", "n": 1})
        upstream.run_until_caught_up()
        service.run_until_caught_up()
    upstream.log.truncate_before("mid", 0, 10)
    assert fate(service, "mid", 15).verdict == "not known"
    assert fate(service, "mid", 49).verdict == "counted"


@pytest.mark.parametrize(("policy", "verdict"), [("dead_letter", "skipped"), ("skip", "not known")])
def test_what_was_skipped_long_ago_is_not_counted_by_corrected_code(
    policy: PoisonPolicy, verdict: str
) -> None:
    broken = [True]

    def fold(total: dict[str, int], value: dict[str, int]) -> None:
        if broken[0] and value["n"] == 13:
            raise ValueError("thirteen")
        add(total, value)

    flow = Flow("old", state_partitions=2, poison=policy)
    flow.source("in", dict, raw=True).aggregate("a", key=lambda value: value["k"], state=dict, fold=fold)
    service = Rehearsal(flow)
    for number in (13, *[1] * 30):
        service.feed("in", {"k": "x", "n": number})
        service.run_until_caught_up()
    broken[0] = False
    assert fate(service, "in", 0).verdict == verdict
    assert fate(service, "in", 30).verdict == "counted"
    if policy == "dead_letter":
        assert traced(service).equal is True


def test_of_a_compacted_input_nothing_is_compared() -> None:
    flow = Flow("compacted", state_partitions=1, allow_compacted=True)
    flow.source("in", dict, raw=True).aggregate("a", key=lambda value: value["k"], state=dict, fold=add)
    service = Rehearsal(flow)
    for _ in range(5):
        service.feed("in", {"k": "x", "n": 1}, key="x")
    service.run_until_caught_up()
    service.log.configure("in", compacted=True)
    service.log.compact("in", 0)
    result = traced(service)
    assert result.equal is None
    assert [str(gap) for gap in result.missing] == ["records of 'in', which is compacted"]
