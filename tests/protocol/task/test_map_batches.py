"""Goal: what passes a function over batches is what map and flat_map would give, wherever blocks end.

Method: rehearsals of the same flow with functions over batches and over values. Crashes are in `test_prove_flows.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sqe_chain import Flow
from sqe_chain.envelope.carrier import find_head
from sqe_chain.errors import PoisonError, ServiceStopped
from sqe_chain.flow import count, sum_
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.testing import Rehearsal

POLICIES: list[PoisonPolicy] = ["dead_letter", "skip"]


class Line(msgspec.Struct):
    robot: str
    text: str


class Word(msgspec.Struct):
    robot: str
    word: str
    length: int = 0


def words_of(batch: Any) -> Any:
    """A row for each word, none for a line without; fails for a line with a comma."""
    if pc.any(pc.match_substring(batch["text"], ",")).as_py():
        raise ValueError("a comma")
    apart = pc.utf8_split_whitespace(batch["text"])
    rows = pc.list_parent_indices(apart)
    found = pa.record_batch({"row": rows, "robot": batch["robot"].take(rows), "word": pc.list_flatten(apart)})
    return found.filter(pc.not_equal(found["word"], ""))


def words_in(line: Line) -> list[Word]:
    if "," in line.text:
        raise ValueError("a comma")
    return [Word(line.robot, word) for word in line.text.split()]


def measured(batch: Any) -> Any:
    return batch.set_column(2, "length", pc.utf8_length(batch["word"]))


def measure(word: Word) -> Word:
    return Word(word.robot, word.word, len(word.word))


def flow_of(*, batches: bool, poison: PoisonPolicy = "stop") -> Flow:
    flow = Flow("words", state_partitions=2, poison=poison)
    lines = flow.source("lines", Line)
    lines.map(lambda line: Line(line.robot, line.text.upper())).to("loud", partitions=2)
    if batches:
        words = lines.map_batches(words_of, Word, index="row")
        lengths = words.map_batches(measured, Word)
    else:
        words = lines.flat_map(words_in)
        lengths = words.map(measure)
    lengths.filter(lambda word: word.length > 1).to("words", key=lambda word: word.word, partitions=3)
    words.merge(lengths).to("both", partitions=2)
    per_robot = lengths.aggregate("per-robot", key="robot", words=count(), letters=sum_("length"))
    per_robot.changes().to("totals", partitions=1)
    return flow


LINES = ["a bb", "", "ccc", "dd e ff", " ", "g", "hh ii", "jjj", "k ll", ""]


def rehearsed(flow: Flow, lines: list[str] = LINES, **settings: Any) -> Rehearsal:
    rehearsal = Rehearsal(flow, partitions={"lines": 2}, **settings)
    for at, text in enumerate(lines):
        rehearsal.feed("lines", Line(f"R{at % 3}", text), key=f"R{at % 3}", timestamp_ms=at)
    return rehearsal


def outcome(rehearsal: Rehearsal) -> Any:
    """States, and all records without the identity of their topics."""
    published = {
        topic: [
            (record.partition(), record.key(), find_head(record.value(), None).payload, record.timestamp()[1])
            for record in rehearsal.log.records(topic)
        ]
        for topic in ("loud", "words", "both", "totals")
    }
    return {key: asdict(state) for key, state in rehearsal.states("per-robot").items()}, published


def test_they_give_what_functions_over_values_give() -> None:
    by_value = rehearsed(flow_of(batches=False))
    by_value.run_until_caught_up()
    for block in (1, 2, 3, 1_000):
        by_batch = rehearsed(flow_of(batches=True), block_records=block)
        by_batch.run_until_caught_up()
        assert outcome(by_batch) == outcome(by_value)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block", [1, 2, 3, 1_000])
def test_lines_that_fail_are_skipped_and_no_others(policy: PoisonPolicy, block: int) -> None:
    lines = ["a bb", "c,c", "ddd", "e", "f,", "gg hh"] * 3
    by_value = rehearsed(flow_of(batches=False, poison=policy), lines)
    by_value.run_until_caught_up()
    by_batch = rehearsed(flow_of(batches=True, poison=policy), lines, block_records=block)
    by_batch.run_until_caught_up()
    assert outcome(by_batch) == outcome(by_value)
    if policy == "dead_letter":
        assert len(by_batch.log.records("words.dead-letters")) == 6


@pytest.mark.parametrize("block", [1, 2, 1_000])
def test_the_first_line_that_fails_stops_the_service_and_the_function_is_named(block: int) -> None:
    rehearsal = rehearsed(flow_of(batches=True), ["a"] * 6 + ["b,b", "c,c"] + ["d"] * 6, block_records=block)
    with pytest.raises(PoisonError, match=r"a comma, at .*words_of") as error:
        rehearsal.run_until_caught_up()
    assert (error.value.partition, error.value.offset) == (0, 4)


def test_a_function_that_looks_at_other_rows_stops_the_service() -> None:
    def first_of_each(batch: Any) -> Any:
        return batch.slice(0, 1)

    flow = Flow("first", poison="skip")
    flow.source("lines", Line).map_batches(first_of_each, Line).to("out", partitions=1)
    with pytest.raises(ServiceStopped, match="depends on the rows beside it"):
        rehearsed(flow, ["a", "b", "c", "d"]).run_until_caught_up()


def same(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("many", [5, 24, 60])
def test_a_line_that_one_output_refuses_goes_to_no_other_one_with_or_without_batches(many: int) -> None:
    """An input counts as a whole or not at all, so all that it gave goes out together."""
    flow = Flow("both", poison="skip")
    stream = flow.source("lines", Line)
    stream.to("all", partitions=1)
    stream.map_batches(same, Line).to("small", partitions=1)
    service = Rehearsal(flow)
    service.log.configure("small", max_message_bytes=2_000)
    lines = [Line("r", "x" * 5_000 if number == 2 else str(number)) for number in range(many)]
    for line in lines:
        service.feed("lines", line, key="r")
    service.run_until_caught_up()
    for topic in ("all", "small"):
        assert [envelope.payload_as(Line) for envelope in service.published(topic)] == [
            *lines[:2],
            *lines[3:],
        ]
