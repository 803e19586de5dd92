"""Distinct lets the first of each window go on, however batches are cut and torn, within its bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sqe_chain.errors import PoisonError
from sqe_chain.flow.table import RowTable
from sqe_chain.stages import clock
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.stages.distinct import Distinct
from sqe_chain.stages.record import NOWHERE, Reason, Record, Spot
from sqe_chain.stages.table import MemoryTable
from sqe_chain.stages.windowing import Sessions, Tumbling
from tests.support.partial_writes import RecordingTable, Rows, run_with_partial_writes

BURST = [4, 5, 6, 23, 22, 24, 34, 33, 32, 7, 22, 35]
"""KIP-655's three bursts and the late arrivals behind them, in seconds."""


def event(at_ms: int, key: bytes | None = b"k", place: bytes = b"") -> Record:
    return Record(key=key, timestamp_ms=at_ms, spot=Spot(1, place) if place else NOWHERE)


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (Tumbling(size_ms=10_000), [4, 23, 34]),
        (Sessions(gap_ms=10_000), [4, 23]),
        (Sessions(gap_ms=9_000), [4, 23, 34]),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_the_kip_s_burst(windows: Tumbling | Sessions, expected: list[int], apart: bool) -> None:
    table = MemoryTable()
    stage = Distinct(table, windows=windows, grace_ms=60_000)
    forwarded = []
    for at in BURST:
        if stage.accept(event(at * 1_000)).forward:
            forwarded.append(at)
        if apart:
            stage.finish(0)
            stage = Distinct(table, windows=windows, grace_ms=60_000)
    assert forwarded == expected


def test_a_session_takes_late_records_until_gap_and_grace_have_passed() -> None:
    for now_ms, forwarded, reason in ((33, False, Reason.DUPLICATE), (34, False, Reason.LATE)):
        stage = Distinct(MemoryTable(), windows=Sessions(gap_ms=10), grace_ms=5)
        stage.accept(event(18))
        stage.advance(now_ms)
        verdict = stage.accept(event(18))
        assert (verdict.forward, verdict.reason) == (forwarded, reason)


def test_a_session_is_known_while_a_record_that_prolongs_it_may_come_in_time() -> None:
    for now_ms, reason in ((43, Reason.DUPLICATE), (44, Reason.LATE)):
        stage = Distinct(MemoryTable(), windows=Sessions(gap_ms=10), grace_ms=5)
        stage.accept(event(18))
        stage.advance(now_ms)
        assert stage.accept(event(28)).reason is reason


def test_a_tumbling_window_takes_late_records_until_the_grace_has_passed() -> None:
    for now_ms, reason in ((24, Reason.DUPLICATE), (25, Reason.LATE)):
        stage = Distinct(MemoryTable(), windows=Tumbling(size_ms=10), grace_ms=5)
        assert stage.accept(event(10)).forward
        stage.accept(event(now_ms, b"other"))
        assert stage.accept(event(19)).reason is reason


def test_late_records_can_be_forwarded_and_leave_no_trace() -> None:
    stage = Distinct(MemoryTable(), windows=Tumbling(size_ms=10), grace_ms=0, late="forward")
    stage.accept(event(100))
    assert stage.accept(event(5)).forward
    assert stage.accept(event(5)).forward


def test_the_one_that_began_the_window_goes_on_again_and_duplicates_name_it() -> None:
    stage = Distinct(MemoryTable(), windows=Tumbling(size_ms=10), grace_ms=0)
    assert stage.accept(event(1, place=b"a")).forward
    verdict = stage.accept(event(2, place=b"b"))
    assert (verdict.forward, verdict.original) == (False, Spot(1, b"a"))
    assert stage.accept(event(1, place=b"a")).forward


def test_of_joined_sessions_the_one_that_began_the_earliest_counts() -> None:
    stage = Distinct(MemoryTable(), windows=Sessions(gap_ms=10), grace_ms=100)
    stage.accept(event(20, place=b"later"))
    stage.accept(event(0, place=b"earlier"))
    assert stage.accept(event(10, place=b"between")).original == Spot(1, b"earlier")
    assert stage.accept(event(0, place=b"earlier")).forward
    assert not stage.accept(event(20, place=b"later")).forward


def test_records_without_id_go_on_and_move_stream_time() -> None:
    stage = Distinct(MemoryTable(), windows=Tumbling(size_ms=10), grace_ms=0)
    assert [stage.accept(event(at_ms, None)).forward for at_ms in (5, 5, 50)] == [True] * 3
    assert stage.accept(event(5)).reason is Reason.LATE
    assert stage.stream_time_ms == 50


def test_a_wrong_clock_is_dropped_or_stops() -> None:
    for policy in ("drop", "stop"):
        guard = JumpGuard(max_jump_ms=100, policy=policy)
        stage = Distinct(MemoryTable(), windows=Tumbling(size_ms=10), grace_ms=0, guard=guard)
        stage.accept(event(0))
        if policy == "drop":
            assert stage.accept(event(200)).reason is Reason.AHEAD
        else:
            with pytest.raises(PoisonError):
                stage.accept(event(200))
        assert stage.stream_time_ms == 0


