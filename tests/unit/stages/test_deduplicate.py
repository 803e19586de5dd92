"""Deduplication decides on every record as KIP-655 does, without its gaps, however batches are cut and torn, within its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sqe_chain.errors import PoisonError
from sqe_chain.flow.table import RowTable
from sqe_chain.stages import clock
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.stages.deduplicate import MAX_SIGHTINGS, Deduplicate
from sqe_chain.stages.identity import by_key_and
from sqe_chain.stages.record import NOWHERE, Reason, Record, Spot
from sqe_chain.stages.table import MemoryTable
from tests.support.partial_writes import Rows, run_with_partial_writes

SECOND = 1_000
TEN = 10 * SECOND


def spot(offset: int) -> Spot:
    return Spot(1, offset.to_bytes(12, "big"))


def event(key: str | None, at: float, offset: int = -1) -> Record:
    place = spot(offset) if offset >= 0 else NOWHERE
    return Record(
        key=None if key is None else key.encode(), timestamp_ms=round(at * SECOND), spot=place, offset=offset
    )


def forwarded_of(
    timeline: Sequence[tuple[str | None, float]], interval_ms: int = TEN, **options: object
) -> list[bool]:
    """Which of (key, second) go on; one batch for each and one batch for all must give the same."""
    records = [event(key, at, offset) for offset, (key, at) in enumerate(timeline)]
    table = MemoryTable()
    apart = []
    for record in records:
        stage = Deduplicate(table, interval_ms=interval_ms, **options)  # type: ignore[arg-type]
        apart.append(stage.accept(record).forward)
        stage.finish(0)
    stage = Deduplicate(MemoryTable(), interval_ms=interval_ms, **options)  # type: ignore[arg-type]
    assert [stage.accept(record).forward for record in records] == apart
    return apart


T = 1_000
TIMELINES = {
    "a duplicate does not prolong": (TEN, [("a", T), ("a", T + 8), ("a", T + 11)], [True, False, True]),
    "out of order": (TEN, [("a", T), ("a", T - 8), ("a", T - 11)], [True, False, True]),
    "the end is inclusive": (TEN, [("a", 5), ("a", 15), ("a", 16)], [True, False, True]),
    "the beginning is inclusive": (TEN, [("a", 15), ("a", 5), ("a", 4)], [True, False, True]),
    "interval 0": (0, [("a", 5), ("a", 5), ("a", 6)], [True, False, True]),
    "late, example 1": (TEN, [("k", 20), ("k", 25), ("k", 11), ("k", 9)], [True, False, False, True]),
    "late, example 2": (TEN, [("k1", 10), ("k2", 20), ("k1", 9)], [True, True, False]),
}
"""KIP-655's own, in seconds."""
EXAMPLE_3: list[tuple[str | None, int]] = [("k1", 10), ("k2", 21), ("k1", 9)]
"""KIP-655's third example of a late record, whose duplicate the KIP has purged."""


@pytest.mark.parametrize("name", TIMELINES)
@pytest.mark.parametrize("compat", [None, "kip655"])
def test_the_kip_s_timelines(name: str, compat: str | None) -> None:
    interval_ms, timeline, expected = TIMELINES[name]
    assert forwarded_of(timeline, interval_ms, compat=compat) == expected


def test_an_id_is_known_while_a_duplicate_of_it_may_come_in_time_and_the_kip_forgets_it() -> None:
    for at, now, known in ((11, 21, True), (20, 30, True), (20, 31, False)):
        timeline: list[tuple[str | None, int]] = [("k", 10), ("other", now), ("k", at)]
        assert forwarded_of(timeline) == [True, True, not known]
        assert forwarded_of(timeline, compat="kip655") == [True, True, True]
    assert forwarded_of(EXAMPLE_3) == [True, True, False]
    assert forwarded_of(EXAMPLE_3, compat="kip655") == [True, True, True]


def test_late_records_can_be_dropped() -> None:
    assert forwarded_of([("k", 20), ("k", 25), ("k", 11), ("k", 9)], late="drop") == [
        True,
        False,
        False,
        False,
    ]
    stage = Deduplicate(MemoryTable(), interval_ms=TEN, late="drop")
    stage.accept(event("x", 100))
    assert stage.accept(event("k", 89)).reason is Reason.LATE
    assert stage.accept(event("k", 90)).forward


