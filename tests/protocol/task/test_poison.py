"""Goal: an input that cannot be processed is skipped everywhere, once, by the policy; nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import settings_of
from sqe_chain.chain import Coordinates
from sqe_chain.envelope.message import parse_head, republish, wrap
from sqe_chain.envelope.wire import sealed
from sqe_chain.errors import OutputTooLarge, PlanMismatch, PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, first_letter, same_key, stored_words, word, words_in

POLICIES: list[PoisonPolicy] = ["dead_letter", "skip"]
LARGE = "large" + "!" * 3_000


class Refused(Exception):
    """What a user's function raises."""


def refuse(where: str) -> Callable[[StringValue], StringValue]:
    def check(value: StringValue) -> StringValue:
        if f"fails-{where}" in value.value:
            raise Refused(where)
        return value

    return check


def folding(where: str) -> Callable[[StringValue, StringValue], list[StringValue]]:
    """Fails after it has changed the state and emitted."""

    def fold(ledger: StringValue, value: StringValue) -> Any:
        ledger.value += f"{value.value} "
        yield value
        refuse(where)(value)

    return fold


def words(value: StringValue) -> list[StringValue]:
    return [word(text) for text in value.value.split()]


def poisoned(policy: PoisonPolicy = "stop", **options: object) -> Flow:
    """Two stages, with a step before, between and behind them."""
    flow = Flow("poisoned", poison=policy, state_partitions=2, **options)  # type: ignore[arg-type]
    source = flow.source("words", StringValue).flat_map(words).map(refuse("before"))
    source.to("copied", key=first_letter, partitions=1)
    first = source.aggregate("letters", key=first_letter, state=StringValue, fold=folding("in-first"))
    between = first.map(refuse("between"))
    second = between.aggregate("all", key=same_key, state=StringValue, fold=folding("in-second"))
    second.map(refuse("behind")).to("noted", key=first_letter, partitions=1)
    return flow


PLACES = ["before", "in-first", "between", "in-second", "behind"]
UNDECODABLE = {
    "undecodable": b"rubbish",
    "null": None,
    "wrong type": wrap(Int64Value(value=1), key=None, timestamp_ms=0),
    "broken payload": wrap(word("\x00" * 20), key=None, timestamp_ms=0).replace(b"\x00" * 20, b"\xff" * 20),
}


def plans(rehearsal: Rehearsal) -> list[Plan]:
    name = rehearsal.flow.name
    home, _ = rehearsal.stores[""].home(name)
    assert home is not None
    stored = [rehearsal.stores[""].plan(name, number) for number in range(home.number + 1)]
    return [Plan.from_bytes(data) for data in stored if data is not None]


def skipped_inputs(rehearsal: Rehearsal) -> list[tuple[int, str, str]]:
    return [
        (exclusion.offset, exclusion.policy, exclusion.error)
        for plan in plans(rehearsal)
        for exclusion in plan.exclusions
    ]


def values_sent_away(rehearsal: Rehearsal) -> list[bytes | None]:
    return [message.value() for message in rehearsal.log.records("poisoned.dead-letters")]


@pytest.mark.parametrize("where", [*PLACES, *UNDECODABLE])
def test_stop_names_the_input_and_nothing_has_happened(where: str) -> None:
    rehearsal = Rehearsal(poisoned())
    rehearsal.feed("words", word("ant bee"))
    if where in UNDECODABLE:
        rehearsal.log.append("words", 0, UNDECODABLE[where])
    else:
        rehearsal.feed("words", word(f"asp boa-fails-{where}"))
    with pytest.raises(PoisonError, match=r"words\[0\]@1"):
        rehearsal.batch()
    assert stored_words(rehearsal) == {}
    assert len(plans(rehearsal)) == 1
    assert not rehearsal.log.records("noted")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("where", PLACES)
