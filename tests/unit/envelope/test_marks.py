"""Every message is accepted once; only a gap, a swap or a changed republisher stops.

Messages are real envelopes: `made` is what a republisher writes from one input.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, replace
from typing import cast

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain import Coordinates, read, republish, wrap
from sqe_chain.chain import root_position
from sqe_chain.envelope.marks import MarksRecord, PartitionMarks, Recreated
from sqe_chain.envelope.message import parse_head
from sqe_chain.envelope.wire import sealed
from sqe_chain.errors import (
    ChangedRepublisher,
    GapError,
    InconsistentEnvelope,
    RecreatedTopic,
    TooManyLanes,
)

INPUT_ID = b"i" * 16
RAW = Coordinates(topic="robot.raw", topic_id=b"r" * 16, partition=2, offset=0, leader_epoch=1)
MIDDLE = Coordinates(topic="robot.ok", topic_id=b"k" * 16, partition=0, offset=0, leader_epoch=1)
SCREWS = StringValue(value="3 screws")


def made(
    root: int,
    *,
    ordinal: int = 0,
    of: int = 1,
    output: str = "standard/ok",
    shard: int | None = None,
    at: Coordinates = RAW,
    previous: int | None = None,
) -> bytes:
    """What a republisher makes from the raw message at offset `root`; `previous` is a root's offset, too."""
    return republish(
        None,
        replace(at, offset=root),
        SCREWS,
        output=output,
        key="k",
        shard=shard,
        ordinal=ordinal,
        of=of,
        previous=b"" if previous is None else root_position(at.leader_epoch, previous) + bytes(4),
        timestamp_ms=5,
    )


def made_again(value: bytes, *, offset: int, at: Coordinates = MIDDLE, previous: bytes = b"") -> bytes:
    """What a second republisher makes from it, read at an offset of the intermediate topic."""
    source = read(value)
    return republish(
        source, replace(at, offset=offset), SCREWS, output="two/lines", key="k", previous=previous
    )


@dataclass
class Partition:
    """An input partition: each message gets the next offset, as a broker would give it."""

    marks: PartitionMarks
    offset: int = -1

    def accept(self, value: bytes) -> bool:
        self.offset += 1
        return self.marks.accept(parse_head(value), self.offset, 1)


@pytest.fixture
def partition() -> Partition:
    return Partition(fresh())


def fresh(**settings: bool | int | Recreated) -> PartitionMarks:
    return PartitionMarks("robot.ok", INPUT_ID, 0, **settings)  # type: ignore[arg-type]


# --- replays ----------------------------------------------------------------------------------------


def test_messages_republished_at_new_offsets_are_replays(partition: Partition) -> None:
    first = [partition.accept(made(root)) for root in (0, 1, 2)]
    again = [partition.accept(made(root)) for root in (1, 2, 3)]
    assert (first, again) == ([True] * 3, [False, False, True])


def test_a_collection_of_envelopes_from_one_input_is_new_ordinal_by_ordinal(partition: Partition) -> None:
    assert partition.accept(made(5, ordinal=0, of=3))
    assert partition.accept(made(5, ordinal=2, of=3))
    assert not partition.accept(made(5, ordinal=1, of=3))
    assert not partition.accept(made(5, ordinal=2, of=3))
    assert partition.accept(made(6, ordinal=0, of=1))


@pytest.mark.parametrize(
    "other",
    [
        made(3, output="standard/bad"),
        made(3, shard=0),
        made(3, shard=1),
        made(3, at=replace(RAW, partition=1)),
        made(3, at=replace(RAW, topic="robot.raw2")),
    ],
)
def test_another_writer_or_way_is_another_lane_and_no_replay(partition: Partition, other: bytes) -> None:
    assert partition.accept(made(3))
    assert partition.accept(other)
    assert not partition.accept(made(3))
    assert not partition.accept(other)
    assert len(partition.marks) == 2


def test_one_root_through_two_partitions_of_the_topic_in_between_counts_on_both(partition: Partition) -> None:
    one, two = (
        made_again(made(7), offset=3, at=MIDDLE),
        made_again(made(7), offset=9, at=replace(MIDDLE, partition=1)),
    )
    assert [partition.accept(value) for value in (one, two, one, two)] == [True, True, False, False]