def test_stream_time_can_be_moved_from_outside() -> None:
    stage = Deduplicate(MemoryTable(), interval_ms=TEN)
    assert stage.accept(event("k", 0)).forward
    stage.advance(20 * SECOND)
    assert not stage.accept(event("k", 0)).forward
    stage.advance(20 * SECOND + 1)
    assert stage.accept(event("k", 0)).forward
    assert stage.stream_time_ms == 20 * SECOND + 1


def test_a_duplicate_names_its_original_and_the_original_goes_on_again() -> None:
    stage = Deduplicate(MemoryTable(), interval_ms=TEN)
    assert stage.accept(event("k", 5, 70)).forward
    verdict = stage.accept(event("k", 6, 71))
    assert (verdict.forward, verdict.reason, verdict.original) == (False, Reason.DUPLICATE, spot(70))
    assert stage.accept(event("k", 5, 70)).forward


def test_elements_without_position_are_always_deduplicated() -> None:
    stage = Deduplicate(MemoryTable(), interval_ms=TEN)
    assert [stage.accept(event("k", 5)).forward for _ in range(2)] == [True, False]
    assert stage.accept(event("k", 5)).original is None


def test_siblings_of_one_offset_are_distinguished_and_the_kip_confuses_them() -> None:
    siblings = [replace(event("k", 5, 70), spot=Spot(1, bytes([index]))) for index in range(2)]
    for compat, expected in ((None, [True, False]), ("kip655", [True, True])):
        stage = Deduplicate(MemoryTable(), interval_ms=TEN, compat=compat)  # type: ignore[arg-type]
        assert [stage.accept(sibling).forward for sibling in siblings] == expected


def test_the_kip_s_record_without_offset_is_always_deduplicated() -> None:
    stage = Deduplicate(MemoryTable(), interval_ms=TEN, compat="kip655")
    assert [stage.accept(event("k", 5)).forward for _ in range(2)] == [True, False]


def test_the_kip_s_offset_is_kept_between_batches() -> None:
    table = MemoryTable()
    for expected in (True, True):
        stage = Deduplicate(table, interval_ms=TEN, compat="kip655")
        assert stage.accept(event("k", 5, 0)).forward is expected
        assert not stage.accept(event("k", 5, 1)).forward
        stage.finish(0)


