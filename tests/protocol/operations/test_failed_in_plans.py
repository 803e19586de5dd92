"""Goal: each dead-letter record of a flow with stages counts once, or never, whatever operators do at once.

Method: words fail, and the code is corrected. A second operator works while the first one is paused, at each of its calls.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import DeadLettersLost, NotCaughtUp, PoisonError
from sqe_chain.ext.explain.audit import audit
from sqe_chain.ext.explain.fate import find_fate
from sqe_chain.ext.explain.trace import trace
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.operations.failed import FailedSelection, ReleaseResult
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling, WindowResult
from sqe_chain.testing import Rehearsal
from tests.support.dead_letter_world import FINAL, DeadLetterWorld
from tests.support.environments import environment_of
from tests.support.skipped_words import WORDS, Counting
from tests.support.word_flows import append_word, same_key, stored_words, word

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
    """It stays skipped until it is released, although the code is correct now; then a fold counts it at its place."""
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
                counting.counted()
    assert counting.counted() == WORDS


@pytest.mark.parametrize("poison", ["stop", "skip", "park"])
def test_a_fold_by_another_policy_skips_what_may_be_released_later(poison: PoisonPolicy) -> None:
    """One passes a bad record by a policy that is declared once, and folds again by the usual one."""
    counting = Counting()
    counting.rehearsal.flow = replace(counting.rehearsal.flow, poison=poison)
    counting.rehearsal.rebuild()
    assert counting.counted() == ["ant", "cow"]
    counting.operator().release()
    assert counting.counted() == WORDS


def test_a_flow_that_was_rewound_releases_nothing_until_it_has_caught_up() -> None:
    counting = Counting()
    counting.rehearsal.rebuild(to={("words", 0): 1})
    with pytest.raises(NotCaughtUp, match="has read up to 1"):
        counting.operator().release()
    assert counting.counted() == ["ant", "cow"]
    assert counting.operator().release().released == 2
    assert counting.counted() == WORDS


def test_a_discarded_record_never_counts_also_not_when_the_flow_is_folded_again() -> None:
    counting = Counting()
    counting.operator().discard(FailedSelection(key="bee"))
    counting.rehearsal.rebuild()
    counting.operator().release()
    assert counting.counted() == ["ant", "cow", "dog"]


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_what_was_skipped_stays_skipped_when_the_flow_declares_another_policy_again(
    policy: PoisonPolicy, *, fixed: bool
) -> None:
    """One starts a flow once with `dead_letter`, to pass over a wrong record."""
    counting = Counting()
    counting.operator().discard(FailedSelection(key="bee"))
    counting.broken |= set() if fixed else {"bee", "dog"}
    counting.declare(policy)
    env = environment_of(counting.rehearsal)
    stage = env.flow.stages[0]
    assert trace(env, stage, [b"all"]).equal is True
    assert audit(env, stage, 10, Random(1)).different == ()
    assert [find_fate(env, ("words", 0, at)).verdict for at in range(4)] == [
        "counted",
        "skipped",
        "counted",
        "skipped",
    ]
    counting.rehearsal.rebuild()
    assert counting.counted() == ["ant", "cow"]
    counting.rehearsal.rebuild(to={("words", 0): 1}, republish=True)
    assert counting.counted() == ["ant", "cow"]
    counting.broken.clear()
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


def test_a_record_without_an_envelope_counts_once_it_is_released_and_not_before() -> None:
    broken = {"bee"}

    def read(data: bytes) -> StringValue:
        if data.decode() in broken:
            raise ValueError(data)
        return word(data.decode())

    flow = Flow("raw", poison="dead_letter", state_partitions=1)
    flow.source("lines", read, raw=True).aggregate("all", key=same_key, state=StringValue, fold=append_word)
    rehearsal = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))

    def counted() -> list[str]:
        rehearsal.run_until_caught_up()
        return sorted(stored_words(rehearsal, "all")["all"].split())

    for text in ("ant", "bee"):
        rehearsal.feed("lines", text.encode())
    assert counted() == ["ant"]
    broken.clear()
    rehearsal.rebuild()
    assert counted() == ["ant"]
    assert FailedInPlans(environment_of(rehearsal)).release().released == 1
    rehearsal.service = None
    assert counted() == ["ant", "bee"]
    rehearsal.rebuild()
    assert counted() == ["ant", "bee"]


def test_by_event_time_a_released_record_is_late_and_one_that_is_early_stays_open() -> None:
    """Windows of ten seconds: one that is open takes it, one that is closed does not, and one that has not begun waits."""
    broken = {"closed@5", "open@17", "early@500"}

    def seconds(value: StringValue) -> int:
        if value.value in broken:
            raise ValueError(value.value)
        return int(value.value.partition("@")[2]) * 1000

    def add(known: StringValue, value: StringValue) -> None:
        known.value += f" {value.value}"

    flow = Flow("hours", poison="dead_letter", state_partitions=1)
    words = flow.source("words", StringValue, timestamp=seconds)
    words.windowed("all", Tumbling(10_000), key=same_key, state=StringValue, fold=add).to(
        "results", partitions=1
    )
    rehearsal = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))

    def feed(*texts: str) -> None:
        for text in texts:
            rehearsal.feed("words", word(text), key="k")
            rehearsal.run_until_caught_up()

    def release() -> ReleaseResult:
        rehearsal.service = None
        result = FailedInPlans(environment_of(rehearsal)).release()
        rehearsal.service = None
        return result

    feed("ant@6", "closed@5", "bee@18", "open@17", "early@500")
    broken.clear()
    result = release()
    assert (result.released, result.again) == (2, 1), result.reasons
    assert "lies after what the flow has reached" in result.reasons[0][1]
    feed("cow@600")
    assert release().released == 1
    states = [envelope.payload_as(WindowResult).state for envelope in rehearsal.published("results")]
    assert [StringValue.FromString(state).value.split() for state in states] == [
        ["ant@6"],
        ["bee@18", "open@17"],
    ]


def test_a_record_that_was_counted_and_fails_now_stops_a_fold_and_nothing_has_changed() -> None:
    """A fold publishes nothing, so there would be no dead-letter record of it."""
    broken = set[str]()

    def check(value: StringValue) -> StringValue:
        if value.value in broken:
            raise ValueError(value.value)
        return value

    flow = Flow("counting", poison="dead_letter", state_partitions=1)
    flow.source("words", StringValue).map(check).aggregate(
        "all", key=same_key, state=StringValue, fold=append_word
    )
    rehearsal = Rehearsal(flow)
    for text in WORDS:
        rehearsal.feed("words", word(text), key=text)
    rehearsal.run_until_caught_up()
    broken.add("bee")
    with pytest.raises(PoisonError, match=r"words\[0\]@1 .*so it was counted") as caught:
        rehearsal.rebuild()
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("words", 0, 1)
    assert stored_words(rehearsal, "all")["all"].split() == WORDS
    assert not rehearsal.log.describe(["counting.dead-letters"]) or not rehearsal.log.records(
        "counting.dead-letters"
    )
    broken.clear()
    rehearsal.rebuild()
    assert stored_words(rehearsal, "all")["all"].split() == WORDS


def _live(world: DeadLetterWorld, steps: int) -> None:
    world.feed()
    world.read()
    for _ in range(steps):
        match world.draw.randrange(6):
            case 0 | 1:
                world.feed()
                world.read()
            case 2:
                world.fix()
            case 3 | 4:
                world.decide()
            case _:
                world.fold_again()
        world.check()
    world.code.broken.clear()
    world.counts.service = None
    FailedInPlans(environment_of(world.counts)).release()
    world.check()
    assert set(world.statuses().values()) <= FINAL


@pytest.mark.parametrize("seed", range(12))
def test_drawn_histories_count_each_word_as_the_list_of_failed_records_shows(seed: int) -> None:
    _live(DeadLetterWorld(seed, 2 + seed % 2, raw=seed % 4 == 3), 12)
