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
from sqe_chain.errors import ConfigurationError, ServiceStopped, Superseded, TooManyLanes, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.stages import SqeKey, Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import word

POLICIES: list[PoisonPolicy] = ["stop", "skip", "dead_letter"]
MINUTE_MS = 60_000


def count(state: Int64Value, _: object) -> None:
    state.value += 1


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


def feed(found: Rehearsal, begin: int) -> None:
    for number in range(begin, begin + 3):
        key = SqeKey(1, 0, number).to_bytes()
        found.feed("words", word("x" * (number + 1)), key=key, partition=0, timestamp_ms=number * 61_000)


def outcome(found: Rehearsal) -> Any:
    out = [(one.key, one.payloads) for one in found.published("out")]
    committed = found.events("committed")
    return out, sum(int(str(event["excluded"])) for event in committed)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", FILTERS)
def test_a_store_that_does_not_answer_is_waited_for_at_every_read(kind: str, policy: PoisonPolicy) -> None:
    expected: Any = None
    reads = 1
    for at in range(-1, 100):
        if at >= reads:
            break
        found = rehearsed(f"o-{kind}-{policy}-{at}", kind, policy)
        feed(found, 0)
        found.run_until_caught_up()
        feed(found, 3)
        before = found.script.made["store", "read"]
        if at >= 0:
            found.outage("store", method="read", at=at)
        found.run_until_caught_up()
        if at < 0:
            expected, reads = outcome(found), found.script.made["store", "read"] - before
            assert expected[1] == 0
            assert expected[0]
        else:
            assert outcome(found) == expected, f"read {at}"
            assert len(found.events("waiting")) == 1, f"read {at}"
    assert reads > 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", FILTERS)
def test_a_run_that_is_superseded_while_it_reads_raises_superseded(kind: str, policy: PoisonPolicy) -> None:
    found = rehearsed(f"z-{kind}-{policy}", kind, policy)
    feed(found, 0)
    found.run_until_caught_up()
    zombie = found.service
    assert zombie is not None
    feed(found, 3)

    def take_over() -> None:
        found.start()
        found.run_until_caught_up()

    found.meanwhile(take_over, of="store", method="read", at=1)
    with pytest.raises(Superseded):
        zombie.batch()
    undisturbed = rehearsed(f"y-{kind}-{policy}", kind, policy)
    feed(undisturbed, 0)
    undisturbed.run_until_caught_up()
    feed(undisturbed, 3)
    undisturbed.run_until_caught_up()
    assert outcome(found) == outcome(undisturbed)


@pytest.mark.parametrize("policy", POLICIES)
def test_too_many_lanes_in_a_filter_stop_under_every_policy(policy: PoisonPolicy) -> None:
    flow = Flow(f"lanes-{policy}", state_partitions=1, poison=policy)
    words = flow.source("words", _type(""))
    words.drop_replays("f", by="key").aggregate("n", key=lambda _: "all", state=Int64Value, fold=count)
    found = Rehearsal(flow, partitions={"words": 70})
    for partition in range(70):
        found.feed("words", word("x"), key="k", partition=partition)
    with pytest.raises(TooManyLanes) as raised:
        found.run_until_caught_up()
    assert isinstance(raised.value, ServiceStopped)
    assert [event["plan"] for event in found.events("sealed")] == [1], (
        "by which they wait; none that takes them"
    )


@pytest.mark.parametrize("kind", ["deduplicate", "stale", "windows"])
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_what_the_user_s_own_function_raises_is_poison_even_if_it_is_an_error_of_ours(
    kind: str, policy: PoisonPolicy
) -> None:
    """It was raised where the user's code runs: that decides, not its class."""

    def refuse(*arguments: Any) -> Any:
        if arguments[-1].value == "bad":
            raise Unavailable("the user's own service does not answer")
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
    found = Rehearsal(flow)
    for number, text in enumerate(("good", "bad", "fine")):
        found.feed("words", word(text), key="k", timestamp_ms=number * 61_000)
    found.run_until_caught_up()
    assert [event["excluded"] for event in found.events("committed")] == [1]
    assert found.events("waiting") == []


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_a_bug_in_a_stage_is_no_poison_either(policy: PoisonPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is not the input's own fault may leave it out."""
    found = rehearsed(f"bug-{policy}", "deduplicate", policy)
    feed(found, 0)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("sqe_chain.stages.deduplicate.Deduplicate.accept", broken)
    with pytest.raises(ZeroDivisionError):
        found.run_until_caught_up()
    assert found.events("sealed") == []


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
    found = Rehearsal(flow)
    found.feed("in", b"1")
    found.run_until_caught_up()
    service = found.start()
    found.log.delete(gone)
    if gone == "out":
        found.feed("in", b"2")

    def create() -> None:
        if found.clock.waits == 3:
            found.log.create_topic(gone, 1)
            if gone == "in":
                found.feed("in", b"2")

    found.clock.while_waiting = create
    assert service.batch().worked
    assert f"topic {gone!r}" in str(found.events("waiting")[0])
    assert len(found.log.records("out")) == (1 if gone == "out" else 2)


@pytest.mark.parametrize("stages", [False, True])
def test_a_topic_that_stays_away_ends_a_service_as_an_outage_does(*, stages: bool) -> None:
    flow = Flow("waiting", state_partitions=1)
    source = flow.source("in", bytes, raw=True)
    source.to("out", partitions=1)
    if stages:
        source.aggregate("sum", key=lambda _: "all", state=dict, fold=tally)
    found = Rehearsal(flow)
    service = found.start()
    found.log.delete("in")
    with pytest.raises(Unavailable, match="input topic 'in' was deleted"):
        service.batch()
    with pytest.raises(ConfigurationError, match="create them"):
        found.start()


def tally(state: dict[str, int], value: bytes) -> None:
    state["n"] = state.get("n", 0) + 1
