"""What a republisher keeps in its group's commits: outputs, which must fit, and marks, where they do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Coordinates, republish
from sqe_chain.chain import root_position
from sqe_chain.errors import ConfigurationError, GapError
from sqe_chain.flow import Flow
from sqe_chain.plans.inputs import METADATA_LENGTH
from sqe_chain.ports import Commit
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.testing import Rehearsal
from tests.support.number_flows import passing_on, values_published


def test_too_many_long_names_are_refused() -> None:
    flow = Flow("many")
    source = flow.source("in", Int64Value)
    for number in range(20):
        source.to(f"{number}-{'x' * 200}", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("in", Int64Value(value=1))
    with pytest.raises(ConfigurationError, match="20 outputs"):
        rehearsal.start()
    assert rehearsal.script.written == []


ROOT = Coordinates(topic="robots", topic_id=b"r" * 16, partition=0, offset=0, leader_epoch=1)


def feed(rehearsal: Rehearsal, root: int, previous: int | None = None, output: str = "a/in") -> None:
    """What a service upstream makes of a root; `previous` is the root that it wrote before."""
    position = b"" if previous is None else root_position(1, previous) + bytes(4)
    value = republish(
        None,
        replace(ROOT, offset=root),
        Int64Value(value=root),
        output=output,
        previous=position,
        timestamp_ms=1,
        key=None,
    )
    rehearsal.feed("in", value)


def test_a_hole_is_noticed_by_the_run_after_the_one_that_saw_what_is_before_it() -> None:
    rehearsal = passing_on()
    feed(rehearsal, 0)
    rehearsal.run_until_caught_up()
    feed(rehearsal, 5, previous=4)
    rehearsal.restart()
    with pytest.raises(GapError):
        rehearsal.run_until_caught_up()


def test_a_restart_between_two_writers_of_one_lane_is_no_hole() -> None:
    """One has written 0 to 4 of its batch, another one republishes 0 to 2, then the first goes on."""
    rehearsal = passing_on()
    for root in range(5):
        feed(rehearsal, root, previous=root - 1 if root else None)
    rehearsal.run_until_caught_up()
    for root in range(3):
        feed(rehearsal, root, previous=root - 1 if root else None)
    feed(rehearsal, 5, previous=4)
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert values_published(rehearsal) == [*range(5), 5]
    assert "excused" not in rehearsal.service._inputs["in", 0].marks.to_json()  # type: ignore[union-attr]


def kept(rehearsal: Rehearsal) -> dict[str, object]:
    found: dict[str, object] = json.loads(rehearsal.commits()["in", 0].metadata)
    return found


def test_marks_that_do_not_fit_are_dropped_and_the_next_run_enters_in_the_middle() -> None:
    rehearsal, lanes = passing_on(), 0
    while not lanes or "marks" in kept(rehearsal):
        feed(rehearsal, 0, output=f"a/{lanes}")
        rehearsal.run_until_caught_up()
        assert len(rehearsal.commits()["in", 0].metadata) <= METADATA_LENGTH
        lanes += 1
    assert lanes > 60
    feed(rehearsal, 5, previous=4, output="a/0")
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert values_published(rehearsal)[-1] == 5


@pytest.mark.parametrize("marks", [None, 7, "", "no base85 \x00", "!!!!", "VPe5"])
def test_commits_without_marks_or_with_others_are_taken_as_they_are(marks: object) -> None:
    rehearsal = passing_on()
    feed(rehearsal, 0)
    rehearsal.run_until_caught_up()
    meta = kept(rehearsal)
    del meta["marks"]
    if marks is not None:
        meta["marks"] = marks
    rehearsal.log.end_session("pass-on")
    rehearsal.log.commit("pass-on", {("in", 0): Commit(1, json.dumps(meta))})
    feed(rehearsal, 5, previous=4)
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert values_published(rehearsal) == [0, 5]


def test_a_rewound_republisher_publishes_again_in_later_runs_too() -> None:
    rehearsal = passing_on()
    for root in (0, 1):
        feed(rehearsal, root)
    rehearsal.run_until_caught_up()
    service = rehearsal.service
    assert isinstance(service, Republisher)
    service.rewind({("in", 0): 0})
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert values_published(rehearsal) == [0, 1, 0, 1]


def test_a_republisher_that_was_rewound_to_the_middle_has_seen_nothing_of_what_is_before_it() -> None:
    """What is republished names a message before it, which is no hole."""
    rehearsal = passing_on()
    for root in range(3):
        feed(rehearsal, root, previous=root - 1 if root else None)
    rehearsal.run_until_caught_up()
    rehearsal.rewind({("in", 0): 1})
    rehearsal.run_until_caught_up()
    assert values_published(rehearsal) == [0, 1, 2, 1, 2]
