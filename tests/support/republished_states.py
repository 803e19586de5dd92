"""A flow that was rebuilt with other code and republishes its states, and a receiver that keeps all that it reads."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.flow import Flow
from sqe_chain.plans.plan import Plan
from sqe_chain.testing import Rehearsal, Settings
from tests.support.plans import last_plan
from tests.support.word_flows import first_letter, same_key, word

WORDS = ["ant", "fig", "bee", "ape", "fox", "cow", "auk", "ant", "bee", "gnu"]
names = itertools.count()


def key_in(state: StringValue) -> str:
    return state.value.split()[0]


def upstream(
    weight: int = 1,
    *,
    second: bool = True,
    carrier: Literal["value", "headers"] = "value",
    raw: bool = False,
    changed: Callable[[StringValue], StringValue] | None = None,
    choose: Callable[[StringValue], bool] | None = None,
    to_key: Callable[..., str] | None = None,
    output: str = "latest",
) -> Flow:
    """Counts words by initial, and all of them; the state "a 3" holds its own key. Code of another weight counts otherwise."""

    def count(state: StringValue, value: StringValue) -> list[StringValue]:
        before = int(state.value.split()[1]) if state.value else 0
        state.value = f"{value.value[0]} {before + weight}"
        return [value]

    def count_all(state: StringValue, _: StringValue) -> None:
        state.value = f"all {int(state.value.split()[1]) + weight if state.value else weight}"

    flow = Flow("up", state_partitions=2)
    letters = flow.source("words", StringValue, raw=raw).aggregate(
        "letters", key=first_letter, state=StringValue, fold=count, buckets=3
    )
    changes = letters.changes()
    if choose is not None:
        changes = changes.filter(choose)
    if changed is not None:
        changes = changes.map(changed)
    if to_key is not None:
        changes.to("latest", name=output, key=to_key, partitions=3, carrier=carrier)
    else:
        changes.to("latest", name=output, partitions=3, carrier=carrier)
    if second:
        everything = letters.aggregate("all", key=same_key, state=StringValue, fold=count_all, store="other")
        everything.changes().to("latest-all", partitions=1)
    return flow


def downstream() -> Flow:
    """Keeps all that it reads, by key."""
    flow = Flow("down", state_partitions=2)

    def hear(heard: StringValue, value: StringValue) -> None:
        heard.value += f"{value.value.split()[1]} "

    flow.source(["latest", "latest-all"], StringValue).aggregate(
        "heard", key=key_in, state=StringValue, fold=hear
    )
    return flow


class World:
    """A flow that has counted the words and was rebuilt with code of weight 10, and a receiver of its changes."""

    def __init__(self, *, rebuilt: bool = True, **options: Any) -> None:
        self.stores = {name: MemoryStore(f"announce-{next(names)}") for name in ("", "other")}
        self.options = options
        self.up = Rehearsal(
            upstream(**options), partitions={"words": 2}, store=self.stores, settings=SETTINGS
        )
        self.down = Rehearsal(downstream(), log=self.up.log)
        self.time_ms = 1_700_000_000_000
        self.feed(*WORDS)
        self.go_on()
        if rebuilt:
            self.up = self.of(10)
            self.up.rebuild()

    def of(self, weight: int = 10, **options: Any) -> Rehearsal:
        """The same broker and stores, other code."""
        flow = upstream(weight, **{**self.options, **options})
        return Rehearsal(flow, log=self.up.log, store=self.stores, settings=SETTINGS)

    def feed(self, *texts: str) -> None:
        for text in texts:
            self.time_ms += 1
            self.up.feed("words", word(text), key=text[0], timestamp_ms=self.time_ms)

    def go_on(self) -> None:
        self.up.run_until_caught_up()
        self.down.run_until_caught_up()

    def heard(self) -> dict[str, list[int]]:
        """All that the receiver has heard of each key."""
        self.down.run_until_caught_up()
        states = self.down.states("heard")
        return {key.decode(): [int(one) for one in state.value.split()] for key, state in states.items()}

    def newest(self) -> dict[str, int]:
        """Each key's newest state, by the flow's stores."""
        stages = [stage.name for stage in self.up.flow.stages]
        found = [state.value.split() for stage in stages for state in self.up.states(stage).values()]
        return {key: int(number) for key, number in found}

    def count(self, topic: str) -> int:
        return len(self.up.log.records(topic))

    def last_plan(self) -> Plan:
        return last_plan(self.stores[""], "up")


SETTINGS = Settings(max_records=4)
OLD = Counter(text[0] for text in WORDS)
NEW = {letter: 10 * number for letter, number in OLD.items()} | {"all": 10 * len(WORDS)}


def check_published_once(world: World) -> None:
    """The receiver has heard each new state exactly once, and last."""
    heard = world.heard()
    assert {key: numbers[-1] for key, numbers in heard.items()} == NEW
    assert all(numbers.count(NEW[key]) == 1 for key, numbers in heard.items())