def test_an_input_that_fails_anywhere_is_skipped_everywhere(where: str, policy: PoisonPolicy) -> None:
    """Also what it gave to other keys, stages and outputs."""
    rehearsal = Rehearsal(poisoned(policy))
    rehearsal.feed("words", word("ant bee"))
    bad = rehearsal.feed("words", word(f"asp cat-fails-{where} boa axe"), key="k")
    rehearsal.feed("words", word("ape"))
    rehearsal.run_until_caught_up()
    assert stored_words(rehearsal) == {"a": "ant ape", "b": "bee"}
    assert stored_words(rehearsal, "all") == {"all": "ant bee ape"}
    for topic in ("noted", "copied"):
        assert [text for message in rehearsal.log.records(topic) for text in words_in(message)] == [
            "ant",
            "bee",
            "ape",
        ]
    assert skipped_inputs(rehearsal) == [(bad, policy, "Refused")]
    if policy == "dead_letter":
        (letter,) = rehearsal.log.records("poisoned.dead-letters")
        (original,) = [m for m in rehearsal.log.records("words") if m.offset() == bad]
        assert (letter.value(), letter.key()) == (original.value(), original.key())


@pytest.mark.parametrize("kind", UNDECODABLE)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_record_that_cannot_be_decoded_is_skipped(kind: str, policy: PoisonPolicy) -> None:
    rehearsal = Rehearsal(poisoned(policy))
    rehearsal.feed("words", word("ant"))
    value = UNDECODABLE[kind]
    rehearsal.log.append("words", 0, value, key=b"k", headers=[("own", b"1")])
    rehearsal.feed("words", word("ape"))
    rehearsal.run_until_caught_up()
    assert stored_words(rehearsal) == {"a": "ant ape"}
    assert [(offset, of) for offset, of, _ in skipped_inputs(rehearsal)] == [(1, policy)]
    if policy == "dead_letter":
        (record,) = rehearsal.log.records("poisoned.dead-letters")
        headers = dict(record.headers() or [])
        assert (record.value(), record.key()) == (value, b"k")
        assert headers["own"] == b"1"
        assert (headers["sqe-topic"], headers["sqe-partition"], headers["sqe-offset"]) == (
            b"words",
            b"0",
            b"1",
        )
        assert set(headers) >= {"sqe-error", "sqe-text", "sqe-lane", "sqe-position"}


def test_a_null_key_at_a_stage_is_poison() -> None:
    flow = Flow("poisoned", poison="skip")
    flow.source("words", StringValue).aggregate("letters", state=StringValue, fold=append_word)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("ant"))
    rehearsal.feed("words", word("ape"), key="k")
    rehearsal.run_until_caught_up()
    assert stored_words(rehearsal) == {"k": "ape"}
    assert skipped_inputs(rehearsal) == [(0, "skip", "PoisonError")]


def test_one_input_that_fails_in_two_places_is_listed_once() -> None:
    """In two state partitions, and in two stages."""
    flow = Flow("poisoned", poison="dead_letter", state_partitions=8)
    source = flow.source("words", StringValue).flat_map(words)
    for name in ("one", "two"):
        source.aggregate(name, key=first_letter, state=StringValue, fold=folding("in-first"))
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("a-fails-in-first b-fails-in-first c-fails-in-first d-fails-in-first ok"))
    rehearsal.feed("words", word("fine"))
    rehearsal.run_until_caught_up()
    assert skipped_inputs(rehearsal) == [(0, "dead_letter", "Refused")]
    assert stored_words(rehearsal, "one") == stored_words(rehearsal, "two") == {"f": "fine"}
    assert len(values_sent_away(rehearsal)) == 1


