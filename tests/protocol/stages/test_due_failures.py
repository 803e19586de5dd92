"""Goal: what fails in a result that event time or a clock has caused stops the service, and no input is skipped for it.

Method: each kind of result fails in each place after its stage, under each policy. What inputs give themselves is compared
with a naive fold.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from sqe_chain import Flow, settings_of
from sqe_chain.errors import PoisonError
from sqe_chain.flow import Context, Timer
from sqe_chain.flow.stream import Stream
from sqe_chain.stages import Calendar, Hopping, Sessions, Tumbling
from sqe_chain.testing import Rehearsal

Fact = dict[str, Any]
DAY_MS = 86_400_000


def key_of(fact: Fact) -> str:
    return str(fact["key"])


def add(state: Fact, fact: Fact) -> None:
    state["n"] = state.get("n", 0) + fact["n"]


def merge(state: Fact, later: Fact) -> None:
    state["n"] += later["n"]


def is_heartbeat(fact: Fact) -> bool:
    return "silent" in fact


def windowed(windows: Any, **settings: Any) -> Callable[[Stream[Any]], Stream[Any]]:
    return lambda stream: stream.windowed("stage", windows, key=key_of, state=dict, fold=add, **settings).map(
        lambda window: {"key": window.key, "n": window.state["n"]}
    )


def remind(state: Fact, fact: Fact, context: Context) -> None:
    add(state, fact)
    context.set_timer(context.timestamp_ms + 5, "late")


def emit_sum(state: Fact, timer: Timer, context: Context) -> list[Fact]:
    context.delete_state()
    return [{"key": (context.key or b"").decode(), "n": state["n"]}]


def timed(stream: Stream[Any]) -> Stream[Any]:
    return stream.aggregate("stage", key=key_of, state=dict, fold=remind, on_timer=emit_sum)


def first_alone(first: Fact, second: Fact | None) -> Fact:
    return {"key": first["key"], "n": first["n"]}


def joined(stream: Stream[Any]) -> Stream[Any]:
    orders = stream.filter(lambda fact: not is_heartbeat(fact)).key_by(key_of)
    others = stream.filter(is_heartbeat).key_by(key_of)
    return orders.join_stream("stage", others, first_alone, before_ms=1, after_ms=1, how="left")


KINDS: dict[str, tuple[Callable[[Stream[Any]], Stream[Any]], str]] = {
    "tumbling": (windowed(Tumbling(10)), "the window from 0 to 10 ms"),
    "hopping": (windowed(Hopping(10, 5)), "the window from 0 to 10 ms"),
    "sessions": (windowed(Sessions(3), merge=merge), "the window from 0 to 0 ms"),
    "calendar": (windowed(Calendar("day")), f"the window from 0 to {DAY_MS} ms"),
    "heartbeats": (windowed(Tumbling(10), heartbeat=is_heartbeat), "the window from 0 to 10 ms"),
    "timer": (timed, "the timer 'late' at 5 ms"),
    "join": (joined, "the end of the wait for a partner of the value at 0 ms"),
}


def share(fact: Fact) -> Fact:
    return {**fact, "share": 100 / fact["n"]}


def refuse(state: Fact, fact: Fact) -> None:
    state["share"] = 100 / fact["n"]


def unencodable(fact: Fact) -> Fact:
    return {**fact, "n": fact["n"] or math.nan}


def too_large(fact: Fact) -> Fact:
    return {**fact, "text": "" if fact["n"] else "x" * 5_000}


def again(stream: Stream[Any]) -> Stream[Any]:
    """Through a second stage, whose output fails: the mark goes through the shuffle and the stage."""
    return stream.key_by(key_of).deduplicate("ids", lambda fact: f"{fact['key']}{fact['n']}", 1).map(share)


PLACES: dict[str, Callable[[Stream[Any]], object]] = {
    "map": lambda stream: stream.map(share).to("out", partitions=1),
    "next stage": lambda stream: stream.aggregate("next", key=key_of, state=dict, fold=refuse),
    "after the next stage": lambda stream: again(stream).to("out", partitions=1),
    "encoding": lambda stream: stream.map(unencodable).to("out", partitions=1),
    "size": lambda stream: stream.map(too_large).to("out", partitions=1),
    "dropped": lambda stream: (
        stream.key_by(key_of)
        .deduplicate("ids", lambda fact: "same", 40 * DAY_MS)
        .dropped()
        .map(lambda given: 1 / 0)
        .to("out", partitions=1)
    ),
}


def fed(flow: Flow, *, largest: int = 2_000) -> Rehearsal:
    rehearsal = Rehearsal(flow, settings=settings_of(max_records=7))
    rehearsal.feed("in", {"key": "bad", "n": 0}, timestamp_ms=0)
    rehearsal.feed("in", {"key": "fine", "n": 5}, timestamp_ms=0)
    for number in range(1, 30):
        fact: Fact = {"key": "good", "n": 1} if number % 3 else {"key": "good", "n": 1, "silent": True}
        rehearsal.feed("in", fact, timestamp_ms=number if number < 20 else number + 3 * DAY_MS)
    if any(output.topic == "out" for output in rehearsal.flow.outputs):
        rehearsal.log.configure("out", max_message_bytes=largest)
    return rehearsal


@pytest.mark.parametrize("poison", ["stop", "skip", "dead_letter"])
@pytest.mark.parametrize(
    ("kind", "place"),
    # What a join drops after it has found a partner is its input's
    [(kind, place) for kind in KINDS for place in PLACES if (kind, place) != ("join", "dropped")],
)
def test_a_result_that_fails_stops_the_service_and_no_input_is_skipped(
    kind: str, place: str, poison: Any
) -> None:
    make, cause = KINDS[kind]
    flow = Flow("due", poison=poison, state_partitions=1)
    PLACES[place](make(flow.source("in", dict, raw=True)))
    rehearsal = fed(flow)
    key = "b'(bad|fine|good)'" if place == "dropped" else "b'bad'"
    when = "" if place == "dropped" else re.escape(cause)
    with pytest.raises(PoisonError, match=f"{when}.*{key} of stage 'stage'"):
        rehearsal.run_until_caught_up()
    assert [event["excluded"] for event in rehearsal.events("committed") if event["excluded"]] == []


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("kind", ["tumbling", "timer"])
def test_the_fixed_code_gives_what_a_fold_of_all_inputs_gives(kind: str, partitions: int) -> None:
    make, _ = KINDS[kind]

    def declared(fix: Callable[[Fact], Fact]) -> Flow:
        flow = Flow("due", poison="skip", state_partitions=partitions)
        make(flow.source("in", dict, raw=True)).map(fix).to("out", partitions=1)
        return flow

    rehearsal = fed(declared(share))
    for number in range(60):  # every state partition hears the time
        rehearsal.feed("in", {"key": f"end {number}", "n": 1}, timestamp_ms=4 * DAY_MS)
    for _ in range(2):
        with pytest.raises(PoisonError, match="what came of"):
            rehearsal.run_until_caught_up()
        rehearsal.service = None
    rehearsal.flow = declared(lambda fact: {**fact, "share": 100 / fact["n"] if fact["n"] else None})
    rehearsal.run_until_caught_up()
    values = [envelope.payload_as(dict) for envelope in rehearsal.published("out")]
    totals = {
        key: sum(value["n"] for value in values if value["key"] == key) for key in ("bad", "fine", "good")
    }
    assert totals == {"bad": 0, "fine": 5, "good": 29}
    assert rehearsal.events("committed")[-1]["excluded"] in (0, [])


def emit_and_remind(state: Fact, fact: Fact, context: Context) -> list[Fact]:
    remind(state, fact, context)
    return [{**fact, "n": -fact["n"]}]


def parsed(payload: bytes | None) -> Fact:
    fact: Fact = json.loads(payload or b"")
    return fact


def fold_naively(facts: list[tuple[int, Fact]]) -> list[tuple[str, int]]:
    """The outputs of inputs in order: those that fail are skipped, and a timer emits the sum of a silent key."""
    sums: dict[str, int] = {}
    due: dict[str, int] = {}
    published: list[tuple[str, int]] = []
    for at_ms, fact in facts:
        if fact["fails"]:
            continue
        for key in sorted((key for key in due if due[key] <= at_ms), key=lambda key: (due[key], key)):
            published.append((key, sums.pop(key)))
            del due[key]
        sums[fact["key"]] = sums.get(fact["key"], 0) + fact["n"]
        due[fact["key"]] = at_ms + 5
        published.append((fact["key"], -fact["n"]))
    return published


def fail_alone(fact: Fact) -> Fact:
    return {**fact, "x": 1 / (not fact.get("fails"))}


def grow_alone(fact: Fact) -> Fact:
    return {**fact, "text": "x" * 5_000 if fact.get("fails") else ""}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("place", ["map", "size", "next stage"])
def test_what_an_input_gives_itself_is_charged_to_it_though_a_timer_gives_more_under_it(
    place: str, seed: int
) -> None:
    rng = random.Random(seed)
    times = sorted(rng.choices(range(200), k=60))
    facts = [
        (at_ms, {"key": rng.choice("abc"), "n": number, "fails": rng.random() < 0.2})
        for number, at_ms in enumerate(times)
    ]
    flow = Flow("due", poison="skip", state_partitions=1)
    both = flow.source("in", dict, raw=True).aggregate(
        "stage", key=key_of, state=dict, fold=emit_and_remind, on_timer=emit_sum
    )
    out: Stream[Any]
    if place == "next stage":
        out = both.key_by(lambda fact: "all").aggregate(
            "next", state=dict, fold=lambda state, fact: [fail_alone(fact)]
        )
    else:
        out = both.map(fail_alone if place == "map" else grow_alone)
    out.to("out", key=lambda fact: "all", partitions=1)
    rehearsal = Rehearsal(
        flow, settings=settings_of(max_records=rng.choice([3, 7, 100]), max_excluded_share=1.0)
    )
    for at_ms, fact in facts:
        rehearsal.feed("in", fact, timestamp_ms=at_ms)
    rehearsal.log.configure("out", max_message_bytes=3_000)
    rehearsal.run_until_caught_up()
    published = [
        (value["key"], value["n"])
        for envelope in rehearsal.published("out")
        for value in (parsed(payload) for payload in envelope.payloads)
    ]
    assert published == fold_naively(facts)
