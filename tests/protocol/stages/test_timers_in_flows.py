"""Goal: aggregates with timers are stages like others: outputs, changes(), heartbeats, poison, readers of states.

Method: small flows in rehearsals, killed where it matters.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import ConfigurationError, PoisonError, TooManyExcluded
from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.runtime.states import States
from sqe_chain.testing import Rehearsal

State = dict[str, Any]


def silence(state: State, value: Int64Value, context: Context) -> None:
    state["total"] = state.get("total", 0) + value.value
    context.set_timer(context.timestamp_ms + 100)


def report_total(state: State, timer: Timer, context: Context) -> list[Int64Value]:
    context.delete_state()
    return [Int64Value(value=state["total"] * 1_000 + timer.at_ms)]


def test_a_record_without_a_time_keeps_its_state_as_long_as_one_of_the_present() -> None:
    flow = Flow("expires", state_partitions=1)
    source = flow.source("numbers", dict, raw=True)
    source.aggregate(
        "totals",
        key=lambda value: value["k"],
        state=dict,
        fold=lambda state, value: state.update(value),
        expire_after_ms=50,
    )
    rehearsal = Rehearsal(flow)
    for key, at_ms in (("a", 1_000), ("b", -1), ("c", 1_049)):
        rehearsal.feed("numbers", {"k": key}, timestamp_ms=at_ms)
    rehearsal.run_until_caught_up()
    assert rehearsal.states("totals").keys() == {b"a", b"b", b"c"}
    rehearsal.feed("numbers", {"k": "c"}, timestamp_ms=1_050)
    rehearsal.run_until_caught_up()
    assert rehearsal.states("totals").keys() == {b"c"}


def is_heartbeat(value: Int64Value) -> bool:
    return value.value == 7


def silent_flow(**settings: Any) -> Flow:
    flow = Flow("silent", state_partitions=4, **settings)
    stage = flow.source("numbers", Int64Value).aggregate(
        "silent", state=dict, fold=silence, on_timer=report_total, heartbeat=is_heartbeat
    )
    stage.to("reports", partitions=1)
    stage.changes().to("totals", partitions=1)
    return flow


def reports_of(rehearsal: Rehearsal) -> list[tuple[bytes | None, int]]:
    known = {envelope.event_id: envelope for envelope in rehearsal.published("reports")}
    return sorted((one.key, one.payload_as(Int64Value).value) for one in known.values())


@pytest.mark.parametrize("crash", [None, 4, 5, 6])
def test_a_heartbeat_fires_timers_of_keys_that_are_silent_in_every_state_partition(crash: int | None) -> None:
    rehearsal = Rehearsal(silent_flow(), max_rows_per_write=2)
    keys = [b"", b"a", b"b", b"z", b"\xffz", b"\xffu", *(b"key %d" % number for number in range(10))]
    for number, key in enumerate(keys):
        rehearsal.feed("numbers", Int64Value(value=1), key=key, timestamp_ms=number)
    rehearsal.run_until_caught_up()
    assert rehearsal.states("silent") == {key: {"total": 1} for key in keys}
    if crash is not None:
        rehearsal.crash(step=crash, when="after")
    rehearsal.feed("numbers", Int64Value(value=7), key=b"anything", timestamp_ms=108)
    rehearsal.run_until_caught_up()
    assert reports_of(rehearsal) == sorted(
        (key, 1_100 + number) for number, key in enumerate(keys) if number <= 8
    )
    assert rehearsal.states("silent") == {key: {"total": 1} for key in keys[9:]}


def test_changes_publish_a_state_that_expires_and_one_that_a_timer_removes() -> None:
    flow = Flow("expiring", state_partitions=1)
    stage = flow.source("numbers", Int64Value).aggregate(
        "totals", state=Int64Value, fold=lambda state, value: state.MergeFrom(value), expire_after_ms=50
    )
    stage.changes().to("totals", partitions=1)
    rehearsal = Rehearsal(flow)
    for key, number, at_ms in (
        ("a", 3, 0),
        ("b", 4, 10),
        ("a", 5, 49),
        ("b", 6, 60),
        ("c", 1, 99),
        ("a", 2, 120),
    ):
        rehearsal.feed("numbers", Int64Value(value=number), key=key, timestamp_ms=at_ms)
        rehearsal.run_until_caught_up()
    changes = [
        (
            envelope.key,
            [payload and Int64Value.FromString(payload).value for payload in envelope.payloads],
            envelope.timestamp_ms,
        )
        for envelope in rehearsal.published("totals")
    ]
    assert sorted(changes, key=lambda one: (one[2], one[0])) == [
        *((b"a", [3], 0), (b"b", [4], 10), (b"a", [5], 49)),
        (b"b", [6], 60),  # it had expired at 60, and began again
        *((b"a", [None], 98), (b"c", [1], 99)),  # a state that expires at 99 has the time before
        *((b"b", [None], 109), (b"a", [2], 120)),
    ]
    assert rehearsal.states("totals") == {b"a": Int64Value(value=2), b"c": Int64Value(value=1)}


def test_states_can_be_read_by_key_and_all_at_once() -> None:
    flow = silent_flow()
    rehearsal = Rehearsal(flow)
    for number, key in enumerate("abc"):
        rehearsal.feed("numbers", Int64Value(value=number), key=key, timestamp_ms=number)
    rehearsal.run_until_caught_up()
    states = States(flow.compile(), "silent", rehearsal.stores)
    assert states.to_dict() == {"a": {"total": 0}, "b": {"total": 1}, "c": {"total": 2}}
    assert states["b"] == {"total": 1}
    assert "d" not in states
    with pytest.raises(ConfigurationError, match="has no states by key"):
        rehearsal.announce("silent")


def fail(state: State, timer: Timer) -> None:
    raise ZeroDivisionError("oh")


@pytest.mark.parametrize("poison", ["stop", "skip"])
def test_a_timer_that_fails_stops_the_service_and_no_input_is_blamed(poison: str) -> None:
    flow = Flow("failing", poison=poison)  # type: ignore[arg-type]
    flow.source("numbers", Int64Value).aggregate("silent", state=dict, fold=silence, on_timer=fail)
    rehearsal = Rehearsal(flow)
    for at_ms in (0, 200):
        rehearsal.feed("numbers", Int64Value(value=1), key="a", timestamp_ms=at_ms)
    with pytest.raises(PoisonError) as caught:
        rehearsal.run_until_caught_up()
    assert (
        "on_timer, for the timer of key b'a' at 100 ms, of stage 'silent' failed: ZeroDivisionError: oh, at "
        in str(caught.value)
    )
    assert f"{__file__}:" in str(caught.value)
    assert "in fail (aggregate 'silent', declared at" in str(caught.value)
    assert "no single input is to blame" in str(caught.value)
    assert not isinstance(caught.value, TooManyExcluded)
    assert rehearsal.events("sealed") == []


def test_a_timer_that_fails_only_because_of_an_input_that_fails_is_no_reason_to_stop() -> None:
    """The fold's output fails after the fold has set a timer that fails: without that input there is no timer."""

    def fold(state: State, value: Int64Value, context: Context) -> list[Int64Value]:
        if value.value == 13:
            context.set_timer(context.timestamp_ms + 1)
        state["total"] = state.get("total", 0) + value.value
        return [value]

    def refuse(value: Int64Value) -> Int64Value:
        if value.value == 13:
            raise ValueError("no")
        return value

    flow = Flow("failing", poison="skip")
    stage = flow.source("numbers", Int64Value).aggregate("silent", state=dict, fold=fold, on_timer=fail)
    stage.map(refuse).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    for at_ms, number in ((0, 1), (10, 13), (20, 2)):
        rehearsal.feed("numbers", Int64Value(value=number), key="a", timestamp_ms=at_ms)
    rehearsal.run_until_caught_up()
    assert rehearsal.states("silent") == {b"a": {"total": 3}}
    assert [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")] == [1, 2]


def anywhere(value: Int64Value, context: Context) -> Int64Value:
    context.set_timer(5)
    return value


def untimed(state: State, value: Int64Value, context: Context) -> None:
    context.delete_timer("x")


def test_timers_elsewhere_are_refused_with_the_place() -> None:
    for number in range(2):
        flow = Flow("elsewhere")
        source = flow.source("numbers", Int64Value)
        if number:
            source.map(anywhere).aggregate("totals", state=dict, fold=lambda state, value: None)
        else:
            source.aggregate("totals", state=dict, fold=untimed)
        rehearsal = Rehearsal(flow)
        rehearsal.feed("numbers", Int64Value(value=1), key="a")
        with pytest.raises(PoisonError, match=r"_timer\(.*\) is for ") as caught:
            rehearsal.run_until_caught_up()
        assert f"{__file__}:" in str(caught.value)
    flow = Flow("without-function")
    flow.source("numbers", Int64Value).aggregate("totals", state=dict, fold=silence, expire_after_ms=5)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("numbers", Int64Value(value=1), key="a", timestamp_ms=1)
    with pytest.raises(PoisonError, match=r"on_timer="):
        rehearsal.run_until_caught_up()


def test_what_timers_give_can_be_folded_by_the_next_stage() -> None:
    flow = Flow("in-a-row", state_partitions=3)
    stage = flow.source("numbers", Int64Value).aggregate(
        "silent", state=dict, fold=silence, on_timer=report_total
    )
    stage.aggregate("summed", state=Int64Value, fold=lambda state, value: state.MergeFrom(value))
    rehearsal = Rehearsal(flow)
    for number, key in enumerate("abcdefgh"):
        rehearsal.feed("numbers", Int64Value(value=number), key=key, timestamp_ms=number)
    for key in "abcdefghijkl":
        rehearsal.feed("numbers", Int64Value(value=1), key=key, timestamp_ms=1_000)
    rehearsal.run_until_caught_up()
    assert rehearsal.states("summed") == {
        key.encode(): Int64Value(value=number * 1_000 + 100 + number) for number, key in enumerate("abcdefgh")
    }
