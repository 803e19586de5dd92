"""Goal: after `rewind --republish` of a flow by event time its readers count nothing twice, and miss nothing.

Method: random worlds, each played twice: once as it is, and once with rewinds. A reader counts what it hears in both, and must
count the same. Rewinds go to random offsets. Where one is refused, it goes to the offset that the error names.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from random import Random
from typing import Any

import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Hopping, Sessions, Tumbling
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.clock import SteppingClock

BEGIN_MS = 4_000_000_000_000
SECOND = 1_000
LATENESS_MS = 8 * SECOND
WINDOWS = {
    "tumbling": Tumbling(10 * SECOND),
    "hopping": Hopping(20 * SECOND, 10 * SECOND),
    "sessions": Sessions(6 * SECOND),
}
BY_ORDER = ("timers", "distinct")
"""Kinds whose states depend on the order of late values, so that these may change results after every rebuild."""
KINDS = (*WINDOWS, *WINDOWS, "left join", *BY_ORDER)
SHARES, WORLDS = 4, 20
SEEN = {
    10: "a record of the same time as the last one came after it, and closed its window the second time",
    38: "the same of a left join",
    25: "a rebuild before all was published again went on as if it had been",
    361: "what was taken before a late record was published again, though it was read before the rewind",
}
Value = dict[str, Any]


def add(state: Value, value: Value) -> None:
    state["n"] = state.get("n", 0) + value["n"]


def put_off(state: Value, value: Value, context: Context) -> list[Value]:
    state["n"] = state.get("n", 0) + value["n"]
    context.set_timer(context.timestamp_ms + 7 * SECOND)
    return [{"value": value["n"]}]


def silent(state: Value, timer: Timer, context: Context) -> list[Value]:
    return [{"k": str(context.key), "at": timer.at_ms, "n": state["n"]}]


def key_of(value: Value) -> str:
    return str(value["k"])


def declared(kind: str, state_partitions: int, lateness_ms: int) -> Flow:
    flow = Flow("up", state_partitions=state_partitions)
    raw = flow.source("raw", dict, raw=True)
    if kind in WINDOWS:
        merge: Any = {"merge": add} if kind == "sessions" else {}
        windows: Any = raw.windowed(
            "stage", WINDOWS[kind], key=key_of, state=dict, fold=add, lateness_ms=lateness_ms, **merge
        )
        windows.dropped().to("dropped", partitions=1)
        made: Any = windows.map(lambda one: {"k": one.key, "at": one.start_ms, "n": one.state["n"]})
    elif kind == "left join":
        left = raw.filter(lambda value: value["n"] % 2 == 0).key_by(key_of)
        right = raw.filter(lambda value: value["n"] % 2 == 1).key_by(key_of)
        made = left.join_stream(
            "stage",
            right,
            lambda one, other: {"one": one["n"], "other": other and other["n"]},
            before_ms=3 * SECOND,
            after_ms=3 * SECOND,
            how="left",
            lateness_ms=lateness_ms,
        )
        made.dropped().to("dropped", partitions=1)
    elif kind == "timers":
        made = raw.key_by(key_of).aggregate("stage", state=dict, fold=put_off, on_timer=silent)
    else:
        made = raw.key_by(key_of).distinct("stage", Tumbling(10 * SECOND))
    made.to("out", partitions=2)
    return flow


class Clock(SteppingClock):
    """Does not move until the world moves it, so that rewinds change no time."""

    def now_ms(self) -> int:
        return self.now

    def wait(self, milliseconds: int) -> bool:
        return super().wait(0)


def hear(state: Value, value: Value) -> None:
    text = json.dumps(value, sort_keys=True)
    state[text] = state.get(text, 0) + 1


class World:
    """One world, as far as it is drawn from its seed. Only rewinds use numbers of their own, so that the other steps stay."""

    def __init__(self, seed: int, *, rewinds: bool) -> None:
        self.draw, self.rewinds = Random(seed), Random(seed + 1) if rewinds else None
        self.kind, self.partitions = self.draw.choice(KINDS), self.draw.choice([2, 3])
        self.calm = self.kind in BY_ORDER or self.draw.random() < 0.25
        lateness_ms = self.draw.choice([0, 3 * SECOND]) if self.calm else LATENESS_MS
        # Then late values miss windows. Of sessions, those that are open may change with them after a rewind.
        self.misses = self.kind in ("tumbling", "hopping") and not self.calm and seed % 4 > 0
        lateness_ms = 0 if self.misses else lateness_ms
        self.up = Rehearsal(
            declared(self.kind, self.draw.choice([1, self.partitions]), lateness_ms),
            partitions={"raw": self.partitions},
            settings=Settings(max_records=self.draw.choice([2, 100, 100])),
        )
        self.up.clock = Clock(now_ms=BEGIN_MS)
        reader = Flow("reader", state_partitions=1)
        reader.source("out", dict).aggregate("heard", key=lambda _: "all", state=dict, fold=hear)
        self.down = Rehearsal(reader, log=self.up.log)
        self.count, self.fed = 0, dict.fromkeys(range(self.partitions), 0)
        self.results: Counter[str] = Counter()

    def feed(self, *, late: bool = False) -> None:
        self.count += 1
        at_ms = self.up.clock.now // (2 * SECOND) * 2 * SECOND
        if late:
            at_ms -= self.draw.choice([0, 0, 2, 4, 6]) * SECOND
        value = {"k": self.draw.choice("ab"), "n": self.count}
        partition = self.draw.randrange(self.partitions)
        self.up.feed("raw", value, partition=partition, timestamp_ms=at_ms)
        self.fed[partition] += 1

    def step(self) -> None:
        what = self.draw.choice(["feed"] * 3 + ["batch", "wait", "wait", "rest", "rest"])
        if what == "feed":
            self.feed(late=not self.calm and self.draw.random() < 0.5)
        elif what == "batch":
            self.up.batch()
        elif what == "wait":
            self.up.clock.jump(self.draw.choice([2, 4, 9, 20]) * SECOND)
        else:
            self.rest()
            if self.calm:
                self.up.clock.jump(2 * SECOND)  # else a record of the same time would be late
            else:
                self.feed(late=self.draw.random() < 0.7)

    def rest(self) -> None:
        """Nothing more is expected, so what comes next may be late."""
        self.up.run_until_caught_up()
        if self.rewinds and self.rewinds.random() < 0.5:
            self.rewind(self.rewinds)

    def rewind(self, draw: Random) -> None:
        """To random offsets, or to those that are allowed."""
        to = {("raw", partition): draw.randint(0, end) for partition, end in self.fed.items()}
        while (refused := self.refused(to)) is not None:  # each round moves one partition forward
            assert not self.calm, f"nothing was late: {refused}"
            found = re.search(r"raw\[(\d)\]@(\d+) was published before offset (\d+)", refused)
            assert found is not None, refused
            partition, offset, since = map(int, found.groups())
            assert to["raw", partition] == offset < since
            to["raw", partition] = since
            self.results["refused"] += 1
        self.results["rewound"] += any(offset < self.fed[tp[1]] for tp, offset in to.items())
        if draw.random() < 0.3:
            self.up.crash(step=draw.choice([5, 6, 7]), when="after")
            self.up.run_until_crash()
            self.up.script.steps.clear()  # where nothing was left to do
            earlier = {tp: draw.randint(0, offset) for tp, offset in to.items()}
            match draw.choice(["go on", "rebuild", "rewind", "publish"]):
                case "rebuild":
                    self.up.rebuild()
                case "rewind":
                    self.up.rebuild(earlier)
                case "publish":
                    self.refused(earlier)  # or done
        self.up.run_until_caught_up()

    def refused(self, to: dict[tuple[str, int], int]) -> str | None:
        try:
            self.up.rebuild(to, republish=True)
        except ConfigurationError as error:
            return str(error)
        return None

    def heard(self) -> Value:
        self.down.run_until_caught_up()
        heard: Value = self.down.states("heard").get(b"all", {})
        return heard

    def play(self) -> Value:
        for _ in range(self.draw.randint(6, 20)):
            self.step()
        self.rest()
        for _ in range(2):
            self.up.clock.jump(60 * SECOND)
            for _ in range(self.partitions):
                self.feed()
        self.up.run_until_caught_up()
        return self.heard()


def verdict(seed: int) -> tuple[str, Counter[str]]:
    as_it_is, rewound = World(seed, rewinds=False), World(seed, rewinds=True)
    expected, found = as_it_is.play(), rewound.play()
    assert as_it_is.misses or not as_it_is.up.published("dropped")
    return "" if found == expected else f"seed {seed}: {expected} became {found}", rewound.results


@pytest.mark.parametrize("seed", SEEN)
def test_worlds_in_which_they_once_did(seed: int) -> None:
    difference, results = verdict(seed)
    assert not difference, f"{SEEN[seed]}: {difference}"
    assert results["rewound"]


@pytest.mark.parametrize("share", range(SHARES))
def test_readers_count_nothing_twice_and_miss_nothing(share: int) -> None:
    results: Counter[str] = Counter()
    for seed in range(1_000 + share * WORLDS, 1_000 + (share + 1) * WORLDS):
        difference, own = verdict(seed)
        assert not difference, difference
        results += own
    assert results["rewound"] > WORLDS / 2
    assert results["refused"]


def test_before_a_batch_that_was_published_in_part_every_partition_is_read_again() -> None:
    """One has a whole batch waiting, and the other is read as far as that batch allows."""
    up = Rehearsal(
        declared("tumbling", 1, 0), partitions={"raw": 2}, settings=Settings(max_records=2), now_ms=BEGIN_MS
    )
    for partition, count in ((0, 7), (1, 4)):
        for _ in range(count):
            at_ms = BEGIN_MS + 5 * SECOND * partition
            up.feed("raw", {"k": "a", "n": 1}, partition=partition, timestamp_ms=at_ms)
    up.run_until_caught_up()
    up.rebuild({("raw", 0): 3, ("raw", 1): 3}, republish=True)
    up.crash(step=5, when="after")
    up.run_until_crash()
    up.rebuild({("raw", 0): 0, ("raw", 1): 2}, republish=True)
    up.run_until_caught_up()
    up.feed("raw", {"k": "a", "n": 1}, timestamp_ms=BEGIN_MS + 60 * SECOND)
    up.run_until_caught_up()
    assert [one.payload_as(dict)["n"] for one in up.published("out")] == [11]
