"""Goal: a store that does not answer, a newer run, too many lanes are no poison: no record is skipped for them.

The store fails at one read after the other, wherever a flow with filters and windows reads. The same run waits
and goes on, and its outputs are those of an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import (
    ConfigurationError,
    ServiceStopped,
    StoreEmpty,
    Superseded,
    TooManyLanes,
    Unavailable,
)
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.stages import SqeKey, Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.number_flows import count
from tests.support.word_flows import word

POLICIES: list[PoisonPolicy] = ["stop", "skip", "dead_letter"]
MINUTE_MS = 60_000


FILTERS: dict[str, Callable[[Any], Any]] = {
    "windows": lambda stream: stream.windowed(
        "f", Tumbling(MINUTE_MS), key=lambda _: "k", state=Int64Value, fold=count
    ),
    "deduplicate": lambda stream: stream.deduplicate("f", lambda value: value.value, MINUTE_MS),
    "distinct": lambda stream: stream.distinct("f", Tumbling(MINUTE_MS)),
    "stale": lambda stream: stream.drop_stale("f", sequence=lambda value: len(value.value)),
    "roots": lambda stream: stream.drop_replays("f", by="key"),
    "replays": lambda stream: stream.drop_replays("f"),
}


def rehearsed(name: str, kind: str, policy: PoisonPolicy) -> Rehearsal:
    flow = Flow(name, state_partitions=1, poison=policy)
    FILTERS[kind](flow.source("words", _type(kind))).to("out", partitions=1)
    return Rehearsal(flow, store=MemoryStore(name))


def _type(_: str) -> Any:
    return type(word(""))


def feed(rehearsal: Rehearsal, begin: int) -> None:
    for number in range(begin, begin + 3):
        key = SqeKey(1, 0, number).to_bytes()
        rehearsal.feed("words", word("x" * (number + 1)), key=key, partition=0, timestamp_ms=number * 61_000)


def outcome(rehearsal: Rehearsal) -> Any:
    out = [(envelope.key, envelope.payloads) for envelope in rehearsal.published("out")]
    committed = rehearsal.events("committed")
    return out, sum(int(str(event["excluded"])) for event in committed)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", FILTERS)
def test_a_store_that_does_not_answer_is_waited_for_at_every_read(kind: str, policy: PoisonPolicy) -> None:
    expected: Any = None
    reads = 1
    for at in range(-1, 100):
        if at >= reads:
            break
        rehearsal = rehearsed(f"o-{kind}-{policy}-{at}", kind, policy)
        feed(rehearsal, 0)
        rehearsal.run_until_caught_up()
        feed(rehearsal, 3)
        before = rehearsal.script.made["store", "read"]
        if at >= 0:
            rehearsal.outage("store", method="read", at=at)
        rehearsal.run_until_caught_up()
        if at < 0:
            expected, reads = outcome(rehearsal), rehearsal.script.made["store", "read"] - before
            assert expected[1] == 0
            assert expected[0]
        else:
            assert outcome(rehearsal) == expected, f"read {at}"
            assert len(rehearsal.events("waiting")) == 1, f"read {at}"
    assert reads > 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", FILTERS)
def test_a_run_that_is_superseded_while_it_reads_raises_superseded(kind: str, policy: PoisonPolicy) -> None:
    rehearsal = rehearsed(f"z-{kind}-{policy}", kind, policy)
    feed(rehearsal, 0)
    rehearsal.run_until_caught_up()
    zombie = rehearsal.service
    assert zombie is not None
    feed(rehearsal, 3)

    def take_over() -> None:
        rehearsal.start()
        rehearsal.run_until_caught_up()

    rehearsal.meanwhile(take_over, of="store", method="read", at=1)
    with pytest.raises(Superseded):
        zombie.batch()
    undisturbed = rehearsed(f"y-{kind}-{policy}", kind, policy)
    feed(undisturbed, 0)
    undisturbed.run_until_caught_up()
    feed(undisturbed, 3)
    undisturbed.run_until_caught_up()
    assert outcome(rehearsal) == outcome(undisturbed)


@pytest.mark.parametrize("policy", POLICIES)
def test_too_many_lanes_in_a_filter_stop_under_every_policy(policy: PoisonPolicy) -> None:
    flow = Flow(f"lanes-{policy}", state_partitions=1, poison=policy)
    words = flow.source("words", _type(""))
    words.drop_replays("f", by="key").aggregate("n", key=lambda _: "all", state=Int64Value, fold=count)
    rehearsal = Rehearsal(flow, partitions={"words": 70})
    for partition in range(70):
        rehearsal.feed("words", word("x"), key="k", partition=partition)
    with pytest.raises(TooManyLanes) as raised:
        rehearsal.run_until_caught_up()
    assert isinstance(raised.value, ServiceStopped)
    assert [event["plan"] for event in rehearsal.events("sealed")] == [1], (
        "by which they wait; none that takes them"
    )


@pytest.mark.parametrize("kind", ["deduplicate", "stale", "windows"])
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_what_the_user_s_own_function_raises_is_poison_even_if_it_is_an_error_of_ours(
    kind: str, policy: PoisonPolicy
) -> None:
    """It was raised where the user's code runs: that decides, not its class, unless it is an outage."""

    def refuse(*arguments: Any) -> Any:
        if arguments[-1].value == "bad":
            raise StoreEmpty("the user's own store is empty")
        return None if kind == "windows" else 1 if kind == "stale" else arguments[-1].value

    flow = Flow(f"u-{kind}-{policy}", state_partitions=1, poison=policy)
    words = flow.source("words", _type(kind))
    declared: dict[str, Callable[[], Any]] = {
        "deduplicate": lambda: words.deduplicate("f", refuse, MINUTE_MS),
        "stale": lambda: words.drop_stale("f", sequence=refuse, window=9),
        "windows": lambda: words.windowed(
            "f", Tumbling(MINUTE_MS), key=lambda _: "k", state=Int64Value, fold=refuse
        ),
    }
    declared[kind]().to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    for number, text in enumerate(("good", "bad", "fine")):
        rehearsal.feed("words", word(text), key="k", timestamp_ms=number * 61_000)
    rehearsal.run_until_caught_up()
    assert [event["excluded"] for event in rehearsal.events("committed")] == [1]
    assert rehearsal.events("waiting") == []


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_a_bug_in_a_stage_is_no_poison_either(policy: PoisonPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is not the input's own fault may leave it out."""
    rehearsal = rehearsed(f"bug-{policy}", "deduplicate", policy)
    feed(rehearsal, 0)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("sqe_chain.stages.deduplicate.Deduplicate.accept", broken)
    with pytest.raises(ZeroDivisionError):
        rehearsal.run_until_caught_up()
    assert rehearsal.events("sealed") == []


@pytest.mark.parametrize("gone", ["in", "out"])
@pytest.mark.parametrize("stages", [False, True])
def test_a_topic_that_is_deleted_while_the_service_runs_is_waited_for(gone: str, *, stages: bool) -> None:
    """It may be about to be created again, and a moment later nothing would have been amiss."""
    flow = Flow("waiting", state_partitions=1)
    source = flow.source("in", bytes, raw=True)
    if stages:
        summed = source.aggregate("sum", key=lambda _: "all", state=dict, fold=tally)
        summed.changes().to("out", partitions=1)
    else:
        source.to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("in", b"1")
    rehearsal.run_until_caught_up()
    service = rehearsal.start()
    rehearsal.log.delete(gone)
    if gone == "out":
        rehearsal.feed("in", b"2")

    def create() -> None:
        if rehearsal.clock.waits == 3:
            rehearsal.log.create_topic(gone, 1)
            if gone == "in":
                rehearsal.feed("in", b"2")

    rehearsal.clock.while_waiting = create
    assert service.batch().worked
    assert f"topic {gone!r}" in str(rehearsal.events("waiting")[0])
    assert len(rehearsal.log.records("out")) == (1 if gone == "out" else 2)


@pytest.mark.parametrize("stages", [False, True])
def test_a_topic_that_stays_away_ends_a_service_as_an_outage_does(*, stages: bool) -> None:
    flow = Flow("waiting", state_partitions=1)
    source = flow.source("in", bytes, raw=True)
    source.to("out", partitions=1)
    if stages:
        source.aggregate("sum", key=lambda _: "all", state=dict, fold=tally)
    rehearsal = Rehearsal(flow)
    service = rehearsal.start()
    rehearsal.log.delete("in")
    with pytest.raises(Unavailable, match="input topic 'in' was deleted"):
        service.batch()
    with pytest.raises(ConfigurationError, match="create them"):
        rehearsal.start()


def tally(state: dict[str, int], value: bytes) -> None:
    state["n"] = state.get("n", 0) + 1