def large_outputs(policy: PoisonPolicy, *, changes: bool = False, stages: bool = True) -> Rehearsal:
    flow = Flow("poisoned", poison=policy)
    stream = flow.source("words", StringValue)
    if stages:
        stage = stream.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
        stream = stage.changes() if changes else stage
    stream.to("noted", key=first_letter, partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.log.configure("noted", max_message_bytes=2_000)
    return rehearsal


@pytest.mark.parametrize("stages", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_output_that_is_too_large_is_poison_of_its_input(policy: PoisonPolicy, stages: bool) -> None:
    rehearsal = large_outputs(policy, stages=stages)
    for text in ("ant", LARGE, "ape"):
        rehearsal.feed("words", word(text))
    rehearsal.run_until_caught_up()
    assert [text for message in rehearsal.log.records("noted") for text in words_in(message)] == [
        "ant",
        "ape",
    ]


@pytest.mark.parametrize("stages", [True, False])
def test_an_output_that_is_too_large_stops_before_anything_has_happened(stages: bool) -> None:
    rehearsal = large_outputs("stop", stages=stages)
    rehearsal.feed("words", word("ant"))
    rehearsal.feed("words", word(LARGE))
    with pytest.raises(PoisonError, match=r"words\[0\]@1.*max.message.bytes"):
        rehearsal.batch()
    assert not rehearsal.log.records("noted")


@pytest.mark.parametrize("policy", ["stop", *POLICIES])
def test_an_output_of_changes_that_is_too_large_stops(policy: PoisonPolicy) -> None:
    """No single input is to blame: none is skipped."""
    rehearsal = large_outputs(policy, changes=True)
    for _ in range(30):
        rehearsal.feed("words", word("a" * 100))
    with pytest.raises(PoisonError, match="changes"):
        rehearsal.batch()
    assert skipped_inputs(rehearsal) == []


@pytest.mark.parametrize("policy", ["stop", *POLICIES])
def test_a_step_behind_changes_that_fails_stops(policy: PoisonPolicy) -> None:
    flow = Flow("poisoned", poison=policy)
    stage = flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word
    )
    stage.changes().map(refuse("here")).to("noted", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("a-fails-here"))
    with pytest.raises(PoisonError, match="after changes"):
        rehearsal.batch()
    assert skipped_inputs(rehearsal) == []


def test_headers_count_when_an_output_is_too_large() -> None:
    """They are passed on, and the broker counts them: found before anything is sealed or sent."""
    rehearsal = large_outputs("skip", stages=False)
    rehearsal.log.append(
        "words", 0, wrap(word("ant"), key=None, timestamp_ms=0), headers=[("h", b"!" * 3_000)]
    )
    rehearsal.feed("words", word("ape"))
    rehearsal.run_until_caught_up()
    assert [text for message in rehearsal.log.records("noted") for text in words_in(message)] == ["ape"]


def test_a_dead_letter_record_that_is_too_large_stops_before_the_seal() -> None:
    rehearsal = Rehearsal(poisoned("dead_letter"))
    rehearsal.log.configure("poisoned.dead-letters", max_message_bytes=2_000)
    rehearsal.feed("words", word("ant"))
    rehearsal.log.append("words", 0, b"rubbish" * 300)
    with pytest.raises(OutputTooLarge, match=r"words\[0\]@1.*poisoned.dead-letters"):
        rehearsal.batch()
    assert len(plans(rehearsal)) == 1


@pytest.mark.parametrize("step", [4, 5, 6, 7])
def test_dead_letter_records_come_once_for_each_input_through_crashes(step: int) -> None:
    """Sent again after a crash between publish and persist, with the same coordinates."""
    rehearsal = Rehearsal(poisoned("dead_letter"))
    rehearsal.feed("words", word("ant bee"))
    rehearsal.log.append("words", 0, b"rubbish")
    rehearsal.feed("words", word("asp-fails-in-second"))
    rehearsal.crash(step=step, when="after")
    rehearsal.run_until_caught_up()
    offsets = [
        dict(message.headers() or [])["sqe-offset"]
        for message in rehearsal.log.records("poisoned.dead-letters")
    ]
    assert set(offsets) == {b"1", b"2"}
    assert len(offsets) == (4 if step == 5 else 2)
    assert sorted(skipped_inputs(rehearsal)) == [
        (1, "dead_letter", "NotAnEnvelope"),
        (2, "dead_letter", "Refused"),
    ]
    assert stored_words(rehearsal, "all") == {"all": "ant bee"}


def test_attempts_come_to_an_end_also_with_code_that_fails_as_it_likes() -> None:
    calls = []

    def fold(ledger: StringValue, value: StringValue) -> None:
        calls.append(value.value)
        if calls.count(value.value) == int(value.value[1]):
            raise Refused("moody")
        ledger.value += value.value

    flow = Flow("poisoned", poison="skip")
    flow.source("words", StringValue).aggregate("letters", key=first_letter, state=StringValue, fold=fold)
    rehearsal = Rehearsal(flow)
    for text in ("a1", "b2", "c3", "d4"):
        rehearsal.feed("words", word(text))
    rehearsal.run_until_caught_up()
    assert skipped_inputs(rehearsal) == [], "each failed once, and not when it was tried alone"
    assert set(stored_words(rehearsal).values()) == {"a1", "b2", "c3", "d4"}


def test_code_that_fails_only_when_a_plan_is_redone_stops() -> None:
    fails: list[bool] = []

    def fold(ledger: StringValue, value: StringValue) -> None:
        if fails:
            raise Refused("now it does")

    flow = Flow("poisoned", poison="skip")
    flow.source("words", StringValue).aggregate("letters", key=first_letter, state=StringValue, fold=fold)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("ant"))
    rehearsal.crash(step=5, when="before")
    rehearsal.run_until_crash()
    fails.append(True)
    with pytest.raises(PlanMismatch, match="did not fail when the plan was sealed"):
        rehearsal.start()


