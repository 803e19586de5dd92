"""Goal: a rebuild knows of each batch whether it was certainly published; if it is not certain, it reports that.

Method: a batch is sealed and nothing more. Then the test adds one proof by hand: a header that has begun or reached it,
a commit of Kafka's, or that it is silent. It compares the progress with the plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import StoreInconsistent
from sqe_chain.features.closing import Closes
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow import Flow
from sqe_chain.operations.progress import FlowProgress, find_progress
from sqe_chain.plans import inputs
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Commit, Header
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.number_flows import add
from tests.support.plans import last_plan
from tests.support.word_flows import append_word, first_letter, same_key, stored_words, word

TP = "words", 0


def flow_of(buckets: int = 1) -> Flow:
    flow = Flow("notes", state_partitions=2, poison="skip")
    letters = (
        flow.source("words", StringValue)
        .filter(lambda value: bool(first_letter(value)))
        .aggregate("letters", key=first_letter, state=StringValue, fold=append_word, buckets=buckets)
    )
    letters.to("firsts", key=first_letter, partitions=1)
    letters.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    return flow


class Sealed:
    """Two words are counted; a batch with two more, and one that cannot be processed, is sealed, and nothing more."""

    def __init__(self, buckets: int = 1) -> None:
        self.store = MemoryStore(f"progress-{id(self)}")
        self.store.restore_all()
        self.found = Rehearsal(flow_of(buckets), store=self.store, settings=Settings(max_excluded=10))
        self.feed("ant", "bee")
        self.found.run_until_caught_up()
        self.before = self.plan()
        self.feed("cat", "", "dog")
        self.found.crash(step=5)
        self.found.run_until_crash()
        self.last = self.plan()
        assert self.last.number == self.before.number + 1
        assert len(self.last.exclusions) == 1

    def feed(self, *words: str) -> None:
        for text in words:
            self.found.feed("words", word(text))

    def plan(self) -> Plan:
        return last_plan(self.store, "notes")

    def progress(self) -> FlowProgress:
        env = environment_of(self.found)
        home, _ = self.store.home("notes")
        assert home is not None
        infos = inputs.describe(env.flow, env.log)
        return find_progress(env, home, infos, inputs.group_commits(env.flow, env.log, infos))

    def write(self, stage: str, part: int, change: Callable[[Header], Header]) -> None:
        (header,) = self.store.headers("notes", stage, [part])
        assert header is not None
        after = change(header)
        assert self.store.write("notes", stage, part, header, after, ()) == after

    def commit(self, offset: int, **fields: object) -> None:
        meta = json.loads(self.found.commits()[TP].metadata)
        self.found.log.commit("notes", {TP: Commit(offset, json.dumps(meta | fields))})

    def reached(self, header: Header) -> Header:
        return replace(header, number=self.last.number, plan_id=self.last.plan_id)

    def begun(self, header: Header) -> Header:
        return replace(header, begun_id=self.last.plan_id, cursor=b"c")

    def check_certain(self) -> None:
        progress = self.progress()
        assert progress.unfinished is None
        assert progress.ends == progress.published == {TP: 5}

    def check_uncertain(self) -> None:
        progress = self.progress()
        assert progress.ends == progress.published == {TP: 2}
        rest = progress.unfinished
        assert rest is not None
        assert (rest.clock_ms, rest.ranges) == (self.last.clock_ms, self.last.ranges)
        assert rest.exclusions == self.last.exclusions


def test_of_a_batch_that_is_sealed_and_nothing_more_nothing_is_certain() -> None:
    sealed = Sealed()
    sealed.check_uncertain()
    assert sealed.progress().number == sealed.last.number


@pytest.mark.parametrize("how", ["begun", "reached"])
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("stage", ["letters", "all"])
def test_a_single_header_that_has_begun_or_reached_it_proves_that_it_was_published(
    stage: str, part: int, how: str
) -> None:
    sealed = Sealed()
    sealed.write(stage, part, getattr(sealed, how))
    sealed.check_certain()


@pytest.mark.parametrize("cell", range(4))
def test_the_header_of_any_bucket_proves_it(cell: int) -> None:
    sealed = Sealed(buckets=2)
    sealed.write("letters", cell, sealed.begun)
    sealed.check_certain()


def test_how_far_event_time_had_come_once_is_known_after_a_second_rebuild() -> None:
    """While it is silent, the flow itself is not as far yet; what waits then must be taken as far as it once was."""
    flow = Flow("hours", state_partitions=1)
    flow.source("numbers", Int64Value).windowed(
        "sums", Tumbling(3_600_000), key=lambda _: "all", state=Int64Value, fold=add, retention_ms=10**12
    ).changes().to("totals", partitions=1)
    rehearsal = Rehearsal(flow)
    for hour in range(3):
        rehearsal.feed("numbers", Int64Value(value=1), timestamp_ms=hour * 3_600_000)
    rehearsal.run_until_caught_up()
    tp = "numbers", 0

    def reached() -> object:
        env = environment_of(rehearsal)
        home, _ = rehearsal.stores[""].home("hours")
        assert home is not None
        infos = inputs.describe(env.flow, env.log)
        return find_progress(env, home, infos, inputs.group_commits(env.flow, env.log, infos)).reached

    before = reached()
    assert before is not None
    rehearsal.rebuild({tp: 1})
    assert reached() == before
    rehearsal.rebuild({tp: 0})
    assert reached() == before


def test_a_header_that_has_begun_another_plan_proves_nothing() -> None:
    sealed = Sealed()
    sealed.write("all", 0, lambda header: replace(header, begun_id="another", cursor=b"c"))
    sealed.check_uncertain()


def test_a_commit_of_it_proves_that_it_was_published() -> None:
    sealed = Sealed()
    sealed.commit(5, plan=sealed.last.number, id=sealed.last.plan_id)
    sealed.check_certain()


def test_a_commit_of_another_plan_of_its_number_proves_nothing() -> None:
    sealed = Sealed()
    sealed.commit(2, plan=sealed.last.number, id="another")
    sealed.check_uncertain()


def test_a_commit_of_a_later_plan_proves_that_it_was_published_and_more() -> None:
    """The metadata store went back. What Kafka has is counted again, too; nothing of the old plan is still due."""
    sealed = Sealed()
    sealed.feed("eel", "fly")
    sealed.commit(7, plan=sealed.last.number + 1, id="lost")
    progress = sealed.progress()
    assert progress.unfinished is None
    assert progress.ends == progress.published == {TP: 7}
    assert progress.number == sealed.last.number + 1, "numbers go on after those that were given out"


def test_a_commit_that_lags_takes_nothing_back() -> None:
    sealed = Sealed()
    sealed.commit(1)
    sealed.check_uncertain()


def test_a_commit_of_a_topic_of_that_name_before_proves_nothing() -> None:
    sealed = Sealed()
    sealed.commit(5, plan=sealed.last.number, id=sealed.last.plan_id, topic_id="ab" * 16)
    sealed.check_uncertain()


def test_a_batch_that_is_not_published_at_all_needs_no_proof() -> None:
    """After a rewind receivers have its outputs, and more: the place up to which they have is kept."""
    sealed = Sealed()
    sealed.found.run_until_caught_up()
    sealed.found.rebuild({TP: 0})
    sealed.found.settings = replace(sealed.found.settings, max_records=2)
    sealed.found.crash(step=5)
    sealed.found.run_until_crash()
    last = sealed.plan()
    assert Rebuilding.of(last).silent
    assert last.next_offsets() == {TP: 2}
    progress = sealed.progress()
    assert progress.unfinished is None
    assert (progress.ends, progress.published) == ({TP: 2}, {TP: 5})


def test_what_an_earlier_rebuild_has_left_to_do_is_still_to_be_done() -> None:
    sealed = Sealed()
    sealed.found.rebuild()
    progress = sealed.progress()
    assert progress.unfinished is not None
    assert progress.unfinished.ranges == sealed.last.ranges
    assert progress.unfinished.exclusions == sealed.last.exclusions


def test_where_the_plan_before_is_gone_too_nothing_is_guessed() -> None:
    sealed = Sealed()
    copy = sealed.store.copy_home("notes")
    del copy.plans[sealed.before.number]
    sealed.store.restore_home("notes", copy)
    with pytest.raises(StoreInconsistent, match="no longer keeps plan 1"):
        sealed.progress()


def without_plans(sealed: Sealed) -> None:
    copy = sealed.store.copy_home("notes")
    copy.plans.clear()
    sealed.store.restore_home("notes", copy)


def test_without_plans_kafka_s_commits_are_all_there_is() -> None:
    sealed = Sealed()
    without_plans(sealed)
    sealed.commit(2, start=1)
    progress = sealed.progress()
    assert progress.layout is None
    assert progress.ends == progress.published == {TP: 2}
    assert progress.starts == {TP: 1}


def test_without_plans_nobody_knows_where_windows_were_closed() -> None:
    sealed = Sealed()
    without_plans(sealed)
    sealed.commit(2, closes=1)
    with pytest.raises(StoreInconsistent, match="closed 1 times"):
        sealed.progress()


def test_how_often_windows_were_closed_and_who_has_heard_it_is_known_from_the_plan_that_is_certain() -> None:
    """The last plan closes windows for the second time, and nothing proves that it was published."""
    sealed = Sealed()
    before = sealed.before.with_sections(Closes((10,), {TP: (1,)}, 1, 1)).with_id()
    closes = Closes((10, 20), {TP: (1, 2)}, 2, 2)
    last = replace(sealed.last, previous_id=before.plan_id, wakes=True).with_sections(closes).with_id()
    copy = sealed.store.copy_home("notes")
    assert copy.home is not None
    copy.home = replace(copy.home, plan_id=last.plan_id)
    copy.plans = {before.number: before.to_bytes(), last.number: last.to_bytes()}
    sealed.store.restore_home("notes", copy)
    progress = sealed.progress()
    assert progress.closes == replace(closes, done=1, published=1)
    assert progress.unfinished is not None
    assert progress.unfinished.closing
    sealed.commit(5, plan=last.number, id=last.plan_id)
    assert sealed.progress().closes == closes


def test_states_are_lost_and_plans_went_back_and_the_rebuild_is_exact_nevertheless() -> None:
    """All of it at once: the metadata store is at an older plan, states are gone, Kafka has the newest commit."""
    sealed = Sealed()
    older = sealed.store.copy_home("notes")
    sealed.found.run_until_caught_up()
    sealed.feed("eel")
    sealed.found.run_until_caught_up()
    sealed.store.restore_home("notes", older)
    for stage in ("letters", "all"):
        for part in (0, 1):
            sealed.store.restore_part("notes", stage, part)
    with pytest.raises(StoreInconsistent):
        sealed.found.restart()
    sealed.found.rebuild()
    sealed.feed("fly")
    sealed.found.run_until_caught_up()
    assert stored_words(sealed.found, "all") == {"all": "ant bee cat dog eel fly"}
    texts = [envelope.payload_as(StringValue).value for envelope in sealed.found.published("firsts")]
    assert sorted(texts) == ["ant", "bee", "cat", "dog", "eel", "fly"]
