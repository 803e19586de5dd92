"""Goal: each record that a flow without stages has skipped counts once, or never, whatever operators do with it.

Method: words are fed, some fail, and the code is corrected. They are released and discarded, killed at every call, by two operators at
once. Then a receiver that knows nothing of all that counts the words.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sqe_chain.errors import ConfigurationError, PlanMismatch
from sqe_chain.operations.failed import DiscardResult
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.testing.faults import Crash, FaultScript
from sqe_chain.testing.faulty_ports import faulty_log
from tests.support.released_letters import WORDS, Cleaning, replayed_by_an_older_version, with_a_stage


@pytest.mark.parametrize("raw", [True, False])
def test_released_records_count_once(*, raw: bool) -> None:
    cleaning = Cleaning("bee", "elk", raw=raw).corrected()
    assert cleaning.counted() == ["ant", "cow", "dog", "fox"]
    result = cleaning.release()
    assert (result.released, result.outputs, result.again, result.left) == (2, 2, 0, 0)
    assert cleaning.counted() == WORDS
    assert cleaning.statuses() == {"bee": "released", "elk": "released"}
    assert cleaning.release().released == 0
    assert cleaning.counted() == WORDS


def test_what_fails_again_stays_open_and_the_others_count() -> None:
    cleaning = Cleaning("bee", "cow", "elk")
    cleaning.code.broken = {"cow"}
    result = cleaning.release()
    assert (result.released, result.again, result.left) == (2, 1, 1)
    ((place, reason),) = result.reasons
    assert (place, reason[:27]) == ("words[0]@2", "ValueError: cannot read cow")
    assert cleaning.statuses() == {"bee": "released", "cow": "open", "elk": "released"}
    assert cleaning.corrected().release().released == 1
    assert cleaning.counted() == WORDS


def test_a_late_copy_of_a_record_whose_decision_retention_took_is_not_released_again() -> None:
    """A run is paused before it writes a dead-letter record. A newer one writes the same, it is released, and deleted in time."""
    cleaning = Cleaning("bee", feed=False)
    sender, log = cleaning.sender, cleaning.sender.log

    def meanwhile() -> None:
        sender.service = None
        sender.run_until_caught_up()
        cleaning.corrected().release()
        assert cleaning.counted() == WORDS
        end = log.bounds([("clean.dead-letters", 0)])["clean.dead-letters", 0].stable_end
        log.truncate_before("clean.dead-letters", 0, end)
        cleaning.code.broken = {"bee"}

    sender.meanwhile(meanwhile, method="publish")
    cleaning.feed(*WORDS)
    assert cleaning.statuses() == {"bee": "unsure"}
    assert cleaning.corrected().release().released == 0
    assert cleaning.counted() == WORDS


def test_discarded_records_never_count() -> None:
    cleaning = Cleaning("bee", "elk").corrected()
    assert cleaning.discard(key="bee") == DiscardResult(1, 1)
    assert cleaning.release().released == 1
    assert cleaning.counted() == ["ant", "cow", "dog", "elk", "fox"]
    assert cleaning.statuses() == {"bee": "discarded", "elk": "released"}


def test_an_interrupted_release_is_finished_by_the_same_code_only() -> None:
    cleaning = Cleaning("bee", "elk").corrected()
    # decision, output, (crash before the second output)
    script = FaultScript(writes={(2, "before")})
    with pytest.raises(Crash):
        cleaning.release(faulty_log(cleaning.sender.log, script))
    there = len(cleaning.sender.log.records("good"))
    cleaning.code.mark = "!"
    with pytest.raises(PlanMismatch, match=r"dead-letters\[0\]@2 .*nothing was published"):
        cleaning.release()
    cleaning.code.broken = {"bee"}
    with pytest.raises(PlanMismatch, match=r"words\[0\]@1 fails: ValueError"):
        cleaning.release()
    assert len(cleaning.sender.log.records("good")) == there
    assert cleaning.statuses() == {"bee": "releasing", "elk": "releasing"}
    cleaning.code.mark = ""
    assert cleaning.corrected().release().released == 2
    assert cleaning.counted() == WORDS


def test_many_records_take_several_decisions_and_all_count() -> None:
    words = [f"w{number}" for number in range(2_300)]
    cleaning = Cleaning(*words, feed=False)
    cleaning.feed(*words)
    result = cleaning.corrected().release()
    assert (result.released, result.outputs) == (2_300, 2_300)
    assert cleaning.counted() == sorted(words)


def test_what_no_code_can_process_is_named_and_can_be_discarded() -> None:
    cleaning = Cleaning(raw=False)
    cleaning.sender.log.append("words", 0, b"no envelope", b"bad")
    cleaning.sender.run_until_caught_up()
    result = cleaning.release()
    assert (result.stuck, result.left) == (1, 1)
    assert result.reasons == [
        ("words[0]@6", "its envelope cannot be read, so nobody knows whether it is a replay. Discard it")
    ]
    assert cleaning.discard() == DiscardResult(1, 0)


def test_records_of_a_topic_that_was_created_again_can_only_be_discarded() -> None:
    cleaning = Cleaning("bee").corrected()
    cleaning.sender.log.recreate("words")
    result = cleaning.release()
    assert (result.released, result.stuck) == (0, 1)
    assert result.reasons == [("words[0]@1", "'words' was created again since the flow read it")]
    assert cleaning.discard() == DiscardResult(1, 0)


def test_a_selection_names_places() -> None:
    cleaning = Cleaning("bee", "elk").corrected()
    assert cleaning.release(places=frozenset({"words[0]@4"})).released == 1
    assert cleaning.statuses() == {"bee": "open", "elk": "released"}


def test_a_policy_that_was_changed_meanwhile_changes_nothing() -> None:
    cleaning = Cleaning("bee", "elk")
    cleaning.code.broken = {"elk"}
    cleaning.sender.flow = replace(cleaning.sender.flow, poison="stop")
    result = cleaning.release()
    assert (result.released, result.again) == (1, 1)


@pytest.mark.parametrize("action", ["release", "discard"])
def test_a_replay_that_an_older_version_has_not_finished_is_finished_by_it(action: str) -> None:
    cleaning = Cleaning("bee", "cow", "elk").corrected()
    replayed_by_an_older_version(cleaning, sending=True)
    with pytest.raises(ConfigurationError, match="was interrupted"):
        getattr(cleaning, action)()
    assert cleaning.counted() == ["ant", "dog", "fox"]


def test_a_flow_with_plans_has_another_way() -> None:
    cleaning = Cleaning("bee")
    with pytest.raises(ConfigurationError, match="'totals' keeps plans"):
        FailedLetters(cleaning.receiver.flow, cleaning.sender.log, lambda: 7, str).release()


def test_code_without_stages_decides_nothing_about_a_flow_that_has_plans() -> None:
    """Its states would never count what is published."""
    cleaning = Cleaning("bee")
    sender, old = cleaning.sender, cleaning.sender.flow
    sender.service = None
    sender.flow = with_a_stage(cleaning).compile()
    sender.run_until_caught_up()
    sender.flow = old
    cleaning.corrected()
    for decide in (cleaning.operator().release, cleaning.operator().discard):
        with pytest.raises(PlanMismatch, match="is declared without stages"):
            decide()
    assert [record.status for record in cleaning.operator().list()] == ["open"]
