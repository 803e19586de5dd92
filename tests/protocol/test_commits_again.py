"""A group that commits nothing is forgotten by Kafka, and one that slept may have set it back: so idle services commit again."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Flow
from sqe_chain.protocol.owned_flow import COMMIT_AGAIN_MS
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
    found: Rehearsal = rehearsed()  # type: ignore[operator]
    found.feed("words", word("ant"))
    while found.batch():
        pass
    committed = found.commits()
    assert committed["words", 0].offset == 1
    found.log.forget(found.flow.name)
    assert not found.batch()
    assert found.commits() == {}
    found.clock.jump(COMMIT_AGAIN_MS + 1)
    assert not found.batch()
    assert found.commits() == committed
    found.log.forget(found.flow.name)
    assert not found.batch()
    assert found.commits() == {}, "it has just committed"
    assert not found.batch(at_end=True)
    assert found.commits() == committed, "what comes next may be long after this run"


def test_a_start_commits_what_the_run_before_has_persisted() -> None:
    """Before anything is read: until then lag would be shown of what is counted."""
    found = counting()
    found.feed("words", word("ant"))
    found.crash(step=7, when="before")
    found.run_until_crash()
    assert ("words", 0) not in found.commits() or found.commits()["words", 0].offset == 0
    found.start()
    assert found.commits()["words", 0].offset == 1
