"""Goal: a watermark is a promise that holds, and what is left out leaves no trace in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.chain import Coordinates
from sqe_chain.envelope.message import parse_head, read
from sqe_chain.envelope.template import republish
from sqe_chain.flow import Flow
from sqe_chain.segment.event_times import (
    ORIGIN,
    EventTimes,
    Frontier,
    Progress,
    Stated,
    frontier_of,
    guard_of,
)
from sqe_chain.segment.source_times import SourceTimes, writer_of
from sqe_chain.stages import JumpGuard, Tumbling

CLOCK_MS = 1_000_000
Seen = tuple[str, int, int, int]
"""Writer, lane, time, watermark (0: none)."""
seen = st.tuples(
    st.sampled_from(["up/a", "up/b"]),
    st.integers(1, 3),
    st.integers(0, 3_000_000),
    st.sampled_from([0, 0, 1, 500, 900_000]),
) | st.tuples(st.just(ORIGIN), st.just(0), st.integers(0, 3_000_000), st.just(0))


def waited(topic: str, partition: int, watermark_ms: int | None, latest_ms: int | None) -> Progress:
    return Progress(topic, partition, waited_for=True, watermark_ms=watermark_ms, latest_ms=latest_ms)


def let_go(topic: str, partition: int, latest_ms: int | None) -> Progress:
    return Progress(topic, partition, waited_for=False, watermark_ms=None, latest_ms=latest_ms)


def times_of(*, guard: JumpGuard | None = None) -> EventTimes:
    return EventTimes(0).copy(clock_ms=CLOCK_MS, guard=guard)


def observe(times: EventTimes, one: Seen) -> int:
    times.begin()
    return times.observe(one[0], one[1], one[2], one[3] or None)


@given(st.lists(seen, max_size=12), seen)
def test_what_is_left_out_leaves_no_trace(before: list[Seen], left_out: Seen) -> None:
    plain, undone = times_of(guard=JumpGuard(1_000, 2)), times_of(guard=JumpGuard(1_000, 2))
    plain.idle, undone.idle = {"up/a"}, {"up/a"}
    for one in before:
        assert observe(plain, one) == observe(undone, one)
    # In a later batch: then it shows who was heard of.
    plain, undone = (one.copy(clock_ms=CLOCK_MS + 1, guard=one.guard) for one in (plain, undone))
    observe(undone, left_out)
    undone.undo()
    undone.begin()
    undone.undo()  # nothing more to take back
    assert (undone, undone.idle) == (plain, plain.idle)
    assert undone.lanes == plain.lanes


@given(st.lists(seen, max_size=12))
def test_what_is_stored_is_read_back(found: list[Seen]) -> None:
    times = times_of(guard=JumpGuard(1_000, 2))
    for one in found:
        observe(times, one)
    again = EventTimes.from_json(json.loads(json.dumps(times.to_json())))
    assert again == times
    assert again.progress("in", 0) == times.progress("in", 0)
    assert times.settled() == again


@given(st.lists(st.tuples(seen, st.booleans()), max_size=20))
def test_places_never_fall_along_a_lane_however_batches_are_cut(found: list[tuple[Seen, bool]]) -> None:
    guard = JumpGuard(1_000_000, 2)
    times, latest = times_of(guard=guard), dict[tuple[str, int], int]()
    for (name, lane, at_ms, stated_ms), cut in found:
        own = lane + 10 * ["", "up/a", "up/b"].index(name)  # a lane has one writer
        place = observe(times, (name, own, at_ms, stated_ms))
        assert place >= latest.get((name, own), -1)
        latest[name, own] = place
        if cut:
            times = times.settled().copy(clock_ms=CLOCK_MS, guard=guard)


@given(st.lists(st.tuples(st.sampled_from([ORIGIN, "up/a"]), st.integers(0, 5_000_000)), min_size=1))
def test_several_at_once_are_like_one_after_the_other(found: list[tuple[str, int]]) -> None:
    guard = JumpGuard(1_000_000, 3)
    one_by_one, at_once = times_of(guard=guard), times_of(guard=guard)
    for name in (ORIGIN, "up/a"):
        own = [at_ms for writer, at_ms in found if writer == name]
        for at_ms in own:
            one_by_one.observe_all(name, (at_ms,))
        if own:
            at_once.observe_all(name, own)
    assert at_once == one_by_one


def test_the_watermark_of_a_partition_is_that_of_the_writer_who_is_behind() -> None:
    times = times_of()
    observe(times, ("up/a", 1, 700, 300))
    assert times.progress("in", 4) == waited("in", 4, 300, 700)
    observe(times, ("up/b", 2, 400, 100))
    assert times.progress("in", 4) == waited("in", 4, 100, 700)
    observe(times, (ORIGIN, 0, 50, 0))
    assert times.progress("in", 4).watermark_ms == 50
    times.idle = {ORIGIN, "up/b"}
    assert times.progress("in", 4).watermark_ms == 300
    times.idle |= {"up/a"}
    assert times.progress("in", 4) == let_go("in", 4, 700)
    observe(times, ("up/b", 2, 600, 500))
    assert times.progress("in", 4) == waited("in", 4, 500, 700)


def test_nothing_is_known_of_a_partition_without_a_record_until_it_is_idle() -> None:
    times = times_of()
    assert times.progress("in", 0) == waited("in", 0, None, None)
    assert times.silent_since() == {ORIGIN: 0}
    times.idle = {ORIGIN}
    assert times.progress("in", 0) == let_go("in", 0, None)


def test_a_writer_that_may_be_in_what_is_still_unread_is_waited_for() -> None:
    times = times_of()
    observe(times, ("up/a", 1, 700, 300))
    times.unsure = True
    times.idle = {"up/a"}
    assert times.progress("in", 0) == waited("in", 0, None, 700)
    # The task that reads the partition works on a copy.
    assert times.copy(clock_ms=CLOCK_MS).progress("in", 0) == waited("in", 0, None, 700)


def test_what_a_writer_states_elsewhere_holds_here() -> None:
    times, elsewhere = times_of(), Stated(400, 77, (("up", "raw"),))
    times.elsewhere = {"up/a": elsewhere}
    assert times.progress("in", 0).watermark_ms is None, "not yet"
    times.believe()
    assert times.progress("in", 0) == waited("in", 0, 400, 400)
    assert times.silent_since() == {"up/a": 77}
    assert times.hops_of("up/a") == (("up", "raw"),)
    observe(times, ("up/a", 1, 900, 500))
    times.elsewhere = {"up/a": elsewhere}
    assert times.believe().progress("in", 0).watermark_ms == 500
    assert times.silent_since() == {"up/a": CLOCK_MS}


def test_a_wrong_clock_moves_nothing_until_others_agree() -> None:
    times = times_of(guard=JumpGuard(1_000, 2))
    assert observe(times, (ORIGIN, 0, 5_000_000, 0)) == -1  # before anything else, for nothing is known yet
    assert times.progress("in", 0).watermark_ms is None
    assert observe(times, (ORIGIN, 0, 100, 0)) == 100
    assert observe(times, (ORIGIN, 0, 5_000_000, 0)) == 100
    assert times.progress("in", 0).watermark_ms == 100
    assert observe(times, (ORIGIN, 0, 5_000_001, 0)) == 5_000_001
    assert times.progress("in", 0).watermark_ms == 5_000_001


@pytest.mark.parametrize(
    ("found", "frontier"),
    [
        ([], None),
        ([waited("a", 0, 5, 9), waited("a", 1, 7, 9)], Frontier(5, "a", 0)),
        ([waited("a", 1, 5, 9), waited("a", 0, 5, 9)], Frontier(5, "a", 0)),
        ([waited("a", 0, 5, 9), waited("a", 1, None, None)], None),
        ([waited("a", 0, 5, 9), let_go("a", 1, 99)], Frontier(5, "a", 0)),
        ([let_go("a", 0, 9), let_go("a", 1, None)], Frontier(9, "a", 0)),
        ([let_go("a", 1, 9), let_go("a", 0, 9)], Frontier(9, "a", 1)),
        ([let_go("a", 0, None)], None),
    ],
)
def test_the_frontier_is_the_watermark_of_the_partition_that_is_behind(
    found: list[Progress], frontier: Frontier | None
) -> None:
    assert frontier_of(found) == frontier


@given(st.lists(st.tuples(st.integers(0, 1), seen), min_size=1, max_size=12))
def test_when_nobody_is_waited_for_everything_that_was_read_is_before_the_frontier(
    read: list[tuple[int, Seen]],
) -> None:
    """Otherwise it would wait for ever: also what is older than its writer's watermark, and what has no believable time."""
    parts = [times_of(guard=JumpGuard(1_000, 2)) for _ in range(2)]
    places = [Frontier(observe(parts[part], one), "in", part) for part, one in read]
    for part, times in enumerate(parts):
        times.idle = {ORIGIN, *times.writers}
        parts[part] = EventTimes.from_json(json.loads(json.dumps(times.to_json()))).copy(clock_ms=CLOCK_MS)
        parts[part].idle = times.idle
    frontier = frontier_of(times.progress("in", part) for part, times in enumerate(parts))
    believed = [place for place in places if place.at_ms >= 0]
    assert not believed or (frontier is not None and max(believed) <= frontier)


