"""Goal: what is due when event time reaches a moment is done in all state partitions, also where no input comes any more.

Method: keys that end early, in state partitions of their own, beside one that goes on.
"""

from __future__ import annotations

from typing import Any

import pytest

from sqe_chain import read
from sqe_chain.features.event_times import EventTime
from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.stages import Sessions, Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.receiving import received

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


def flow_of(kind: str, *, raw_input: bool = True) -> Flow:
    flow = Flow("stocks", state_partitions=5)
    raw = flow.source("in", dict, raw=raw_input).key_by(lambda value: value["k"])
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
    service.run_until_caught_up()
    for year in range(2, 6):
        service.feed("in", {"k": "last"}, timestamp_ms=year * YEAR_MS)
        service.run_until_caught_up()
    if kind == "left join":
        service.feed("other", {"k": "nobody"}, timestamp_ms=5 * YEAR_MS)
    service.run_until_caught_up()
    payloads: list[Any] = [payload for one in service.published("out") for payload in one.payloads_as(dict)]
    given = [payload["k"] for payload in payloads]
    assert sorted(set(given)) == sorted([*KEYS, "last"])
    assert len(given) == len(KEYS) + 3


def fed(kind: str, max_records: int) -> list[Any]:
    """Lane, position, time and payloads of what is given for one input, in batches of a size."""
    service = Rehearsal(flow_of(kind), partitions={"in": 2}, settings=Settings(max_records=max_records))
    for number in range(40):
        key = KEYS[number * 7 % 5] if number < 25 else "z"
        service.feed("in", {"k": key}, partition=number % 2, timestamp_ms=number * 300)
    service.run_until_caught_up()
    return sorted(
        (one.lane, one.position, one.timestamp_ms, one.payloads) for one in service.published("out")
    )


@pytest.mark.parametrize("kind", ["tumbling", "sessions", "timers"])
def test_where_batches_end_changes_no_lane_position_or_time(kind: str) -> None:
    expected = fed(kind, 1_000)
    assert len(expected) > 10
    for max_records in (1, 3, 7):
        assert fed(kind, max_records) == expected


def test_a_moment_that_comes_before_the_one_that_was_known_is_not_missed() -> None:
    """The key's first timer is far away. The second is near, and nothing comes any more that could fire it."""
    flow = Flow("near", state_partitions=3)

    def set_timer(state: Value, value: Value, context: Context) -> None:
        add(state, value)
        context.set_timer(value["until"], name=str(value["until"]))

    made = flow.source("in", dict, raw=True).aggregate(
        "stage", key=lambda value: value["k"], state=dict, fold=set_timer, on_timer=count_given
    )
    made.to("out", partitions=1)
    service = Rehearsal(flow)
    for at_ms, key, until_ms in ((10, "a", 9_000), (20, "a", 500), (30, "b", 8_000), (600, "b", 8_500)):
        service.feed("in", {"k": key, "until": until_ms}, timestamp_ms=at_ms)
        service.run_until_caught_up()
    assert [one.timestamp_ms for one in service.published("out")] == [499]


def test_what_is_late_is_late_in_all_state_partitions() -> None:
    """Also in one that no record has reached before: results of that moment are out."""
    service = Rehearsal(flow_of("tumbling"), partitions={"in": 2})
    for partition in range(2):
        service.feed("in", {"k": "a"}, partition=partition, timestamp_ms=5_000)
    service.run_until_caught_up()
    for key in KEYS:
        service.feed("in", {"k": key}, partition=1, timestamp_ms=3_500)
    service.feed("in", {"k": "a"}, partition=0, timestamp_ms=9_000)
    service.feed("in", {"k": "a"}, partition=1, timestamp_ms=9_000)
    service.run_until_caught_up()
    given: list[Any] = [payload for one in service.published("out") for payload in one.payloads_as(dict)]
    assert given == [{"k": "a", "n": 2}]