def test_a_skipped_input_moves_its_mark_so_its_replay_is_ignored() -> None:
    """The republisher publishes it again: it is not skipped twice, and there is no second dead-letter record."""
    upstream = Flow("upstream")
    upstream.source("raw", StringValue).to("words", key=first_letter, partitions=1)
    rehearsal = Rehearsal(poisoned("dead_letter"))
    republisher = Rehearsal(upstream, log=rehearsal.log)
    for text in ("ant", "asp-fails-in-first", "ape"):
        republisher.feed("raw", word(text))
    republisher.crash(step=7, when="before")
    republisher.run_until_crash()
    rehearsal.run_until_caught_up()
    republisher.run_until_caught_up()
    rehearsal.run_until_caught_up()
    assert stored_words(rehearsal) == {"a": "ant ape"}
    assert len(skipped_inputs(rehearsal)) == len(values_sent_away(rehearsal)) == 1


def test_a_republisher_skips_at_once() -> None:
    flow = Flow("poisoned", poison="dead_letter")
    flow.source("words", StringValue).map(refuse("here")).to("noted", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("ant"))
    rehearsal.feed("words", word("fails-here"))
    rehearsal.log.append("words", 0, b"rubbish")
    rehearsal.run_until_caught_up()
    assert [text for message in rehearsal.log.records("noted") for text in words_in(message)] == ["ant"]
    assert len(values_sent_away(rehearsal)) == 2


@pytest.mark.parametrize("parts", [1, 3])
def test_an_input_that_fails_after_it_has_entered_a_stage_counts_nowhere(parts: int) -> None:
    """Without a shuffle and behind one: the stage is fed before the other branch fails."""

    def refuse(value: StringValue) -> StringValue:
        if value.value == "bad":
            raise ValueError("too bad")
        return value

    flow = Flow("branches", poison="skip", state_partitions=parts)
    words = flow.source("words", StringValue)
    words.aggregate("all", key=lambda _: "all", state=StringValue, fold=append_word)
    words.map(refuse).to("copied", partitions=1)
    rehearsal = Rehearsal(flow, partitions={"words": 1}, settings=Settings(max_excluded_share=1.0))
    for text in ("ant", "bee", "bad", "cat", "bad", "dog"):
        rehearsal.feed("words", StringValue(value=text), key="k")
    rehearsal.run_until_caught_up()
    (state,) = rehearsal.states("all").values()
    assert state.value.split() == ["ant", "bee", "cat", "dog"]
    assert [envelope.payload_as(StringValue).value for envelope in rehearsal.published("copied")] == [
        "ant",
        "bee",
        "cat",
        "dog",
    ]


