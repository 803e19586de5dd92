"""Goal: dead-letter records come back by error, key or time, in any order of selections, and each counts once.

Method: words fail with several errors. Selections of them are sent back in drawn orders, some are discarded, the sender is
killed at its writes, and retention takes the oldest. The oracle is the list of words alone.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import count
from random import Random

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.operations.dead_letter_replay import DeadLetterReplay, ReplayResult
from sqe_chain.operations.dead_letters import Selection
from sqe_chain.ports import Log
from sqe_chain.protocol.settings import Settings
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash, FaultScript
from sqe_chain.testing.faulty_ports import faulty_log
from tests.support.word_flows import append_word, same_key, word

FIRST_MS = 1_000
ERRORS = {"a": ValueError, "b": KeyError, "c": OSError}


class Words:
    """A flow that has skipped every word so far, and is corrected now."""

    def __init__(self, words: list[str]) -> None:
        self.broken = True
        self.words = words
        flow = Flow("sums", poison="dead_letter", state_partitions=2)
        stream = flow.source("words", StringValue).map(self.check)
        stream.aggregate("all", key=same_key, state=StringValue, fold=append_word)
        self.flow = flow
        self.service = Rehearsal(flow, partitions={"words": 2}, settings=Settings(max_excluded_share=1))
        for number, text in enumerate(words):
            self.service.feed(
                "words", word(text), partition=number % 2, key=text[0], timestamp_ms=FIRST_MS + number
            )
        self.service.run_until_caught_up()
        self.broken = False

    def check(self, value: StringValue) -> StringValue:
        if self.broken:
            raise ERRORS[value.value[0]](value.value)
        return value

    def replay(self, selection: Selection | None = None, log: Log | None = None) -> ReplayResult:
        return DeadLetterReplay(
            self.flow.compile(), log or self.service.log, None, selection or Selection()
        ).run()

    def discard(self, selection: Selection) -> int:
        return DeadLetterReplay(self.flow.compile(), self.service.log, selection=selection).discard()

    def counted(self) -> list[str]:
        self.service.run_until_caught_up()
        return sorted(text for state in self.service.states("all").values() for text in state.value.split())


def words(number: int, seed: int = 0) -> list[str]:
    draw = Random(seed)
    return [f"{draw.choice('abc')}{number}" for number in range(number)]


def meant(selection: Selection, text: str, number: int) -> bool:
    """The oracle's own rule of what a selection takes."""
    at_ms, error = FIRST_MS + number, ERRORS[text[0]].__name__
    return (
        (selection.error is None or fnmatchcase(error, selection.error))
        and selection.key in (None, text[0])
        and (selection.since_ms is None or selection.since_ms <= at_ms)
        and (selection.until_ms is None or at_ms < selection.until_ms)
    )


SELECTIONS = (
    Selection(error="KeyError"),
    Selection(error="*Error", key="a"),
    Selection(key="c"),
    Selection(since_ms=FIRST_MS + 7),
    Selection(until_ms=FIRST_MS + 4),
    Selection(since_ms=FIRST_MS + 3, until_ms=FIRST_MS + 9, error="OSError"),
    Selection(),
)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_selection_sends_what_it_names_and_the_rest_comes_later(selection: Selection) -> None:
    flow = Words(words(12))
    first = sorted(text for number, text in enumerate(flow.words) if meant(selection, text, number))
    assert flow.replay(selection).sent == len(first)
    assert flow.counted() == first
    assert flow.replay(selection).sent == 0
    assert flow.replay().sent == 12 - len(first)
    assert flow.counted() == sorted(flow.words)
    assert flow.replay(selection).sent == flow.replay().sent == 0


@pytest.mark.parametrize("seed", range(12))
def test_selections_in_any_order_killed_anywhere_count_each_word_once(seed: int) -> None:
    draw = Random(seed)
    flow = Words(words(14, seed))
    expected = set[str]()
    gone = set[str]()
    for _ in range(6):
        selection = draw.choice(SELECTIONS)
        chosen = {text for number, text in enumerate(flow.words) if meant(selection, text, number)}
        if draw.random() < 0.2:
            flow.discard(selection)
            gone |= chosen - expected
            continue
        script = FaultScript(writes={(draw.randrange(6), draw.choice(("before", "after")))})
        try:
            flow.replay(selection, faulty_log(flow.service.log, script))
        except Crash:
            if draw.random() < 0.5:
                flow.service.run_until_caught_up()
            flow.replay(selection)
        expected |= chosen - gone
        assert flow.counted() == sorted(expected)
    flow.replay()
    assert flow.counted() == sorted(set(flow.words) - gone)


