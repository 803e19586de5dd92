"""Goal: an event time that nothing can compute with is poison where it is read, in filters and windows, under each policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.envelope.message import MAX_TIMESTAMP_MS
from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow
from sqe_chain.stages import Calendar, Hopping, Sessions, Tumbling, WindowResult
from sqe_chain.testing import Rehearsal

NOW_MS = 1_700_000_000_000
IMPOSSIBLE = [2**63 - 1, -(2**63), -2, MAX_TIMESTAMP_MS + 1]
EXTREME = [-1, 0, MAX_TIMESTAMP_MS]


def add(state: Int64Value, _: object) -> None:
    state.value += 1


STAGES: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda stream: stream.windowed("f", Tumbling(60_000), state=Int64Value, fold=add),
    "hopping": lambda stream: stream.windowed("f", Hopping(60_000, 7_000), state=Int64Value, fold=add),
    "sessions": lambda stream: stream.windowed(
        "f", Sessions(60_000), state=Int64Value, fold=add, merge=lambda one, other: None
    ),
    "retained": lambda stream: stream.windowed(
        "f", Tumbling(10**15), state=Int64Value, fold=add, lateness_ms=10**15, retention_ms=10**15
    ),
    "distinct": lambda stream: stream.distinct("f", Tumbling(60_000)),
    "deduplicate": lambda stream: stream.deduplicate_by_key("f", 60_000),
    "for an age": lambda stream: stream.deduplicate_by_key("f", 10**15, guard=None),
}


def rehearsed(kind: str, raw: bool, policy: Any) -> Rehearsal:
    flow = Flow("times", state_partitions=1, poison=policy)
    source = (
        flow.source("in", lambda value: StringValue(value=value.decode()), raw=True)
        if raw
        else flow.source("in", StringValue)
    )
    STAGES[kind](source).to("out", partitions=1)
    return Rehearsal(flow)


def feed(rehearsal: Rehearsal, raw: bool, at_ms: int) -> None:
    value: Any = b"x" if raw else StringValue(value="x")
    rehearsal.feed("in", value, key="k", timestamp_ms=at_ms)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("first", [True, False])
def test_impossible_times_are_poison_and_extreme_ones_are_not(kind: str, raw: bool, first: bool) -> None:
    rehearsal = rehearsed(kind, raw, "dead_letter")
    if first:
        feed(rehearsal, raw, NOW_MS)
    for at_ms in (*IMPOSSIBLE, *EXTREME, *EXTREME, *EXTREME):
        feed(rehearsal, raw, at_ms)
    rehearsal.run_until_caught_up()
    feed(rehearsal, raw, NOW_MS + 100_000)
    rehearsal.run_until_caught_up()
    letters = [
        dict(letter.headers() or [])["sqe-error"] for letter in rehearsal.log.records("times.dead-letters")
    ]
    assert letters == [b"OutOfBounds"] * len(IMPOSSIBLE)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("at_ms", IMPOSSIBLE)
def test_under_stop_they_are_named(raw: bool, at_ms: int) -> None:
    rehearsal = rehearsed("tumbling", raw, "stop")
    feed(rehearsal, raw, at_ms)
    with pytest.raises(PoisonError, match=rf"in\[0\]@0.*event time is {at_ms} ms"):
        rehearsal.run_until_caught_up()
    assert rehearsal.events("sealed") == []


HOUR_MS = 3_600_000


def test_days_of_a_time_zone_are_counted_as_long_as_they_are() -> None:
    flow = Flow("days", state_partitions=1, poison="dead_letter")
    days = flow.source("in", StringValue).windowed(
        "per-day", Calendar("day", "Europe/Berlin"), state=Int64Value, fold=add, guard=None
    )
    days.to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    begin_ms = 1_761_429_600_000  # 2025-10-26 in Berlin, on which the clocks are put back
    for hour in range(-1, 27):  # one a hour, from the day before to the day after
        feed(rehearsal, raw=False, at_ms=begin_ms + hour * HOUR_MS)
    feed(rehearsal, raw=False, at_ms=MAX_TIMESTAMP_MS)  # in a year that no calendar has
    rehearsal.run_until_caught_up()
    results = [envelope.payload_as(WindowResult) for envelope in rehearsal.published("out")]
    counted = [
        ((result.start_ms - begin_ms) // HOUR_MS, Int64Value.FromString(result.state).value)
        for result in results
    ]
    # Event time moves by the last record, too, though it lies in no window.
    assert counted == [(-24, 1), (0, 25), (25, 2)]
    assert rehearsal.windows("per-day") == []
    (letter,) = rehearsal.log.records("days.dead-letters")
    assert dict(letter.headers() or [])["sqe-error"] == b"PoisonError"


def test_a_filter_behind_a_shuffled_aggregate_sees_event_times() -> None:
    """Also where no output asks for anything of the input: the filter itself has to."""

    def count(state: Int64Value, value: StringValue) -> list[StringValue]:
        state.value += 1
        return [value]

    flow = Flow("times", state_partitions=2)
    counted = flow.source("in", StringValue).aggregate(
        "all", key=lambda word: word.value, state=Int64Value, fold=count
    )
    counted.distinct("once", Tumbling(10)).aggregate("rest", state=Int64Value, fold=add)
    rehearsal = Rehearsal(flow)
    for at_ms in (NOW_MS, NOW_MS + 1, NOW_MS + 30):
        feed(rehearsal, raw=False, at_ms=at_ms)
    rehearsal.run_until_caught_up()
    assert {key: state.value for key, state in rehearsal.states("rest").items()} == {b"x": 2}
