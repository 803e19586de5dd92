"""Goal: transactions stay exact beside other features: shared topics, other deployments, event time, moves to another store.

Method: as in `test_transactions`: plain readers of committed records, on a broker in memory.
"""

from __future__ import annotations

from collections import Counter

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ServiceStopped, StoreInconsistent
from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.plain_readers import committed, faults, feed, inputs_from, rehearsal_of
from tests.support.suites import points
from tests.support.sweeping import Point

_INPUTS = 8


def _store(name: str) -> MemoryStore:
    store = MemoryStore(name)
    store.restore_all()
    return store


@pytest.mark.parametrize("stages", [True, False], ids=["stages", "republisher"])
def test_a_second_deployment_of_the_same_name_is_refused(stages: bool) -> None:
    """It has a store of its own, but the group and the transactional id are the flow's. One of the two stops, and nothing is published twice."""

    def work(point: Point) -> None:
        first = rehearsal_of(stages=stages)
        second = Rehearsal(first.flow, log=first.log, store=_store("another"))
        second.clock.jump(1)  # else both seal the very same plans: run ids are numbers here
        feed(first.log, 0, _INPUTS)
        with point.paused(first, second.batch, (ServiceStopped,)):
            first.batch()
        if point.reached and not point.refused:
            with pytest.raises(StoreInconsistent):
                second.batch()
            first.batch()
        seen = Counter(value for _, value in committed(first.log, "out"))
        assert seen == Counter(
            f"{value.decode()}/{nth}".encode() for _, value, _ in inputs_from(0, _INPUTS) for nth in (0, 1)
        )

    for at in points("deployments"):
        point = Point(at)
        work(point)
        if not point.reached:
            break
    assert at >= 12


@pytest.mark.parametrize("both", [True, False], ids=["both transactional", "one"])
def test_two_flows_share_an_output(both: bool) -> None:
    def declared(name: str, *, transactional: bool) -> Flow:
        flow = Flow(name, transactional=transactional)
        flow.source("in", bytes, raw=True).map(lambda value: name.encode() + value).to(
            "out", partitions=3, carrier="headers"
        )
        return flow

    def work(point: Point) -> None:
        first = Rehearsal(declared("a.", transactional=True), partitions={"in": 2})
        second = Rehearsal(
            declared("b.", transactional=both), partitions={"in": 2}, log=first.log, store=_store("second")
        )
        feed(first.log, 0, _INPUTS)
        second.batch()
        with point.killed(first):
            first.batch()
        first.service = None
        feed(first.log, _INPUTS, _INPUTS)
        second.service = None
        second.run_until_caught_up()
        first.run_until_caught_up()
        seen = Counter(value for _, value in committed(first.log, "out"))
        names = ("a.", "b.") if both else ("a.",)
        assert {value: seen[value] for value in seen if seen[value] > 1 and value[:2].decode() in names} == {}
        assert len(seen) == 4 * _INPUTS

    for at in points("shared"):
        point = Point(at)
        work(point)
        if not point.reached:
            break
    assert at >= 8


def _add(state: dict[str, int], _: bytes) -> None:
    state["n"] = state.get("n", 0) + 1


def _add_and_set(state: dict[str, int], value: bytes, context: Context) -> None:
    _add(state, value)
    context.set_timer(context.timestamp_ms + 1_000)


def _given(state: dict[str, int], _: Timer, context: Context) -> list[bytes]:
    return [b"%s=%d" % (context.key or b"", state["n"])]


def _due(kind: str) -> Flow:
    """What is due at moments: the results of windows, or of timers; each key ends in a state partition of its own."""
    flow = Flow("plain", transactional=True, state_partitions=5)
    keyed = flow.source("in", bytes, raw=True).key_by(lambda value: value.decode())
    if kind == "timers":
        made = keyed.aggregate("due", state=dict, fold=_add_and_set, on_timer=_given)
        made.to("out", partitions=2, carrier="headers")
    else:
        windows = keyed.windowed("due", Tumbling(1_000), state=dict, fold=_add)
        windows.map(lambda window: f"{window.key}={window.state['n']}".encode()).to(
            "out", partitions=2, carrier="headers"
        )
    return flow


@pytest.mark.parametrize("kind", ["windows", "timers"])
def test_what_is_due_by_event_time_is_seen_once(kind: str) -> None:
    """Its batch may read nothing of the keys whose results it publishes."""

    def work(point: Point) -> None:
        rehearsal = Rehearsal(_due(kind), partitions={"in": 1}, settings=Settings(max_records=3))
        for number, key in enumerate("abcdefgh"):
            rehearsal.log.append("in", 0, key.encode(), b"x", timestamp_ms=1_000 + number)
        rehearsal.run_until_caught_up()
        rehearsal.log.append("in", 0, b"last", b"x", timestamp_ms=9_000_000)
        with point.killed(rehearsal):
            rehearsal.run_until_crash()
            rehearsal.batch()
        rehearsal.service = None
        rehearsal.run_until_caught_up()
        seen = sorted(value for _, value in committed(rehearsal.log, "out"))
        assert seen == [f"{key}=1".encode() for key in "abcdefgh"]

    for at in points("due"):
        point = Point(at)
        work(point)
        if not point.reached:
            break
    assert at >= 8


@pytest.mark.parametrize("stages", [True, False], ids=["stages", "republisher"])
def test_a_flow_that_moves_to_another_store_publishes_nothing_twice(stages: bool) -> None:
    """It may have been killed before the export: then the import's first run finishes the batch, or the export is refused."""

    def work(point: Point) -> None:
        before = rehearsal_of(stages=stages)
        feed(before.log, 0, 4)
        before.run_until_caught_up()
        feed(before.log, 4, 4)
        with point.killed(before):
            before.batch()
        before.service = None
        try:
            lines = before.exported()
        except ServiceStopped:
            before.run_until_caught_up()
            lines = before.exported()
        after = Rehearsal(before.flow, log=before.log, store=_store("moved"))
        after.imported(lines)
        feed(after.log, 8, 4)
        after.run_until_caught_up()
        assert faults(after.log, 12, stages=stages) == []

    for at in points("moved"):
        point = Point(at)
        work(point)
        if not point.reached:
            break
    assert at >= 8


def test_an_old_export_is_refused() -> None:
    before = rehearsal_of(stages=False)
    feed(before.log, 0, 4)
    before.run_until_caught_up()
    lines = before.exported()
    feed(before.log, 4, 4)
    before.crash(step=5, when="after")
    before.run_until_crash()
    after = Rehearsal(before.flow, log=before.log, store=_store("moved"))
    after.imported(lines)
    with pytest.raises(StoreInconsistent, match="has plan"):
        after.batch()
    assert len(list(committed(before.log, "out"))) == 16