@dataclass
class Naive:
    """The definition, without rows, index or purge: windows are [first, last] for each id, all kept and never forgotten."""

    windows: Tumbling | Sessions
    grace_ms: int
    now_ms: int = -1
    kept: dict[bytes, list[list[int]]] = field(default_factory=dict)

    def accept(self, record: Record) -> bool:
        at_ms = record.timestamp_ms
        self.now_ms = max(self.now_ms, at_ms)
        if record.key is None:
            return True
        if isinstance(self.windows, Tumbling):
            first_ms = at_ms // self.windows.size_ms * self.windows.size_ms
            return self._accept(record.key, first_ms, first_ms, 0, self.windows.size_ms - 1)
        return self._accept(record.key, at_ms, at_ms, self.windows.gap_ms, self.windows.gap_ms)

    def _accept(self, key: bytes, first_ms: int, last_ms: int, gap_ms: int, wait_ms: int) -> bool:
        kept = self.kept.setdefault(key, [])
        found = [one for one in kept if one[0] - gap_ms <= last_ms and first_ms <= one[1] + gap_ms]
        if max([last_ms, *(one[1] for one in found)]) + wait_ms + self.grace_ms < self.now_ms:
            return False
        for one in found:
            kept.remove(one)
            first_ms, last_ms = min(first_ms, one[0]), max(last_ms, one[1])
        kept.append([first_ms, last_ms])
        return not found


def run(table: RowTable, batch: list[Record], windows: Tumbling | Sessions, grace_ms: int) -> list[bool]:
    stage = Distinct(table, windows=windows, grace_ms=grace_ms)
    forwarded = [stage.accept(record).forward for record in batch]
    stage.finish(0)
    return forwarded


records = st.builds(event, st.integers(0, 300), st.sampled_from([b"a", b"b", None]))
batches = st.lists(st.lists(records, max_size=10), max_size=8)
kinds = st.sampled_from([Tumbling(1), Tumbling(10), Tumbling(150), Sessions(0), Sessions(5), Sessions(100)])


@settings(max_examples=200, deadline=None)
@given(batches, kinds, st.sampled_from([0, 3, 100]))
@example([[event(0, b"a"), event(7, b"b")], [event(5, b"a")]], Sessions(5), 0)
def test_verdicts_are_those_of_the_definition_in_batches_torn_anywhere(
    lists: list[list[Record]], windows: Tumbling | Sessions, grace_ms: int
) -> None:
    naive = Naive(windows, grace_ms)
    rows: Rows = {}
    with patch.object(clock, "GROUP_RECORDS", 3):
        for batch in lists:
            expected = [naive.accept(record) for record in batch]
            assert run(MemoryTable(rows), batch, windows, grace_ms) == expected
            rows = run_with_partial_writes(
                rows, partial(run, batch=batch, windows=windows, grace_ms=grace_ms)
            )


@pytest.mark.parametrize("windows", [Tumbling(1_000), Sessions(400)])
def test_the_bound_holds_for_fifty_windows(windows: Tumbling | Sessions) -> None:
    """One new id each 10 ms, seen again 300 ms later; 20 batches a second of event time."""
    table = MemoryTable()
    most = 0
    for batch in range(20 * 50):
        stage = Distinct(table, windows=windows, grace_ms=100)
        for at_ms in range(batch * 50, batch * 50 + 50, 10):
            for name in (at_ms, at_ms - 300):
                stage.accept(event(at_ms, b"%020d" % name, b"%020d" % name))
        stage.finish(0)
        rows = table.rows()
        most = max(most, sum(row.startswith(b"e") for row in rows))
        size = sum(len(row) + len(content) for row, content in rows.items())
        assert size <= (21 + 35 + 20 + 8 + 21) * 1.6 * 150 + 64 * 40
    assert 70 < most <= 150


def test_a_record_is_not_late_because_an_earlier_attempt_has_purged_its_session() -> None:
    """With late="stop" it would stop a batch that is sealed."""

    def verdicts_on(table: RowTable, *events: Record) -> list[Reason | None]:
        stage = Distinct(table, windows=Sessions(gap_ms=10), grace_ms=0)
        reasons = [stage.accept(each).reason for each in events]
        stage.finish(0)
        return reasons

    before = MemoryTable()
    verdicts_on(before, event(0), event(10), event(20))
    after, batch = MemoryTable(before.rows()), (event(5), event(100, b"other"))
    assert verdicts_on(after, *batch) == [Reason.DUPLICATE, None]
    assert b"ek" not in after.rows()
    again = RecordingTable({**after.rows(), b"z": before.rows()[b"z"]}, b"eother")
    assert verdicts_on(again, *batch) == [None, None]