def test_a_higher_leader_epoch_is_later_than_any_offset_of_a_lower_one(partition: Partition) -> None:
    assert partition.accept(made(100))
    assert partition.accept(made(50, at=replace(RAW, leader_epoch=2)))
    assert not partition.accept(made(101))


def test_messages_wrapped_at_the_origin_and_raw_ones_are_their_own_roots() -> None:
    origin = parse_head(wrap(SCREWS, key=None, timestamp_ms=5))
    marks = fresh()
    assert [marks.accept(origin, offset, 1) for offset in (0, 1, 1, 0, 2)] == [True, True, False, False, True]
    raw = fresh()
    assert [raw.accept_raw(offset, epoch) for offset, epoch in ((0, 1), (4, 1), (4, 1), (2, 2))] == [
        True,
        True,
        False,
        True,
    ]
    assert (raw[0].position, raw[0].of, raw[0].offset) == (root_position(2, 2), 0, 2)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12))
def test_whatever_is_redone_from_wherever_each_message_is_accepted_once(
    rewinds: list[tuple[int, int]],
) -> None:
    """Two republishers repeat some inputs again and again; each output is accepted exactly once."""
    partition, accepted, done = Partition(fresh()), [], [0, 0]
    for back, ahead in rewinds:
        for writer in (0, 1):
            start = max(0, done[writer] - back)
            done[writer] = max(done[writer], start + ahead)
            accepted += [
                (writer, root, ordinal)
                for root in range(start, start + ahead)
                for ordinal in (0, 1)
                if partition.accept(made(root, ordinal=ordinal, of=2, output=f"standard/{writer}"))
            ]
    expected = [
        (writer, root, ordinal) for writer in (0, 1) for root in range(done[writer]) for ordinal in (0, 1)
    ]
    assert sorted(accepted) == expected


# --- consistency checks -----------------------------------------------------------------------------


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_a_republisher_that_changed_its_mind_stops_replay_or_not(partition: Partition, ordinal: int) -> None:
    assert partition.accept(made(5, ordinal=1, of=3))
    with pytest.raises(ChangedRepublisher, match=r"one of 4.*they were 3") as caught:
        partition.accept(made(5, ordinal=ordinal, of=4))
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("robot.ok", 0, 1)
    assert partition.accept(made(5, ordinal=2, of=3))


def test_another_number_of_envelopes_from_another_input_is_no_change_of_mind(partition: Partition) -> None:
    assert partition.accept(made(5, ordinal=0, of=3))
    assert partition.accept(made(6, ordinal=0, of=4))
    assert not partition.accept(made(5, ordinal=0, of=9))


def test_a_writer_in_good_order_passes(partition: Partition) -> None:
    previous = None
    for root in range(0, 20, 3):
        assert partition.accept(made(root, previous=previous))
        previous = root
    assert partition.accept(made(30))


def test_a_hole_stops_and_the_error_names_its_place(partition: Partition) -> None:
    assert partition.accept(made(5))
    with pytest.raises(GapError) as raised:
        partition.accept(made(9, previous=8))
    text = str(raised.value)
    assert "robot.ok[0]@1" in text
    assert (root_position(1, 8) + bytes(4)).hex() in text
    assert (root_position(1, 5) + bytes(4)).hex() in text
    assert "--start" in text
    assert partition.marks[next(iter(partition.marks))[0]].offset == 0


def test_batches_that_changed_places_stop(partition: Partition) -> None:
    """A fresh producer, two requests in flight, the first refused and retried: 10..14 before 5..9."""
    for root in range(5):
        assert partition.accept(made(root, previous=root - 1 if root else None))
    with pytest.raises(GapError):
        partition.accept(made(10, previous=9))


def test_a_replay_is_never_a_gap(partition: Partition) -> None:
    assert partition.accept(made(5))
    assert not partition.accept(made(4, previous=100))


def test_an_unknown_lane_that_has_a_history_stops_unless_entered_in_the_middle() -> None:
    for excuse, stops in (
        ({}, True),
        ({"entered_in_middle": True}, False),
        ({"undecodable_offset": 0}, False),
        ({"compacted": True}, False),
    ):
        partition = Partition(fresh(**excuse))
        if stops:
            with pytest.raises(GapError, match="nothing of this lane"):
                partition.accept(made(9, previous=8))
            assert len(partition.marks) == 0
        else:
            assert partition.accept(made(9, previous=8))


