"""Goal: what a broker refuses permanently is poison before the seal, or harmless after it; never a stuck flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.message import read
from sqe_chain.errors import ConfigurationError, OutputRefused, OutputTooLarge, PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.flow.nodes import Carrier
from sqe_chain.task.target import RECORD_OVERHEAD, headers_size
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, same_key, word, words_in

HOUR = 3_600_000
POLICIES: list[PoisonPolicy] = ["dead_letter", "skip"]


def republishing(policy: PoisonPolicy) -> Flow:
    flow = Flow("hop", poison=policy)
    flow.source("words", StringValue).to("noted", partitions=1)
    return flow


def aggregating(policy: PoisonPolicy) -> Flow:
    flow = Flow("hop", poison=policy, state_partitions=1)
    stage = flow.source("words", StringValue).aggregate(
        "all", key=same_key, state=StringValue, fold=append_word
    )
    stage.to("noted", key=lambda value: value.value if value.value != "keyless" else None, partitions=1)
    return flow


def sqe(policy: PoisonPolicy) -> Flow:
    flow = Flow("hop", poison=policy)
    flow.source("words", StringValue).to_sqe("noted", partitions=1, process_id=7)
    return flow


def rehearsed(flow: Flow, **limits: int | bool) -> Rehearsal:
    rehearsal = Rehearsal(flow)
    rehearsal.log.set_clock(lambda: rehearsal.clock.now)
    rehearsal.log.configure("noted", **limits)
    return rehearsal


def noted(rehearsal: Rehearsal) -> list[str]:
    return [text for message in rehearsal.log.records("noted") for text in words_in(message)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", [republishing, aggregating])
def test_an_output_without_a_key_for_a_compacted_topic_is_poison(
    make: Callable[[PoisonPolicy], Flow], policy: PoisonPolicy
) -> None:
    rehearsal = rehearsed(make(policy), compacted=True)
    rehearsal.feed("words", word("ant"), key="k")
    rehearsal.feed("words", word("keyless"))
    rehearsal.feed("words", word("ape"), key="k")
    rehearsal.run_until_caught_up()
    assert noted(rehearsal) == ["ant", "ape"]


@pytest.mark.parametrize("make", [republishing, aggregating])
def test_an_output_without_a_key_stops_before_the_seal_and_the_error_names_what_to_do(
    make: Callable[[PoisonPolicy], Flow],
) -> None:
    rehearsal = rehearsed(make("stop"), compacted=True)
    rehearsal.feed("words", word("keyless"))
    with pytest.raises(PoisonError, match=r"words\[0\]@0.*compacted.*give outputs a key"):
        rehearsal.batch()
    assert rehearsal.events("sealed") == []


@pytest.mark.parametrize("make", [republishing, aggregating])
def test_an_event_far_ahead_is_published_with_its_time_and_a_kafka_time_that_is_accepted(
    make: Callable[[PoisonPolicy], Flow],
) -> None:
    """The event's time is in the envelope; Kafka's own is the time of sending."""
    rehearsal = rehearsed(make("stop"), after_max_ms=HOUR)
    ahead = rehearsal.clock.now + 2 * HOUR
    rehearsal.feed("words", word("ant"), key="k", timestamp_ms=ahead)
    rehearsal.feed("words", word("ape"), key="k", timestamp_ms=rehearsal.clock.now)
    rehearsal.run_until_caught_up()
    first, second = rehearsal.log.records("noted")
    assert read(first.value()).timestamp_ms == ahead
    assert abs(first.timestamp()[1] - rehearsal.clock.now) < HOUR
    assert read(second.value()).timestamp_ms == second.timestamp()[1]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("distance", [2 * HOUR, -2 * HOUR])
def test_a_bare_output_whose_time_is_not_accepted_is_poison(distance: int, policy: PoisonPolicy) -> None:
    """It has no other time than Kafka's, and another one would be untrue."""
    rehearsal = rehearsed(sqe(policy), after_max_ms=HOUR, before_max_ms=HOUR)
    rehearsal.feed("words", word("ant"), timestamp_ms=rehearsal.clock.now + distance)
    rehearsal.feed("words", word("ape"), timestamp_ms=rehearsal.clock.now)
    rehearsal.run_until_caught_up()
    assert [message.value() for message in rehearsal.log.records("noted")] == [
        word("ape").SerializeToString()
    ]


