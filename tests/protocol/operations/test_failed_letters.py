"""Goal: each record that a flow without stages has skipped counts once, or never, whatever operators do with it.

Method: words are fed, some fail, and the code is corrected. They are released and discarded, killed at every call, by two operators at
once. Then a receiver that knows nothing of all that counts the words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import ConfigurationError, PlanMismatch
from sqe_chain.features.dead_letter_commits import replay_group
from sqe_chain.flow import Flow
from sqe_chain.operations.failed import DiscardResult, FailedSelection, ReleaseResult
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Commit, Log
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash, FaultScript, InjectedFault
from sqe_chain.testing.faulty_ports import faulty_log
from tests.support.environments import environment_of
from tests.support.word_flows import append_word, same_key, stored_words, word

WORDS = ["ant", "bee", "cow", "dog", "elk", "fox"]
_names = count()


class Code:
    """What a user's function does: it fails for some words, and marks the others."""

    def __init__(self, *broken: str) -> None:
        self.broken, self.mark = set(broken), ""

    def check(self, value: StringValue) -> StringValue:
        if value.value in self.broken:
            raise ValueError(f"cannot read {value.value}")
        return word(value.value + self.mark)


class Cleaning:
    """A flow that checks words, and publishes them; and a receiver."""

    def __init__(
        self, *broken: str, raw: bool = True, feed: bool = True, partitions: int = 1, kept_in: int = 1
    ) -> None:
        self.code, self.raw = Code(*broken), raw
        flow = Flow("clean", poison="dead_letter", dead_letter_partitions=kept_in)
        source = flow.source("words", StringValue, raw=raw)
        source.map(self.code.check).to("good", key=lambda text: text.value, partitions=2)
        self.sender = Rehearsal(
            flow, partitions={"words": partitions}, settings=Settings(max_excluded_share=1.0)
        )
        totals = Flow("totals", state_partitions=1)
        totals.source("good", StringValue).aggregate("all", key=same_key, state=StringValue, fold=append_word)
        self.receiver = Rehearsal(totals, log=self.sender.log, partitions={"good": 2})
        if feed:
            self.feed(*WORDS)

    def feed(self, *words: str) -> None:
        for number, text in enumerate(words):
            value = word(text).SerializeToString() if self.raw else word(text)
            at = number % self.sender.log.describe(["words"])["words"].partitions
            self.sender.feed("words", value, partition=at, key=text, timestamp_ms=1 + number)
        self.sender.run_until_caught_up()

    def corrected(self) -> Cleaning:
        self.code.broken.clear()
        return self

    def operator(self, log: Log | None = None) -> FailedLetters:
        return FailedLetters(
            self.sender.flow, log or self.sender.log, lambda: 7, lambda: f"name-{next(_names)}"
        )

    def release(self, log: Log | None = None, **selection: object) -> ReleaseResult:
        return self.operator(log).release(FailedSelection(**selection))  # type: ignore[arg-type]

    def discard(self, log: Log | None = None, **selection: object) -> DiscardResult:
        return self.operator(log).discard(FailedSelection(**selection))  # type: ignore[arg-type]

    def statuses(self) -> dict[str, str]:
        return {str(record.key, "utf-8"): record.status for record in self.operator().list() if record.key}

    def counted(self) -> list[str]:
        self.receiver.run_until_caught_up()
        return sorted(stored_words(self.receiver, "all").get("all", "").split())


def crashes(act: Callable[[Cleaning, Log], object], make: Callable[[], Cleaning]) -> Iterator[Cleaning]:
    """The flow after each crash of an operator: before and after each of its calls."""
    for number in count():
        for when in ("before", "after"):
            cleaning, fault = make(), InjectedFault(_crash, of="broker", when=when, passes=number)
            try:
                act(cleaning, faulty_log(cleaning.sender.log, FaultScript(injected=[fault])))
            except Crash:
                yield cleaning
            else:
                assert number > 10
                return


def _crash() -> None:
    raise Crash("at this call")


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


