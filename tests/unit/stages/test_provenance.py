"""A sibling was made from the same message as a record that passed, and comes behind it; nothing else is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sqe_chain._proto.filters_pb2 import Passed
from sqe_chain.chain import next_position, root_position
from sqe_chain.stages.provenance import input_row, is_sibling, remember, spot_of
from sqe_chain.stages.record import NOWHERE, Reason, Record, Spot, dropped

POSITION = next_position(root_position(1, 5), 2)
FIRST = Record(topic="lines", topic_id=b"l" * 16, offset=9, spot=Spot(7, POSITION + bytes(4)))
NEXT = replace(FIRST, spot=Spot(7, POSITION + b"\0\0\0\1"))


def passed(record: Record) -> Passed:
    noted = Passed()
    remember(noted, record)
    return noted


def test_the_next_path_of_the_same_message_is_a_sibling() -> None:
    assert is_sibling(NEXT, passed(FIRST))


@pytest.mark.parametrize(
    "other",
    [
        FIRST,
        replace(NEXT, offset=10),
        replace(NEXT, spot=Spot(8, NEXT.spot.position)),
        replace(NEXT, spot=Spot(7, root_position(2, 5) + bytes(8))),
        replace(NEXT, spot=NOWHERE),
    ],
    ids=["itself", "another message", "another lane", "the offset written anew", "no position"],
)
def test_nothing_else_is_one(other: Record) -> None:
    assert not is_sibling(other, passed(FIRST))


def test_elements_without_a_position_are_no_siblings() -> None:
    assert not is_sibling(replace(FIRST, spot=NOWHERE), passed(replace(FIRST, spot=NOWHERE)))


def test_the_place_of_a_passed_record_is_known_unless_it_had_no_position() -> None:
    for spot, known in ((FIRST.spot, FIRST.spot), (NOWHERE, None)):
        original = spot_of(passed(replace(FIRST, spot=spot)))
        assert dropped(Reason.REPLAY, "", original).original == known


@pytest.mark.parametrize(
    "other",
    [{"topic": "line"}, {"topic": "linesl"}, {"topic_id": b"m" * 16}, {"topic_id": b""}, {"partition": 256}],
)
def test_every_input_partition_has_a_row_of_its_own(other: dict[str, Any]) -> None:
    assert input_row(replace(FIRST, **other)) != input_row(FIRST)
    assert input_row(replace(FIRST, topic_id=b"m" * 16), topic_id=False) == input_row(FIRST, topic_id=False)
