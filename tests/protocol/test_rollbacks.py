"""Goal: a store that goes back in time is named, or what it lost is redone exactly; never counted on.

Method: states, plans or everything are put back to a copy of n batches ago, between runs or while one runs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore, StoreCopy
from sqe_chain.errors import ChainError, StoreInconsistent
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, same_key, stored_words, word, words_by_first_letter

WORDS = [["ant", "bee"], ["ape", "bat"], ["asp", "boa"], ["auk", "bug"]]
NEXT = ["ass", "bir"]


class Past:
    """Four batches, with a copy of the store after each; copies[0] is of the birth."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.flow = Flow("notes", state_partitions=2)
        first = words_by_first_letter(self.flow)
        first.to("firsts", partitions=1)
        first.aggregate("all", key=same_key, state=StringValue, fold=append_word)
        self.store = MemoryStore(f"past-{id(self)}")
        self.store.restore_all()
        log = MemoryLog(f"past-{id(self)}")
        log.clear()
        self.found = Rehearsal(self.flow, log=log, store=self.store, settings=settings)
        self.found.start()
        self.copies: list[StoreCopy] = [self.store.copy_all()]
        for batch in WORDS:
            self.feed(batch)
            self.found.batch()
            self.copies.append(self.store.copy_all())
        assert self.is_exact()

    def feed(self, batch: list[str]) -> None:
        for text in batch:
            self.found.feed("words", word(text))
        self.words = [*getattr(self, "words", []), *batch]

    def is_exact(self) -> bool:
        letters = {key: " ".join(text for text in self.words if text[0] == key) for key in ("a", "b")}
        return (stored_words(self.found), stored_words(self.found, "all")) == (
            letters,
            {"all": " ".join(self.words)},
        )

    def back(self, stages: list[str], batches: int, parts: tuple[int, ...] = (0, 1)) -> None:
        """Put states back by a number of batches."""
        then = self.copies[len(WORDS) - batches]
        for stage in stages:
            for part in parts:
                copy = then.parts.get(("notes", stage, part))
                self.store.restore_part("notes", stage, part, copy)

    def home_back(self, batches: int) -> None:
        self.store.restore_home("notes", self.copies[len(WORDS) - batches].homes["notes"])


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize(
    ("stages", "parts"), [(["letters"], (0, 1)), (["letters"], (1,)), (["letters", "all"], (0, 1))]
)
@pytest.mark.parametrize("running", [False, True])
def test_states_that_went_back_are_redone_from_the_plan_log(
    stages: list[str], parts: tuple[int, ...], batches: int, running: bool
) -> None:
    """Where no upstream state is beyond a downstream one, all that was lost can be folded again."""
    past = Past()
    past.back(stages, batches, parts)
    if running:
        past.feed(NEXT)
        with pytest.raises(StoreInconsistent, match="went back in time"):
            past.found.batch()
    past.found.restart()
    past.found.run_until_caught_up()
    assert past.is_exact()
    recovered = past.found.events("recovered")[-1]["redone"]
    assert recovered in ([4 - i for i in range(batches)][::-1], [*range(5 - batches, 6)])
    texts = [str(event["text"]) for event in past.found.events("notice")]
    assert any("lost acknowledged writes" in text for text in texts) == (len(recovered) > 1)


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("running", [False, True])
def test_a_downstream_stage_that_went_back_alone_stops(batches: int, running: bool) -> None:
    """What the first stage emitted is not emitted again: a redo cannot repair the second."""
    past = Past()
    past.back(["all"], batches)
    if running:
        past.feed(NEXT)
        with pytest.raises(StoreInconsistent):
            past.found.batch()
    for _ in range(2):
        with pytest.raises(StoreInconsistent, match="the second has lost it"):
            past.found.restart()


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("running", [False, True])
def test_a_metadata_store_that_went_back_alone_stops(batches: int, running: bool) -> None:
    past = Past()
    past.home_back(batches)
    stood = past.store.copy_all().parts
    if running:
        past.feed(NEXT)
        with pytest.raises(StoreInconsistent):
            past.found.batch()
        assert past.store.copy_all().parts == stood, "nothing was counted"
    with pytest.raises(StoreInconsistent, match="went back"):
        past.found.restart()


