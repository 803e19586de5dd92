"""Goal: what a batch takes of a partition is a piece of one order, wherever batches end.

Method: lanes drawn at random, read in pieces cut at random, with frontiers drawn at random. A naive reference sorts them.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.stages import JumpGuard
from sqe_chain.task.event_times import EventTimes, Frontier
from sqe_chain.task.gate import Gate, TimeFacts

Message = tuple[int, int]
"""Lane and time."""
messages = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=40)


def in_order(found: list[Message]) -> list[Message]:
    """The messages with times that rise along each lane."""
    latest: dict[int, int] = {}
    rising = []
    for lane, at_ms in found:
        latest[lane] = max(at_ms, latest.get(lane, 0))
        rising.append((lane, latest[lane]))
    return rising


def gate(before: int | None, until: int, guard: JumpGuard | None = None) -> Gate:
    return Gate(
        "in", 0, None if before is None else Frontier(before, "in", 0), Frontier(until, "in", 0), guard
    )


def facts_of(found: list[Message], begin: int, end: int) -> TimeFacts:
    own = found[begin:end]
    return TimeFacts(
        range(begin, end), [at_ms for _, at_ms in own], [lane for lane, _ in own], [0] * len(own)
    )


@given(messages, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), max_size=12))
def test_batches_take_consecutive_pieces_of_one_order(
    drawn: list[Message], batches: list[tuple[int, int]]
) -> None:
    found, times = in_order(drawn), EventTimes(0)
    taken: list[tuple[int, int]] = []
    done, read, before = set[int](), 0, None
    for count, step in [*batches, (len(found), 10**6)]:
        until, stop = (before or 0) + step, min(len(found), read + count)
        own = gate(before, until)
        begin = read
        if times.waiting is not None and times.waiting.may_be_due(own.topic, own.partition, own.until):
            begin, times.waiting, times.lanes = times.waiting.offset, None, {}
        places = own.take(facts_of(found, begin, stop), times, {one - begin for one in done if one >= begin})
        piece = sorted((place_ms, begin + index) for index, place_ms in places.items())
        # What was not known yet when its time passed is late; of all others the order is that of their times.
        taken += [(place_ms, offset) for place_ms, offset in piece if found[offset][1] >= (before or 0)]
        done |= {offset for _, offset in piece}
        assert all(found[offset][1] > until for offset in set(range(stop)) - done)
        read, before = stop, until
    assert done == set(range(len(found)))
    assert taken == sorted(taken)
    assert all(place_ms == found[offset][1] for place_ms, offset in taken)


def test_what_comes_after_one_that_waits_waits_with_it() -> None:
    """It was not read again, so nobody knows whether it may go before it: they are one lane."""
    times = EventTimes(0)
    assert gate(None, 10).take(TimeFacts([0], [50], [7], [0]), times) == {}
    assert gate(10, 20).take(TimeFacts([1, 2], [15, 15], [7, 8], [0, 0]), times) == {1: 15}
    assert times.waiting is not None
    assert (times.waiting.offset, times.waiting.inputs) == (0, 2)
    guard, times = JumpGuard(max_jump_ms=100), EventTimes(0)
    assert gate(None, 10, guard).take(TimeFacts([0], [900], [7], [0]), times) == {}
    # It shows that the first one came from a wrong clock: next time both are read, and go in their order.
    assert gate(10, 20, guard).take(TimeFacts([1], [15], [7], [0]), times) == {}
    assert times.waiting is not None
    assert (times.waiting.offset, times.waiting.least_ms) == (0, 15)


def test_one_from_a_clock_that_ran_ahead_takes_the_place_of_the_next_on_its_lane() -> None:
    guard, times = JumpGuard(max_jump_ms=100), EventTimes(0)
    facts = TimeFacts([0, 1, 2, 3], [5, 900, 7, 950], [1, 1, 1, 2], [0] * 4)
    assert gate(None, 10, guard).take(facts, times) == {0: 5, 1: 7, 2: 7}
    assert times.waiting is not None
    assert times.waiting.offset == 3


def test_one_that_is_ahead_of_all_others_goes_when_much_has_come_after_it() -> None:
    guard = JumpGuard(max_jump_ms=100)
    for count, waits in ((9_999, True), (10_001, False)):
        times = EventTimes(0)
        facts = TimeFacts(range(count + 1), [900, *[5] * count], [1, *[2] * count], [0] * (count + 1))
        taken = gate(4, 10, guard).take(facts, times)
        assert (0 not in taken) == waits
    confirmed = TimeFacts(range(10_003), [900, *[5] * 10_001, 900], [1, *[2] * 10_001, 3], [0] * 10_003)
    assert 0 not in gate(4, 10, guard).take(confirmed, EventTimes(0)), "others are as far"


def test_a_message_without_a_time_stays_where_it_is_on_its_lane_and_one_without_a_lane_goes_at_once() -> None:
    times = EventTimes(0)
    facts = TimeFacts([0, 1, 2, 3], [5, None, 50, None], [1, 1, 1, None], [0] * 4)
    assert gate(4, 10).take(facts, times) == {3: 3, 0: 5, 1: 5}


def late(
    times_ms: list[int],
    last: Frontier | None,
    *,
    reached_ms: int | None = None,
    lane: int = 0,
    stated_ms: int = 0,
) -> bool:
    facts = TimeFacts(range(len(times_ms)), times_ms, [lane] * len(times_ms), [stated_ms] * len(times_ms))
    own = Gate("in", 1, last, Frontier(100, "in", 1), None, last)
    return own.are_late(facts, range(len(times_ms)), reached_ms)


def test_late_is_what_belongs_before_the_last_that_was_taken() -> None:
    assert not late([5], None)
    assert [late([at_ms], Frontier(10, "in", 2)) for at_ms in (9, 10, 11)] == [True, True, False]
    assert [late([at_ms], Frontier(10, "in", 1)) for at_ms in (9, 10, 11)] == [True, False, False], "its own"
    assert [late([at_ms], Frontier(10, "in", 0)) for at_ms in (9, 10, 11)] == [True, False, False]
    assert late([11, 9], Frontier(10, "in", 0), lane=7), "any of them"


def test_on_a_lane_that_nobody_republished_nothing_belongs_before_what_was_read() -> None:
    assert not late([5], Frontier(10, "in", 1), reached_ms=10)
    assert late([5], Frontier(10, "in", 2), reached_ms=10)
    assert late([5], Frontier(10, "in", 1), reached_ms=10, lane=7), "another lane"


def test_late_is_what_comes_after_its_writer_has_promised_something_later() -> None:
    """Another batch may have ended between the two."""
    assert [late([at_ms], None, lane=7, stated_ms=20) for at_ms in (19, 20)] == [True, False]
