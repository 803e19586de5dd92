"""Goal: what enters a flow later enters by an empty plan of its own, exactly, whatever crashes meanwhile.

Method: a flow has run. It comes back changed: another stage, source, output, or its input has grown.
The run that brings the change in dies before and after each of its calls.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.envelope.partitioner import cell_of
from sqe_chain.errors import PartitionsMismatch, ServiceStopped, StoreInconsistent
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.changed_flows import (
    declared,
    feed_words,
    one_stage,
    rehearsal_of,
    two_stages,
    with_output,
    with_source,
)
from tests.support.word_flows import (
    append_word,
    first_letter,
    same_key,
    stored_words,
    words_by_first_letter,
)


def run_before(declare: Callable[[Flow], None]) -> Rehearsal:
    found = rehearsal_of(declared(declare))
    feed_words(found)
    found.run_until_caught_up()
    return found


def test_a_stage_that_is_no_longer_declared_stops_until_it_is_dropped() -> None:
    found = run_before(two_stages)
    with pytest.raises(ServiceStopped, match="'all', which the flow no longer has"):
        rehearsal_of(declared(one_stage), found).start()
    found = rehearsal_of(declared(one_stage), found, settings_of(drop_stages=("all",)))
    feed_words(found, words=["asp"])
    found.run_until_caught_up()
    assert stored_words(found)["a"] == "ant ape asp"


def test_a_dropped_stage_cannot_come_back_with_half_its_history() -> None:
    found = run_before(two_stages)
    found = rehearsal_of(declared(one_stage), found, settings_of(drop_stages=("all",)))
    feed_words(found, words=["asp"])
    found.run_until_caught_up()
    for _ in range(2):
        with pytest.raises(ServiceStopped, match="dropped"):
            rehearsal_of(declared(two_stages), found).start()


def test_a_source_that_is_no_longer_declared_stops() -> None:
    found = rehearsal_of(declared(with_source))
    feed_words(found)
    found.run_until_caught_up()
    with pytest.raises(ServiceStopped, match="no longer declares"):
        rehearsal_of(declared(two_stages), found).start()


def bucketed(flow: Flow) -> None:
    flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word, buckets=3
    )


def test_another_number_of_buckets_stops() -> None:
    found = run_before(one_stage)
    with pytest.raises(PartitionsMismatch, match="created with 1 buckets, declared are now 3"):
        rehearsal_of(declared(bucketed), found).start()


def test_each_key_lies_in_its_cell() -> None:
    found = rehearsal_of(declared(bucketed))
    feed_words(found, words=list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
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
        rehearsal_of(declared(with_two_partitions), found).start()


def test_another_number_of_partitions_of_a_republisher_stops() -> None:
    """Stateless: the commit's metadata knows."""

    def republisher(partitions: int) -> Flow:
        flow = Flow("stateless")
        flow.source("words", StringValue).to("copies", partitions=partitions)
        return flow

    found = rehearsal_of(republisher(1))
    feed_words(found)
    found.run_until_caught_up()
    found.log.grow("copies", 2)
    with pytest.raises(PartitionsMismatch, match="another name"):
        rehearsal_of(republisher(2), found).start()


def test_the_store_of_a_stage_may_not_be_exchanged() -> None:
    """An empty store in place of a stage's own is a loss, not a birth."""
    rehearsal = run_before(two_stages)
    for part in range(2):
        rehearsal.stores[""].restore_part("notes", "letters", part)  # type: ignore[attr-defined]
    with pytest.raises(StoreInconsistent, match="This state partition was lost"):
        rehearsal.restart()
