"""Goal: a redone batch publishes what the sealed batch published, or the service stops; nothing is skipped in silence.

Method: a crash right after the seal, and then a topic or the code that is not as it was.
"""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import Flow, wrap
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import OutputTooLarge, PlanMismatch
from sqe_chain.testing import Crash, Rehearsal

BROKEN: list[bool] = []


def add(state: StringValue, word: StringValue) -> None:
    state.value += word.value


def shown(state: StringValue) -> StringValue:
    if BROKEN:
        raise ValueError("the code is another one now")
    return state


def crashed_after_the_seal(poison: str) -> Rehearsal:
    flow = Flow("long-states", state_partitions=1, poison=poison)  # type: ignore[arg-type]
    stage = flow.source("words", StringValue).aggregate(
        "text", key=lambda _: "all", state=StringValue, fold=add
    )
    stage.changes().map(shown).to("out", partitions=1)
    rehearsal = Rehearsal(flow, partitions={"words": 1})
    rehearsal.start()
    rehearsal.log.append("words", 0, wrap(StringValue(value="a" * 5_000), key="a", timestamp_ms=1))
    rehearsal.crash(step=4, when="after")
    with pytest.raises(Crash):
        rehearsal.batch()
    return rehearsal


def published(rehearsal: Rehearsal) -> list[int]:
    envelopes = rehearsal.published("out")
    return [len(envelope.payload_as(StringValue).value) for envelope in envelopes]


@pytest.mark.parametrize("poison", ["stop", "skip", "dead_letter"])
def test_a_limit_that_was_lowered_stops_the_redo_until_it_is_raised(poison: str) -> None:
    rehearsal = crashed_after_the_seal(poison)
    rehearsal.log.configure("out", max_message_bytes=2_000)
    with pytest.raises(OutputTooLarge, match="its topic takes 2,000"):
        rehearsal.restart()
    assert (published(rehearsal), rehearsal.states("text")) == ([], {})
    rehearsal.log.configure("out")
    rehearsal.run_until_caught_up()
    assert published(rehearsal) == [5_000]


@pytest.mark.parametrize("poison", ["skip", "dead_letter"])
def test_a_limit_that_was_lowered_leaves_nothing_out_of_a_batch_repeated_after_a_rebuild(poison: str) -> None:
    """A part of it may be published, so what its topic takes now is not asked either."""
    rehearsal = crashed_after_the_seal(poison)
    rehearsal.rebuild()
    rehearsal.log.configure("out", max_message_bytes=2_000)
    with pytest.raises(OutputTooLarge, match="its topic takes 2,000"):
        rehearsal.run_until_caught_up()
    rehearsal.log.configure("out")
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert published(rehearsal) == [5_000]


@pytest.mark.parametrize("poison", ["stop", "skip", "dead_letter"])
def test_steps_after_changes_that_fail_only_now_stop_the_redo(poison: str) -> None:
    rehearsal = crashed_after_the_seal(poison)
    BROKEN.append(True)
    try:
        with pytest.raises(PlanMismatch, match="another one now"):
            rehearsal.restart()
    finally:
        BROKEN.clear()
    assert rehearsal.states("text") == {}
    rehearsal.run_until_caught_up()
    assert published(rehearsal) == [5_000]


def test_a_record_of_another_lane_that_is_gone_since_stops_the_redo() -> None:
    """The last record of the range is still there, but the first one was the only one of its lane."""
    log = MemoryLog("gone")
    log.clear()
    passing = Flow("passing")
    passing.source("words", StringValue).to("passed", partitions=1)
    upstream = Rehearsal(passing, log=log, partitions={"words": 2})
    adding = Flow("adding", state_partitions=1)
    adding.source("passed", StringValue).aggregate("text", key=lambda _: "all", state=StringValue, fold=add)
    rehearsal = Rehearsal(adding, log=log, partitions={"passed": 1})
    for partition in (0, 1):
        log.append("words", partition, wrap(StringValue(value="word"), key="a", timestamp_ms=1), b"a")
        upstream.run_until_caught_up()
    rehearsal.crash(step=4, when="after")
    rehearsal.run_until_crash()
    log.compact("passed", 0)
    assert len(log.records("passed")) == 1
    with pytest.raises(PlanMismatch, match=r"its redo ends at other marks in passed/0"):
        rehearsal.restart()
    assert rehearsal.states("text") == {}
