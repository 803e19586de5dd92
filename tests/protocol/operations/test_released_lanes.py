"""Goal: releases add lanes to receivers, and the receiver's error names them. Method: records are released together, or one by one."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import TooManyLanes
from sqe_chain.flow import Flow
from sqe_chain.operations.parked import ParkedSelection, ParkedWork
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.word_flows import append_word, same_key, stored_words, word

WORDS = ("ant", "bee", "cow", "dog", "elk", "fox")


def published(*selections: ParkedSelection) -> Rehearsal:
    """A flow that has parked all words, and has released them by these selections."""
    fails = set(WORDS)

    def check(value: StringValue) -> StringValue:
        if value.value in fails:
            raise ValueError(value.value)
        return value

    flow = Flow("parking", poison="park", state_partitions=1)
    checked = flow.source("words", StringValue).map(check)
    checked.aggregate("letters", key=same_key, state=StringValue, fold=append_word).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    for text in WORDS:
        rehearsal.feed("words", word(text), key=text)
    rehearsal.run_until_caught_up()
    fails.clear()
    for selection in selections:
        rehearsal.service = None
        assert ParkedWork(environment_of(rehearsal), selection).run().done > 0
    return rehearsal


def receiver_of(sender: Rehearsal, max_lanes: int) -> Rehearsal:
    flow = Flow("receiving", state_partitions=1, max_lanes=max_lanes)
    flow.source("out", StringValue).aggregate("letters", key=same_key, state=StringValue, fold=append_word)
    return Rehearsal(flow, log=sender.log)


def lanes_of(receiver: Rehearsal) -> int:
    plan = read_last_plan(receiver.stores[""], "receiving")
    assert plan is not None
    return sum(len(marks) for marks in plan.marks.values())


@pytest.mark.parametrize(
    ("selections", "lanes"),
    [([ParkedSelection()], 1), ([ParkedSelection(key=text) for text in WORDS], len(WORDS))],
)
def test_each_release_adds_a_lane(selections: list[ParkedSelection], lanes: int) -> None:
    receiver = receiver_of(published(*selections), max_lanes=len(WORDS))
    receiver.run_until_caught_up()
    assert stored_words(receiver) == {"all": " ".join(WORDS)}
    assert lanes_of(receiver) == lanes


def test_too_many_releases_are_named_where_the_receiver_stops() -> None:
    receiver = receiver_of(published(*(ParkedSelection(key=text) for text in WORDS)), max_lanes=5)
    with pytest.raises(TooManyLanes, match=r"5 allowed.*/released"):
        receiver.run_until_caught_up()
