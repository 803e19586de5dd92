"""Goal: what receivers have of a batch, a flow without stages finishes as it was begun, or stops. Method: kills in the middle of batches, then other code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sqe_chain.chain import Coordinates
from sqe_chain.envelope.message import republish
from sqe_chain.errors import DeadLettersLost, PlanMismatch, PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol.begun import BegunBatch
from sqe_chain.task.dead_letters import parse_dead_letter
from sqe_chain.testing import Rehearsal

ACCEPT = Settings(max_excluded_share=1.0).asking(accept_changed_batch=True)


class Code:
    """A flow whose function is exchanged between runs.

    Attributes:
        factor: what numbers are multiplied with.
        broken: numbers on which it fails.
    """

    def __init__(self, poison: PoisonPolicy = "dead_letter") -> None:
        self.factor, self.broken = 1, set[int]()
        flow = Flow("clean", poison=poison)
        flow.source("raw", int, raw=True).map(self.times).to("good", key=str, partitions=1)
        self.run = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))

    def times(self, number: int) -> int:
        if number in self.broken:
            raise ValueError(f"cannot read {number}")
        return number * self.factor

    def feed(self, *numbers: int) -> None:
        for number in numbers:
            self.run.feed("raw", number)

    def good(self) -> list[int]:
        return [envelope.payload_as(int) for envelope in self.run.published("good")]

    def skipped_offsets(self) -> list[int]:
        records = map(parse_dead_letter, self.run.log.records("clean.dead-letters"))
        return [record.offset for record in records if record is not None]

    def killed_at(self, record: int) -> None:
        """The run is killed when it has published this many records."""
        self.run.crash_at_call(record, method="publish")
        self.run.run_until_crash()


def test_other_code_publishes_nothing_of_a_batch_that_receivers_have_in_part() -> None:
    code = Code()
    code.feed(1, 2, 3)
    code.killed_at(2)
    assert code.good() == [1, 2]
    code.factor = 10
    with pytest.raises(PlanMismatch, match=r"--accept-changed-batch"):
        code.run.start()
    assert code.good() == [1, 2]
    code.factor = 1
    code.run.run_until_caught_up()
    assert code.good() == [1, 2, 1, 2, 3]
    assert code.run.events("recovered")[-1]["inputs"] == 3, "no `committed` counts these"


def test_other_code_may_finish_it_knowingly_and_may_begin_it_where_receivers_have_nothing() -> None:
    code = Code()
    code.feed(1, 2)
    code.killed_at(1)
    code.factor = 10
    code.run.start(ACCEPT)
    assert code.good() == [1, 10, 20]
    code.feed(3)
    code.killed_at(0)
    code.factor = 100
    code.run.run_until_caught_up()
    assert code.good() == [1, 10, 20, 300]


@pytest.mark.parametrize("published", [1, 2, 3])
def test_an_input_that_was_skipped_stays_skipped_when_its_batch_is_redone_by_fixed_code(
    published: int,
) -> None:
    """Its dead-letter record is there before any output of a later input."""
    code = Code()
    code.feed(1, 2, 3)
    code.broken = {2}
    code.killed_at(published)
    code.broken = set()
    code.run.run_until_caught_up()
    assert code.skipped_offsets() == [1]
    assert sorted(set(code.good())) == [1, 3]


def test_fixed_code_publishes_what_failed_where_no_dead_letter_record_was_written() -> None:
    code = Code()
    code.feed(1, 2, 3)
    code.broken = {2}
    code.killed_at(0)
    assert (code.skipped_offsets(), code.good()) == ([], [])
    code.broken = set()
    code.run.run_until_caught_up()
    assert (code.skipped_offsets(), code.good()) == ([], [1, 2, 3])


@pytest.mark.parametrize("poison", ["dead_letter", "skip"])
def test_an_input_whose_outputs_receivers_have_is_not_skipped_by_worse_code(poison: PoisonPolicy) -> None:
    code = Code(poison)
    code.feed(1, 2, 3)
    code.killed_at(2)
    code.broken = {2}
    with pytest.raises(PoisonError, match="its outputs were published before"):
        code.run.start()
    assert (code.skipped_offsets(), code.good()) == ([], [1, 2])
    code.broken = {3}  # nobody has it yet
    code.run.run_until_caught_up()
    assert set(code.good()) == {1, 2}
    assert code.skipped_offsets() == ([2] if poison == "dead_letter" else [])


def test_a_batch_is_redone_as_it_was_cut_by_its_clock() -> None:
    """More records have come since, and time has passed."""
    clocks: list[int] = []

    def stamped(number: int, context: object) -> dict[str, int]:
        clocks.append(context.now_ms)  # type: ignore[attr-defined]
        return {"number": number, "at": context.now_ms}  # type: ignore[attr-defined]

    flow = Flow("stamps")
    flow.source("raw", int, raw=True).map(stamped).to("stamped", partitions=1)
    run = Rehearsal(flow)
    run.feed("raw", 1)
    run.crash(step=7, when="before")
    run.run_until_crash()
    run.feed("raw", 2)
    run.run_until_caught_up()
    sent = [envelope.payload_as(dict) for envelope in run.published("stamped")]
    assert sent[0] == sent[1]
    assert [value["number"] for value in sent] == [1, 1, 2]
    assert sent[2]["at"] > sent[0]["at"]


def test_a_rewound_flow_stops_where_worse_code_fails_on_what_receivers_have() -> None:
    code = Code()
    code.feed(1, 2, 3)
    code.run.run_until_caught_up()
    code.run.rewind({("raw", 0): 0})
    code.broken = {2}
    code.feed(4)
    with pytest.raises(PoisonError, match="receivers may have its outputs"):
        code.run.run_until_caught_up()
    code.broken = {4}
    code.run.run_until_caught_up()
    assert (code.skipped_offsets(), sorted(set(code.good()))) == ([3], [1, 2, 3])


@pytest.mark.parametrize("to", [0, 1, 2, 3])
def test_a_rewind_names_what_retention_has_taken_of_the_dead_letter_records(to: int) -> None:
    code = Code()
    code.broken = {2, 4}
    code.feed(1, 2, 3, 4, 5)
    code.run.run_until_caught_up()
    code.run.log.truncate_before("clean.dead-letters", 0, 1)
    if to < 2:
        with pytest.raises(DeadLettersLost, match=r"1 of 2 dead-letter records of raw\[0\] are gone"):
            code.run.rewind({("raw", 0): to})
    elif to == 2:  # between the two
        with pytest.raises(DeadLettersLost):
            code.run.rewind({("raw", 0): to})
    else:
        code.run.rewind({("raw", 0): to})
        code.broken = set()
        code.run.run_until_caught_up()
        assert code.good() == [1, 3, 5, 5]


def test_replays_that_marks_know_are_not_passed_on_and_a_rewind_keeps_what_was_seen_beyond_it() -> None:
    values = Flow("values")
    values.source("in", int).to("out", partitions=1)
    run = Rehearsal(values)
    records = [wrap_at(number) for number in range(4)]
    for record in records[:3]:
        run.log.append("in", 0, record)
    run.run_until_caught_up()
    run.rewind({("in", 0): 1})
    run.log.append("in", 0, records[0])  # again: the rewound run has not read it, but the one before has
    run.log.append("in", 0, records[3])
    run.run_until_caught_up()
    assert [envelope.payload_as(int) for envelope in run.published("out")] == [0, 1, 2, 1, 2, 3]


def wrap_at(number: int) -> bytes:
    """A record that a republisher has made of the input at this offset of one lane."""
    at = Coordinates(topic="root", topic_id=bytes(16), partition=0, offset=number)
    return republish(None, at, number, output="up/in", key=None, timestamp_ms=number)


def with_policy(code: Code, poison: PoisonPolicy) -> None:
    """Go on with the same code and another policy."""
    code.run.service = None
    code.run.flow = replace(code.run.flow, poison=poison)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("poison", ["dead_letter", "stop", "skip"])
def test_what_was_skipped_stays_skipped_after_a_rewind_whatever_the_policy_and_the_code_are_now(
    poison: PoisonPolicy, *, fixed: bool
) -> None:
    """Readers have read past it: on this lane it would never be counted, and a later release would publish it a second time."""
    code = Code()
    code.feed(1, 2, 3)
    code.broken = {2}
    code.run.run_until_caught_up()
    if fixed:
        code.broken = set()
    with_policy(code, poison)
    code.run.rewind({("raw", 0): 0})
    code.run.run_until_caught_up()
    code.feed(4)
    code.run.run_until_caught_up()
    assert code.good() == [1, 3, 1, 3, 4]
    assert set(code.skipped_offsets()) == {1}


@pytest.mark.parametrize("poison", ["stop", "skip"])
def test_a_redo_by_another_policy_skips_what_was_skipped(poison: PoisonPolicy) -> None:
    code = Code()
    code.feed(1, 2, 3)
    code.broken = {2}
    code.killed_at(2)
    assert code.skipped_offsets() == [1]
    code.broken = set()
    with_policy(code, poison)
    code.run.run_until_caught_up()
    assert code.good()[-2:] == [1, 3]


@pytest.mark.parametrize("inputs", [1, 3])
@pytest.mark.parametrize("published", [1, 4, 8])
def test_what_receivers_have_is_compared_in_every_output_partition(inputs: int, published: int) -> None:
    # The notes of a batch share out where its output partitions ended.
    made, factor = Flow("shared", poison="dead_letter"), [1]
    made.source("raw", int, raw=True).map(lambda number: number * factor[0]).to("good", key=str, partitions=8)
    run = Rehearsal(made, partitions={"raw": inputs})
    for number in range(1, 10):
        run.feed("raw", number, partition=number % inputs)
    run.crash_at_call(published, method="publish")
    run.run_until_crash()
    notes = [parse_metadata(commit)["begun"] for commit in run.commits().values()]
    shared = [BegunBatch.from_json(note).ends for note in notes if isinstance(note, dict)]
    assert len(shared) == inputs
    of_good = [tp for ends in shared for tp in ends or {} if tp[0] == "good"]
    assert sorted(of_good) == [("good", partition) for partition in range(8)]
    factor[0] = 10
    with pytest.raises(PlanMismatch, match=r"--accept-changed-batch"):
        run.start()
    factor[0] = 1
    run.run_until_caught_up()


def test_a_note_without_ends_is_not_one_whose_share_is_empty() -> None:
    for ends in (None, {}, {("good", 3): 7}):
        note = BegunBatch(5, 1_000, {}, ends)
        assert BegunBatch.from_json(note.to_json()) == note
