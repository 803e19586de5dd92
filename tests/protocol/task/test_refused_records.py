"""Goal: what event time has reached is given, whatever becomes of the record that moved it there.

Method: a record whose clock ran ahead takes the place of the next one of its lane. It is dropped, and has moved event time first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.flow.stream import Stream
from sqe_chain.stages import JumpGuard, Tumbling
from sqe_chain.testing import Rehearsal

Event = dict[str, Any]
BEGIN_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def key_of(event: Event) -> str:
    return str(event["k"])


def collect(state: Event, event: Event) -> None:
    state.setdefault("n", []).append(event["n"])


def remind(state: Event, event: Event, context: Context) -> None:
    collect(state, event)
    context.set_timer(context.timestamp_ms + 20)


def fire(state: Event, _timer: Timer) -> list[list[int]]:
    return [state.pop("n")]


def alone(event: Event, _: Event | None) -> list[int]:
    return [event["n"]]


def windows(events: Stream[Event], guard: JumpGuard) -> Stream[Any]:
    stage = events.windowed("S", Tumbling(50), key=key_of, state=dict, fold=collect, guard=guard)
    return stage.map(lambda window: window.state["n"])


def timers(events: Stream[Event], guard: JumpGuard) -> Stream[Any]:
    return events.aggregate("S", key=key_of, state=dict, fold=remind, on_timer=fire, guard=guard)


def left_join(events: Stream[Event], guard: JumpGuard) -> Stream[Any]:
    others = events.filter(lambda event: event["n"] < 0)
    return events.key_by(key_of).join_stream(
        "S", others.key_by(key_of), alone, before_ms=0, after_ms=20, how="left", guard=guard
    )


@pytest.mark.parametrize("since", [2, 3])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("policy", ["hold", "drop"])
@pytest.mark.parametrize("stage", [windows, timers, left_join])
def test_what_a_dropped_record_makes_due_is_given(
    stage: Callable[[Stream[Event], JumpGuard], Stream[Any]], policy: Any, since: int, *, in_place: bool
) -> None:
    flow = Flow("due", state_partitions=3)
    stage(flow.source("in", dict, raw=True), JumpGuard(31 * DAY_MS, policy=policy)).to("out", partitions=1)
    rehearsal = Rehearsal(flow, now_ms=BEGIN_MS + 1_000, partitions={"in": 3 if in_place else 1})
    sent = [("b", 30), ("b", 120 * DAY_MS), ("a", 531), ("b", 700)]
    for number, (key, after_ms) in enumerate(sent):
        rehearsal.feed("in", {"n": number, "k": key}, key=key, timestamp_ms=BEGIN_MS + after_ms)
        if number >= since:
            rehearsal.run_until_caught_up()
    given = [
        number
        for it in rehearsal.published("out")
        for numbers in it.payloads_as(list)
        if numbers
        for number in numbers
    ]
    assert given.count(0) == 1
    assert sorted(given) == sorted(set(given))
    if policy == "drop" and not in_place:  # alone at the end of its partition it is believed
        assert 1 not in given
