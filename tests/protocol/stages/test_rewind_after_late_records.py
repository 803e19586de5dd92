"""Goal: a rewind that publishes again is refused only where something would differ, and the text names that alone.

Method: late records that miss no window, some, or all; what a rewind to before them answers.
"""

from __future__ import annotations

from typing import Any

import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.stages import Hopping, Sessions, Tumbling
from sqe_chain.testing import Rehearsal

Value = dict[str, Any]
WINDOWS: dict[str, Any] = {"tumbling": Tumbling(100), "hopping": Hopping(100, 50), "sessions": Sessions(10)}


def add(state: Value, value: Value) -> None:
    state["n"] = state.get("n", 0) + 1


def add_later(state: Value, later: Value) -> None:
    state["n"] += later["n"]


def service_of(kind: str, *, early: bool = False, lateness_ms: int = 0) -> Rehearsal:
    flow = Flow("up", state_partitions=2)
    merge: Any = {"merge": add_later} if kind == "sessions" else {}
    made = flow.source("in", dict, raw=True).windowed(
        "stage",
        WINDOWS[kind],
        key=lambda value: value["k"],
        state=dict,
        fold=add,
        lateness_ms=lateness_ms,
        **merge,
    )
    made.to("out", partitions=1)
    if early:
        made.changes().to("early", partitions=1)
    return Rehearsal(flow, partitions={"in": 2})


def answer(service: Rehearsal, late_ms: int) -> str:
    """What a rewind to the beginning answers after a late record of a time; empty: it is done."""
    service.feed("in", {"k": "a"}, partition=0, timestamp_ms=60)
    service.feed("in", {"k": "b"}, partition=1, timestamp_ms=130)
    service.run_until_caught_up()
    service.feed("in", {"k": "a"}, partition=0, timestamp_ms=late_ms)
    service.feed("in", {"k": "a"}, partition=0, timestamp_ms=500)
    service.feed("in", {"k": "a"}, partition=1, timestamp_ms=500)
    service.run_until_caught_up()
    before = results_of(service)
    try:
        service.rebuild({("in", 0): 0, ("in", 1): 0}, republish=True)
    except ConfigurationError as error:
        return str(error)
    service.run_until_caught_up()
    assert set(results_of(service)) == set(before), "readers have the same at the same positions"
    return ""


def results_of(service: Rehearsal) -> list[Any]:
    return [(one.lane, one.position, one.payloads) for one in service.published("out")]


@pytest.mark.parametrize(
    ("kind", "late_ms", "lateness_ms"),
    [("tumbling", 110, 0), ("hopping", 110, 0), ("tumbling", 80, 50), ("sessions", 100, 40)],
)
def test_late_records_that_miss_no_window_change_nothing(kind: str, late_ms: int, lateness_ms: int) -> None:
    assert answer(service_of(kind, lateness_ms=lateness_ms), late_ms) == ""


@pytest.mark.parametrize(
    ("kind", "late_ms"), [("tumbling", 80), ("hopping", 80), ("hopping", 40), ("sessions", 70)]
)
def test_late_records_that_miss_a_window_are_named(kind: str, late_ms: int) -> None:
    text = answer(service_of(kind), late_ms)
    assert "1 late records have missed windows of stage 'stage', and would count in them now" in text
    assert "state partitions" not in text, "nothing else would differ"


def test_what_depends_on_the_order_of_inputs_differs_after_any_late_one() -> None:
    text = answer(service_of("tumbling", early=True), 110)
    assert "inputs came late by event time" in text
    assert "state partitions" not in text
