"""The smallest flows that show everything: words are noted under their first letter, in order."""

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


def everything(_: StringValue) -> str:
    return "all"


def note(ledger: StringValue, value: StringValue) -> list[StringValue]:
    """Append the word, and pass it on."""
    ledger.value += f"{value.value} "
    return [value]


def notes(flow: Flow, topic: str = "words", stage: str = "letters") -> Stage[StringValue, StringValue]:
    """A source of words and a stage per first letter."""
    return flow.source(topic, StringValue).aggregate(stage, key=first_letter, state=StringValue, fold=note)


def ledger(rehearsal: Rehearsal, stage: str = "letters") -> dict[str, str]:
    """What stands in a stage: key -> words."""
    return {
        key.decode(): state.value.strip() for key, state in states_as(StringValue, rehearsal, stage).items()
    }


def said(message: Message) -> list[str]:
    """The words in an envelope."""
    return [payload.value for payload in payloads_of(StringValue, read(message.value()))]