def test_killed_at_every_call_and_repeated_they_count_once() -> None:
    """Each world with two partitions of dead-letter records; what was interrupted may be finished by a release of something else."""

    def make() -> Cleaning:
        return Cleaning("bee", "cow", "elk", partitions=2, kept_in=2).corrected()

    for number, cleaning in enumerate(crashes(lambda own, log: own.release(log), make)):
        if number % 2:
            cleaning.release(key="nobody")
        cleaning.release()
        assert cleaning.counted() == WORDS
        assert set(cleaning.statuses().values()) == {"released"}


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


@pytest.mark.parametrize("second", ["release", "discard"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_of_two_operators_the_first_one_decides(second: str, when: str) -> None:
    """The second one works while the first one is paused, at each call of it."""
    for number in range(1000):
        cleaning = Cleaning("bee", "elk").corrected()
        done = list[object]()
        fault = InjectedFault(
            lambda own=cleaning, to=done: to.append(getattr(own, second)(key="bee")),  # type: ignore[misc]
            of="broker",
            when=when,  # type: ignore[arg-type]
            passes=number,
        )
        cleaning.release(faulty_log(cleaning.sender.log, FaultScript(injected=[fault])))
        statuses = cleaning.statuses()
        assert statuses["elk"] == "released"
        counts = [text for text in WORDS if text != "bee" or statuses["bee"] == "released"]
        assert cleaning.counted() == counts, (number, statuses)
        assert cleaning.release().released == 0
        if not done:
            assert number > 10
            return
    raise AssertionError("no end")


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


def replayed_by_an_older_version(cleaning: Cleaning, *, sending: bool = False) -> None:
    """As that version has committed it: the first record is sent, and the third."""
    log = cleaning.sender.log
    topic_id = log.describe(["clean.dead-letters"])["clean.dead-letters"].topic_id.hex()
    metadata = (
        f'{{"topic_id":"{topic_id}","epoch":0,"round":0,"to":"","sending":{str(sending).lower()},'
        '"highest":{},"passage":1,"selection":"x","apart":[1,1]}'
    )
    log.commit(replay_group("clean"), {("clean.dead-letters", 0): Commit(1, metadata)})


def test_what_an_older_version_has_sent_back_is_never_released() -> None:
    def make() -> Cleaning:
        cleaning = Cleaning("bee", "cow", "elk").corrected()
        replayed_by_an_older_version(cleaning)
        return cleaning

    expected = {"bee": "discarded", "cow": "released", "elk": "discarded"}
    assert make().statuses() == expected | {"cow": "open"}
    for cleaning in crashes(lambda own, log: own.release(log), make):
        cleaning.release()
        assert cleaning.counted() == ["ant", "cow", "dog", "fox"]
        assert cleaning.statuses() == expected


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


def with_a_stage(cleaning: Cleaning) -> Flow:
    """The same flow, which also counts words now."""
    flow = Flow("clean", poison="dead_letter", state_partitions=1)
    checked = flow.source("words", StringValue, raw=True).map(cleaning.code.check)
    checked.to("good", key=lambda text: text.value, partitions=2)
    checked.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    return flow


def test_a_release_that_was_interrupted_is_finished_before_the_first_stage() -> None:
    """Only the flow without stages makes the same of its records; no plan would ever finish it."""
    refused = 0
    for number in range(100):
        cleaning = Cleaning("bee", "dog").corrected()
        sender, old = cleaning.sender, cleaning.sender.flow
        sender.service = None
        sender.crash_at_call(number)
        try:
            cleaning.operator(environment_of(sender).ports.log).release()
        except Crash:
            sender.cancel()
        else:
            assert refused > 2
            return
        sender.flow = with_a_stage(cleaning).compile()
        try:
            sender.run_until_caught_up()
        except PlanMismatch:
            refused, sender.flow, sender.service = refused + 1, old, None
            cleaning.operator().release()
            sender.flow = with_a_stage(cleaning).compile()
            sender.run_until_caught_up()
        FailedInPlans(environment_of(sender)).release()
        assert cleaning.counted() == sorted(WORDS), number
    raise AssertionError("no end")


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
