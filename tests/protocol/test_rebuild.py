"""Goal: a flow folded again stands exactly where it stood, has published nothing twice, and goes on.

Method: words are noted in order under their first letters, and each change is published; a store loses
something; the flow is folded again, with crashes at every write; then more words come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from notes import everything, first_letter, ledger, note, word

from sqe_chain.errors import (
    ConfigurationError,
    LostOffsets,
    ServiceStopped,
    StoreEmpty,
    StoreInconsistent,
    Superseded,
)
from sqe_chain.flow import Flow
from sqe_chain.protocol.surroundings import Settings
from sqe_chain.stores.memory import MemoryStore
from sqe_chain.testing import Crash, Rehearsal

BEFORE = ["ant", "fig", "bee", "ape", "fox", "cow", "auk", "gnu"]
AFTER = ["asp", "boa", "dog"]


def flow_of(state_partitions: int = 2, buckets: int = 1, **source: object) -> Flow:
    flow = Flow("notes", state_partitions=state_partitions)
    first = flow.source("words", StringValue, **source).aggregate(  # type: ignore[arg-type]
        "letters", key=first_letter, state=StringValue, fold=note, buckets=buckets
    )
    first.to("said", key=first_letter, partitions=2)
    second = first.aggregate("all", key=everything, state=StringValue, fold=note)
    second.changes().to("totals", partitions=1)
    return flow


class Plant:
    """A flow that has noted some words in several batches, and a store that can lose things."""

    def __init__(self, flow: Flow | None = None, settings: Settings | None = None) -> None:
        self.store = MemoryStore(f"rebuild-{id(self)}")
        self.store.restore_all()
        self.flow = flow or flow_of()
        self.settings = settings or Settings(max_records=3)
        self.found = Rehearsal(self.flow, partitions={"words": 2}, store=self.store, settings=self.settings)
        self.words: list[str] = []

    def feed(self, words: list[str]) -> None:
        for text in words:
            self.found.feed("words", word(text), key=text[0])
        self.words += words
        self.found.run_until_caught_up()

    def same(self, flow: Flow) -> Plant:
        """The same broker and store, another declaration of the flow."""
        other = object.__new__(Plant)
        other.__dict__.update(self.__dict__)
        other.flow = flow
        other.found = Rehearsal(
            flow, partitions={"words": 2}, log=self.found.log, store=self.store, settings=self.settings
        )
        return other

    def said(self) -> Counter[str]:
        """What was published per word."""
        return Counter(
            payload.value for one in self.found.published("said") for payload in one.payloads_as(StringValue)
        )

    def check(self) -> None:
        """States are exact, each word was published once."""
        letters: dict[str, list[str]] = {}
        for text in self.words:
            letters.setdefault(text[0], []).append(text)
        assert ledger(self.found) == {letter: " ".join(words) for letter, words in letters.items()}
        assert Counter(ledger(self.found, "all")["all"].split()) == Counter(self.words)
        assert self.said() == Counter(self.words)


def lose_a_cell(plant: Plant) -> None:
    plant.store.restore_part("notes", "letters", 1)


def lose_a_stage(plant: Plant) -> None:
    for part in range(2):
        plant.store.restore_part("notes", "all", part)


def lose_everything(plant: Plant) -> None:
    plant.store.restore_all()


def roll_back_downstream(plant: Plant) -> None:
    copies = [plant.store.copy_part("notes", "all", part) for part in range(2)]
    plant.feed(["ace", "bug"])
    for part, copy in enumerate(copies):
        plant.store.restore_part("notes", "all", part, copy)


LOSSES: dict[Callable[[Plant], None], type[ServiceStopped]] = {
    lose_a_cell: StoreInconsistent,
    lose_a_stage: StoreInconsistent,
    lose_everything: StoreEmpty,
    roll_back_downstream: StoreInconsistent,
}


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_what_a_store_has_lost_is_folded_again(lose: Callable[[Plant], None]) -> None:
    plant = Plant()
    plant.feed(BEFORE)
    lose(plant)
    with pytest.raises(LOSSES[lose], match="sqe-chain rebuild"):
        plant.found.start()
    plant.found.rebuild()
    plant.check()
    plant.feed(AFTER)
    plant.check()
    assert (
        plant.found.commits()["words", 0].offset
        == plant.found.log.bounds([("words", 0)])["words", 0].stable_end
    )


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rebuild_that_crashes_at_any_write_is_simply_done_again(when: str, resume: bool) -> None:
    at = 0
    while True:
        plant = Plant()
        plant.feed(BEFORE)
        lose_a_cell(plant)
        plant.found.crash_at_write(at, when)  # type: ignore[arg-type]
        try:
            plant.found.rebuild()
        except Crash:
            plant.found.script.writes.clear()
            again(plant, resume=resume)
            plant.check()
            plant.feed(AFTER)
            plant.check()
            at += 1
            continue
        break
    assert at > 20


def again(plant: Plant, *, resume: bool) -> None:
    """A second attempt; where the first had not begun to fold, or was done already, as a user would see it."""
    try:
        plant.found.rebuild(resume=resume)
    except ConfigurationError:  # nothing to resume
        plant.found.rebuild()


def test_the_run_before_is_fenced_off() -> None:
    plant = Plant()
    plant.feed(BEFORE)
    zombie = plant.found.service
    assert zombie is not None
    plant.found.rebuild()
    plant.found.feed("words", word("ash"), key="a")
    with pytest.raises(Superseded):
        zombie.batch()
    plant.check()


def test_outputs_sealed_but_not_published_are_published_after_it() -> None:
    plant = Plant()
    plant.feed(BEFORE)
    plant.found.crash(step=5)
    plant.found.feed("words", word("ash"), key="a")
    plant.words.append("ash")
    with pytest.raises(Crash):
        plant.found.batch()
    plant.found.service = None
    lose_a_cell(plant)
    plant.found.rebuild()
    plant.feed(AFTER)
    plant.check()


def test_a_rewound_flow_folds_again_but_says_nothing_twice() -> None:
    plant = Plant()
    plant.feed(BEFORE)
    plant.found.rebuild({("words", 0): 1, ("words", 1): 1})
    assert sum(len(said.split()) for said in ledger(plant.found).values()) == 2
    plant.feed(AFTER)
    plant.check()


def test_a_rewound_flow_says_it_again_if_asked() -> None:
    plant = Plant()
    plant.feed(BEFORE)
    plant.found.rebuild({("words", 0): 1, ("words", 1): 1}, republish=True)
    plant.feed(AFTER)
    twice = {text for text, count in plant.said().items() if count == 2}
    assert len(twice) == len(BEFORE) - 2
    unique = {(one.lane, one.position) for one in plant.found.published("said")}
    assert len(unique) == len(plant.words)


def test_code_and_layout_may_change_with_it() -> None:
    plant = Plant()
    plant.feed(BEFORE)
    other = plant.same(flow_of(state_partitions=3, buckets=2))
    other.found.rebuild()
    other.feed(AFTER)
    other.check()


def test_it_can_be_done_again_and_again() -> None:
    plant = Plant()
    for number in range(3):
        plant.feed(BEFORE[number * 2 : number * 2 + 2])
        plant.found.rebuild()
        plant.check()
    names = {name for name, _, _ in plant.store.copy_all().parts}
    left = sum(bool(list(plant.store.scan(name, "letters", part))) for name in names for part in range(2))
    assert left == 2, "old states are deleted"


def test_a_flow_that_began_in_the_middle_is_folded_from_there() -> None:
    plant = Plant(settings=Settings(max_records=3, start="latest"))
    for text in ("zap", "zip", "yak"):
        plant.found.feed("words", word(text), key=text[0])
    plant.found.run_until_caught_up()
    plant.feed(BEFORE)
    lose_everything(plant)
    plant.found.rebuild()
    plant.check()


def test_a_flow_whose_input_was_deleted_meanwhile_stops() -> None:
    plant = Plant()
    plant.feed(BEFORE)
    plant.found.log.truncate_before("words", 0, 1)
    with pytest.raises(LostOffsets):
        plant.found.rebuild()
    plant.feed(AFTER)
    plant.check()


def test_offsets_beyond_what_was_counted_are_refused() -> None:
    plant = Plant()
    plant.feed(BEFORE)
    with pytest.raises(ConfigurationError, match="lies beyond"):
        plant.found.rebuild({("words", 0): 1_000})
    with pytest.raises(ConfigurationError, match="does not read"):
        plant.found.rebuild({("others", 0): 0})
    plant.feed(AFTER)
    plant.check()


def test_a_flow_that_never_ran_cannot_be_folded_again() -> None:
    with pytest.raises(ConfigurationError, match="has never run"):
        Plant().found.rebuild()
