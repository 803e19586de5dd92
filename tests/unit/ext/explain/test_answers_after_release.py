"""Goal: answers about a flow that has released failed records are right, or not given. Method: flows whose results depend on order, in memory."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from sqe_chain.ext.explain.audit import AuditedStage, audit
from sqe_chain.ext.explain.fate import Fate, find_fate
from sqe_chain.ext.explain.trace import trace
from sqe_chain.flow import Flow, Stream
from sqe_chain.operations.failed import ReleaseResult
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of

Value = dict[str, Any]


def note(state: Value, value: Value) -> None:
    state["numbers"] = [*state.get("numbers", []), value["n"]]


def count(state: Value, _: Value) -> None:
    state["numbers"] = state.get("numbers", 0) + 1


def key_of(_: Value) -> str:
    return "x"


def plain(stream: Stream[Value]) -> None:
    stream.aggregate("numbers", key=key_of, state=dict, fold=note)


def counting(stream: Stream[Value]) -> None:
    stream.aggregate("numbers", key=key_of, state=dict, fold=count)


def filtered(stream: Stream[Value]) -> None:
    stream.key_by(key_of).drop_replays("once", by="key").aggregate("numbers", state=dict, fold=note)


def windowed(stream: Stream[Value]) -> None:
    stream.windowed("windows", Tumbling(10), key=key_of, state=dict, fold=note, retention_ms=10_000)


class Released:
    """A flow that has skipped number 1 of three, and released it."""

    def __init__(self, stages: Callable[[Stream[Value]], None]) -> None:
        broken = {1}

        def check(value: Value) -> Value:
            if value["n"] in broken:
                raise ValueError(value["n"])
            return value

        flow = Flow("numbers", poison="dead_letter", state_partitions=1)
        stages(flow.source("in", dict, raw=True).map(check))
        self.rehearsal = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))
        for number in range(3):
            self.rehearsal.feed("in", {"n": number}, timestamp_ms=100 * number)
        self.rehearsal.run_until_caught_up()
        broken.clear()
        self.result: ReleaseResult = FailedInPlans(environment_of(self.rehearsal)).release()
        self.rehearsal.service = None

    def fate(self) -> Fate:
        return find_fate(environment_of(self.rehearsal), ("in", 0, 1))

    def audited(self) -> AuditedStage:
        env = environment_of(self.rehearsal)
        return audit(env, env.flow.stages[-1], 10, Random(1))

    def equal(self) -> bool | None:
        env = environment_of(self.rehearsal)
        return trace(env, env.flow.stages[-1], [b"x"]).equal


@pytest.mark.parametrize("stages", [filtered, windowed])
def test_a_release_reports_what_stages_drop_and_a_rebuild_counts_it(
    stages: Callable[[Stream[Value]], None],
) -> None:
    """The mark of the key, or event time, has passed the record."""
    released = Released(stages)
    assert (released.result.released, sum(released.result.dropped.values())) == (1, 1)
    assert released.fate().verdict == "not known"
    released.rehearsal.rebuild()
    fate = released.fate()
    assert (fate.verdict, "released it. Counted in stage" in fate.reason) == ("counted", True)


def test_what_a_join_has_matched_is_not_reported_as_dropped() -> None:
    def joined(stream: Stream[Value]) -> None:
        values = stream.key_by(key_of)
        values.filter(lambda value: value["n"] > 0).join_table(
            "with", values.filter(lambda value: value["n"] == 0), lambda value, _: value, history_ms=10_000
        ).aggregate("numbers", key=key_of, state=dict, fold=count)

    released = Released(joined)
    assert (released.result.released, released.result.dropped) == (1, {})


@pytest.mark.parametrize("stages", [plain, filtered, windowed])
def test_states_that_depend_on_the_order_are_not_called_different(
    stages: Callable[[Stream[Value]], None],
) -> None:
    released = Released(stages)
    found = released.audited()
    assert (found.different, len(found.not_known), released.equal()) == ((), 1, None)
    released.rehearsal.rebuild()
    found = released.audited()
    assert (found.different, len(found.not_known), released.equal()) == ((), 0, True)


def test_states_that_do_not_depend_on_the_order_are_compared() -> None:
    released = Released(counting)
    found = released.audited()
    assert (found.different, len(found.not_known), released.equal()) == ((), 0, True)
    assert released.fate().verdict == "counted"


def test_what_lies_at_the_place_of_a_record_in_a_topic_that_was_created_again_is_another_one() -> None:
    released = Released(counting)
    log = released.rehearsal.log
    log.delete_topic("in")
    log.create_topic("in", 1)
    for number in (5, 6, 7):
        released.rehearsal.feed("in", {"n": number})
    released.rehearsal.run_until_caught_up()
    assert "skipped" not in released.fate().reason
