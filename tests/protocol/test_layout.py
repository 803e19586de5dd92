"""Goal: what enters a flow later enters by an empty plan of its own, exactly, whatever crashes meanwhile.

Method: a flow has run. It comes back changed: another stage, source, output, or its input has grown.
The run that brings the change in dies before and after each of its calls.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.partitioner import cell_of
from sqe_chain.errors import PartitionsMismatch, ServiceStopped, StoreInconsistent
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.plans.events import When
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Crash, Rehearsal
from tests.support.suites import points
from tests.support.word_flows import (
    append_word,
    first_letter,
    same_key,
    stored_words,
    word,
    words_by_first_letter,
)

WORDS = ["ant", "bee", "cat", "ape", "bat"]


def two_stages(flow: Flow) -> None:
    words_by_first_letter(flow).aggregate("all", key=same_key, state=StringValue, fold=append_word)


def one_stage(flow: Flow) -> None:
    words_by_first_letter(flow)


def with_stage_beside(flow: Flow) -> None:
    """Another stage of level 1, declared beside two that were there before."""
    stream = flow.source("words", StringValue)
    stream.aggregate("beside", key=same_key, state=StringValue, fold=append_word)
    first = stream.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)


def with_source(flow: Flow) -> None:
    both = flow.source(["more", "words"], StringValue)
    first = both.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)


def with_output(flow: Flow) -> None:
    first = words_by_first_letter(flow)
    first.to("copies", partitions=1)
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)


def declared(declare: Callable[[Flow], None], **options: object) -> Flow:
    flow = Flow("notes", state_partitions=2, **options)  # type: ignore[arg-type]
    declare(flow)
    return flow


def rehearsal(flow: Flow, before: Rehearsal | None = None, settings: Settings | None = None) -> Rehearsal:
    """The flow on the broker and store that another declaration of it has used before."""
    name = before.log.name if before else f"layout-{id(flow)}"
    log, store = MemoryLog(name), MemoryStore(name)
    if before is None:
        log.clear()
        store.restore_all()
    return Rehearsal(flow, partitions={"words": 2}, log=log, store=store, settings=settings)


def is_reached(rehearsal: Rehearsal, number: int, when: When) -> bool:
    """Start it, with a crash at this call; then run it until it is caught up. Whether there was such a call."""
    rehearsal.crash_at_call(number, when)
    for _ in range(3):
        try:
            rehearsal.start()
            rehearsal.run_until_caught_up()
            break
        except Crash:
            continue
    reached = not rehearsal.script.injected
    rehearsal.cancel()
    return reached


def feed(rehearsal: Rehearsal, topic: str = "words", words: list[str] = WORDS) -> None:
    for text in words:
        rehearsal.feed(topic, word(text), key=text[0])


def grown(rehearsal: Rehearsal) -> None:
    rehearsal.log.grow("words", 4)
    for partition in (2, 3):
        rehearsal.feed("words", word(f"new-{partition}"), partition=partition)


CHANGES = {
    "stage behind": (one_stage, two_stages, None),
    "stage beside": (two_stages, with_stage_beside, None),
    "source": (two_stages, with_source, lambda found: feed(found, "more")),
    "output": (two_stages, with_output, None),
    "grown": (two_stages, two_stages, grown),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_enters_whatever_crashes_meanwhile(change: str, when: When) -> None:
    declare, declare_anew, also = CHANGES[change]
    results: list[dict[str, dict[str, str]]] = []
    for number in points(f"a change that enters, {change} {when}"):
        found = rehearsal(declared(declare))
        feed(found)
        found.run_until_caught_up()
        found = rehearsal(declared(declare_anew), found)
        if also:
            also(found)
        feed(found, words=["asp", "boa"])
        reached = is_reached(found, number, when)
        results.append({stage.name: stored_words(found, stage.name) for stage in found.flow.stages})
        if not reached:
            break
    assert number > 20
    assert all(result == results[-1] for result in results), "the same as without a crash"
    assert results[-1]["letters"]["b"].endswith("boa")
    assert results[-1].get("beside", {"all": "asp boa"}) == {"all": "asp boa"}, "begins with its birth"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_flow_is_born_whatever_crashes_meanwhile(when: When) -> None:
    for number in points(f"a birth, {when}"):
        found = rehearsal(declared(two_stages))
        feed(found)
        reached = is_reached(found, number, when)
        assert stored_words(found) == {"a": "ant ape", "b": "bee bat", "c": "cat"}
        if not reached:
            assert number > 20
            return


def run_before(declare: Callable[[Flow], None]) -> Rehearsal:
    found = rehearsal(declared(declare))
    feed(found)
    found.run_until_caught_up()
    return found


def test_a_stage_that_is_no_longer_declared_stops_until_it_is_dropped() -> None:
    found = run_before(two_stages)
    with pytest.raises(ServiceStopped, match="'all', which the flow no longer has"):
        rehearsal(declared(one_stage), found).start()
    found = rehearsal(declared(one_stage), found, settings_of(drop_stages=("all",)))
    feed(found, words=["asp"])
    found.run_until_caught_up()
    assert stored_words(found)["a"] == "ant ape asp"


def test_a_dropped_stage_cannot_come_back_with_half_its_history() -> None:
    found = run_before(two_stages)
    found = rehearsal(declared(one_stage), found, settings_of(drop_stages=("all",)))
    feed(found, words=["asp"])
    found.run_until_caught_up()
    for _ in range(2):
        with pytest.raises(ServiceStopped, match="dropped"):
            rehearsal(declared(two_stages), found).start()


def test_a_source_that_is_no_longer_declared_stops() -> None:
    found = rehearsal(declared(with_source))
    feed(found)
    found.run_until_caught_up()
    with pytest.raises(ServiceStopped, match="has read 'more' so far, which it no longer declares"):
        rehearsal(declared(two_stages), found).start()


def bucketed(flow: Flow) -> None:
    flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word, buckets=3
    )


def test_another_number_of_buckets_stops() -> None:
    found = run_before(one_stage)
    with pytest.raises(PartitionsMismatch, match="created with 1 buckets, declared are now 3"):
        rehearsal(declared(bucketed), found).start()


def test_each_key_lies_in_its_cell() -> None:
    found = rehearsal(declared(bucketed))
    feed(found, words=list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    found.run_until_caught_up()
    stored = {cell: [key for key, _ in found.stores[""].scan("notes", "letters", cell)] for cell in range(6)}
    assert len(stored) == 6
    assert all(stored.values())
    assert all(cell_of(key, 2, 3) == cell for cell, keys in stored.items() for key in keys)
    assert [header.number for header in found.headers("letters") if header] == [1] * 6


def with_two_partitions(flow: Flow) -> None:
    first = words_by_first_letter(flow)
    first.to("copies", partitions=2)
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)


def test_another_number_of_partitions_of_an_output_stops() -> None:
    """Stateful: the plan knows."""
    found = run_before(with_output)
    found.log.grow("copies", 2)
    with pytest.raises(PartitionsMismatch, match="another name"):
        rehearsal(declared(with_two_partitions), found).start()


def test_another_number_of_partitions_of_a_republisher_stops() -> None:
    """Stateless: the commit's metadata knows."""

    def republisher(partitions: int) -> Flow:
        flow = Flow("stateless")
        flow.source("words", StringValue).to("copies", partitions=partitions)
        return flow

    found = rehearsal(republisher(1))
    feed(found)
    found.run_until_caught_up()
    found.log.grow("copies", 2)
    with pytest.raises(PartitionsMismatch, match="another name"):
        rehearsal(republisher(2), found).start()


def test_the_store_of_a_stage_may_not_be_exchanged() -> None:
    """An empty store in place of a stage's own is a loss, not a birth."""
    rehearsal = run_before(two_stages)
    for part in range(2):
        rehearsal.stores[""].restore_part("notes", "letters", part)  # type: ignore[attr-defined]
    with pytest.raises(StoreInconsistent, match="This state partition was lost"):
        rehearsal.restart()
