"""Goal: what is due when event time reaches a moment is done in all state partitions, also where no input comes any more.

Method: keys that end early, in state partitions of their own, beside one that goes on.
"""

from __future__ import annotations

from typing import Any

import pytest

from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.stages import Sessions, Tumbling
from sqe_chain.testing import Rehearsal

YEAR_MS = 365 * 86_400_000
KEYS = "abcdefgh"
Value = dict[str, Any]


def add(state: Value, value: Value) -> None:
    state["n"] = state.get("n", 0) + 1


def add_later(state: Value, later: Value) -> None:
    state["n"] += later["n"]


def add_and_set(state: Value, value: Value, context: Context) -> None:
    add(state, value)
    context.set_timer(context.timestamp_ms + 1_000)


def count_given(state: Value, timer: Timer, context: Context) -> list[Value]:
    return [{"k": (context.key or b"").decode(), "n": state["n"]}]


def flow_of(kind: str) -> Flow:
    flow = Flow("stocks", state_partitions=5)
    raw = flow.source("in", dict, raw=True).key_by(lambda value: value["k"])
    if kind == "timers":
        raw.aggregate("stage", state=dict, fold=add_and_set, on_timer=count_given).to("out", partitions=1)
        return flow
    if kind == "left join":
        second = flow.source("other", dict, raw=True).key_by(lambda value: value["k"])
        joined = raw.join_stream(
            "stage", second, lambda one, other: one | {"found": other}, before_ms=0, after_ms=9, how="left"
        )
        joined.to("out", partitions=1)
        return flow
    windows: Any = Tumbling(1_000) if kind == "tumbling" else Sessions(1_000)
    merge: Any = {"merge": add_later} if kind == "sessions" else {}
    made = raw.windowed("stage", windows, state=dict, fold=add, **merge)
    made.map(lambda window: {"k": window.key, "n": window.state["n"]}).to("out", partitions=1)
    return flow


@pytest.mark.parametrize("kind", ["tumbling", "sessions", "timers", "left join"])
def test_keys_that_ended_years_ago_are_done(kind: str) -> None:
    service = Rehearsal(flow_of(kind), partitions={"in": 1, "other": 1})
    for number, key in enumerate(KEYS):
        service.feed("in", {"k": key}, timestamp_ms=YEAR_MS + number)
    for year in range(2, 6):
        service.feed("in", {"k": "last"}, timestamp_ms=year * YEAR_MS)
    if kind == "left join":
        service.feed("other", {"k": "nobody"}, timestamp_ms=5 * YEAR_MS)
    service.run_until_caught_up()
    payloads: list[Any] = [payload for one in service.published("out") for payload in one.payloads_as(dict)]
    given = [payload["k"] for payload in payloads]
    assert sorted(set(given)) == sorted([*KEYS, "last"])
    assert len(given) == len(KEYS) + 3
