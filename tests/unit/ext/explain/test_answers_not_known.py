"""Goal: what nobody can know any more is not answered. Method: retention, old plans, corrected code and compaction, in memory; what was counted is known."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.partitioner import cell_of
from sqe_chain.ext.explain.audit import audit
from sqe_chain.ext.explain.fate import Fate, find_fate
from sqe_chain.ext.explain.report import row_of, verdict_of
from sqe_chain.ext.explain.trace import Trace, trace
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of


def add(total: dict[str, int], value: dict[str, int]) -> None:
    total["n"] = total.get("n", 0) + value["n"]


def fate(rehearsal: Rehearsal, topic: str, offset: int) -> Fate:
    return find_fate(environment_of(rehearsal), (topic, 0, offset))


def traced(rehearsal: Rehearsal) -> Trace:
    env = environment_of(rehearsal)
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


def with_released(fold: Callable[[dict[str, int], dict[str, int]], None]) -> Rehearsal:
    """A flow whose second stage is fed by its first. It skipped a 13 of key x, counted a later record, and then the 13."""
    broken = [True]

    def check(value: dict[str, int]) -> dict[str, int]:
        if broken[0] and value["n"] == 13:
            raise ValueError("thirteen")
        return value

    def pass_on(state: dict[str, int], value: dict[str, int]) -> list[dict[str, int]]:
        fold(state, value)
        return [dict(state)]

    flow = Flow("late", state_partitions=2, poison="dead_letter")
    checked = flow.source("in", dict, raw=True).map(check)
    checked.aggregate("a", key=lambda value: str(value["k"]), state=dict, fold=pass_on).aggregate(
        "b", key=lambda value: "13" if value["n"] == 13 else "others", state=dict, fold=add
    )
    service = Rehearsal(flow)
    for key, number in (("x", 1), ("x", 13), ("x", 2), ("y", 3)):
        service.feed("in", {"k": key, "n": number})
        service.run_until_caught_up()
    broken[0] = False
    service.service = None
    assert FailedInPlans(environment_of(service)).release().released == 1
    service.service = None
    service.run_until_caught_up()
    return service


def last(state: dict[str, int], value: dict[str, int]) -> None:
    state["n"] = value["n"]


def damaged(service: Rehearsal, stage: str, key: bytes) -> None:
    store = service.stores[""]
    assert isinstance(store, MemoryStore)
    cell = cell_of(key, 2, 1)
    copy = store.copy_part("late", stage, cell)
    copy.states[key] = b'{"n": 77}'
    store.restore_part("late", stage, cell, copy)


def test_a_released_record_counts_last_so_a_fold_that_depends_on_the_order_is_not_accused() -> None:
    service = with_released(last)
    assert service.states("a") == {b"x": {"n": 13}, b"y": {"n": 3}}
    result = traced(service)
    assert (result.equal, result.different, result.not_known) == (None, (), (b"x",))
    assert verdict_of(result, b"x").startswith("not known: ")
    assert "1 record of this key was released, and counted later than here" in verdict_of(result, b"x")
    assert [row_of(unit)[3] for unit in result.contributions] == ["yes", "yes, released", "yes"]
    env = environment_of(service)
    audited = audit(env, env.flow.stages[0], 10, Random(1))
    assert (audited.different, audited.not_known, audited.keys, audited.equal) == ((), (b"x",), 2, 1)
    damaged(service, "a", b"y")
    audited = audit(env, env.flow.stages[0], 10, Random(1))
    assert (audited.different, audited.not_known, audited.equal) == ((b"y",), (b"x",), 0)


def test_of_a_stage_after_another_one_a_release_may_have_changed_every_key() -> None:
    """The first stage gives it other values than in the order of the topics, for records that were not released, too."""
    service = with_released(add)
    assert service.states("b") == {b"others": {"n": 1 + 3 + 3 + 16}}
    env = environment_of(service)
    audited = audit(env, env.flow.stages[1], 10, Random(1))
    assert (audited.different, audited.not_known) == ((), (b"others",))


def test_a_fold_that_does_not_depend_on_the_order_is_right_after_a_release() -> None:
    service = with_released(add)
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