@pytest.mark.parametrize("previous", [None, 1])
def test_having_entered_in_the_middle_excuses_one_hole_on_a_lane_and_no_second_one(
    previous: int | None,
) -> None:
    """It belongs to the batch that was being written then. Anything before a lane's first message is not a gap."""
    partition = Partition(fresh(entered_in_middle=True))
    assert partition.accept(made(2, previous=previous))
    assert partition.accept(made(5, previous=4))
    assert partition.accept(made(7, previous=5))
    with pytest.raises(GapError):
        partition.accept(made(9, previous=8))


def test_a_reader_that_enters_between_two_runs_of_a_republisher_loses_nothing() -> None:
    """One has written 0 to 6 before; another one repeats 3 and 4; then the first continues, then the other."""
    partition = Partition(fresh(entered_in_middle=True))
    assert [partition.accept(made(root, previous=root - 1)) for root in (3, 4, 7, 8)] == [True] * 4
    assert [partition.accept(made(root, previous=root - 1)) for root in (5, 6, 7, 8)] == [False] * 4
    assert partition.accept(made(9, previous=8))


def test_having_entered_at_the_beginning_excuses_no_hole(partition: Partition) -> None:
    assert partition.accept(made(2))
    with pytest.raises(GapError):
        partition.accept(made(5, previous=4))


def test_an_excuse_that_was_used_is_remembered_in_what_is_stored() -> None:
    partition = Partition(fresh(entered_in_middle=True))
    assert partition.accept(made(2, output="standard/bad"))
    assert partition.accept(made(2, previous=1))
    assert "excused" not in partition.marks.to_json()
    assert partition.accept(made(4, previous=3))
    stored = partition.marks.to_json()
    assert len(stored["excused"]) == 1
    loaded = Partition(PartitionMarks.from_json(stored), partition.offset)
    assert loaded.marks.to_json() == stored
    with pytest.raises(GapError):
        loaded.accept(made(9, previous=8))
    assert loaded.accept(made(9, previous=8, output="standard/bad"))


def test_an_excuse_that_was_used_is_remembered_in_a_copy() -> None:
    partition = Partition(fresh(entered_in_middle=True))
    assert partition.accept(made(2))
    assert partition.accept(made(4, previous=3))
    copied = Partition(partition.marks.copy(), partition.offset)
    with pytest.raises(GapError):
        copied.accept(made(9, previous=8))


def test_a_hole_that_an_undecodable_record_explains_uses_no_excuse() -> None:
    partition = Partition(fresh(entered_in_middle=True))
    assert partition.accept(made(2))
    partition.offset += 1
    partition.marks.undecodable(partition.offset)
    assert partition.accept(made(4, previous=3))
    assert "excused" not in partition.marks.to_json()


def test_an_undecodable_record_excuses_a_hole_until_the_lane_is_beyond_it() -> None:
    partition = Partition(fresh())
    assert partition.accept(made(5))
    partition.offset += 1
    partition.marks.undecodable(partition.offset)
    assert partition.accept(made(9, previous=8))
    with pytest.raises(GapError):
        partition.accept(made(12, previous=11))
    partition.marks.undecodable(0)
    assert partition.marks.undecodable_offset == 1


def test_a_replay_after_an_undecodable_record_does_not_use_up_what_that_excuses() -> None:
    partition = Partition(fresh())
    assert partition.accept(made(5))
    partition.offset += 1
    partition.marks.undecodable(partition.offset)
    assert not partition.accept(made(5))
    assert partition.accept(made(9, previous=8))


def test_a_compacted_input_may_have_holes() -> None:
    partition = Partition(fresh(compacted=True))
    assert partition.accept(made(5))
    assert partition.accept(made(9, previous=8))


# --- lanes ------------------------------------------------------------------------------------------


def test_too_many_lanes_stop_and_known_ones_go_on() -> None:
    partition = Partition(fresh(max_lanes=2))
    assert partition.accept(made(1, shard=0))
    assert partition.accept(made(1, shard=1))
    with pytest.raises(
        TooManyLanes,
        match=r"2 are known and 2 allowed.*standard/ok#2",
    ):
        partition.accept(made(1, shard=2))
    assert partition.accept(made(2, shard=1))
    assert len(partition.marks) == 2


def test_the_first_message_of_a_lane_must_agree_with_its_chain(partition: Partition) -> None:
    value = made(3)
    place = value.index(b"screws\x51") + len(b"screws\x51")
    with pytest.raises(InconsistentEnvelope, match="lane"):
        partition.accept(sealed(value[:place] + bytes(8) + value[place + 8 : -5]))
    assert len(partition.marks) == 0