def test_a_selection_killed_at_every_write_and_repeated_counts_once() -> None:
    selection = Selection(error="KeyError")
    for number in count():
        for when in ("before", "after"):
            flow = Words(words(12))
            chosen = sorted(text for text in flow.words if text[0] == "b")
            try:
                flow.replay(selection, faulty_log(flow.service.log, FaultScript(writes={(number, when)})))
            except Crash:
                flow.counted()
                with_others = Selection(error="*")
                try:
                    flow.replay(with_others)
                except ConfigurationError as error:
                    assert "a replay to where the flow read them was interrupted" in str(error)  # noqa: PT017
                    flow.replay(selection)
                    assert flow.counted() == chosen
            else:
                assert number >= 3
                return
            flow.replay()
            assert flow.counted() == sorted(flow.words), (number, when)


def test_what_a_crash_has_left_twice_is_sent_once_by_whichever_selection() -> None:
    flow = Words(words(8))
    log, topic = flow.service.log, "sums.dead-letters"
    copies = list(log.records(topic))
    writer = log.writer()
    writer.write(
        [
            (topic, 0, copy.key(), copy.value(), list(copy.headers() or ()), copy.timestamp()[1])
            for copy in copies
        ]
    )
    writer.flush()
    assert flow.replay(Selection(key="b")).sent == sum(text[0] == "b" for text in flow.words)
    assert flow.replay(Selection(key="b")).known == 0
    result = flow.replay()
    assert (result.sent, result.known) == (sum(text[0] != "b" for text in flow.words),) * 2
    assert flow.counted() == sorted(flow.words)


def test_retention_takes_nothing_from_what_is_sent_apart() -> None:
    flow = Words(words(12))
    log, topic = flow.service.log, "sums.dead-letters"
    assert flow.replay(Selection(since_ms=FIRST_MS + 8)).sent == 4
    log.truncate_before(topic, 0, 3)
    result = flow.replay(Selection(until_ms=FIRST_MS + 8))
    assert (result.sent, result.lost) == (5, 3)
    counted = flow.counted()
    assert len(counted) == len(set(counted)) == 9
    assert (flow.replay().sent, flow.replay().lost) == (0, 0)


def test_too_many_places_for_a_commit_are_refused_before_anything_is_sent() -> None:
    flow = Words([f"{'ab'[number // 2 % 2]}{number}" for number in range(2_400)])
    before = len(flow.service.log.records("words"))
    with pytest.raises(ConfigurationError, match="places apart from each other"):
        flow.replay(Selection(key="b"))
    assert len(flow.service.log.records("words")) == before
    with pytest.raises(ConfigurationError, match="places apart from each other"):
        flow.discard(Selection(key="b"))


def test_a_record_that_fails_in_its_second_stage_counts_once_in_both() -> None:
    broken = {"two": True}

    def fold_or_fail(words: StringValue, value: StringValue) -> list[StringValue]:
        if broken["two"] and value.value == "b":
            raise ValueError("the second stage")
        return append_word(words, value)

    flow = Flow("both", poison="dead_letter", state_partitions=2)
    stream = flow.source("words", StringValue)
    stream.aggregate("first", key=same_key, state=StringValue, fold=append_word)
    stream.aggregate("second", key=lambda _: b"all", state=StringValue, fold=fold_or_fail)
    service = Rehearsal(flow, partitions={"words": 2})
    for text in "abc":
        service.feed("words", word(text), key=text)
    service.run_until_caught_up()

    def counted(stage: str) -> list[str]:
        return sorted(text for state in service.states(stage).values() for text in state.value.split())

    assert counted("first") == counted("second") == ["a", "c"]
    broken["two"] = False
    for _ in range(2):
        DeadLetterReplay(flow.compile(), service.log).run()
        service.run_until_caught_up()
        assert counted("first") == counted("second") == ["a", "b", "c"]
