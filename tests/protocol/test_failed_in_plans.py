"""Goal: each dead-letter record of a flow with stages counts once, or never, whatever operators do at once.

Method: words fail, and the code is corrected. A second operator works while the first one is paused, at each of its calls.
"""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import DeadLettersLost
from sqe_chain.flow import Flow
from sqe_chain.operations.failed import FailedSelection
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash
from tests.support.word_flows import append_word, same_key, stored_words, word

WORDS = ["ant", "bee", "cow", "dog"]


class Counting:
    """A flow that has skipped two words, with corrected code."""

    def __init__(self) -> None:
        broken = {"bee", "dog"}

        def check(value: StringValue) -> StringValue:
            if value.value in broken:
                raise ValueError(value.value)
            return value

        flow = Flow("counting", poison="dead_letter", state_partitions=1)
        flow.source("words", StringValue).map(check).aggregate(
            "all", key=same_key, state=StringValue, fold=append_word
        )
        self.rehearsal = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))
        for text in WORDS:
            self.rehearsal.feed("words", word(text), key=text)
        self.rehearsal.run_until_caught_up()
        broken.clear()

    def operator(self) -> FailedInPlans:
        return FailedInPlans(self.rehearsal._environment(None))

    def statuses(self) -> dict[str, str]:
        return {str(record.key, "utf-8"): record.status for record in self.operator()._list() if record.key}

    def counted(self) -> list[str]:
        self.rehearsal.service = None
        self.rehearsal.run_until_caught_up()
        return sorted(stored_words(self.rehearsal, "all")["all"].split())


@pytest.mark.parametrize("second", ["release", "discard"])
def test_of_two_operators_the_first_one_decides(second: str) -> None:
    for number in range(1000):
        counting = Counting()
        done = list[object]()

        def meanwhile(own: Counting = counting, to: list[object] = done) -> None:
            operator = own.operator()
            decide = operator.release if second == "release" else operator.discard
            to.append(decide(FailedSelection(key="bee")))

        counting.rehearsal.meanwhile(meanwhile, of="broker", at=number)
        counting.operator().release()
        counting.rehearsal.cancel()
        statuses = counting.statuses()
        assert statuses["dog"] == "released"
        expected = [text for text in WORDS if text != "bee" or statuses["bee"] == "released"]
        assert counting.counted() == expected, (number, statuses)
        if not done:
            assert number > 10
            return
    raise AssertionError("no end")


def test_killed_at_every_call_and_repeated_each_counts_once() -> None:
    for number in range(1000):
        counting = Counting()
        counting.rehearsal.crash_at_call(number, of="broker")
        try:
            counting.operator().release()
        except Crash:
            counting.operator().release()
            assert counting.counted() == WORDS
        else:
            assert number > 10
            return
    raise AssertionError("no end")


ORDERS = [
    ("release", "rebuild"),
    ("rebuild", "release"),
    ("release", "rewind", "release"),
    ("rewind", "release", "rebuild"),
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_skipped_record_counts_once_whether_it_is_released_before_or_after_a_fold(
    order: tuple[str, ...],
) -> None:
    """Its original stays skipped, although the code is correct now; what is released is another record."""
    counting = Counting()
    for step in order:
        match step:
            case "release":
                counting.operator().release()
                counting.counted()
            case "rebuild":
                counting.rehearsal.rebuild()
            case _:
                counting.rehearsal.rebuild(to={("words", 0): 1}, republish=True)
    assert counting.counted() == WORDS


def test_a_discarded_record_never_counts_also_not_when_the_flow_is_folded_again() -> None:
    counting = Counting()
    counting.operator().discard(FailedSelection(key="bee"))
    counting.rehearsal.rebuild()
    counting.operator().release()
    assert counting.counted() == ["ant", "cow", "dog"]


def test_where_retention_has_taken_dead_letter_records_a_fold_asks() -> None:
    counting = Counting()
    counting.operator().release()
    counting.counted()
    counting.rehearsal.log.truncate_before("counting.dead-letters", 0, 1)
    with pytest.raises(DeadLettersLost, match="deleted 1 records of"):
        counting.rehearsal.rebuild()
    assert counting.counted() == WORDS


def test_records_without_envelopes_cannot_be_released_so_a_fold_counts_them() -> None:
    broken = {"bee"}

    def read(data: bytes) -> StringValue:
        if data.decode() in broken:
            raise ValueError(data)
        return word(data.decode())

    flow = Flow("raw", poison="dead_letter", state_partitions=1)
    flow.source("lines", read, raw=True).aggregate("all", key=same_key, state=StringValue, fold=append_word)
    rehearsal = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))
    for text in ("ant", "bee"):
        rehearsal.feed("lines", text.encode())
    rehearsal.run_until_caught_up()
    broken.clear()
    rehearsal.rebuild()
    assert sorted(stored_words(rehearsal, "all")["all"].split()) == ["ant", "bee"]