AGAIN = replace(MIDDLE, topic_id=b"x" * 16)
"""The intermediate topic, deleted and created again."""


def test_a_topic_in_between_created_again_stops_when_it_brings_counted_roots(partition: Partition) -> None:
    for root in (4, 5):
        assert partition.accept(made_again(made(root), offset=root))
    with pytest.raises(RecreatedTopic, match=r"one of robot\.ok was deleted.*recreated='skip'"):
        partition.accept(made_again(made(5), offset=0, at=AGAIN))
    assert len(partition.marks) == 1


def test_a_topic_in_between_created_again_is_fine_when_it_brings_new_roots_only(partition: Partition) -> None:
    assert partition.accept(made_again(made(5), offset=0))
    assert partition.accept(made_again(made(6), offset=0, at=AGAIN))
    assert not partition.accept(made_again(made(6), offset=1, at=AGAIN))


def test_counted_roots_through_a_topic_created_again_are_counted_on_demand() -> None:
    partition = Partition(fresh(recreated="count"))
    assert partition.accept(made_again(made(5), offset=0))
    assert partition.accept(made_again(made(5), offset=0, at=AGAIN))
    assert not partition.accept(made_again(made(5), offset=0, at=AGAIN))


def test_counted_roots_through_a_topic_created_again_are_skipped_on_demand() -> None:
    partition = Partition(fresh(recreated="skip"))
    for root in (5, 8):
        assert partition.accept(made_again(made(root), offset=root))
    for root in (3, 5, 8):
        assert not partition.accept(made_again(made(root), offset=root, at=AGAIN))
    assert partition.accept(made_again(made(9), offset=9, at=AGAIN))
    assert not partition.accept(made_again(made(9), offset=9, at=AGAIN))
    assert len(partition.marks) == 2


@pytest.mark.parametrize("first", [0, 1, 2])
def test_what_was_not_counted_of_the_highest_root_is_not_skipped(first: int) -> None:
    """The first message of the new lane may be before, at or beyond the highest counted position."""
    partition = Partition(fresh(recreated="skip"))
    assert partition.accept(made_again(made(7, ordinal=2, of=3), offset=0))
    for ordinal in (0, 1):
        assert partition.accept(made_again(made(8, ordinal=ordinal, of=3), offset=1 + ordinal))
    again = [made_again(made(8, ordinal=ordinal, of=3), offset=ordinal, at=AGAIN) for ordinal in range(3)]
    assert [partition.accept(value) for value in again[first:]] == [False, False, True][first:]
    assert [partition.accept(value) for value in again] == [False] * 3


