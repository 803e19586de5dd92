"""Goal: what a sealed batch said is said again when it is redone, or the service stops; nothing is left out in silence.

Method: a crash right after the seal, and then a topic or the code that is not as it was.
"""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import Flow, wrap
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
    said = rehearsal.published("out")
    return [len(envelope.payload_as(StringValue).value) for envelope in said]


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