def test_key_and_id_and_global_ids() -> None:
    def serial(record: Record) -> str | None:
        return record.value  # type: ignore[return-value]

    records = [
        Record(key=key, value=value)
        for key, value in (
            (b"a", "1"),
            (b"b", "1"),
            (b"a", "1"),
            (b"a", None),
            (b"a", None),
            (None, "1"),
            (None, "1"),
        )
    ]
    both = Deduplicate(MemoryTable(), interval_ms=TEN, identity=by_key_and(serial))
    assert [both.accept(record).forward for record in records] == [True, True, False, True, True, True, True]
    everywhere = Deduplicate(MemoryTable(), interval_ms=TEN, identity=serial)
    assert [everywhere.accept(record).forward for record in records] == [
        True,
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_key_and_id_do_not_run_together() -> None:
    stage = Deduplicate(MemoryTable(), interval_ms=TEN, identity=by_key_and(lambda record: record.value))  # type: ignore[arg-type,return-value]
    assert stage.accept(Record(key=b"a", value=b"bc")).forward
    assert stage.accept(Record(key=b"ab", value=b"c")).forward


def test_long_ids_are_distinguished_in_short_rows() -> None:
    table = MemoryTable()
    stage = Deduplicate(table, interval_ms=TEN)
    records = [Record(key=bytes([index]) * length) for index in range(3) for length in (128, 129, 5_000)]
    assert all(stage.accept(record).forward for record in records)
    assert not any(stage.accept(record).forward for record in records)
    assert all(len(row) <= 129 for row in stage.rows_for(records))
    stage.finish(0)
    assert len(table) == len(records) + 3


def test_an_extractor_that_fails_changes_nothing_and_rows_for_leaves_it_to_accept() -> None:
    stage = Deduplicate(MemoryTable(), interval_ms=TEN, identity=lambda record: record.value["id"])  # type: ignore[index]
    bad, good = Record(value=7, timestamp_ms=99), Record(value={"id": b"x"}, timestamp_ms=1)
    assert list(stage.rows_for([bad, good, good])) == [b"ex"]
    with pytest.raises(TypeError):
        stage.accept(bad)
    with pytest.raises(PoisonError, match="bytes or str"):
        stage.accept(Record(value={"id": 7}))
    assert stage.stream_time_ms is None


class TestGuard:
    """One wrong timestamp does not purge what is remembered, and is forgotten itself in time."""

    GUARD = JumpGuard(max_jump_ms=100 * SECOND, confirmations=3)

    def test_a_wrong_clock_lets_no_duplicate_pass_and_the_kip_does(self) -> None:
        timeline: list[tuple[str | None, int]] = [("k", 0), ("x", 9_000), ("k", 1)]
        assert forwarded_of(timeline, guard=self.GUARD) == [True, True, False]
        assert forwarded_of(timeline, guard=None) == [True, True, True]
        assert forwarded_of(timeline, guard=self.GUARD, compat="kip655") == [True, True, True]

    def test_after_a_silence_the_first_ones_stay_remembered(self) -> None:
        timeline: list[tuple[str | None, int]] = [("a", 0), ("a", 500), ("b", 501), ("c", 502), ("d", 503)]
        timeline += [("a", 510), ("b", 511), ("a", 511), ("b", 512), ("z", 513), ("b", 502)]
        assert forwarded_of(timeline, guard=self.GUARD) == [True] * 5 + [
            False,
            False,
            True,
            True,
            True,
            False,
        ]

    def test_it_is_remembered_by_its_own_time_if_stream_time_reaches_that_at_the_last_moment(self) -> None:
        """Reached exactly when the memory of when it came would end."""
        timeline = [("a", 0), ("x", 10.001), ("b", 9), ("c", 10.001), ("x", 11)]
        guard = JumpGuard(max_jump_ms=9 * SECOND + 1, confirmations=3)
        assert forwarded_of(timeline, 5 * SECOND, guard=guard) == [True, True, True, True, False]

    def test_it_is_forgotten_when_stream_time_has_gone_on_by_twice_the_interval(self) -> None:
        table = MemoryTable()
        for at in range(30):
            stage = Deduplicate(table, interval_ms=TEN, guard=self.GUARD)
            stage.accept(event("now", at))
            stage.accept(event(f"far {at}", 9_000 + 200 * at))
            stage.finish(0)
            assert stage.stream_time_ms == at * SECOND
            assert sum(row.startswith(b"e") for row in table) <= 23

    def test_many_records_too_far_ahead_do_not_push_out_the_one_that_is_believed(self) -> None:
        timeline: list[tuple[str | None, int]] = [
            ("k", 0),
            *(("k", 9_000 * n) for n in range(1, 9)),
            ("k", 1),
        ]
        assert forwarded_of(timeline, guard=self.GUARD) == [True] * 9 + [False]

    def test_other_policies(self) -> None:
        far, near = event("k", 9_000), event("k", 0)
        dropping = Deduplicate(MemoryTable(), interval_ms=TEN, guard=replace(self.GUARD, policy="drop"))
        assert dropping.accept(near).forward
        assert dropping.accept(far).reason is Reason.AHEAD
        stopping = Deduplicate(MemoryTable(), interval_ms=TEN, guard=replace(self.GUARD, policy="stop"))
        stopping.accept(near)
        with pytest.raises(PoisonError):
            stopping.accept(far)
        assert stopping.stream_time_ms == 0


@dataclass
class Naive:
    """The definition, without rows, index or purge: everything is kept, and only late records find anything forgotten."""

    interval_ms: int
    late: str
    kip655: bool = False
    now_ms: int | None = None
    kept: list[Record] = field(default_factory=list)

    def accept(self, record: Record) -> bool:
        at_ms = record.timestamp_ms
        self.now_ms = now_ms = at_ms if self.now_ms is None else max(self.now_ms, at_ms)
        if record.key is None:
            return True
        late = at_ms + self.interval_ms < now_ms
        if late and self.late == "drop":
            return False
        for other in self.kept:
            if self.kip655:
                alive = other.timestamp_ms + self.interval_ms >= now_ms
            else:
                alive = not late or other.timestamp_ms + 2 * self.interval_ms >= now_ms
            if other.key == record.key and alive and abs(other.timestamp_ms - at_ms) <= self.interval_ms:
                return other.spot == record.spot
        if not late:
            self.kept.append(record)
        return True


@dataclass
class Noted:
    """A record that was forwarded; while it is not believed, with the stream time at which it came."""

    record: Record
    noted_ms: int | None
    over: bool = False


@dataclass
class NaiveGuarded:
    """The same with a guard of policy `hold`: everything is kept, and looked at whenever time moves."""

    interval_ms: int
    guard: JumpGuard
    now_ms: int | None = None
    run: list[int] = field(default_factory=list)
    kept: list[Noted] = field(default_factory=list)

    def move(self, to_ms: int) -> None:
        before_ms = self.now_ms
        if before_ms is not None and to_ms <= before_ms:
            return
        self.now_ms = to_ms
        for one in self.kept:
            if one.noted_ms is not None and before_ms is not None:
                if one.record.timestamp_ms <= to_ms and before_ms <= one.noted_ms + 2 * self.interval_ms:
                    one.noted_ms = None
                elif to_ms > one.noted_ms + 2 * self.interval_ms:
                    one.over = True
            if one.noted_ms is None and to_ms > one.record.timestamp_ms + 2 * self.interval_ms:
                one.over = True

    def advance(self, to_ms: int) -> None:
        if self.now_ms is None or to_ms > self.now_ms:
            self.run = []
            self.move(to_ms)

    def observe(self, at_ms: int) -> bool:
        if self.now_ms is None or at_ms - self.now_ms <= self.guard.max_jump_ms:
            self.run = []
            self.move(at_ms)
            return True
        agree = self.run and max(*self.run, at_ms) - min(*self.run, at_ms) <= self.guard.max_jump_ms
        self.run = [*self.run, at_ms] if agree else [at_ms]
        if len(self.run) < self.guard.confirmations:
            return False
        to_ms, self.run = max(self.run), []
        self.move(to_ms)
        return True

    def accept(self, record: Record) -> bool:
        at_ms = record.timestamp_ms
        believed = self.observe(at_ms)
        now_ms = self.now_ms
        assert now_ms is not None
        if record.key is None:
            return True
        same = [one for one in self.kept if one.record.key == record.key and not one.over]
        for one in same:
            if abs(one.record.timestamp_ms - at_ms) <= self.interval_ms:
                return one.record.spot == record.spot
        if at_ms + self.interval_ms >= now_ms:
            held = [one for one in same if one.noted_ms is not None]
            if len(same) >= MAX_SIGHTINGS:
                held[0].over = True
            self.kept.append(Noted(record, None if believed else now_ms))
        return True


Step = Record | int
"""A record, or a moment to which stream time is moved from outside."""

entries = st.one_of(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 60)), st.integers(0, 60))
batches = st.lists(st.lists(entries, max_size=10), max_size=8)
Lists = list[list[tuple[str | None, int] | int]]


