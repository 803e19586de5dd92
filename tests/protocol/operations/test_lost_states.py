"""Goal: no service counts on from nothing when states are gone beside their header; and what the error asks the user to do works.

Method: rehearsals on a store in memory; another program deletes states of it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import StoreInconsistent
from sqe_chain.flow import Flow
from sqe_chain.runtime.states import States
from sqe_chain.testing import Rehearsal

PARTS = 3


def count(state: dict[str, int], _: dict[str, str]) -> None:
    state["n"] = state.get("n", 0) + 1


def counting() -> Flow:
    flow = Flow("f", state_partitions=PARTS)
    source = flow.source("in", dict, raw=True)
    stage = source.aggregate("s", key=lambda one: one["k"], state=dict, fold=count)
    stage.changes().to("out", partitions=1)
    return flow


def filtering() -> Flow:
    flow = Flow("f", state_partitions=PARTS)
    source = flow.source("in", dict, raw=True)
    source.deduplicate_by_key("s", 10**9).to("out", partitions=1)
    return flow


def fed(flow: Flow) -> Rehearsal:
    rehearsal = Rehearsal(flow)
    feed(rehearsal)
    rehearsal.run_until_caught_up()
    return rehearsal


def feed(rehearsal: Rehearsal) -> None:
    for number in range(20):
        rehearsal.feed("in", {"k": f"key-{number}"}, key=f"key-{number}")


def lose(rehearsal: Rehearsal, how: str) -> None:
    store = rehearsal.stores[""]
    assert isinstance(store, MemoryStore)
    copies = {part: store.copy_part("f", "s", part) for part in range(PARTS)}
    part, copy = max(copies.items(), key=lambda one: len(one[1].states))
    if how == "all":
        copy.states.clear()
    else:
        del copy.states[next(iter(copy.states))]
    store.restore_part("f", "s", part, copy)


@pytest.mark.parametrize("how", ["all", "one"])
@pytest.mark.parametrize("make", [counting, filtering])
@pytest.mark.parametrize("next_step", ["batch", "start"])
def test_a_service_stops_before_it_counts_on_from_nothing(
    make: Callable[[], Flow], how: str, next_step: str
) -> None:
    rehearsal = fed(make())
    before = len(rehearsal.log.records("out"))
    lose(rehearsal, how)
    feed(rehearsal)
    with pytest.raises(StoreInconsistent, match="states are gone"):
        rehearsal.run_until_caught_up() if next_step == "batch" else rehearsal.restart()
    assert len(rehearsal.log.records("out")) == before
    for _ in range(2):  # nothing is counted on, so that the next start fails in the same way
        with pytest.raises(StoreInconsistent, match="states are gone"):
            rehearsal.restart()


def test_readers_get_an_error_and_a_rebuild_brings_the_states_back() -> None:
    rehearsal = fed(counting())
    whole = rehearsal.states("s")
    lose(rehearsal, "all")
    states = States(rehearsal.flow, "s", rehearsal.stores)
    with pytest.raises(StoreInconsistent, match="states are gone"):
        [states[f"key-{number}"] for number in range(20)]
    with pytest.raises(StoreInconsistent, match="states are gone"):
        rehearsal.exported()
    rehearsal.service = None
    rehearsal.rebuild()
    rehearsal.run_until_caught_up()
    assert rehearsal.states("s") == whole
    feed(rehearsal)
    rehearsal.run_until_caught_up()
    assert rehearsal.states("s") == {key: {"n": 2} for key in whole}


def test_states_that_a_flow_deletes_itself_are_not_missed() -> None:
    flow = Flow("f", state_partitions=PARTS)
    source = flow.source("in", dict, raw=True)
    source.aggregate("s", key=lambda one: one["k"], state=dict, fold=count, expire_after_ms=10)
    rehearsal = Rehearsal(flow)
    for moment in range(1_000, 5_000, 1_000):
        for number in range(9):
            rehearsal.feed("in", {"k": f"key-{moment}-{number}"}, key=f"key-{number}", timestamp_ms=moment)
        rehearsal.run_until_caught_up()
        rehearsal.restart()
    store = rehearsal.stores[""]
    assert isinstance(store, MemoryStore)
    counts = [store.copy_part("f", "s", part).count or 0 for part in range(PARTS)]
    assert 0 < sum(counts) < 36
