"""Goal: each stage after a shuffle knows of its inputs what it needs, whatever the stage beside it needs. Method: two such stages, one input."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryMessage
from sqe_chain.flow import Context, Flow
from sqe_chain.flow.context import TopicIdPartition
from sqe_chain.task.dead_letters import parse_dead_letter
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.parking import ParkedRecord
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import (
    append_word,
    same_key,
    stored_words,
    word,
    words_by_first_letter,
    words_in,
)


def note_headers(state: StringValue, value: StringValue, context: Context) -> None:
    """Fold: what only a context shows."""
    headers = dict(context.headers or ())
    state.value += f"{value.value}={(headers['from'] or b'').decode()} "


@pytest.mark.parametrize("needs_little_first", [True, False])
def test_a_stage_that_needs_little_does_not_decide_what_the_next_one_is_given(
    needs_little_first: bool,
) -> None:
    flow = Flow("notes", state_partitions=2)
    letters = words_by_first_letter(flow)
    for name in ("plain", "noted") if needs_little_first else ("noted", "plain"):
        fold = append_word if name == "plain" else note_headers
        letters.aggregate(name, key=same_key, state=StringValue, fold=fold)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("ant"), headers=[("from", b"here")])
    rehearsal.run_until_caught_up()
    assert stored_words(rehearsal, "plain") == {"all": "ant"}
    assert stored_words(rehearsal, "noted") == {"all": "ant=here"}


def noting_headers(flow: Flow, partitions: int = 1) -> Rehearsal:
    """A rehearsal of the flow with a stage `noted` after a shuffle, which notes the headers of inputs."""
    letters = words_by_first_letter(flow)
    letters.aggregate("noted", key=same_key, state=StringValue, fold=note_headers)
    return Rehearsal(flow, partitions={"words": partitions})


def test_each_input_of_a_batch_is_known_by_what_it_carries_itself() -> None:
    rehearsal = noting_headers(Flow("notes", state_partitions=2))
    for text, sender in (("ant", b"here"), ("asp", b"there"), ("ape", b"anywhere")):
        rehearsal.feed("words", word(text), headers=[("from", sender)])
    rehearsal.run_until_caught_up()
    assert stored_words(rehearsal, "noted") == {"all": "ant=here asp=there ape=anywhere"}


def test_inputs_of_two_partitions_with_one_offset_are_two_inputs() -> None:
    rehearsal = noting_headers(Flow("notes", state_partitions=2), partitions=2)
    for partition, sender in enumerate((b"here", b"there")):
        rehearsal.feed("words", word("ant"), headers=[("from", sender)], partition=partition)
    rehearsal.run_until_caught_up()
    assert stored_words(rehearsal, "noted") == {"all": "ant=here ant=there"}


def copy(value: StringValue) -> StringValue:
    """An operator that needs nothing of the input."""
    return value


def headers_of(value: StringValue, context: Context) -> StringValue:
    """An operator that needs all of it."""
    state = StringValue()
    note_headers(state, value, context)
    return state


def test_operators_far_behind_a_stage_are_given_what_they_need() -> None:
    """Not only the one right behind it."""
    flow = Flow("notes", state_partitions=2)
    plain = words_by_first_letter(flow).aggregate("plain", key=same_key, state=StringValue, fold=append_word)
    plain.map(copy).map(copy).map(headers_of).to("noted", key=same_key, partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("ant"), headers=[("from", b"here")])
    rehearsal.run_until_caught_up()
    assert [words_in(message) for message in rehearsal.log.records("noted")] == [["ant=here "]]


@pytest.mark.parametrize("carrier", ["value", "headers"])
def test_each_output_repeats_the_headers_of_its_own_input(carrier: Literal["value", "headers"]) -> None:
    """Also in a block, and beside inputs that have none."""
    flow = Flow("notes")
    flow.source("words", StringValue).map(copy).to("out", partitions=1, carrier=carrier)
    rehearsal = Rehearsal(flow)
    senders = (b"here", None, b"there", b"here")
    for sender in senders:
        rehearsal.feed("words", word("ant"), headers=[("from", sender)] if sender else None)
    rehearsal.run_until_caught_up()
    found = [dict(record.headers() or []).get("from") for record in rehearsal.log.records("out")]
    assert found == list(senders)


def test_a_parked_record_keeps_its_headers_until_it_is_released() -> None:
    headers: list[tuple[str, bytes | None]] = [("from", b"here"), ("from", b"there"), ("mark", None)]
    message = MemoryMessage(("words", 0, 3), (b"k", b"v", headers), 1, 1)
    why = Exclusion("words", 0, 3, "park", "ValueError", "no")
    parked = ParkedRecord.of(TopicIdPartition("words", bytes(16), 0), message, why, readable=True)
    assert ParkedRecord.from_json(json.loads(json.dumps(parked.to_json()))).headers() == headers


def refuse(value: bytes) -> bytes:
    raise ValueError(value)


def test_a_record_that_is_skipped_again_keeps_the_headers_that_it_came_with() -> None:
    """Also those of its first dead-letter record, with which somebody has sent it again."""
    flow = Flow("notes", poison="dead_letter", dead_letter_partitions=1)
    flow.source("words", bytes, raw=True).map(refuse).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", b"ant", headers=[("from", b"here")])
    rehearsal.run_until_caught_up()
    (first,) = rehearsal.log.records(flow.compile().dead_letter_topic)
    rehearsal.feed("words", b"ant", headers=first.headers())
    rehearsal.run_until_caught_up()
    _, second = map(parse_dead_letter, rehearsal.log.records(flow.compile().dead_letter_topic))
    assert second is not None
    assert (second.offset, second.headers) == (1, first.headers())
