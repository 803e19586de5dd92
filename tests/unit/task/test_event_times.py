"""Goal: a watermark is a promise that holds, and a wrong clock moves nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.adapters.memory import MemoryMessage
from sqe_chain.chain import Coordinates
from sqe_chain.envelope.message import parse_head, read, republish
from sqe_chain.flow import Flow
from sqe_chain.flow.context import TopicIdPartition
from sqe_chain.flow.nodes import SourceNode
from sqe_chain.stages import JumpGuard, Tumbling
from sqe_chain.task.event_times import (
    NONE_AHEAD,
    ORIGIN,
    Ahead,
    EventTimes,
    Frontier,
    PartitionProgress,
    Stated,
    WaitingRange,
    believe_times,
    frontier_of,
    guard_of,
    right_times,
)
from sqe_chain.task.gate import SourceTimes, writer_of
from sqe_chain.task.records import Records

CLOCK_MS = 1_000_000
Seen = tuple[str, int, int, int]
"""Writer, lane, time, watermark (0: none)."""
seen = st.tuples(
    st.sampled_from(["up/a", "up/b"]),
    st.integers(1, 3),
    st.integers(0, 3_000_000),
    st.sampled_from([0, 0, 1, 500, 900_000]),
) | st.tuples(st.just(ORIGIN), st.just(0), st.integers(0, 3_000_000), st.just(0))


def waited(topic: str, partition: int, watermark_ms: int | None, latest_ms: int | None) -> PartitionProgress:
    return PartitionProgress(
        topic, partition, waited_for=True, watermark_ms=watermark_ms, latest_ms=latest_ms
    )


def marked_idle(topic: str, partition: int, latest_ms: int | None) -> PartitionProgress:
    return PartitionProgress(topic, partition, waited_for=False, watermark_ms=None, latest_ms=latest_ms)


def times_of() -> EventTimes:
    return EventTimes(0).copy(clock_ms=CLOCK_MS)


def observe(times: EventTimes, one: Seen, guard: JumpGuard | None = None) -> None:
    times.observe(one[0], (one[2],), one[3], guard=guard)


@given(st.lists(seen, max_size=12))
def test_what_is_stored_is_read_back(found: list[Seen]) -> None:
    times = times_of()
    for one in found:
        observe(times, one, JumpGuard(1_000, 2))
    times.waiting, times.lanes = WaitingRange(5, 700, 2), {7: 900}
    again = EventTimes.from_json(json.loads(json.dumps(times.to_json())))
    assert again == times
    assert again.progress("in", 0) == times.progress("in", 0)
    assert times.settled() == again


lanes_of_times = st.lists(st.integers(0, 3_000), min_size=1, max_size=30)


@given(lanes_of_times, st.lists(st.integers(1, 5)), st.sampled_from([None, 1_500]))
def test_what_is_believed_does_not_depend_on_where_batches_end(
    times_ms: list[int], cuts: list[int], clock_ms: int | None
) -> None:
    guard = JumpGuard(500, 3)
    known: tuple[int | None, Ahead] = (None, NONE_AHEAD)
    begin = 0
    for cut in [*cuts, len(times_ms)]:
        known = believe_times(known, times_ms[begin : begin + cut], guard, clock_ms)
        begin += cut
    assert known == believe_times((None, NONE_AHEAD), times_ms, guard, clock_ms)


@given(lanes_of_times)
def test_of_a_lane_in_order_the_latest_time_is_believed_once_others_confirm_it(times_ms: list[int]) -> None:
    guard, in_order = JumpGuard(500, 3), sorted(times_ms)
    assert list(right_times(in_order, guard)) == in_order
    now_ms, _ = believe_times((None, NONE_AHEAD), [*in_order, *[in_order[-1]] * 3], guard, None)
    assert now_ms == in_order[-1]
    assert believe_times((None, NONE_AHEAD), in_order, guard, 3_000) == (in_order[-1], NONE_AHEAD)


@given(lanes_of_times, st.lists(st.integers(0, 30), max_size=2))
def test_a_wrong_clock_takes_the_place_of_the_next_right_one(times_ms: list[int], at: list[int]) -> None:
    guard, right = JumpGuard(5_000, 3), sorted(times_ms)
    found = list(right)
    for index in sorted(at):
        found.insert(min(index, len(found) - 1), 1_000_000)
    assert [one for one in right_times(found, guard) if one not in right] == []
    now_ms, _ = believe_times((None, NONE_AHEAD), right_times(found, guard), guard, 3_000)
    assert now_ms == right[-1]


def test_a_pause_in_the_past_is_no_clock_that_runs_ahead() -> None:
    guard = JumpGuard(1_000, 3)
    assert believe_times((100, NONE_AHEAD), [90_000], guard, CLOCK_MS) == (90_000, NONE_AHEAD)
    assert believe_times((100, NONE_AHEAD), [CLOCK_MS + 1], guard, CLOCK_MS)[0] == 100
    assert believe_times((100, NONE_AHEAD), [90_000], guard, None) == (100, (1, 90_000, 90_000)), (
        "more will show"
    )


def test_the_watermark_of_a_partition_is_that_of_the_writer_who_is_behind() -> None:
    times = times_of()
    observe(times, ("up/a", 1, 700, 300))
    assert times.progress("in", 4) == waited("in", 4, 300, 700)
    observe(times, ("up/b", 2, 400, 100))
    assert times.progress("in", 4) == waited("in", 4, 100, 700)
    observe(times, (ORIGIN, 0, 50, 0))
    assert times.progress("in", 4).watermark_ms == 50
    times.idle = {ORIGIN: None, "up/b": 250}
    assert times.progress("in", 4).watermark_ms == 250
    times.idle = {ORIGIN: None, "up/b": None}
    assert times.progress("in", 4).watermark_ms == 300
    times.idle |= {"up/a": None}
    assert times.progress("in", 4) == marked_idle("in", 4, 700)
    observe(times, ("up/b", 2, 600, 500))
    assert times.progress("in", 4) == waited("in", 4, 500, 700)


def test_nothing_is_known_of_a_partition_without_a_record_until_it_is_idle() -> None:
    times = times_of()
    assert times.progress("in", 0) == waited("in", 0, None, None)
    assert times.silent_since() == {ORIGIN: 0}
    times.idle = {ORIGIN: 500}
    assert times.progress("in", 0) == waited("in", 0, 500, None)._replace(shown=False)
    times.idle = {ORIGIN: None}
    assert times.progress("in", 0) == marked_idle("in", 0, None)


def test_a_writer_that_may_be_in_what_is_still_unread_is_waited_for() -> None:
    times = times_of()
    observe(times, ("up/a", 1, 700, 300))
    times.unsure = True
    times.idle = {"up/a": None}
    assert times.progress("in", 0) == waited("in", 0, None, 700)
    # The task that reads the partition works on a copy.
    assert times.copy(clock_ms=CLOCK_MS).progress("in", 0) == waited("in", 0, None, 700)


def test_what_a_writer_states_elsewhere_holds_here() -> None:
    times, elsewhere = times_of(), Stated(400, 77, (("up", "raw"),))
    times.hear("up/a", elsewhere)
    assert times.progress("in", 0) == waited("in", 0, 400, 400)
    assert times.silent_since() == {"up/a": 77}
    assert times.hops_of("up/a") == (("up", "raw"),)
    observe(times, ("up/a", 1, 900, 500))
    times.hear("up/a", elsewhere)
    assert times.progress("in", 0).watermark_ms == 500
    assert times.silent_since() == {"up/a": CLOCK_MS}


def test_a_wrong_clock_moves_nothing_until_others_agree_or_the_clock_has_come_there() -> None:
    times, guard = times_of(), JumpGuard(1_000, 2)
    for at_ms, watermark_ms in ((5_000_000, None), (100, None), (110, 110), (5_000_000, 110)):
        observe(times, (ORIGIN, 0, at_ms, 0), guard)
        assert times.progress("in", 0).watermark_ms == watermark_ms
    times.settle()
    assert times.progress("in", 0).watermark_ms == 110, "it is ahead of the clock"
    later = times.copy(clock_ms=5_000_000)
    later.settle()
    assert later.progress("in", 0).watermark_ms == 5_000_000
    times.settle(for_good=True)
    assert times.progress("in", 0).watermark_ms == 5_000_000, "nothing comes any more that could show it"


@pytest.mark.parametrize(
    ("found", "frontier"),
    [
        ([], None),
        ([waited("a", 0, 5, 9), waited("a", 1, 7, 9)], Frontier(5, "a", 0)),
        ([waited("a", 1, 5, 9), waited("a", 0, 5, 9)], Frontier(5, "a", 0)),
        ([waited("a", 0, 5, 9), waited("a", 1, None, None)], None),
        ([waited("a", 0, 5, 9), marked_idle("a", 1, 99)], Frontier(5, "a", 0)),
        ([marked_idle("a", 0, 9), marked_idle("a", 1, None)], Frontier(10, "", 0)),
        ([marked_idle("a", 0, None)], None),
    ],
)
def test_the_frontier_is_the_watermark_of_the_partition_that_is_behind(
    found: list[PartitionProgress], frontier: Frontier | None
) -> None:
    assert frontier_of(found) == frontier


def test_the_widest_guard_of_the_stages_holds_before_them() -> None:
    assert guard_of(Flow("none").so_far()) == JumpGuard()

    def flow_with(*guards: object) -> Flow:
        flow = Flow("guards")
        source = flow.source("in", dict, raw=True)
        for number, guard in enumerate(guards):
            source.distinct(f"d{number}", Tumbling(1_000), guard=guard).to(f"out-{number}", partitions=1)
        return flow

    assert guard_of(flow_with("standard").compile()) == JumpGuard(31 * 86_400_000)
    assert guard_of(flow_with(JumpGuard(5, 9, "drop"), JumpGuard(7, 2, "drop")).compile()) == JumpGuard(7, 9)
    assert guard_of(flow_with(JumpGuard(5, 9, "drop"), None).compile()) is None


@pytest.mark.parametrize("output", ["up/out", "up/out/announced.0123456789abcdef"])
def test_republished_states_are_of_the_same_writer(output: str) -> None:
    """A writer of its own would never be heard of again, and event time would wait for it."""
    at = Coordinates(topic="raw", topic_id=bytes(16), partition=0, offset=1)
    value = republish(None, at, {"total": 1}, output=output, key="a", timestamp_ms=5)
    assert writer_of(parse_head(value)) == ("up/out", (("up", "raw"),))


def test_of_a_writer_that_is_met_by_what_timers_gave_the_rest_of_the_way_is_known() -> None:
    """None of its records may be under way when it is marked idle, so the reader asks those republishers."""
    at = Coordinates(topic="-timers.stage", topic_id=bytes(16), partition=0, offset=1)
    given = republish(None, at, {"total": 1}, output="up/mid", key="a", timestamp_ms=5)
    at = Coordinates(topic="mid", topic_id=bytes(16), partition=0, offset=1)
    value = republish(read(given), at, {"total": 1}, output="hop/out", key="a")
    times = times_of()
    node = Flow("hop").source("in", dict).node
    assert isinstance(node, SourceNode)
    message = MemoryMessage(("in", 0, 0), (None, value, None), 5, 0)
    tp = TopicIdPartition("in", bytes(16), 0)
    source = SourceTimes(times, node, None, 0, at_end=True)
    source.observe(source.shown_by(source.facts(Records(tp, [message], None, int), None)))
    name = "hop/out"
    assert (name, times.hops_of(name)) == ("hop/out", (("hop", "mid"),))


def test_records_that_do_not_fall_back_confirm_at_any_distance() -> None:
    """A partition with fewer than two records a day is believed, two records later; one wrong clock between them is not."""
    guard, day = JumpGuard(max_jump_ms=100), 1_000
    known: tuple[int | None, tuple[int, int, int]] = (None, (0, 0, 0))
    believed = []
    for at_ms in (1 * day, 3 * day, 900 * day, 5 * day, 7 * day, 9 * day, 11 * day):
        known = believe_times(known, [at_ms], guard, None)
        believed.append(known[0])
    # At 900 days the first is confirmed, and nothing else; at 5 days that was wrong, so counting begins there.
    assert believed == [None, None, 1 * day, 1 * day, 1 * day, 5 * day, 7 * day]
    assert believe_times((None, (0, 0, 0)), [1 * day, 3 * day, 5 * day, 7 * day], guard, None)[0] == 3 * day
