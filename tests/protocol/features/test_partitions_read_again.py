"""Goal: what is read again after a rebuild counts as read when each of its partitions is, not only one of them.

Method: the rules are asked with two partitions: none is read again, each alone, and both.
"""

from __future__ import annotations

import pytest

from sqe_chain.features.lanes import Lanes
from sqe_chain.features.rebuilding import Unfinished, _is_next, silent_limits
from sqe_chain.plans.plan import PlannedRange
from sqe_chain.ports import TopicPartition
from sqe_chain.task.event_times import Frontier

ONE, OTHER = ("in", 0), ("in", 1)
UNTIL: dict[TopicPartition, int] = {ONE: 5, OTHER: 7}
STOPS = [({ONE: 4, OTHER: 6}, False), ({ONE: 5, OTHER: 6}, False), ({ONE: 4, OTHER: 7}, False), (UNTIL, True)]


@pytest.mark.parametrize(("stops", "all_read"), STOPS)
def test_what_was_taken_before_is_known_when_all_partitions_are_read_again(
    stops: dict[TopicPartition, int], all_read: bool
) -> None:
    taken = Frontier(10, "in", 1)
    assert Lanes(UNTIL, taken).taken_by(stops) == (taken if all_read else None)


@pytest.mark.parametrize(("offsets", "all_read"), STOPS)
def test_a_rebuild_is_silent_until_all_partitions_are_read_again(
    offsets: dict[TopicPartition, int], all_read: bool
) -> None:
    assert silent_limits(offsets, UNTIL) == (None if all_read else UNTIL)


@pytest.mark.parametrize(("offsets", "all_read"), STOPS)
def test_an_unfinished_batch_is_next_when_all_partitions_are_read_again(
    offsets: dict[TopicPartition, int], all_read: bool
) -> None:
    ranges = (PlannedRange(topic, "00", number, at, at + 3) for (topic, number), at in UNTIL.items())
    assert _is_next(Unfinished(0, tuple(ranges)), offsets) is all_read