def numbered(lists: Lists) -> list[list[Step]]:
    offsets = iter(range(1_000))
    return [
        [
            entry
            if isinstance(entry, int)
            else replace(event(entry[0], 0, next(offsets)), timestamp_ms=entry[1])
            for entry in batch
        ]
        for batch in lists
    ]


def run(table: RowTable, batch: list[Step], **options: object) -> list[bool]:
    stage = Deduplicate(table, **options)  # type: ignore[arg-type]
    forwarded = []
    for step in batch:
        if isinstance(step, int):
            stage.advance(step)
        else:
            forwarded.append(stage.accept(step).forward)
    stage.finish(0)
    return forwarded


def in_batches(lists: list[list[Step]], **options: Any) -> tuple[list[bool], Rows]:
    """Each batch with an object of its own, and torn wherever it can be."""
    rows: Rows = {}
    forwarded: list[bool] = []
    with patch.object(clock, "GROUP_RECORDS", 3):
        for batch in lists:
            forwarded += run(MemoryTable(rows), batch, **options)
            rows = run_with_partial_writes(rows, partial(run, batch=batch, **options))
    return forwarded, rows


@settings(max_examples=150, deadline=None)
@given(
    batches,
    st.sampled_from([0, 1, 5, 20, 70]),
    st.sampled_from(["forward", "drop"]),
    st.sampled_from([None, "kip655"]),
)
@example([[("a", 0), ("b", 35)], [("a", 18)]], 20, "drop", None)
@example([[("a", 0)], [("b", 35), ("a", 18)], [("a", 14)]], 20, "forward", None)
@example([[("a", 0), ("b", 35)], [("a", 18)]], 20, "forward", "kip655")
def test_verdicts_are_those_of_the_definition_in_batches_torn_anywhere(
    lists: Lists, interval_ms: int, late: str, compat: str | None
) -> None:
    records = numbered(lists)
    naive = Naive(interval_ms, late, compat is not None)
    expected = []
    for batch in records:
        for step in batch:
            if isinstance(step, int):
                naive.now_ms = step if naive.now_ms is None else max(naive.now_ms, step)
            else:
                expected.append(naive.accept(step))
    assert in_batches(records, interval_ms=interval_ms, late=late, compat=compat)[0] == expected