def test_what_was_sealed_is_published_however_old_it_has_grown() -> None:
    flow = Flow("hop", state_partitions=1)
    words = flow.source("words", StringValue)
    words.to_sqe("noted", partitions=1, process_id=7)
    words.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    rehearsal = rehearsed(flow, before_max_ms=HOUR, after_max_ms=HOUR)
    rehearsal.feed("words", word("ant"), timestamp_ms=rehearsal.clock.now)
    rehearsal.crash(step=4, when="after")
    rehearsal.run_until_crash()
    rehearsal.clock.now += 30 * HOUR
    rehearsal.run_until_caught_up()
    (record,) = rehearsal.log.records("noted")
    assert record.value() == word("ant").SerializeToString()


@pytest.mark.parametrize("carrier", ["value", "headers"])
@pytest.mark.parametrize("step", [None, 5, 6, 7])
def test_a_backfill_is_published_so_that_retention_keeps_it(carrier: Carrier, step: int | None) -> None:
    """By Kafka's own time; the event's time stays where readers look for it. A crash changes neither what counts."""
    flow = Flow("hop", state_partitions=1)
    stage = flow.source("words", StringValue).aggregate(
        "all", key=same_key, state=StringValue, fold=append_word
    )
    stage.changes().to("noted", partitions=1, carrier=carrier)
    rehearsal = rehearsed(flow, retention_ms=168 * HOUR)
    now_ms = rehearsal.clock.now
    ages = [HOUR, 143 * HOUR, 145 * HOUR, 24 * 365 * HOUR]
    for age in ages:
        rehearsal.feed("words", word("ant"), timestamp_ms=now_ms - age)
        if step is not None:
            rehearsal.crash(step=step, when="after")
            rehearsal.run_until_crash()
        rehearsal.run_until_caught_up()
    records = rehearsal.log.records("noted")
    assert len({record.value() for record in records}) == len(ages)
    assert all(rehearsal.clock.now - record.timestamp()[1] <= 144 * HOUR for record in records)
    assert {record.timestamp()[1] for record in records} >= {now_ms - age for age in ages[:2]}, (
        "young ones keep theirs"
    )
    heads = [find_head(record.value(), record.headers()) for record in records]
    assert {head.timestamp_ms for head in heads} == {now_ms - age for age in ages}
    (notice,) = [event for event in rehearsal.events("notice") if "retention.ms" in str(event["text"])]
    assert "'noted'" in str(notice["text"])


@pytest.mark.parametrize("distance", [2 * HOUR, -2 * HOUR])
def test_a_dead_letter_record_is_accepted_and_keeps_the_time_of_its_input(distance: int) -> None:
    rehearsal = Rehearsal(sqe("dead_letter"))
    rehearsal.log.set_clock(lambda: rehearsal.clock.now)
    rehearsal.log.configure("noted", before_max_ms=HOUR, after_max_ms=HOUR)
    rehearsal.log.configure("hop.dead-letters", before_max_ms=HOUR, after_max_ms=HOUR)
    timestamp_ms = rehearsal.clock.now + distance
    rehearsal.feed("words", word("ant"), timestamp_ms=timestamp_ms)
    rehearsal.run_until_caught_up()
    (record,) = rehearsal.log.records("hop.dead-letters")
    headers = dict(record.headers() or [])
    assert headers["sqe-timestamp"] == b"%d" % timestamp_ms
    assert headers["sqe-error"] == OutputRefused.__name__.encode()
    assert abs(record.timestamp()[1] - rehearsal.clock.now) < HOUR


def test_a_compacted_topic_is_no_place_for_dead_letter_records() -> None:
    rehearsal = Rehearsal(republishing("dead_letter"))
    rehearsal.log.configure("hop.dead-letters", compacted=True)
    with pytest.raises(ConfigurationError, match=r"hop\.dead-letters.*compacted.*cleanup\.policy"):
        rehearsal.start()


