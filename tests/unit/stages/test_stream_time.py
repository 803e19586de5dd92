"""Stream time goes with the records, never back, and no single wrong timestamp takes it along."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain._proto.windows_pb2 import ClockRow
from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.stages.clock import MAX_HELD, JumpGuard, StreamTime
from sqe_chain.stages.record import Reason, Record

GUARD = JumpGuard(max_jump_ms=100, confirmations=3)


def saved(time: StreamTime) -> ClockRow:
    row = ClockRow()
    time.save(row)
    return ClockRow.FromString(row.SerializeToString())


@given(st.lists(st.integers(-50, 50)))
def test_without_a_guard_it_is_the_greatest_time_seen(times: list[int]) -> None:
    time = StreamTime()
    assert all(time.observe(at_ms) for at_ms in times)
    assert time.now_ms == max(times, default=None)


def test_a_jump_within_the_guard_is_believed_and_one_beyond_is_not() -> None:
    time = StreamTime(guard=GUARD)
    assert [time.observe(at_ms) for at_ms in (0, 100, 201)] == [True, True, False]
    assert time.now_ms == 100


def test_after_a_long_silence_stream_time_follows_those_who_agree() -> None:
    time = StreamTime(guard=GUARD)
    assert [time.observe(at_ms) for at_ms in (0, 1_000, 1_050, 1_020)] == [True, False, False, True]
    assert time.now_ms == 1_050, "the latest of those who agree"


def test_those_who_agree_lie_within_the_guard_of_each_other() -> None:
    time = StreamTime(guard=GUARD)
    assert [time.observe(at_ms) for at_ms in (0, 1_000, 1_090, 950)] == [True, False, False, False]
    assert [time.observe(at_ms) for at_ms in (960, 1_040)] == [False, True]


def test_what_a_policy_of_stop_refuses_confirms_nothing() -> None:
    time = StreamTime(guard=JumpGuard(max_jump_ms=100, confirmations=2, policy="stop"))
    assert [time.observe(at_ms) for at_ms in (0, 1_000, 1_000, 1_000)] == [True, False, False, False]
    assert time.now_ms == 0


def test_wrong_clocks_that_do_not_agree_or_are_contradicted_are_never_believed() -> None:
    time = StreamTime(guard=GUARD)
    assert [time.observe(at_ms) for at_ms in (0, 1_000, 2_000, 3_000, 1_000)] == [True] + [False] * 4
    assert [time.observe(at_ms) for at_ms in (1_000, 5, 1_000, 1_000)] == [False, True, False, False]
    assert time.now_ms == 5


def test_the_first_of_all_is_compared_with_the_clock() -> None:
    time = StreamTime(guard=GUARD, clock_ms=1_000)
    assert [time.observe(at_ms) for at_ms in (9_000, 5, 9_000)] == [False, True, False]
    assert time.now_ms == 5
    time = StreamTime(guard=GUARD, clock_ms=1_000)
    assert [time.observe(at_ms) for at_ms in (9_000, 9_001)] == [False, False]
    time = StreamTime(saved(time), guard=GUARD, clock_ms=1_001)
    before = time.now_ms
    assert before is None
    assert time.observe(9_002)
    assert time.now_ms == 9_002
    assert StreamTime(clock_ms=0).observe(9_000), "without a guard every time is believed"


def test_confirmations_are_counted_across_batches() -> None:
    time = StreamTime(guard=GUARD)
    for at_ms, believed in ((0, True), (1_000, False), (1_000, False), (1_000, True)):
        time = StreamTime(saved(time), guard=GUARD)
        assert time.observe(at_ms) is believed
    assert (time.before_ms, time.now_ms) == (0, 1_000)


def test_from_outside_it_is_moved_forward_only_and_past_the_guard() -> None:
    time = StreamTime(guard=GUARD)
    moments = []
    for to_ms in (-5, 10_000, 3):
        time.advance(to_ms)
        moments.append(time.now_ms)
    assert moments == [-5, 10_000, 10_000]


def test_confirmations_begin_again_when_stream_time_was_moved_meanwhile() -> None:
    time = StreamTime(guard=GUARD)
    assert [time.observe(at_ms) for at_ms in (0, 1_000, 1_000)] == [True, False, False]
    time.advance(5)
    assert not time.observe(1_000)
    assert StreamTime(saved(time), guard=GUARD).observe(50)


def test_of_too_many_that_are_too_far_ahead_the_latest_are_held() -> None:
    """Wrong clocks that came first must not keep out what comes later."""
    time = StreamTime(guard=GUARD, hold_ms=10_000)
    assert time.observe(0)
    for number in range(MAX_HELD + 2):
        assert not time.observe(1_000 * (number + 1), b"%d" % number)
    assert [held.row for held in saved(time).held] == [b"%d" % number for number in range(2, MAX_HELD + 2)]


def test_a_refusal_gives_its_reason() -> None:
    record = Record(topic="robot.raw", partition=3, offset=7, timestamp_ms=1_000)
    verdict = JumpGuard(max_jump_ms=100, policy="drop").refuse(record, 5)
    assert (verdict.forward, verdict.reason) == (False, Reason.AHEAD)
    assert "1000 ms is more than 100 ms ahead of stream time 5 ms" in verdict.detail
    assert "ahead of the service's clock" in JumpGuard(policy="drop").refuse(record, None).detail
    with pytest.raises(PoisonError, match=r"robot.raw\[3\] offset 7"):
        JumpGuard(policy="stop").refuse(record, 5)


@pytest.mark.parametrize("settings", [{"max_jump_ms": 0}, {"confirmations": 0}, {"policy": "pray"}])
def test_a_guard_that_cannot_work_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(FlowError, match=r"max_jump_ms=0|confirmations=0|policy='pray'"):
        JumpGuard(**settings)  # type: ignore[arg-type]
