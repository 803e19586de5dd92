"""A group that commits nothing is forgotten by Kafka, and one that slept may have set it back: so idle services commit again."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Flow
from sqe_chain.protocol.finish import COMMIT_AGAIN_MS
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import word, words_by_first_letter


def counting() -> Rehearsal:
    flow = Flow("notes", state_partitions=2)
    words_by_first_letter(flow)
    return Rehearsal(flow)


def passing_on() -> Rehearsal:
    flow = Flow("pass-on")
    flow.source("words", StringValue).to("copies", partitions=1)
    return Rehearsal(flow)


@pytest.mark.parametrize("rehearsed", [counting, passing_on])
def test_an_idle_service_commits_again_but_not_each_time_that_it_looks(rehearsed: object) -> None:
    rehearsal: Rehearsal = rehearsed()  # type: ignore[operator]
    rehearsal.feed("words", word("ant"))
    while rehearsal.batch():
        pass
    committed = rehearsal.commits()
    assert committed["words", 0].offset == 1
    rehearsal.log.forget(rehearsal.flow.name)
    assert not rehearsal.batch()
    assert rehearsal.commits() == {}
    rehearsal.clock.jump(COMMIT_AGAIN_MS + 1)
    assert not rehearsal.batch()
    assert rehearsal.commits() == committed
    rehearsal.log.forget(rehearsal.flow.name)
    assert not rehearsal.batch()
    assert rehearsal.commits() == {}, "it has just committed"
    assert not rehearsal.batch(at_end=True)
    assert rehearsal.commits() == committed, "what comes next may be long after this run"


def test_a_start_commits_what_the_run_before_has_persisted() -> None:
    """Before anything is read: until then lag would be shown of what is counted."""
    rehearsal = counting()
    rehearsal.feed("words", word("ant"))
    rehearsal.crash(step=7, when="before")
    rehearsal.run_until_crash()
    assert ("words", 0) not in rehearsal.commits() or rehearsal.commits()["words", 0].offset == 0
    rehearsal.start()
    assert rehearsal.commits()["words", 0].offset == 1
