"""Goal: an error about a message has the message's place as attributes, on every way to the code that catches it."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import Flow, wrap
from sqe_chain.errors import ChainError, GapError, PoisonError, TruncatedInput, from_record, text_of
from sqe_chain.testing import Rehearsal


def fail(word: StringValue) -> str:
    raise ValueError(word.value)


def add(total: Int64Value, word: StringValue) -> None:  # a fold's arguments
    total.value += 1


def test_an_error_about_no_message_has_no_place() -> None:
    error = ChainError("text")
    assert (error.topic, error.partition, error.offset) == (None, None, None)


def test_the_place_goes_along_from_a_task_to_the_driver() -> None:
    error = from_record(*GapError("text").at("words", 1, 7).to_record())
    assert type(error) is GapError
    assert (str(error), error.topic, error.partition, error.offset) == ("text", "words", 1, 7)
    assert from_record("NoSuchError", "text").offset is None


def test_poison_has_the_place_of_its_record() -> None:
    flow = Flow("poisoned", state_partitions=1)
    flow.source("words", StringValue).aggregate("count", key=fail, state=Int64Value, fold=add)
    rehearsal = Rehearsal(flow, partitions={"words": 2})
    rehearsal.log.append("words", 1, wrap(StringValue(value="a"), key="a", timestamp_ms=1))
    with pytest.raises(PoisonError) as raised:
        rehearsal.run_until_caught_up()
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("words", 1, 0)


def test_a_truncated_input_has_its_place() -> None:
    flow = Flow("truncated", state_partitions=1)
    flow.source("words", StringValue).aggregate(
        "count", key=lambda word: word.value, state=Int64Value, fold=add
    )
    rehearsal = Rehearsal(flow, partitions={"words": 1})
    for word in ("a", "b", "c"):
        rehearsal.log.append("words", 0, wrap(StringValue(value=word), key=word, timestamp_ms=1))
    rehearsal.run_until_caught_up()
    rehearsal.log.truncate_after("words", 0, 1)
    with pytest.raises(TruncatedInput) as raised:
        rehearsal.restart()
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("words", 0, 3)


def test_the_text_of_an_error_drives_no_terminal_and_that_of_others_is_one_line() -> None:
    hostile = "a\x1b[2J\nb\ud800\x9b\u2028c"
    assert text_of(ValueError(hostile)) == "a\\x1b[2J\\nb\\ud800\\x9b\\u2028c"
    assert text_of(PoisonError(hostile)) == "a\\x1b[2J\nb\\ud800\\x9b\\u2028c"
    trace = "a task failed: 7\nTraceback (most recent call last):\n  File ..."
    assert ChainError(trace).to_record()[1] == trace
