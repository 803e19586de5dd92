"""Goal: of each root readers count what the newest revision gives that covers it, once. Method: corrections between runs, kills after each write."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import (
    ConfigurationError,
    LostOffsets,
    PlanMismatch,
    Superseded,
    UnknownRevision,
)
from sqe_chain.flow import Flow
from sqe_chain.operations.failed import ReleaseResult
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.task.dead_letters import parse_dead_letter
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash, InjectedFault
from tests.support.corrected import Chain, correct

FAMILIES = "clean/good", "keyed/fine"


def wrong(number: int) -> int:
    return number * 10 + 1


def right(number: int) -> int:
    return number * 10


def started() -> Chain:
    """Ten records: those of the first five are right with any code, since the others came later."""
    chain = Chain()
    chain.deploy("clean", wrong)
    chain.feed(1, 2, 3, 4, 5, at_ms=1_000)
    chain.feed(6, 7, 8, 9, 10, at_ms=2_000)
    chain.run()
    return chain


HALF = sorted([*map(wrong, range(1, 6)), *map(right, range(6, 11))])


def test_what_was_published_is_corrected_under_its_name_from_a_time_on() -> None:
    chain = started()
    fixed = chain.deploy("clean", right, 2)
    found = correct(fixed, 2_000)
    assert (found.number, found.begun_before) == (2, False)
    chain.feed(11, at_ms=3_000)
    chain.run()
    assert chain.counted("good", *FAMILIES) == sorted([*HALF, 110])
    assert chain.counted("fine", *FAMILIES) == sorted([*HALF, 110])
    # Roots before the seam were not published again.
    assert chain.numbers("good").count("clean/good") == 10
    assert chain.numbers("good").count("clean/good@2") == 6


def test_a_reader_that_knows_of_no_revision_counts_as_before() -> None:
    chain = started()
    correct(chain.deploy("clean", right, 2), 2_000)
    chain.run()
    first = [name for name in chain.numbers("fine") if name == "keyed/fine"]
    assert len(first) == 15, "the republisher between passes on both"


def test_a_correction_of_all_has_no_seam() -> None:
    chain = started()
    found = correct(chain.deploy("clean", right, 2), None)
    assert found.since is None
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [10 * number for number in range(1, 11)]


def test_the_second_republisher_is_corrected_by_the_time_of_the_roots() -> None:
    chain = started()
    fixed = chain.deploy("keyed", lambda number: number + 1_000, 2)
    found = correct(fixed, 2_000)
    assert {topic for topic, _ in found.since or {}} == {"raw", "good"}
    chain.run()
    late = [wrong(number) + 1_000 for number in range(6, 11)]
    assert chain.counted("fine", *FAMILIES) == sorted([*map(wrong, range(1, 6)), *late])


@pytest.mark.parametrize(("second", "third"), [(1_000, 2_000), (2_000, 1_000), (2_000, 2_000)])
def test_a_second_correction_may_begin_before_the_first_has_caught_up(second: int, third: int) -> None:
    chain = started()
    correct(chain.deploy("clean", lambda number: -number, 2), second)
    chain.clean.batch()
    correct(chain.deploy("clean", right, 3), third)
    chain.run()
    begin = 1 if min(second, third) == 1_000 else 6
    newest = 1 if third == 1_000 else 6
    want = [wrong(number) for number in range(1, begin)]
    want += [right(number) for number in range(newest, 11)]
    got = chain.counted("fine", *FAMILIES)
    # Between the seams the second revision counts, by whichever code made it.
    rest = set(got) - set(want)
    assert len(got) == 10
    assert {abs(number) if number < 0 else number // 10 for number in rest} == set(range(begin, newest))


def test_a_correction_that_was_killed_before_its_commit_is_part_of_the_next_one() -> None:
    chain = started()
    fixed = chain.deploy("clean", right, 2)
    fixed.crash_at_call(0, method="commit")
    with pytest.raises(Crash):
        correct(fixed, None)
    assert [number for number, _ in chain.seams("clean/good")] == [2]
    correct(chain.deploy("clean", right, 3), 2_000)
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [right(number) for number in range(1, 11)]


def test_old_code_finishes_what_it_began_between_the_record_of_a_correction_and_its_commit() -> None:
    chain = started()
    correct(chain.deploy("clean", right, 2), 1_000)
    old = chain.clean
    chain.run()
    fixed = chain.deploy("clean", right, 3)
    fixed.meanwhile(old.start, method="publish")  # a supervisor starts it right before the record
    with pytest.raises(Superseded):
        correct(fixed, 2_000)
    chain.feed(11, at_ms=3_000)
    old.crash_at_call(0, method="publish")
    old.run_until_crash()
    with pytest.raises(PlanMismatch, match="Run the old code"):
        correct(fixed, 2_000)
    old.service = None
    old.run_until_caught_up()
    correct(fixed, 2_000)
    chain.clean = fixed
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [right(number) for number in range(1, 12)]


def test_a_paused_run_of_old_code_does_not_stop_the_redo_of_a_batch_that_new_code_has_begun() -> None:
    chain = started()
    old = next(record for record in chain.log.records("good") if chain.links(record)[0].offset == 0)
    correct(chain.deploy("clean", right, 2), 1_000)
    chain.clean.crash_at_call(1, method="publish")
    chain.clean.run_until_crash()
    # It wakes, and publishes what it had made before it was fenced off.
    chain.log.append("good", old.partition(), old.value(), old.key(), old.headers())
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [right(number) for number in range(1, 11)]


def test_both_republishers_are_corrected() -> None:
    chain = started()
    correct(chain.deploy("clean", right, 2), 2_000)
    chain.run()
    correct(chain.deploy("keyed", lambda number: number + 1_000, 2), 1_000)
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [number + 1_000 for number in HALF]


@pytest.mark.parametrize("since", [None, 1_000])
def test_the_second_republisher_is_corrected_further_back_before_it_has_read_again(since: int | None) -> None:
    """After the first move back it has marks of a lane whose messages all lie ahead."""
    chain = started()
    correct(chain.deploy("clean", right, 2), 1_000)
    chain.run()
    correct(chain.deploy("keyed", lambda number: -number, 2), 2_000)
    correct(chain.deploy("keyed", lambda number: number + 1_000, 3), since)
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [right(number) + 1_000 for number in range(1, 11)]


def test_a_zombie_of_the_old_code_publishes_nothing_that_counts() -> None:
    chain = Chain()
    chain.deploy("clean", wrong)
    chain.feed(1, 2, 3, 4, at_ms=1_000)
    old = chain.clean
    old.run_until_caught_up()
    zombie = old.zombie()
    correct(chain.deploy("clean", right, 2), 1_000)
    chain.feed(5, 6, at_ms=2_000)
    with pytest.raises(Superseded):
        zombie.wake()
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [10 * number for number in range(1, 7)]


@pytest.mark.parametrize("flow", ["clean", "keyed"])
def test_killed_after_any_write_it_is_finished_by_the_command_or_by_the_next_start(flow: str) -> None:
    for at in range(100):
        chain = started()
        fixed = chain.deploy(flow, lambda number: number * 10, 2)
        fixed.crash_at_call(at, when="after")
        try:
            correct(fixed, 2_000)
        except Crash:
            pass
        else:
            fixed.cancel()
            break
        begun = bool(chain.seams("clean/good" if flow == "clean" else "keyed/fine"))
        if at % 2 or not begun:
            try:
                correct(fixed, 1_000 if begun else 2_000)  # the first record holds
            except ConfigurationError as error:
                assert "has begun, and the flow was put back" in str(error)  # noqa: PT017
        fixed.run_until_caught_up()
        chain.run()
        before, after = (
            (wrong(number) for number in range(1, 6)),
            [wrong(number) * 10 for number in range(6, 11)],
        )
        if flow == "clean":
            after = [number * 10 for number in range(6, 11)]
        assert chain.counted("fine", *FAMILIES) == sorted([*before, *after]), at
    assert at > 3


def test_of_two_operators_the_first_one_holds() -> None:
    chain = started()
    fixed = chain.deploy("clean", right, 2)
    other = chain.deploy("clean", right, 2)

    def meanwhile() -> None:
        correct(other, 2_000)

    fixed.script.injected.append(InjectedFault(meanwhile, "broker", "before", method="publish"))
    with pytest.raises(Superseded):
        correct(fixed, 1_000)
    assert len(chain.log.records("good.revisions")) == 2
    chain.run()
    assert chain.counted("fine", *FAMILIES) == HALF


def test_of_two_operators_the_first_one_holds_for_all_outputs() -> None:
    log = MemoryLog("two-outputs")

    def deployed(revision: int) -> Rehearsal:
        flow = Flow("clean")
        source = flow.source("raw", int, raw=True)
        source.to("good", partitions=1, revision=revision)
        source.map(wrong).to("bad", partitions=1, revision=revision)
        return Rehearsal(flow, log=log)

    first = deployed(1)
    for number in range(4):
        first.feed("raw", number, timestamp_ms=1_000 * number)
    first.run_until_caught_up()
    slow, quick = deployed(2), deployed(2)
    slow.script.injected.append(
        InjectedFault(lambda: correct(quick, 2_000), "broker", "before", method="publish")
    )
    with pytest.raises(Superseded):
        correct(slow, 1_000)
    deployed(2).run_until_caught_up()
    seams = [
        json.loads(record.value() or b"")["since"][0]["from"]["0"]
        for topic in ("bad.revisions", "good.revisions")
        for record in log.records(topic)[:1]
    ]
    assert seams[0] == seams[1] == [1, 2]
    read_in_bad, read_in_good = (
        [envelope.payload_as(int) for envelope in first.published(topic)] for topic in ("bad", "good")
    )
    assert (read_in_bad, read_in_good) == ([1, 11, 21, 31, 21, 31], [0, 1, 2, 3, 2, 3])


def test_an_output_that_is_added_later_has_the_revisions_of_the_others() -> None:
    chain = started()
    correct(chain.deploy("clean", right, 2), 2_000)
    chain.run()
    flow = Flow("clean")
    source = flow.source("raw", int, raw=True).map(right)
    source.to("good", key=str, partitions=2, revision=2)
    source.to("more", partitions=1, revision=2)
    Rehearsal(flow, log=chain.log).start()
    (added,), (before,) = chain.log.records("more.revisions"), chain.log.records("good.revisions")
    known, own = json.loads(before.value() or b""), json.loads(added.value() or b"")
    assert (added.key(), own["since"], own["ends"]) == (b"clean/more", known["since"], [0])


def with_more(chain: Chain, revision: int, *, more: bool = True) -> Rehearsal:
    """The first republisher with one more output, which has no partition or key in common with the other."""
    flow = Flow("clean")
    source = flow.source("raw", int, raw=True).map(right if revision > 1 else wrong)
    source.to("good", key=str, partitions=2, revision=revision)
    if more:
        source.to("more", partitions=1, revision=revision)
    return Rehearsal(flow, log=chain.log)


def test_an_output_that_a_correction_was_made_without_is_not_replaced_when_it_is_declared_again() -> None:
    chain = Chain()
    with_more(chain, 1).start()
    chain.feed(1, 2, 3, 4, at_ms=1_000)
    with_more(chain, 1).run_until_caught_up()
    correct(with_more(chain, 2, more=False), 1_000)
    with_more(chain, 2, more=False).run_until_caught_up()
    with pytest.raises(ConfigurationError, match="Declare revision=3"):
        with_more(chain, 2).start()
    assert chain.log.describe(["more.revisions"]) == {}
    chain.feed(5, 6, at_ms=2_000)
    correct(with_more(chain, 3), 2_000)
    with_more(chain, 3).run_until_caught_up()
    assert [
        json.loads(record.value() or b"")["revision"] for record in chain.log.records("more.revisions")
    ] == [3]
    more = [
        (chain.links(record)[-1].output, chain.links(record)[0].offset)
        for record in chain.log.records("more")
    ]
    # What lies before the last seam stays as it was.
    assert {name for name, _ in more} == {"clean/more", "clean/more@3"}


def test_the_code_of_before_is_refused_and_so_is_a_revision_that_has_not_begun() -> None:
    chain = started()
    with pytest.raises(
        UnknownRevision, match=r"clean/good is declared with revision 2, which has no beginning"
    ):
        chain.deploy("clean", right, 2).start()
    correct(chain.clean, 2_000)
    with pytest.raises(ConfigurationError, match=r"Expected revision=2"):
        chain.deploy("clean", wrong).start()
    with pytest.raises(ConfigurationError, match=r"has begun, and the flow was put back to it"):
        correct(chain.deploy("clean", right, 2), 1_000)
    correct(chain.deploy("clean", right, 3), 2_000)
    with pytest.raises(ConfigurationError, match=r"revision 3"):
        chain.deploy("clean", right, 2).start()
    with pytest.raises(ConfigurationError, match=r"Declare to\(\.\.\., revision=2\)"):
        correct(chain.deploy("keyed", right), 2_000)


def test_an_unfinished_batch_is_refused() -> None:
    chain = started()
    chain.feed(11, 12, at_ms=3_000)
    chain.clean.crash_at_call(1, method="publish")
    chain.clean.run_until_crash()
    with pytest.raises(PlanMismatch, match="a sealed batch is unfinished"):
        correct(chain.deploy("clean", right, 2), 2_000)
    assert chain.seams("clean/good") == []
    chain.deploy("clean", wrong).run_until_caught_up()
    correct(chain.deploy("clean", right, 2), 2_000)
    chain.run()
    assert chain.counted("good", *FAMILIES) == sorted([*HALF, 110, 120])


def test_a_flow_that_has_published_nothing_has_nothing_to_correct() -> None:
    chain = Chain()
    with pytest.raises(ConfigurationError, match="nothing to correct"):
        correct(chain.deploy("clean", right, 2), 2_000)


def test_a_look_changes_nothing() -> None:
    chain = started()
    before = chain.clean.commits()
    found = correct(chain.deploy("clean", right, 2), 2_000, dry=True)
    assert found.offsets == {("raw", 0): 3, ("raw", 1): 2}
    assert chain.seams("clean/good") == []
    assert chain.deploy("clean", wrong).commits() == before


def test_what_is_gone_cannot_be_read_again() -> None:
    chain = started()
    for partition in (0, 1):
        chain.log.truncate_before("good", partition, 1)
    with pytest.raises(LostOffsets, match="are to be read again"):
        correct(chain.deploy("keyed", right, 2), 1_000)
    assert chain.seams("keyed/fine") == []


def failing_at(*broken: int, code: Callable[[int], int] = wrong) -> Callable[[int], int]:
    def function(number: int) -> int:
        if number in broken:
            raise ValueError(number)
        return code(number)

    return function


def skipped_inputs(chain: Chain) -> list[tuple[int, int]]:
    """Offset and revision of each dead-letter record."""
    parsed = map(parse_dead_letter, chain.log.records("clean.dead-letters"))
    return [(letter.offset, letter.revision) for letter in parsed if letter is not None]


def release(chain: Chain) -> ReleaseResult:
    names = iter(range(100))
    flow = chain.clean.flow
    return FailedLetters(flow, chain.log, chain.clean.clock.now_ms, lambda: f"name-{next(names)}").release()


def test_what_failed_is_tried_again_by_the_next_revision_and_released_under_its_own() -> None:
    chain = Chain(partitions=1)
    chain.deploy("clean", failing_at(2, 7))
    chain.feed(1, 2, 3, 4, 5, at_ms=1_000)
    chain.feed(6, 7, 8, 9, at_ms=2_000)
    chain.run()
    correct(chain.deploy("clean", failing_at(2, 9, code=right), 2), 2_000)
    chain.run()
    assert skipped_inputs(chain) == [(1, 1), (6, 1), (8, 2)]
    assert chain.counted("good", *FAMILIES) == sorted([*map(wrong, (1, 3, 4, 5)), 60, 70, 80])
    chain.deploy("clean", right, 2)
    released = release(chain)
    assert (released.released, released.stuck) == (2, 1)
    assert [reason for _, reason in released.reasons] == [
        "it is superseded by revision 2, which has tried the input again. Discard it"
    ]
    names = [name.partition("/released.")[0] for name in chain.numbers("good") if "/released." in name]
    assert names == ["clean/good", "clean/good@2"]
    chain.run()
    want = sorted([*map(wrong, (1, 3, 4, 5)), 20, 60, 70, 80, 90])
    assert chain.counted("good", *FAMILIES) == want
    assert chain.counted("fine", *FAMILIES) == want


@pytest.mark.parametrize("to", [5, 7])
def test_a_rewind_skips_what_its_own_revision_has_skipped(to: int) -> None:
    chain = Chain(partitions=1)
    chain.deploy("clean", failing_at(7))
    chain.feed(1, 2, 3, 4, 5, at_ms=1_000)
    chain.feed(6, 7, 8, 9, at_ms=2_000)
    chain.run()
    correct(chain.deploy("clean", failing_at(9, code=right), 2), 2_000)
    chain.run()
    chain.deploy("clean", right, 2)
    with pytest.raises(ConfigurationError, match="Revision 2 begins at 5"):
        chain.clean.rewind({("raw", 0): 4})
    before = len(chain.numbers("good"))
    chain.clean.rewind({("raw", 0): to})
    chain.run()
    # All but the last one, which the second revision has skipped; what the first one had skipped is published again, too.
    assert len(chain.numbers("good")) - before == 8 - to
    assert chain.counted("fine", *FAMILIES) == sorted([*map(wrong, range(1, 6)), 60, 70, 80])


def test_what_failed_is_known_to_the_second_republisher_by_its_revision() -> None:
    chain = Chain(partitions=1)
    chain.feed(1, 2, 3, 4, 5, at_ms=1_000)
    chain.feed(6, 7, 8, 9, at_ms=2_000)
    chain.deploy("keyed", failing_at(2, 7))
    chain.run()
    correct(chain.deploy("keyed", failing_at(9, code=right), 2), 2_000)
    chain.run()
    chain.deploy("keyed", right, 2)
    chain.keyed.rewind({("good", 0): 0})
    chain.run()
    assert chain.counted("fine", *FAMILIES) == sorted([*map(wrong, (1, 3, 4, 5)), 60, 70, 80])


@pytest.mark.parametrize("offset", [0, 2])
def test_a_rewind_of_the_second_republisher_publishes_nothing_again_that_other_code_has_made(
    offset: int,
) -> None:
    chain = started()
    # It moves each number to the other partition, and so to another lane.
    correct(chain.deploy("keyed", lambda number: number + 1_001, 2), 2_000)
    chain.run()
    before = chain.counted("fine", *FAMILIES)
    chain.keyed.rewind({("good", 0): 0, ("good", 1): offset})
    chain.run()
    chain.feed(11, 12, at_ms=3_000)
    chain.run()
    assert chain.counted("fine", *FAMILIES) == sorted([*before, wrong(11) + 1_001, wrong(12) + 1_001])


def test_a_batch_that_was_begun_after_a_correction_skips_what_its_own_revision_has_skipped() -> None:
    for at in range(4):
        chain = Chain(partitions=1)
        chain.deploy("clean", failing_at(2))
        chain.feed(1, 2, 3, at_ms=2_000)
        chain.run()
        correct(chain.deploy("clean", failing_at(3, code=right), 2), 2_000)
        chain.clean.crash_at_call(at, method="publish")
        chain.clean.run_until_crash()
        chain.run()
        assert skipped_inputs(chain) == [(1, 1), (2, 2)]
        assert chain.counted("fine", *FAMILIES) == [10, 20], at


def test_where_retention_has_taken_roots_all_can_be_corrected_from_a_time_only() -> None:
    chain = started()
    for partition in (0, 1):
        chain.log.truncate_before("raw", partition, 2)
    fixed = chain.deploy("clean", right, 2)
    with pytest.raises(LostOffsets, match="Correct from a time"):
        correct(fixed, None)
    found = correct(fixed, 0)
    assert found.offsets == {("raw", 0): 2, ("raw", 1): 2}
    chain.run()
    # What was made of roots that are gone stays.
    assert chain.counted("fine", *FAMILIES) == sorted([*map(wrong, range(1, 5)), *map(right, range(5, 11))])


def test_where_all_roots_are_gone_nothing_is_corrected_and_what_comes_counts() -> None:
    chain = started()
    chain.log.truncate_before("raw", 0, 5)
    correct(chain.deploy("clean", right, 2), 1_000)
    chain.feed(11, 12, 13, at_ms=3_000)
    chain.run()
    even, odd = [2, 4, 6, 8, 10, 12], [1, 3, 5, 7, 9]
    # Raw[0] had the odd numbers. New code makes what comes there, under the revision of before.
    want = sorted([*map(right, even), *map(wrong, odd), *map(right, (11, 13))])
    assert chain.counted("fine", *FAMILIES) == want


def test_a_whole_correction_before_lets_the_second_republisher_begin_where_its_input_begins() -> None:
    chain = started()
    chain.keyed.run_until_caught_up()
    correct(chain.deploy("clean", right, 2), None)
    chain.run()
    before = [chain.log.records("good.revisions")[0].value()]
    ends = json.loads(before[0] or b"")["ends"]
    for partition in (0, 1):
        chain.log.truncate_before("good", partition, ends[partition])
    found = correct(chain.deploy("keyed", lambda number: number + 1_000, 2), 1_000)
    assert found.offsets == {("good", 0): ends[0], ("good", 1): ends[1]}
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [10 * number + 1_000 for number in range(1, 11)]


def test_of_what_a_whole_correction_has_replaced_a_part_may_be_kept() -> None:
    chain = Chain(partitions=1)
    chain.deploy("clean", wrong)
    chain.feed(1, 2, 3, 4, 5, at_ms=1_000)
    chain.run()
    correct(chain.deploy("clean", right, 2), None)
    chain.run()
    chain.log.truncate_before("good", 0, 2)  # the third message follows one that is gone
    correct(chain.deploy("keyed", lambda number: number + 1_000, 2), 1_000)
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [10 * number + 1_000 for number in range(1, 6)]


def take_what_was_replaced(chain: Chain) -> None:
    """Retention takes what lies before the first revision of good."""
    for partition in (0, 1):
        ends = json.loads(chain.log.records("good.revisions")[0].value() or b"")["ends"]
        chain.log.truncate_before("good", partition, ends[partition])


def test_another_writer_of_its_input_that_is_gone_cannot_be_read_again() -> None:
    chain = started()
    other = Flow("other")
    other.source("more", int, raw=True).to("good", key=str, partitions=2)
    second = Rehearsal(other, log=chain.log)
    for number in range(100, 110):
        second.feed("more", number)
    second.run_until_caught_up()
    chain.run()
    correct(chain.deploy("clean", right, 2), None)
    chain.run()
    before = chain.counted("fine", *FAMILIES)
    assert sum(number >= 100 for number in before) == 10 + 1
    take_what_was_replaced(chain)
    with pytest.raises(LostOffsets, match="all of lane"):
        correct(chain.deploy("keyed", lambda number: number + 1_000, 2), None)
    assert chain.seams("keyed/fine") == []


def test_a_correction_before_anything_has_come_from_a_root_topic_is_reported() -> None:
    chain = Chain()
    chain.run()
    fixed = chain.deploy("keyed", right, 2)
    correct(fixed, 1_000)
    texts = [str(event) for event in fixed.script.events]
    assert any("nothing in its inputs has come from a root topic" in text for text in texts)
    chain.feed(1, 2, at_ms=2_000)
    chain.run()
    assert set(chain.numbers("fine")) == {"keyed/fine"}


def test_what_a_root_topic_gave_that_was_created_again_cannot_be_made_again() -> None:
    chain = Chain(partitions=1)
    chain.feed(1, 2, at_ms=1_000)
    chain.run()
    chain.log.delete("raw")
    chain.log.create_topic("raw", 1)
    chain.deploy("clean", wrong)
    chain.feed(3, 4, at_ms=2_000)
    chain.run()
    with pytest.raises(LostOffsets, match="'raw' was created again"):
        correct(chain.deploy("clean", right, 2), None)
    correct(chain.clean, 0)
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [1, 2, 30, 40]


def test_a_root_topic_has_a_seam_if_nothing_of_it_is_kept() -> None:
    """Its lanes are in marks alone. What comes of it later is corrected, too."""
    chain = started()
    for tp, bound in chain.log.bounds([("good", 0), ("good", 1)]).items():
        chain.log.truncate_before(*tp, bound.stable_end)
    fixed = chain.deploy("keyed", lambda number: number + 1_000, 2)
    found = correct(fixed, 3_000)
    assert {topic for topic, _ in found.since or {}} == {"raw", "good"}
    chain.feed(11, 12, at_ms=3_000)
    chain.run()
    assert chain.counted("fine", *FAMILIES)[-2:] == [wrong(11) + 1_000, wrong(12) + 1_000]
    assert chain.numbers("fine").count("keyed/fine@2") == 2


def test_the_second_republisher_needs_its_input_alone() -> None:
    chain = started()
    for partition in (0, 1):
        chain.log.truncate_before("raw", partition, 2)
    correct(chain.deploy("keyed", lambda number: number + 1_000, 2), None)
    chain.run()
    assert chain.counted("fine", *FAMILIES) == [wrong(number) + 1_000 for number in range(1, 11)]


@pytest.mark.parametrize("since", [None, 0])
@pytest.mark.parametrize("flow", ["clean", "keyed"])
def test_what_a_flow_has_skipped_when_it_began_is_not_corrected(flow: str, since: int | None) -> None:
    chain = Chain()
    chain.deploy("clean", wrong)
    chain.feed(1, 2, 3, 4, at_ms=1_000)
    if flow == "keyed":
        chain.clean.run_until_caught_up()
    own = chain.deploy(flow, wrong if flow == "clean" else int)
    own.settings = replace(own.settings, start="latest")
    own.run_until_caught_up()
    chain.feed(5, 6, 7, at_ms=2_000)
    chain.run()
    assert len(chain.counted("fine", *FAMILIES)) == 3
    fixed = chain.deploy(flow, right if flow == "clean" else lambda number: number + 1_000, 2)
    correct(fixed, since)
    chain.run()
    want = [50, 60, 70] if flow == "clean" else [1_051, 1_061, 1_071]
    assert chain.counted("fine", *FAMILIES) == want


def test_a_seam_after_all_records_begins_with_what_comes() -> None:
    chain = started()
    found = correct(chain.deploy("clean", right, 2), 5_000)
    assert found.since == {("raw", 0): (1, 5), ("raw", 1): (1, 5)}
    chain.feed(11, 12, at_ms=6_000)
    chain.run()
    assert chain.counted("fine", *FAMILIES) == sorted([*map(wrong, range(1, 11)), 110, 120])
    assert chain.numbers("good")[-1] == "clean/good@2"


def test_what_a_root_topic_gave_before_it_was_created_again_stays_and_what_it_gives_now_is_corrected() -> (
    None
):
    chain = Chain(partitions=1)
    chain.deploy("clean", wrong)
    chain.feed(1, 2, at_ms=1_000)
    chain.run()
    chain.log.delete("raw")
    chain.log.create_topic("raw", 1)
    chain.deploy("clean", wrong)
    chain.feed(3, 4, at_ms=2_000)
    chain.run()
    correct(chain.deploy("keyed", lambda number: number + 1_000, 2), 0)
    chain.run()
    assert chain.counted("fine", "clean/good") == sorted([11, 21, 31, 41, 1_031, 1_041])


def test_records_with_several_outputs_and_none_are_corrected_as_one() -> None:
    chain = Chain()
    chain.deploy("clean", wrong)
    chain.feed(*range(1, 9), at_ms=1_000)
    chain.run()
    flow = Flow("clean")
    source = flow.source("raw", int, raw=True)
    several = source.flat_map(lambda number: [number] * (number % 3))
    several.to("good", key=str, partitions=2, revision=2)
    chain.clean = Rehearsal(flow, log=chain.log)
    correct(chain.clean, 1_000)
    chain.run()
    assert chain.counted("fine", *FAMILIES) == sorted(
        number for number in range(1, 9) for _ in range(number % 3)
    )


@pytest.mark.parametrize(("revision", "refused"), [(1, True), (2, False), (3, True)])
def test_with_its_first_stage_a_flow_keeps_the_revision_that_it_has(revision: int, *, refused: bool) -> None:
    chain = started()
    correct(chain.deploy("clean", right, 2), 2_000)
    chain.run()
    flow = Flow("clean", state_partitions=1)
    source = flow.source("raw", int, raw=True).map(right)
    source.to("good", key=str, partitions=2, revision=revision)
    source.aggregate("count", key=lambda _: "all", state=dict, fold=lambda _state, _value: None)
    staged = Rehearsal(flow, log=chain.log)
    if refused:
        with pytest.raises(PlanMismatch, match="Declare revision=2"):
            staged.start()
        return
    staged.run_until_caught_up()
    assert len(chain.log.records("good.revisions")) == 1


def test_a_transactional_flow_without_stages_cannot_declare_a_revision() -> None:
    flow = Flow("clean", transactional=True)
    flow.source("raw", int, raw=True).to("good", partitions=1, revision=2)
    with pytest.raises(ConfigurationError, match="transactional without a stage"):
        Rehearsal(flow).start()