@pytest.mark.parametrize("at", [0, 1, 29])
def test_an_envelope_on_a_lane_that_is_not_its_own_takes_none_with_it_that_came_before(at: int) -> None:
    """It looks like all others until it is the first of its lane, in the middle of a block."""
    flow = Flow("poisoned", poison="skip", state_partitions=1)
    flow.source("words", StringValue).aggregate("all", key=same_key, state=StringValue, fold=append_word)
    source = Coordinates(topic="copies", topic_id=bytes(16), partition=0, offset=7, leader_epoch=1)
    head = parse_head(republish(None, source, word("astray"), output="up/words", key="k", timestamp_ms=5))
    head.lane ^= 1
    head.ClearField("crc32")
    rehearsal = Rehearsal(flow)
    texts = [f"w{number}" for number in range(30)]
    for number, text in enumerate(texts):
        rehearsal.feed(
            "words",
            sealed(head.SerializeToString(deterministic=True)) if number == at else word(text),
            key="k",
        )
    rehearsal.run_until_caught_up()
    assert stored_words(rehearsal, "all") == {"all": " ".join([*texts[:at], *texts[at + 1 :]])}


@pytest.mark.parametrize("block", [1, 1_000])
def test_an_empty_key_in_an_envelope_is_the_key(block: int) -> None:
    """The record may have another one, which counts only where the envelope has none."""
    flow = Flow("keys", state_partitions=1)
    flow.source("words", StringValue).aggregate("all", state=StringValue, fold=append_word)
    rehearsal = Rehearsal(flow)
    rehearsal.log.set_block(block)
    for key in [b"", None] * 3:
        rehearsal.feed("words", wrap(word("a"), key=key, timestamp_ms=5), key="other", partition=0)
    rehearsal.run_until_caught_up()
    counts = {key: len(text.split()) for key, text in stored_words(rehearsal, "all").items()}
    assert counts == {"": 3, "other": 3}


def with_time(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "at": object() if event["n"] % 3 == 0 else None}


def with_ratio(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "ratio": float("nan") if event["n"] % 3 == 0 else 0.5}  # JSON has no NaN


def remember(state: dict[str, Any], event: dict[str, Any]) -> None:
    state.setdefault("seen", []).append(event["n"])


@pytest.mark.parametrize("policy", ["dead_letter", "skip", "park"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_value_that_its_codec_refuses_leaves_the_others_with_their_own_keys(
    policy: PoisonPolicy, in_place: bool
) -> None:
    flow = Flow("ratios", poison=policy, state_partitions=1)
    events = flow.source("events", dict, raw=True).map(with_ratio)
    events.aggregate("by-name", key=lambda event: event["name"], state=dict, fold=remember)
    rehearsal = Rehearsal(flow, settings=settings_of(in_place=in_place, max_excluded_share=1))
    for n in range(12):
        rehearsal.feed("events", {"name": f"R{n}", "n": n}, key=f"R{n}")
    rehearsal.run_until_caught_up()
    assert rehearsal.states("by-name") == {f"R{n}".encode(): {"seen": [n]} for n in range(12) if n % 3}
    if policy == "dead_letter":
        texts = [
            str(dict(letter.headers() or [])["sqe-text"])
            for letter in rehearsal.log.records("ratios.dead-letters")
        ]
        assert [f"R{n}" in text for n, text in zip((0, 3, 6, 9), texts, strict=True)] == [True] * 4


def test_a_value_that_map_batches_cannot_get_leaves_the_others_with_their_own_keys() -> None:
    flow = Flow("ratios", poison="skip")
    schema = pa.schema([("name", pa.string()), ("n", pa.int64())])
    rows = flow.source("events", dict, raw=True).map(with_time)
    rows.map_batches(lambda batch: batch, schema, columns=schema).to("out", partitions=1)
    rehearsal = Rehearsal(flow, settings=settings_of(max_excluded_share=1))
    for n in range(12):
        rehearsal.feed("events", {"name": f"R{n}", "n": n}, key=f"R{n}")
    rehearsal.run_until_caught_up()
    published = [(out.key, out.payload_as(dict)["n"]) for out in rehearsal.published("out")]
    assert published == [(f"R{n}".encode(), n) for n in range(12) if n % 3]
