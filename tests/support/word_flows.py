"""Small flows of words: each word is appended to the state of its first letter, in order."""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.envelope.message import read
from sqe_chain.flow import Flow, Stage
from sqe_chain.ports import Message
from sqe_chain.testing import Rehearsal
from tests.support.typed_results import payloads_of, states_as


def word(text: str) -> StringValue:
    return StringValue(value=text)


def first_letter(value: StringValue) -> str:
    return value.value[0]


def same_key(_: StringValue) -> str:
    return "all"


def append_word(words: StringValue, value: StringValue) -> list[StringValue]:
    """Fold: append the word to the state, and emit it."""
    words.value += f"{value.value} "
    return [value]


def words_by_first_letter(
    flow: Flow, topic: str = "words", stage: str = "letters"
) -> Stage[StringValue, StringValue]:
    """Declare a source of words, and a stage keyed by first letter."""
    return flow.source(topic, StringValue).aggregate(
        stage, key=first_letter, state=StringValue, fold=append_word
    )


def stored_words(rehearsal: Rehearsal, stage: str = "letters") -> dict[str, str]:
    """The states of a stage: key -> words."""
    return {
        key.decode(): state.value.strip() for key, state in states_as(StringValue, rehearsal, stage).items()
    }


def words_in(message: Message) -> list[str]:
    """The words in an envelope."""
    return [payload.value for payload in payloads_of(StringValue, read(message.value()))]
