"""Goal: each stage after a shuffle knows of its inputs what it needs, whatever the stage beside it needs. Method: two such stages, one input."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Context, Flow
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
