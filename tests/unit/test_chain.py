"""Lanes name paths, positions order them, and nothing outside the bounds passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.chain import (
    MAX_EPOCH,
    MAX_LINKS,
    MAX_OF,
    MAX_OFFSET,
    MAX_OUTPUT,
    MAX_PARTITION,
    MAX_POSITION_LENGTH,
    MAX_SHARD,
    MAX_TOPIC,
    Chain,
    Coordinates,
    Link,
    b64,
    check_link,
    event_id,
    next_position,
    path_hash,
    read_lane,
    root_position,
    stored_epoch,
    written_lane,
)
from sqe_chain.errors import ChainTooLong, OutOfBounds

FIRST = Link("robot.raw", b"r" * 16, 2, 7, 1, "standard/ok", None, 0, 2)
SECOND = Link("robot.ok", b"k" * 16, 1, 40, 3, "totals/lines", 5, 3, 4)


@pytest.mark.parametrize(
    "other",
    [
        replace(FIRST, topic="robot.raw2"),
        replace(FIRST, topic_id=b"s" * 16),
        replace(FIRST, partition=3),
        replace(FIRST, output="standard/bad"),
        replace(FIRST, shard=0),
    ],
)
def test_whatever_names_a_writer_or_a_place_of_order_makes_another_lane(other: Link) -> None:
    assert Chain((other, SECOND)).lane() != Chain((FIRST, SECOND)).lane()


@pytest.mark.parametrize(
    "other",
    [
        replace(FIRST, offset=8),
        replace(FIRST, leader_epoch=2),
        replace(FIRST, ordinal=1),
        replace(FIRST, of=9),
    ],
)
def test_what_changes_from_message_to_message_keeps_the_lane(other: Link) -> None:
    assert Chain((other, SECOND)).lane() == Chain((FIRST, SECOND)).lane()


def test_the_lane_is_built_link_by_link_and_ends_with_the_place_of_reading() -> None:
    chain = Chain((FIRST,)).append(SECOND)
    inner = read_lane(Chain((FIRST,)).lane(), SECOND.topic, SECOND.topic_id, SECOND.partition)
    assert chain.lane() == written_lane(inner, SECOND.output, SECOND.shard)
    assert len({read_lane(chain.lane(), "lines", b"l" * 16, partition) for partition in range(4)}) == 4


def test_an_empty_chain_is_its_own_root() -> None:
    assert (Chain().lane(), Chain().position(), Chain().root, str(Chain())) == (0, b"", None, "(origin)")


def test_a_replay_of_an_intermediate_message_keeps_the_position() -> None:
    again = replace(SECOND, offset=43, leader_epoch=9)
    assert Chain((FIRST, again)).position() == Chain((FIRST, SECOND)).position()


numbers = st.integers(0, MAX_OF - 1)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, MAX_EPOCH), st.integers(0, MAX_OFFSET), numbers, numbers),
        min_size=2,
        max_size=2,
    )
)
def test_bytes_of_positions_are_ordered_like_their_numbers(places: list[tuple[int, int, int, int]]) -> None:
    one, other = (
        next_position(next_position(root_position(place[0], place[1]), place[2]), place[3])
        for place in places
    )
    assert (one < other) == (places[0] < places[1])


def test_lengths_keep_hashed_fields_apart() -> None:
    assert b64(b"a", b"") != b64(b"", b"a") != b64(b"a")


def test_a_path_forgets_topic_ids_except_the_root_s() -> None:
    chain = Chain((FIRST, SECOND))
    path = path_hash(chain, "lines", b"l" * 16, 0)
    assert path == path_hash(Chain((FIRST, replace(SECOND, topic_id=b"x" * 16))), "lines", b"y" * 16, 0)
    assert path != path_hash(Chain((replace(FIRST, topic_id=b"x" * 16), SECOND)), "lines", b"l" * 16, 0)
    assert path != path_hash(chain, "lines", b"l" * 16, 1)
    assert path_hash(Chain(), "raw", b"a" * 16, 0) != path_hash(Chain(), "raw", b"b" * 16, 0)


def test_a_derived_event_id_is_stable_and_differs_by_position() -> None:
    assert len(event_id(5, b"position")) == 16
    assert event_id(5, b"position") == event_id(5, b"position") != event_id(5, b"positioN")


@pytest.mark.parametrize(("reported", "stored"), [(None, 0), (-1, 0), (0, 1), (7, 8)])
def test_epochs_are_stored_plus_one(reported: int | None, stored: int) -> None:
    assert stored_epoch(reported) == stored


@pytest.mark.parametrize(("stored", "reported"), [(0, None), (1, 0), (8, 7)])
def test_a_link_shows_programs_the_epoch_that_clients_report(stored: int, reported: int | None) -> None:
    assert replace(SECOND, leader_epoch=stored).to_json() == {
        "topic": "robot.ok",
        "topic_id": "6b" * 16,
        "partition": 1,
        "offset": 40,
        "leader_epoch": reported,
        "output": "totals/lines",
        "shard": 5,
        "ordinal": 3,
        "of": 4,
    }


def test_a_chain_of_33_links_is_refused_and_one_of_32_is_not() -> None:
    longest = Chain((FIRST,) * MAX_LINKS)
    assert len(longest.position()) == MAX_POSITION_LENGTH
    with pytest.raises(ChainTooLong, match=r"33 links.*robot\.raw"):
        longest.append(FIRST)


@pytest.mark.parametrize(
    "link",
    [
        replace(FIRST, topic="t" * MAX_TOPIC),
        replace(FIRST, partition=MAX_PARTITION),
        replace(FIRST, offset=MAX_OFFSET),
        replace(FIRST, leader_epoch=MAX_EPOCH),
        replace(FIRST, output="o" * MAX_OUTPUT),
        replace(FIRST, shard=MAX_SHARD),
        replace(FIRST, ordinal=MAX_OF - 1, of=MAX_OF),
    ],
)
def test_bounds_themselves_are_allowed(link: Link) -> None:
    check_link(link)


@pytest.mark.parametrize(
    ("link", "field"),
    [
        (replace(FIRST, topic=""), "topic"),
        (replace(FIRST, topic="t" * (MAX_TOPIC + 1)), "topic"),
        (replace(FIRST, topic="a/b"), "topic"),
        (replace(FIRST, topic="a\n"), "topic"),
        (replace(FIRST, topic_id=b""), "topic id"),
        (replace(FIRST, partition=MAX_PARTITION + 1), "partition"),
        (replace(FIRST, partition=-1), "partition"),
        (replace(FIRST, offset=MAX_OFFSET + 1), "offset"),
        (replace(FIRST, leader_epoch=MAX_EPOCH + 1), "leader epoch"),
        (replace(FIRST, output=""), "output"),
        (replace(FIRST, output="ü" * MAX_OUTPUT), "output"),
        (replace(FIRST, shard=MAX_SHARD + 1), "shard"),
        (replace(FIRST, of=0), "ordinal"),
        (replace(FIRST, of=MAX_OF + 1), "of"),
        (replace(FIRST, ordinal=2, of=2), "ordinal"),
    ],
)
def test_beyond_a_bound_the_error_names_the_field(link: Link, field: str) -> None:
    with pytest.raises(OutOfBounds, match=f"^{field} of a link"):
        check_link(link)


def test_links_read_well_in_errors() -> None:
    assert str(Chain((FIRST, SECOND))) == (
        "robot.raw[2]@7 > standard/ok 1/2 -> robot.ok[1]@40 > totals/lines#5 4/4"
    )
    at = Coordinates(topic="robot.raw", topic_id=b"r" * 16, partition=2, offset=7)
    assert str(at) == "robot.raw[2]@7"