@pytest.mark.parametrize("carrier", ["value", "headers"])
def test_a_key_counts_towards_the_size_of_a_record_beside_the_envelope(carrier: Carrier) -> None:
    """The broker takes a record as a whole: it would refuse an envelope that fits alone after the seal, at each attempt."""
    flow = Flow("hop")
    flow.source("words", StringValue).to("noted", partitions=1, carrier=carrier)
    rehearsal = rehearsed(flow, max_message_bytes=2_000)
    rehearsal.feed("words", word("ant"), key="k" * 100)
    rehearsal.feed("words", word("ape"), key="k" * 700)
    with pytest.raises(OutputTooLarge, match=r"words\[0\]@1"):
        rehearsal.batch()
    assert not rehearsal.log.records("noted")


def grown(state: StringValue, one: StringValue) -> None:
    state.value += one.value * 900


def keyed(one: StringValue) -> str:
    return one.value[:1]


def to_values(flow: Flow) -> None:
    flow.source("words", StringValue).map(lambda one: StringValue(value=one.value * 900)).to(
        "noted", key=keyed, partitions=1
    )


def to_headers(flow: Flow) -> None:
    flow.source("words", StringValue).map(lambda one: StringValue(value=one.value * 900)).to(
        "noted", key=keyed, partitions=1, carrier="headers"
    )


def to_changes(flow: Flow) -> None:
    stage = flow.source("words", StringValue).aggregate("s", key=keyed, state=StringValue, fold=grown)
    stage.changes().to("noted", partitions=1)


def to_given(flow: Flow) -> None:
    stage = flow.source("words", StringValue).aggregate("s", key=keyed, state=StringValue, fold=given)
    stage.to("noted", key=keyed, partitions=1)


def given(state: StringValue, one: StringValue) -> Iterator[StringValue]:
    grown(state, one)
    yield state


@pytest.mark.parametrize("declare", [to_values, to_headers, to_changes, to_given])
@pytest.mark.parametrize("policy", ["stop", *POLICIES])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_record_that_is_too_large_is_reported_with_its_key(
    declare: Callable[[Flow], None], policy: PoisonPolicy, parts: int
) -> None:
    """A user who has to raise a limit, or to split a state, has to know which one has grown."""
    flow = Flow("hop", poison=policy, state_partitions=parts)
    declare(flow)
    rehearsal = rehearsed(flow, max_message_bytes=2_000)
    reported = ""
    try:
        for text in ("b", "machine", "c"):
            rehearsal.feed("words", word(text), key="same")
            rehearsal.run_until_caught_up()
    except PoisonError as error:
        reported = str(error)
    reported += str(rehearsal.script.events)
    assert "of key b'm'" in reported


def broken(_: StringValue) -> StringValue:
    raise ValueError("a bad value")


@pytest.mark.parametrize("missing", [0, 1])
def test_a_dead_letter_record_has_room_for_the_header_of_its_batch(missing: int) -> None:
    """A record that the broker refuses after the seal would stop the flow permanently, so it is refused before, to the byte."""
    flow = Flow("hop", poison="dead_letter")
    flow.source("words", StringValue).map(broken).to("noted", partitions=1)
    rehearsal = rehearsed(flow)
    rehearsal.feed("words", word("ant"), key="k")
    rehearsal.run_until_caught_up()
    (record,) = rehearsal.log.records("hop.dead-letters")
    size = len(record.key() or b"") + len(record.value() or b"") + headers_size(record.headers() or [])
    rehearsal.log.configure("hop.dead-letters", max_message_bytes=size + RECORD_OVERHEAD - missing)
    rehearsal.clock.jump(60_000)  # a republisher asks seldom what its topics accept
    rehearsal.feed("words", word("ant"), key="k")
    if missing:
        with pytest.raises(OutputTooLarge, match="Its dead-letter record has"):
            rehearsal.batch()
        assert len(rehearsal.log.records("hop.dead-letters")) == 1
    else:
        assert rehearsal.batch()