@pytest.mark.parametrize("batches", [1, 2, 4])
@pytest.mark.parametrize("running", [False, True])
def test_a_store_that_went_back_as_a_whole_goes_on_when_the_user_accepts_it(
    batches: int, running: bool
) -> None:
    """Kafka's commit gives it away; its values are exact for an earlier moment, and so is what follows."""
    past = Past()
    past.store.restore_all(past.copies[len(WORDS) - batches])
    if running:
        past.feed(NEXT)
        with pytest.raises(StoreInconsistent):
            past.found.batch()
    with pytest.raises(StoreInconsistent, match="--accept-rollback"):
        past.found.restart()
    past.found.start(settings_of(allow_weak_durability=True, takeover=True, accept_rollback=True))
    past.found.restart()  # accepted once, it is forgotten
    past.found.run_until_caught_up()
    assert past.is_exact()


def test_another_plan_of_the_number_that_kafka_has_committed_stops() -> None:
    """The store went back by one plan and went on with another one; then the copy with the first one comes back."""
    past = Past()
    lost = past.store.copy_all()
    past.store.restore_all(past.copies[len(WORDS) - 1])
    past.feed(NEXT)
    past.found.start(settings_of(allow_weak_durability=True, takeover=True, accept_rollback=True))
    past.found.batch()
    past.store.restore_all(lost)
    with pytest.raises(StoreInconsistent, match="has a commit of plan 4"):
        past.found.restart()


def test_a_last_plan_that_is_not_the_one_that_the_home_record_names_is_not_believed() -> None:
    """Home record and plans are written together; from two copies of a store, they do not belong together."""
    past = Past()
    home, _ = past.store.home("notes")
    assert home is not None
    copy = past.store.copy_home("notes")
    past.store.restore_home("notes", replace(copy, home=replace(home, plan_id="another")))
    with pytest.raises(StoreInconsistent, match=r"has no plan 4 \(another\)"):
        past.found.restart()


@pytest.mark.parametrize("stage", ["letters", "all"])
def test_a_lost_state_partition_stops(stage: str) -> None:
    past = Past()
    past.store.restore_part("notes", stage, 1)
    past.feed(NEXT)
    with pytest.raises(StoreInconsistent):
        past.found.batch()
    with pytest.raises(StoreInconsistent, match="was lost"):
        past.found.restart()


def test_states_further_back_than_the_plan_log_stop() -> None:
    past = Past(Settings(keep_plans=2))
    past.back(["letters", "all"], 3)
    with pytest.raises(StoreInconsistent, match="no longer kept"):
        past.found.restart()


@pytest.mark.parametrize("batches", [1, 2])
def test_two_histories_are_not_mixed(batches: int) -> None:
    """The metadata store went back, went on, and states of the first history come again."""
    past = Past()
    lost = past.store.copy_all()
    past.store.restore_all(past.copies[len(WORDS) - batches])
    past.found.start(settings_of(allow_weak_durability=True, takeover=True, accept_rollback=True))
    past.found.run_until_caught_up()
    past.store.restore_part("notes", "letters", 0, lost.parts["notes", "letters", 0])
    past.feed(NEXT)
    with pytest.raises(ChainError) as caught:
        past.found.batch()
    assert isinstance(caught.value, StoreInconsistent)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_crash_in_the_middle_of_redoing_several_plans_is_continued(batches: int) -> None:
    for number in range(100):
        past = Past()
        past.back(["letters", "all"], batches)
        past.found.crash_at_write(number, "after")
        past.found.service = None
        past.found.run_until_caught_up()
        assert past.is_exact()
        if not past.found.crashes:
            assert number > 6
            return


def test_as_many_plans_are_kept_as_were_asked_for() -> None:
    """The last ones: so far back may a state partition be."""
    past = Past(Settings(keep_plans=3))
    assert [number for number in range(6) if past.store.plan("notes", number)] == [2, 3, 4]