def test_the_widest_guard_of_the_stages_holds_before_them() -> None:
    assert guard_of(Flow("none")) == JumpGuard()

    def flow_with(*guards: object) -> Flow:
        flow = Flow("guards")
        source = flow.source("in", dict, raw=True)
        for number, guard in enumerate(guards):
            source.distinct(f"d{number}", Tumbling(1_000), guard=guard).to(f"out-{number}", partitions=1)
        return flow

    assert guard_of(flow_with("standard")) == JumpGuard(31 * 86_400_000)
    assert guard_of(flow_with(JumpGuard(5, 9, "drop"), JumpGuard(7, 2, "drop"))) == JumpGuard(7, 9)
    assert guard_of(flow_with(JumpGuard(5, 9, "drop"), None)) is None


@pytest.mark.parametrize("output", ["up/out", "up/out/announced.0123456789abcdef"])
def test_what_is_announced_is_of_the_same_writer(output: str) -> None:
    """A writer of its own would never be heard of again, and event time would wait for it."""
    at = Coordinates(topic="raw", topic_id=bytes(16), partition=0, offset=1)
    value = republish(None, at, {"total": 1}, output=output, key="a", timestamp_ms=5)
    assert writer_of(parse_head(value)) == ("up/out", (("up", "raw"),))


def test_of_a_writer_that_is_met_by_what_timers_gave_the_rest_of_the_way_is_known() -> None:
    """Nothing of it may be on its way when it is let go, so it is asked of those republishers."""
    at = Coordinates(topic="-timers.stage", topic_id=bytes(16), partition=0, offset=1)
    given = republish(None, at, {"total": 1}, output="up/mid", key="a", timestamp_ms=5)
    at = Coordinates(topic="mid", topic_id=bytes(16), partition=0, offset=1)
    value = republish(read(given), at, {"total": 1}, output="hop/out", key="a")
    times = times_of()
    name = SourceTimes(times, by_time=True, own_times=False).writer(parse_head(value))
    observe(times, (name, 1, 5, 0))
    assert (name, times.hops_of(name)) == ("hop/out", (("hop", "mid"),))
