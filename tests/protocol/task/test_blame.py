"""Goal: an input is skipped when it fails by itself, never because of another one, of a mis-partitioned key, or of a repetition."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol import processing
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import word

HOME = {part: next(key for key in "abcdefgh" if partition_of(key.encode(), 2) == part) for part in (0, 1)}


def parts(value: StringValue) -> list[StringValue]:
    return [word(text) for text in value.value.split()]


def first_letter(value: StringValue) -> str:
    return value.value[0]


def stock(state: Int64Value, value: StringValue) -> None:
    """`a+3`: three come; `a-3`: three go, if there are enough; `a!`: fails."""
    number = value.value[1:]
    if number == "!":
        raise ValueError("broken")
    if state.value + int(number) < 0:
        raise ValueError("less than none")
    state.value += int(number)


def strictly_passing(state: Int64Value, value: StringValue) -> list[StringValue]:
    if value.value == "x!":
        raise ValueError("broken")
    state.value += 1
    return [value]


def shop(kind: str, policy: PoisonPolicy = "skip") -> Flow:
    flow = Flow("shop", state_partitions=2, poison=policy)
    stream: Any = flow.source("orders", StringValue).flat_map(parts)
    if kind == "two stages":
        stream = stream.aggregate("seen", key=first_letter, state=Int64Value, fold=strictly_passing)
    if kind == "two branches":
        stream.aggregate("also", key=first_letter, state=Int64Value, fold=stock)
    stage = stream.aggregate("stock", key=first_letter, state=Int64Value, fold=stock)
    if kind == "changes":
        stage.changes().map(lambda left: Int64Value(value=100 // (left.value - 1))).to("out", partitions=1)
    if kind == "outputs":
        stream.to("copies", key=first_letter, partitions=1)
        stage.changes().to("out", partitions=1)
    return flow


def sequentially(orders: list[str]) -> tuple[dict[str, int], list[int]]:
    """What is left, and which orders fail, when each is taken as a whole or not at all."""
    left: dict[str, int] = {}
    failed = []
    for offset, order in enumerate(orders):
        after = applied(left, order)
        if after is None:
            failed.append(offset)
        else:
            left = after
    return left, failed


def applied(left: dict[str, int], order: str) -> dict[str, int] | None:
    """What is left after an order; None if any part of it cannot be done."""
    after = dict(left)
    for text in order.split():
        if text[1:] == "!":
            return None
        after[text[0]] = after.get(text[0], 0) + int(text[1:])
        if after[text[0]] < 0:
            return None
    return after


def offsets_skipped(rehearsal: Rehearsal) -> list[int]:
    return [
        int(dict(record.headers() or [])["sqe-offset"] or b"")
        for record in rehearsal.log.records("shop.dead-letters")
    ]


def stock_of(rehearsal: Rehearsal) -> dict[str, int]:
    states: Any = rehearsal.states("stock")
    return {key.decode(): state.value for key, state in states.items()}


KINDS = ["one stage", "two stages", "two branches", "outputs"]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, "changes"])
def test_a_bad_input_takes_no_good_one_with_it(kind: str, in_place: bool) -> None:
    """What the bad one did to another key, before it failed, is taken back."""
    rehearsal = Rehearsal(
        shop(kind, "dead_letter"), partitions={"orders": 2}, settings=Settings(in_place=in_place)
    )
    orders = ["a+3", "a-2 x!", "a-2 y+4"] if kind != "changes" else ["a+3", "a-2 x!"]
    for order in orders:
        rehearsal.feed("orders", word(order), partition=0)
    rehearsal.run_until_caught_up()
    assert stock_of(rehearsal) == sequentially(orders)[0]
    assert offsets_skipped(rehearsal) == [1]


orders_of = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abx"), st.sampled_from(["+1", "+2", "-1", "-2", "!"])).map("".join),
        min_size=1,
        max_size=3,
    ).map(" ".join),
    max_size=8,
)


@settings(deadline=None)
@given(orders_of, st.sampled_from(KINDS), st.booleans(), st.sampled_from([None, 4, 5, 6]))
def test_the_skipped_inputs_are_those_that_fail_one_after_the_other(
    orders: list[str], kind: str, in_place: bool, crash: int | None
) -> None:
    """The definition: each input is applied as a whole, or is not there; through a crash, too."""
    rehearsal = Rehearsal(
        shop(kind, "dead_letter"), settings=Settings(in_place=in_place, max_excluded_share=1.0)
    )
    for order in orders:
        rehearsal.feed("orders", word(order))
    if crash is not None:
        rehearsal.crash(step=crash, when="after")
    rehearsal.run_until_caught_up()
    left, failed = sequentially(orders)
    assert stock_of(rehearsal) == left
    assert sorted(set(offsets_skipped(rehearsal))) == failed
    if kind == "outputs":
        copies = {link.offset for chain in rehearsal.chains("copies") for link in chain.links}
        assert copies == set(range(len(orders))) - set(failed)


@pytest.mark.parametrize("policy", ["dead_letter", "skip"])
@pytest.mark.parametrize("kind", ["deduplicate", "distinct"])
@pytest.mark.parametrize("copies", [1, 3, 9])
def test_a_poison_message_may_be_repeated_as_often_as_it_likes(
    policy: PoisonPolicy, kind: str, copies: int
) -> None:
    """A filter lets the next copy through once the one before is skipped."""

    def count(state: Int64Value, value: StringValue) -> None:
        if value.value == "bad":
            raise ValueError("cannot be counted")
        state.value += 1

    flow = Flow("repeated", poison=policy, state_partitions=2)
    words = flow.source("words", StringValue)
    once: Any = (
        words.deduplicate("once", lambda value: value.value, 60_000)
        if kind == "deduplicate"
        else words.distinct("once", Tumbling(60_000))
    )
    once.aggregate("per-word", key=lambda value: value.value, state=Int64Value, fold=count)
    rehearsal = Rehearsal(flow)
    for text in ("good", *["bad"] * copies, "fine"):
        rehearsal.feed("words", word(text), key=text, timestamp_ms=1_000)
    rehearsal.run_until_caught_up()
    assert sorted(rehearsal.states("per-word")) == [b"fine", b"good"]
    assert [event["excluded"] for event in rehearsal.events("committed")] == [copies]


# --- keys that lie elsewhere ---------------------------------------------------------------------


def doors(policy: PoisonPolicy = "stop") -> Flow:
    def fold(state: Int64Value, value: StringValue) -> None:
        if value.value.startswith("close") and not state.value:
            raise ValueError("closed before it was opened")
        state.value = int(value.value.startswith("open"))

    flow = Flow("doors", state_partitions=2, poison=policy)
    flow.source("words", StringValue).aggregate(
        "doors", key=lambda value: value.value.split()[1], state=Int64Value, fold=fold
    )
    return flow


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_fold_that_fails_only_because_a_key_lies_elsewhere_does_not_count(policy: PoisonPolicy) -> None:
    """Without a shuffle "open" is not folded where "close" is; the batch is processed again shuffled."""
    rehearsal = Rehearsal(doors(policy), partitions={"words": 2})
    rehearsal.feed("words", word(f"open {HOME[1]}"), partition=0)
    rehearsal.feed("words", word(f"close {HOME[1]}"), partition=1)
    rehearsal.run_until_caught_up()
    assert [event["excluded"] for event in rehearsal.events("committed")] == [0]
    assert {key.decode(): state for key, state in rehearsal.states("doors").items()} == {
        HOME[1]: Int64Value()
    }


@pytest.mark.parametrize("step", [4, 5, 6])
def test_nor_does_it_in_a_redo(step: int) -> None:
    rehearsal = Rehearsal(doors(), partitions={"words": 2})
    for _ in range(2):
        rehearsal.feed("words", word(f"open {HOME[1]}"), partition=0)
        rehearsal.feed("words", word(f"close {HOME[1]}"), partition=1)
        rehearsal.crash(step=step, when="after")
        rehearsal.run_until_caught_up()
    assert rehearsal.crashes == 2
    assert {key.decode(): state for key, state in rehearsal.states("doors").items()} == {
        HOME[1]: Int64Value()
    }


def test_a_fold_that_fails_wherever_it_runs_stops_the_service() -> None:
    rehearsal = Rehearsal(doors(), partitions={"words": 2})
    rehearsal.feed("words", word(f"close {HOME[0]}"), partition=0)
    with pytest.raises(PoisonError, match="closed before"):
        rehearsal.run_until_caught_up()
    assert rehearsal.events("sealed") == []


@pytest.mark.parametrize("many", [3, 1_000])
def test_a_redo_without_a_shuffle_sees_mis_partitioned_keys_where_its_own_are_written(many: int) -> None:
    """Partition 0 is done, and holds units of partition 1, which is not, after its first block of records."""

    def count(state: Int64Value, _: StringValue) -> None:
        state.value += 1

    def fed() -> Rehearsal:
        flow = Flow("words", state_partitions=2)
        flow.source("words", StringValue).aggregate(
            "per-word", key=lambda value: value.value, state=Int64Value, fold=count
        )
        found = Rehearsal(flow, partitions={"words": 2})
        for text, partition, times in ((HOME[0], 0, many), (HOME[1], 0, 7), (HOME[1], 1, 5)):
            for _ in range(times):
                found.feed("words", word(text), partition=partition)
        return found

    expected = {HOME[0]: many, HOME[1]: 12}
    probe = fed()
    probe.run_until_caught_up()
    begin = next(number for number, text in enumerate(probe.script.written) if "plan 1" in text)
    for number in range(len(probe.script.written) - begin):
        rehearsal = fed()
        rehearsal.start()
        rehearsal.crash_at_write(number, "after")
        rehearsal.run_until_caught_up()
        states: Any = rehearsal.states("per-word")
        assert {key.decode(): state.value for key, state in states.items()} == expected, number
        assert rehearsal.crashes == 1


# --- plans stay small ----------------------------------------------------------------------------


def test_a_batch_that_would_skip_more_than_a_plan_lists_is_made_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processing, "MAX_EXCLUSIONS", 10)
    rehearsal = Rehearsal(shop("one stage", "dead_letter"), settings=Settings(max_excluded_share=1.0))
    orders = ["a!" if number % 2 else "a+1" for number in range(100)]
    for order in orders:
        rehearsal.feed("orders", word(order))
    rehearsal.run_until_caught_up()
    left, failed = sequentially(orders)
    assert stock_of(rehearsal) == left
    assert offsets_skipped(rehearsal) == failed
    assert all(int(str(event["excluded"])) <= 10 for event in rehearsal.events("committed"))


def test_a_batch_that_skips_as_many_as_a_plan_lists_is_not_made_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a batch that cannot be made smaller, as one that was sealed once, would stop at what was sealed."""
    monkeypatch.setattr(processing, "MAX_EXCLUSIONS", 10)
    rehearsal = Rehearsal(shop("one stage", "dead_letter"), settings=Settings(max_excluded_share=1.0))
    for _ in range(10):
        rehearsal.feed("orders", word("a!"))
    rehearsal.run_until_caught_up()
    assert [event["excluded"] for event in rehearsal.events("committed")] == [10]


def test_two_stages_of_one_input_that_ask_for_different_things_of_it() -> None:
    """The first needs nothing of its input, the second what an envelope takes; both get one and the same input."""
    flow = Flow("shop", state_partitions=1, poison="dead_letter")
    stream = flow.source("orders", StringValue).flat_map(parts)
    stream.aggregate("quiet", key=first_letter, state=Int64Value, fold=stock)
    stream.aggregate("stock", key=first_letter, state=Int64Value, fold=stock).changes().to(
        "out", partitions=1
    )
    rehearsal = Rehearsal(flow, settings=Settings(in_place=False))
    rehearsal.feed("orders", word("a+1"))
    rehearsal.run_until_caught_up()
    assert offsets_skipped(rehearsal) == []
    assert len(rehearsal.published("out")) == 1