def test_of_several_lanes_of_a_path_the_highest_position_counts() -> None:
    third = replace(MIDDLE, topic_id=b"3" * 16)
    partition = Partition(fresh(recreated="skip"))
    for at, root in ((MIDDLE, 5), (AGAIN, 9)):
        assert partition.accept(made_again(made(root), offset=root, at=at))
    assert [partition.accept(made_again(made(root), offset=root, at=third)) for root in (6, 9, 10)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("ordinal", [0, 1])
def test_a_republisher_that_changed_its_mind_stops_on_the_new_lane_too(ordinal: int) -> None:
    partition = Partition(fresh(recreated="skip"))
    way = {"output": "two/lines", "key": "k"}
    assert partition.accept(republish(read(made(8)), MIDDLE, SCREWS, ordinal=0, of=3, **way))  # type: ignore[arg-type]
    with pytest.raises(ChangedRepublisher):
        partition.accept(republish(read(made(8)), AGAIN, SCREWS, ordinal=ordinal, of=2, **way))  # type: ignore[arg-type]
    assert len(partition.marks) == 1


def test_a_new_lane_may_refer_to_what_was_counted_on_the_old_one() -> None:
    def again(root: int, previous: int) -> bytes:
        position_before = root_position(1, previous) + bytes(8)
        return made_again(made(root), offset=root, at=AGAIN, previous=position_before)

    for previous, stops in ((8, False), (9, True)):
        partition = Partition(fresh(recreated="skip"))
        assert partition.accept(made_again(made(8), offset=0))
        if stops:
            with pytest.raises(GapError):
                partition.accept(again(10, previous))
            assert len(partition.marks) == 1
        else:
            assert partition.accept(again(10, previous))


def test_a_hole_before_a_lane_that_goes_on_after_a_new_topic_uses_up_its_excuse() -> None:
    """A second one is a hole among what this reader should have read."""

    def again(root: int, previous: int) -> bytes:
        position_before = root_position(1, previous) + bytes(8)
        return made_again(made(root), offset=root, at=AGAIN, previous=position_before)

    partition = Partition(fresh(recreated="skip", entered_in_middle=True))
    assert partition.accept(made_again(made(8), offset=0))
    assert partition.accept(again(10, 9))
    with pytest.raises(GapError):
        partition.accept(again(13, 12))


def test_skipping_goes_on_after_the_marks_were_stored() -> None:
    marks = fresh(recreated="skip")
    assert marks.accept(parse_head(made_again(made(8), offset=0)), 0, 1)
    assert not marks.accept(parse_head(made_again(made(3), offset=0, at=AGAIN)), 1, 1)
    loaded = PartitionMarks.from_json(marks.to_json(), recreated="stop")
    assert not loaded.accept(parse_head(made_again(made(8), offset=1, at=AGAIN)), 2, 1)
    assert loaded.accept(parse_head(made_again(made(9), offset=2, at=AGAIN)), 3, 1)


def test_a_root_created_again_starts_over_loudly(partition: Partition) -> None:
    assert partition.accept(made(5))
    assert partition.marks.notices == []
    again = replace(RAW, topic_id=b"n" * 16)
    assert partition.accept(made(0, at=again))
    assert partition.accept(made(0, at=again, shard=1))
    assert partition.accept(made(0, shard=1))
    (notice,) = partition.marks.notices
    assert "root robot.raw[2]" in notice
    assert b"n".hex() * 16 in notice


# --- stored and loaded ------------------------------------------------------------------------------


def travelled() -> PartitionMarks:
    partition = Partition(fresh(entered_in_middle=True, undecodable_offset=3, max_lanes=9))
    for value in (
        made(5, ordinal=1, of=3),
        made(6, shard=2),
        made(1, at=replace(RAW, topic_id=b"n" * 16)),
        made_again(made(5), offset=2**62),
        wrap(SCREWS, key=None, timestamp_ms=5),
    ):
        assert partition.accept(value)
    return partition.marks


def test_marks_survive_json_exactly() -> None:
    marks = travelled()
    text = json.dumps(marks.to_json())
    loaded = PartitionMarks.from_json(json.loads(text))
    assert loaded == marks
    assert json.dumps(loaded.to_json()) == text
    assert {lane: (m.position, m.of, m.offset, m.path) for lane, m in loaded} == {
        lane: (m.position, m.of, m.offset, m.path) for lane, m in marks
    }


@given(
    st.text(max_size=12),
    st.integers(0, 9),
    st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 3), max_size=5),
    st.booleans(),
)
def test_marks_are_written_as_an_encoder_of_json_writes_them(
    topic: str, partition: int, lanes: list[tuple[int, int, int]], excused: bool
) -> None:
    record = {
        "topic": topic + '"lanes":[]',
        "topic_id": INPUT_ID.hex(),
        "partition": partition,
        "entered_in_middle": excused,
        "undecodable_offset": -1,
        "lanes": [
            {
                "lane": f"{lane:016x}",
                "position": f"{at:032x}",
                "of": at % 7,
                "offset": at >> 1,
                "path": f"{path:016x}",
            }
            for lane, (at, path) in sorted({lane: (at, path) for lane, at, path in lanes}.items())
        ],
        "roots": [[topic, partition, RAW.topic_id.hex()]],
    }
    if excused and lanes:
        record["excused"] = [f"{min(lanes)[0]:016x}"]
    marks = PartitionMarks.from_json(cast("MarksRecord", record))
    assert marks.to_text() == json.dumps(record, sort_keys=True, separators=(",", ":"))
    assert PartitionMarks.from_json(json.loads(marks.to_text())) == marks


def test_loaded_marks_know_of_recreated_topics_roots_and_of_what_they_knew() -> None:
    loaded = PartitionMarks.from_json(travelled().to_json())
    with pytest.raises(RecreatedTopic):
        loaded.accept(parse_head(made_again(made(5), offset=0, at=AGAIN)), 9, 1)
    with pytest.raises(ChangedRepublisher):
        loaded.accept(parse_head(made(5, ordinal=2, of=4)), 9, 1)
    assert not loaded.accept(parse_head(made(6, shard=2)), 9, 1)
    assert loaded.accept(parse_head(made(0, at=replace(RAW, topic_id=b"o" * 16))), 9, 1)
    assert len(loaded.notices) == 1