def test_a_record_just_before_the_moment_that_is_reached_is_late() -> None:
    """Its place is before that, so it does not move a state partition there which nothing has visited."""
    service = Rehearsal(flow_of("tumbling"), partitions={"in": 2})
    service.feed("in", {"k": "a"}, partition=0, timestamp_ms=5_000)
    service.feed("in", {"k": "a"}, partition=1, timestamp_ms=6_000)
    while service.batch():
        pass
    for key in KEYS:
        service.feed("in", {"k": key}, partition=0, timestamp_ms=4_500)
    for partition in range(2):
        service.feed("in", {"k": "a"}, partition=partition, timestamp_ms=9_000)
    service.run_until_caught_up()
    given: list[Any] = [payload for one in service.published("out") for payload in one.payloads_as(dict)]
    assert given == [{"k": "a", "n": 1}, {"k": "a", "n": 1}]


def test_windows_of_windows_in_one_flow_have_each_result_in_its_time() -> None:
    flow = Flow("chained", state_partitions=2)
    minutes: Any = flow.source("in", dict, raw=True).windowed(
        "minutes", Tumbling(1_000), key=lambda value: value["k"], state=dict, fold=add
    )
    hours: Any = minutes.key_by(lambda _: "all").windowed("hours", Tumbling(4_000), state=dict, fold=add)
    hours.map(lambda window: {"at": window.start_ms, "n": window.state["n"]}).to("out", partitions=1)
    service = Rehearsal(flow)
    for second in range(16):
        service.feed("in", {"k": "a"}, timestamp_ms=second * 1_000)
    service.run_until_caught_up()
    given: list[Any] = [payload for one in service.published("out") for payload in one.payloads_as(dict)]
    assert given == [{"at": start_ms, "n": 4} for start_ms in (0, 4_000, 8_000)]


def test_readers_know_which_republishers_have_to_pass_on_what_moments_wait_for() -> None:
    """Chains of moments name no topics, and the reader waits for each republisher on the way."""
    first = Flow("first")
    first.source("raw", dict, raw=True).to("in", key=lambda value: value["k"], partitions=2)
    up = Rehearsal(first)
    service = Rehearsal(flow_of("tumbling", raw_input=False), log=up.log)
    for second in range(8):
        up.feed("raw", {"k": "a"}, timestamp_ms=second * 1_000)
    up.run_until_caught_up()
    service.run_until_caught_up()
    passing = Flow("passing")
    passing.source("out", dict).to("passed", key=lambda value: value["k"], partitions=1)
    between = Rehearsal(passing, log=up.log)
    between.run_until_caught_up()
    last = Flow("last", state_partitions=1)
    last.source("passed", dict).windowed(
        "days", Tumbling(9_000), key=lambda value: value["k"], state=dict, fold=add
    ).to("days", partitions=1)
    reader = Rehearsal(last, log=up.log)
    reader.run_until_caught_up()
    assert isinstance(reader.service, StagedService)
    assert reader.service.last is not None
    (times,) = EventTime.of(reader.service.last).times.values()
    (writer,) = times.writers.values()
    assert set(writer.hops) == {("first", "raw"), ("stocks", "in"), ("passing", "out")}


def test_what_is_past_due_by_other_settings_has_a_moment_that_was_not_reached_yet() -> None:
    """The moment before has given results already: receivers would take more of it for replays."""

    def flow_with(lateness_ms: int) -> Flow:
        flow = Flow("stocks", state_partitions=1)
        made = flow.source("in", dict, raw=True).windowed(
            "stage",
            Tumbling(1_000),
            key=lambda value: value["k"],
            state=dict,
            fold=add,
            lateness_ms=lateness_ms,
        )
        made.map(lambda window: {"k": window.key, "at": window.start_ms}).to("out", partitions=1)
        return flow

    service = Rehearsal(flow_with(5_000))
    for at_ms, key in ((7_500, "a"), (9_500, "a"), (9_600, "b"), (13_000, "c"), (13_000, "c")):
        service.feed("in", {"k": key}, timestamp_ms=at_ms)
    service.run_until_caught_up()
    service.flow, service.service = flow_with(0), None
    service.feed("in", {"k": "a"}, timestamp_ms=13_500)
    service.run_until_caught_up()
    new = received("out", service.log.describe(["out"])["out"].topic_id, service.log.records("out"))
    given = [
        (one.timestamp_ms, payload)
        for message in new
        for one in [read(message.value(), headers=message.headers())]
        for payload in one.payloads_as(dict)
    ]
    assert given == [(12_999, {"k": "a", "at": 7_000}), (13_000, {"k": "a", "at": 9_000})]
