"""Rewound to publish again, a flow publishes no state that is older than the one that its receivers have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from sqe_chain.errors import NotCaughtUp
from sqe_chain.flow import Context, Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal

State = dict[str, Any]


def add(state: State, value: State) -> None:
    state["n"] = state.get("n", 0) + value["n"]


def add_and_emit(state: State, value: State, context: Context) -> Iterator[State]:
    add(state, value)
    yield value


def newest(state: State, value: State | None) -> None:
    state.update(value or {})


def key_of(value: State) -> str:
    return str(value["k"])


def counting(kind: str) -> Flow:
    """States by `changes()`, directly, of windows, and of a second stage; and what the fold itself gives."""
    flow = Flow("counting", state_partitions=1)
    source = flow.source("in", dict, raw=True)
    if kind == "windows":
        stage = source.windowed("sum", Tumbling(1_000), key=key_of, state=dict, fold=add)
        stage.changes().map(lambda one: one.state).to("states", partitions=1)
        return flow
    counted = source.aggregate("sum", key=key_of, state=dict, fold=add_and_emit)
    counted.to("emitted", partitions=1)
    if kind == "two stages":
        second = counted.aggregate("second", key=key_of, state=dict, fold=add)
        second.changes().to("states", partitions=1)
        return flow
    counted.changes().to("states", partitions=1)
    return flow


class World:
    """A flow, and a reader that keeps the newest state of each key."""

    def __init__(self, kind: str, records: int, log: Any = None, store: Any = None) -> None:
        self.up = Rehearsal(
            counting(kind),
            partitions={"in": 2},
            log=log,
            store=store,
            settings=Settings(max_records=records),
        )
        reader = Flow("reader", state_partitions=1)
        reader.source("states", dict).aggregate("newest", key=lambda _: "k", state=dict, fold=newest)
        self.down = Rehearsal(reader, log=self.up.log)

    def feed(self, number: int, partition: int, key: str = "k") -> None:
        at_ms = 4_000_000_000_000 + number
        self.up.feed("in", b'{"k": "%s", "n": 1}' % key.encode(), partition=partition, timestamp_ms=at_ms)

    def heard(self) -> Any:
        self.down.run_until_caught_up()
        return self.down.states("newest")


@pytest.mark.parametrize(
    ("kind", "records", "crashes"),
    [*product(["one stage", "two stages", "windows"], [2, 3, 10], [False, True])],
)
def test_whatever_its_batches_are_receivers_keep_the_newest_state(
    kind: str, records: int, *, crashes: bool
) -> None:
    world = World(kind, 100)
    world.feed(0, 0)
    for number in range(1, 4):
        world.feed(number, 1, "z")
    world.feed(4, 1)
    world.up.run_until_caught_up()
    before = world.heard()
    count = len(world.up.log.records("states"))
    world.up.rebuild({("in", 0): 0, ("in", 1): 0}, republish=True)
    world.up.settings = Settings(max_records=records, allow_weak_durability=True)
    if kind != "windows":
        with pytest.raises(NotCaughtUp):
            world.up.announce()
    if crashes:
        for step in (5, 6, 7):
            world.up.crash(step=step, when="after")
            world.up.run_until_crash()
            assert world.up.crashes
    world.up.run_until_caught_up()
    assert world.heard() == before
    assert len(world.up.log.records("states")) == count
    world.feed(5, 0)
    world.up.run_until_caught_up()
    assert world.heard()[b"k"]["n"] == 3
    if kind == "one stage":
        assert len(world.up.log.records("emitted")) >= 2 * 5 + 1, "what folds give is published again"
        world.up.announce()
        assert sorted(str(state) for state in world.up.states("sum").values()) == ["{'n': 3}", "{'n': 3}"]