def test_a_copy_moves_on_its_own_and_keeps_the_settings() -> None:
    marks = travelled()
    copied = marks.copy()
    assert (copied, copied.max_lanes, copied.recreated) == (marks, 9, "stop")
    before = marks.to_json()
    assert copied.accept(parse_head(made(7, shard=2)), 99, 1)
    assert marks.to_json() == before
    assert copied != marks
    fresh_root = marks.copy()
    assert fresh_root.accept(parse_head(made(0, at=replace(RAW, topic_id=b"o" * 16))), 9, 1)
    assert marks.to_json() == before, "what is known of roots is a copy as well"


def test_a_copy_travels_and_is_kept_without_envelopes() -> None:
    marks = travelled()
    assert marks.accept(parse_head(made(7, shard=2)), 99, 1)
    sent = marks.copy()
    assert all(mark.head is None for _, mark in sent)
    assert any(mark.head is not None for _, mark in marks)
    assert [lane for lane, _ in sent] == sorted(lane for lane, _ in marks)
    assert pickle.loads(pickle.dumps(sent)) == marks  # noqa: S301 - our own


def test_the_same_marks_give_the_same_json_in_whatever_order_lanes_came() -> None:
    values = [made(1, shard=shard) for shard in range(6)]
    one, other = fresh(), fresh()
    for value in values:
        one.accept(parse_head(value), values.index(value), 1)
    for value in reversed(values):
        other.accept(parse_head(value), values.index(value), 1)
    assert one.to_json() == other.to_json()


def test_a_mark_may_be_asked_for_its_of_after_many_messages() -> None:
    marks = fresh()
    for root in range(5):
        assert marks.accept(parse_head(made(root, of=root + 1)), root, 1)
    ((_, mark),) = marks
    assert (mark.of, mark.of, repr(mark).endswith("of=5, offset=4)")) == (5, 5, True)


# --- asked and joined -------------------------------------------------------------------------------


def test_marks_are_asked_about_a_message_without_being_moved() -> None:
    marks = fresh()
    marks.accept(parse_head(made(7)), 0, 1)
    marks.accept_raw(40, 2)
    before = marks.to_json()
    heads = [parse_head(made(root)) for root in (6, 7, 8)]
    assert [marks.has(head, 90, 1) for head in heads] == [True, True, False]
    assert not marks.has(parse_head(made(7, output="standard/other")), 90, 1), "its lane is not known"
    raw = [(39, 2), (40, 2), (41, 2), (90, 1)]
    assert [marks.has(None, offset, epoch) for offset, epoch in raw] == [True, True, False, True]
    assert marks.to_json() == before


def test_of_two_marks_the_higher_one_counts_on_each_lane() -> None:
    ahead, other = fresh(), fresh()
    for marks, roots in ((ahead, {"a": 9, "b": 3, "own": 1}), (other, {"a": 5, "b": 8, "theirs": 2})):
        for output, root in roots.items():
            assert marks.accept(parse_head(made(root, output=f"standard/{output}")), root, 1)
    other.undecodable(30)
    joined = ahead.merged(other)
    for output, root in {"a": 9, "b": 8, "own": 1, "theirs": 2}.items():
        heads = [parse_head(made(at, output=f"standard/{output}")) for at in (root, root + 1)]
        assert [joined.has(head, 90, 1) for head in heads] == [True, False], output
    assert joined.undecodable_offset == other.merged(ahead).undecodable_offset == 30
    assert len(ahead) == len(other) == 3, "neither has changed"


def test_what_was_wrapped_at_its_origin_is_ordered_by_epoch_and_offset_as_what_has_no_envelope() -> None:
    """Also where both come on one partition: they share a lane, and their positions are of the log itself."""
    marks, head = fresh(), parse_head(wrap(SCREWS, key="k", timestamp_ms=5))
    assert marks.accept(head, 5, 2)
    assert marks[0].of == 0, "it has no siblings"
    assert not marks.accept(head, 6, 1), "of an older leader"
    assert marks.accept_raw(6, 2)
    assert not marks.accept(head, 6, 2)
    assert marks.accept(head, 7, 2)