@settings(max_examples=150, deadline=None)
@given(batches, st.sampled_from([1, 2, 3]), st.sampled_from(["hold", "drop"]))
@example([[("a", 0), ("a", 13), ("b", 6)], [("a", 13)]], 2, "hold")
@example([[("a", 0), ("a", 20)], [("b", 21)], [("c", 22), ("d", 27)], [("a", 21)]], 3, "hold")
def test_with_a_guard_cutting_and_tearing_changes_nothing(
    lists: Lists, confirmations: int, policy: str
) -> None:
    records = numbered(lists)
    guard = JumpGuard(max_jump_ms=12, confirmations=confirmations, policy=policy)  # type: ignore[arg-type]
    whole = run(MemoryTable(), [record for batch in records for record in batch], interval_ms=5, guard=guard)
    assert in_batches(records, interval_ms=5, guard=guard)[0] == whole


@settings(max_examples=300, deadline=None)
@given(batches, st.sampled_from([1, 2, 3]), st.sampled_from([0, 5, 20, 60]))
def test_with_a_guard_verdicts_are_those_of_the_definition(
    lists: Lists, confirmations: int, interval_ms: int
) -> None:
    records = numbered(lists)
    guard = JumpGuard(max_jump_ms=12, confirmations=confirmations)
    naive = NaiveGuarded(interval_ms, guard)
    expected = []
    for step in (step for batch in records for step in batch):
        if isinstance(step, int):
            naive.advance(step)
        else:
            expected.append(naive.accept(step))
    assert in_batches(records, interval_ms=interval_ms, guard=guard)[0] == expected


@settings(max_examples=100, deadline=None)
@given(batches, st.data())
def test_behind_the_replay_check_any_prefix_fed_again_changes_nothing(
    lists: Lists, data: st.DataObject
) -> None:
    records = [step for batch in numbered(lists) for step in batch if isinstance(step, Record)]
    cut = data.draw(st.integers(0, len(records)))
    again = records[:cut] + records[: data.draw(st.integers(0, cut))] + records[cut:]
    seen: set[Spot] = set()
    passed = [record for record in again if not (record.spot in seen or seen.add(record.spot))]  # type: ignore[func-returns-value]
    tables = MemoryTable(), MemoryTable()
    assert run(tables[0], list(records), interval_ms=5) == run(tables[1], list(passed), interval_ms=5)
    assert tables[0].rows() == tables[1].rows()


def test_the_bound_holds_for_fifty_intervals() -> None:
    """Ids are 20 bytes; one each 5 ms; 20 batches an interval of 1,000 ms."""
    table = MemoryTable()
    most_rows = most_bytes = 0
    for batch in range(20 * 50):
        stage = Deduplicate(table, interval_ms=1_000)
        for at_ms in range(batch * 50, batch * 50 + 50, 5):
            record = Record(
                key=b"%020d" % at_ms, timestamp_ms=at_ms, spot=Spot(2**63, at_ms.to_bytes(20, "big"))
            )
            assert stage.accept(record).forward
        stage.finish(0)
        rows = table.rows()
        most_rows = max(most_rows, sum(row.startswith(b"e") for row in rows))
        most_bytes = max(most_bytes, sum(len(row) + len(content) for row, content in rows.items()))
    assert 400 < most_rows <= 400 + 400 // 64 + 1
    each = (21 + 50 + 20) + (21 + 6)
    assert most_bytes <= each * (most_rows + 30) + 64 * 40
