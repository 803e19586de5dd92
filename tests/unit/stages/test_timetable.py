"""What is listed comes when it is due, in order and from whatever batch; and its index rows go afterwards."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.stages import clock as module
from sqe_chain.stages.clock import INDEX, Timetable, bucket_length
from sqe_chain.stages.table import MemoryTable
from tests.support.partial_writes import RecordingTable, Rows, run_with_partial_writes

Batch = list[tuple[int, int]]
"""Steps of stream time, and after how long the row listed at each is due."""

batches = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=8), max_size=8)


def named(batch: int, index: int) -> bytes:
    return f"e{batch}-{index}".encode()


def run(
    table: RecordingTable, number: int, batch: Batch, start_ms: int, *, exact: bool
) -> list[tuple[int, bytes]]:
    """One batch: move stream time, take what is due, list new rows for after its end."""
    timetable = Timetable(table, bucket_ms=7, phase_ms=2, exact=exact)
    taken: list[tuple[int, bytes]] = []
    now_ms = start_ms
    for step, _ in batch:
        now_ms += step
        assert timetable.observe(now_ms)
        taken += timetable.take_due()
    for index, (_, after_ms) in enumerate(batch):
        timetable.file(named(number, index), now_ms + after_ms)
    timetable.finish()
    return taken


@given(batches, st.booleans(), st.sampled_from([1, 2, 4_096]))
def test_each_listing_comes_once_in_the_batch_in_which_it_is_due(
    lists: list[Batch], exact: bool, group_records: int
) -> None:
    rows: Rows = {}
    now_ms = 0
    expected: defaultdict[int, set[tuple[int, bytes]]] = defaultdict(set)
    waiting: set[tuple[int, bytes]] = set()
    with patch.object(module, "GROUP_RECORDS", group_records):
        for number, batch in enumerate(lists):
            start_ms = now_ms
            taken = run(RecordingTable(rows), number, batch, start_ms, exact=exact)
            rows = run_with_partial_writes(
                rows, partial(run, number=number, batch=batch, start_ms=start_ms, exact=exact)
            )
            now_ms += sum(step for step, _ in batch)
            expected[number] = {one for one in waiting if batch and one[0] <= now_ms}
            waiting -= expected[number]
            assert set(taken) == expected[number]
            assert taken == sorted(taken) or exact
            for index, (_, after_ms) in enumerate(batch):
                due_ms = now_ms + after_ms
                waiting.add((due_ms if exact else due_ms + (2 - due_ms) % 7, named(number, index)))


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.lists(st.integers(1, 60), min_size=1, max_size=9),
)
def test_what_is_reminded_of_while_taking_comes_in_its_place(first: list[int], again: list[int]) -> None:
    timetable = Timetable(MemoryTable(), bucket_ms=7, exact=True)
    for due_ms in first:
        timetable.remind(b"e", due_ms)
    timetable.observe(60)
    taken = []
    for due_ms, _ in timetable.take_due():
        taken.append(due_ms)
        if again and again[-1] >= due_ms:
            timetable.remind(b"e", again.pop())
    assert taken == sorted(taken)
    assert list(timetable.take_due()) == []


@pytest.mark.parametrize("again_ms", [10, 7])
def test_what_is_reminded_of_comes_before_the_rest_of_a_moment(again_ms: int) -> None:
    """It is listed for the moment that is being taken and its row comes first, or for an earlier one."""
    timetable = Timetable(MemoryTable(), bucket_ms=7, exact=True)
    for row in (b"d", b"b", b"c"):
        timetable.remind(row, 10)
    timetable.observe(60)
    taken = []
    for due_ms, row in timetable.take_due():
        taken.append((due_ms, row))
        if row == b"b":
            timetable.remind(b"a" if again_ms == 10 else b"e", again_ms)
    again = (again_ms, b"a" if again_ms == 10 else b"e")
    assert taken == [(10, b"b"), again, (10, b"c"), (10, b"d")]


def test_index_rows_go_two_batches_after_their_bucket_and_the_manifest_with_them() -> None:
    table = MemoryTable()
    for batch in range(200):
        timetable = Timetable(table, bucket_ms=10)
        timetable.observe(batch * 10)
        list(timetable.take_due())
        timetable.file(b"e", batch * 10 + 40)
        timetable.finish()
        assert len(table) <= 2 + 4 + 2
    for _ in range(3):
        timetable = Timetable(table, bucket_ms=10)
        timetable.time.advance(10_000)
        list(timetable.take_due())
        timetable.finish()
    assert list(table) == [b"z"]
    content = table.rows()
    Timetable(table, bucket_ms=10).finish()
    assert table.rows() == content


def test_small_batches_share_an_index_row_and_large_ones_have_parts() -> None:
    def index_rows(size: int) -> int:
        table = MemoryTable()
        for batch in range(8):
            timetable = Timetable(table, bucket_ms=1_000)
            for index in range(size):
                timetable.observe(0)
                timetable.file(named(batch, index), 500)
            timetable.finish()
        assert max(len(content) for content in table.rows().values()) < 4_096 * 2.5 * 12
        return sum(row.startswith(INDEX) for row in table)

    assert index_rows(10) == 1
    assert index_rows(1_000) == 2
    assert index_rows(9_000) == 8 * 3


def test_a_bucket_is_opened_for_the_earliest_whichever_batch_listed_it() -> None:
    table = MemoryTable()
    for now_ms, due_ms in ((0, 90), (1, 50), (2, 70)):
        timetable = Timetable(table, bucket_ms=100, exact=True)
        timetable.observe(now_ms)
        timetable.file(b"e", due_ms)
        timetable.finish()
    timetable = Timetable(table, bucket_ms=100, exact=True)
    timetable.observe(60)
    assert list(timetable.take_due()) == [(50, b"e")]


def test_another_length_of_buckets_finds_what_the_old_one_listed() -> None:
    table = MemoryTable()
    for bucket_ms, now_ms, due_ms in ((7, 0, 20), (10, 1, 30), (3, 2, 19)):
        timetable = Timetable(table, bucket_ms=bucket_ms, exact=True)
        timetable.observe(now_ms)
        timetable.file(b"e%d" % due_ms, due_ms)
        timetable.finish()
    timetable = Timetable(table, bucket_ms=5, exact=True)
    timetable.observe(29)
    assert list(timetable.take_due()) == [(19, b"e19"), (20, b"e20")]


def test_a_bucket_is_a_64th_of_what_is_kept() -> None:
    assert [bucket_length(retention_ms) for retention_ms in (0, 63, 128, 86_400_000)] == [1, 1, 2, 1_350_000]
