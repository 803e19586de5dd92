"""SQE's filter drops the records whose key was there before, and nothing else; its faults do not return."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain._proto.filters_pb2 import SqeMarks
from sqe_chain.chain import next_position, root_position
from sqe_chain.envelope.sqe_key import SqeKey
from sqe_chain.errors import TooManyLanes
from sqe_chain.stages.record import NOWHERE, Reason, Record, Spot
from sqe_chain.stages.replays import EXPIRY_MS, SqeReplays
from sqe_chain.stages.table import MemoryTable
from tests.support.partial_writes import (
    check_prefix,
    check_redo,
    run_batch,
    run_batch_with_partial_writes,
)

LINES = Record(topic="lines", topic_id=b"l" * 16, partition=1)
RAW = ("robot.raw", b"r" * 16, 0)


def keyed(offset: int, *, pid: int = 0, partition: int = 0, of: Record = LINES) -> Record:
    return replace(of, key=SqeKey(pid, partition, offset).to_bytes())


def enveloped(
    offset: int, *, ordinal: int = 0, path: int = 0, root: int | None = None, lane: int = 7
) -> Record:
    """Made from source offset `offset`, which is its root unless another is given."""
    position = next_position(root_position(1, offset if root is None else root), ordinal)
    return replace(
        keyed(offset), spot=Spot(lane, position + path.to_bytes(4, "big")), root=RAW, root_position=position
    )


def passes(records: list[Record], **settings: Any) -> list[bool]:
    return run_batch(partial(SqeReplays, **settings), {}, records).forwarded


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"compat": "sqe"}])
def test_sqe_s_own_example(settings: dict[str, Any]) -> None:
    """FilteredTridentCollectorTest: seven records, three pass; after the expiry nothing is left."""
    make = partial(SqeReplays, expiry_ms=1000, **settings)
    batch = run_batch_with_partial_writes(
        make, {}, [keyed(offset) for offset in (1, 2, 1, 2, 3, 2, 3)], now_ms=5000
    )
    assert batch.forwarded == [True, True, False, False, True, False, False]
    assert [verdict.reason for verdict in batch.verdicts if not verdict.forward] == [Reason.REPLAY] * 4
    (marks,) = (content for row, content in batch.rows.items() if row.startswith(b"marks/"))
    (mark,) = SqeMarks.FromString(marks).marks
    assert (mark.process_id, mark.partition, mark.offset) == (0, 0, 3)
    rows = run_batch_with_partial_writes(make, batch.rows, [], now_ms=7000).rows
    assert list(rows) == [b"inputs"]
    assert run_batch_with_partial_writes(make, rows, [], now_ms=7000).rows == {}


@pytest.mark.parametrize("key", [None, b"", bytes(19), bytes(21)])
def test_keys_that_are_none_of_sqe_s_pass_always_and_leave_nothing(key: bytes | None) -> None:
    batch = run_batch_with_partial_writes(SqeReplays, {}, [replace(LINES, key=key)] * 3)
    assert (batch.forwarded, batch.rows) == ([True] * 3, {})


def test_offsets_are_compared_as_signed_numbers() -> None:
    assert passes([keyed(-1), keyed(-2), keyed(0), keyed(2**63 - 1)]) == [True, False, True, True]


def test_each_input_partition_has_its_own_marks() -> None:
    other = replace(LINES, partition=2)
    assert passes([keyed(5), keyed(5, of=other), keyed(5), keyed(5, of=replace(LINES, topic="x"))]) == [
        True,
        True,
        False,
        True,
    ]


def test_an_input_created_again_starts_fresh_but_not_in_sqe() -> None:
    again = replace(LINES, topic_id=b"m" * 16)
    assert passes([keyed(5), keyed(5, of=again), keyed(4, of=again)]) == [True, True, False]
    assert passes([keyed(5), keyed(5, of=again)], compat="sqe") == [True, False]


# --- siblings -------------------------------------------------------------------------------------


def test_siblings_of_one_source_offset_pass_once_each() -> None:
    made = [enveloped(5, ordinal=ordinal) for ordinal in range(3)]
    again = [replace(record, offset=record.offset + 10) for record in made]
    assert passes([*made, *again, enveloped(6)]) == [True] * 3 + [False] * 3 + [True]
    assert passes(made, compat="sqe") == [True, False, False]


def test_siblings_made_within_the_flow_pass_once_each() -> None:
    made = [enveloped(5, path=path) for path in range(3)]
    assert passes(made + made) == [True] * 3 + [False] * 3


def test_siblings_may_come_on_several_lanes() -> None:
    made = [enveloped(5, lane=lane, ordinal=ordinal) for lane in (7, 8) for ordinal in (0, 1)]
    assert passes([*made, *made, enveloped(6, lane=8), made[3]]) == [True] * 4 + [False] * 4 + [True, False]


def test_an_equal_key_from_another_root_message_is_a_replay_with_all_its_siblings() -> None:
    """A topic of SQE's: the second copy of a record is a root of its own."""
    first = [enveloped(5, root=31, path=path) for path in range(2)]
    second = [enveloped(5, root=34, path=path) for path in range(3)]
    assert passes(first + second) == [True] * 2 + [False] * 3
    elsewhere = replace(first[1], root=("robot.raw", b"s" * 16, 0), spot=Spot(9, first[1].spot.position))
    assert passes([first[0], elsewhere]) == [True, False]


def test_the_first_copy_behind_the_second_is_a_replay() -> None:
    late = [enveloped(5, root=34), enveloped(5, root=31, path=9)]
    assert passes(late) == [True, False]


def test_without_a_position_an_equal_offset_is_a_replay() -> None:
    assert passes([keyed(5), keyed(5)]) == [True, False]
    assert passes([enveloped(5), replace(enveloped(5), spot=NOWHERE)]) == [True, False]
    assert passes([keyed(5), enveloped(5)]) == [True, False]


def test_siblings_do_not_pass_behind_the_next_offset() -> None:
    assert passes([enveloped(5), enveloped(6), enveloped(5, ordinal=1)]) == [True, True, False]


def test_a_replay_names_its_original() -> None:
    records = [enveloped(5), enveloped(5, lane=8), enveloped(5, lane=8), enveloped(6), enveloped(5)]
    verdicts = run_batch(SqeReplays, {}, records).verdicts
    assert verdicts[2].original == records[1].spot
    assert verdicts[4].original is None
    assert (verdicts[2].detail, verdicts[4].detail) == (
        "source offset 5, but 5 has passed",
        "source offset 5, but 6 has passed",
    )
    other_root = run_batch(SqeReplays, {}, [enveloped(5), enveloped(5, root=9, lane=9)]).verdicts[1]
    assert other_root.original == records[0].spot
    assert run_batch(SqeReplays, {}, [keyed(5), keyed(5)]).verdicts[1].original is None


# --- expiry ---------------------------------------------------------------------------------------


def rows_after(expiry_ms: int, steps: list[tuple[int, list[Record]]], **settings: Any) -> list[list[bool]]:
    rows: dict[bytes, bytes] = {}
    said = []
    for now_ms, records in steps:
        batch = run_batch_with_partial_writes(
            partial(SqeReplays, expiry_ms=expiry_ms, **settings), rows, records, now_ms
        )
        rows = batch.rows
        said.append(batch.forwarded)
    return said


def test_a_mark_expires_when_it_is_strictly_older() -> None:
    assert EXPIRY_MS == 172_800 * 1000
    steps = [(0, [keyed(5)]), (EXPIRY_MS, []), (EXPIRY_MS, [keyed(5)])]
    assert rows_after(EXPIRY_MS, steps)[2] == [False]
    steps = [(0, [keyed(5)]), (EXPIRY_MS + 1, []), (EXPIRY_MS + 1, [keyed(5)])]
    assert rows_after(EXPIRY_MS, steps)[2] == [True]


def test_marks_are_purged_at_the_end_of_a_batch_not_before() -> None:
    assert rows_after(10, [(0, [keyed(5)]), (11, [keyed(5)]), (11, [keyed(5)])])[1:] == [[False], [True]]


def test_only_records_that_pass_keep_a_mark_alive() -> None:
    assert rows_after(10, [(0, [keyed(5)]), (9, [keyed(5)]), (11, []), (11, [keyed(5)])])[3] == [True]
    assert rows_after(10, [(0, [keyed(5)]), (9, [keyed(6)]), (11, []), (11, [keyed(5)])])[3] == [False]
    siblings = [enveloped(5, ordinal=ordinal) for ordinal in (0, 1)]
    steps = [(0, siblings[:1]), (9, siblings[1:]), (11, []), (11, siblings)]
    assert rows_after(10, steps)[3] == [False, False]


def test_a_mark_is_as_old_as_the_last_record_that_passed() -> None:
    steps = [(100, [keyed(5)]), (109, [keyed(6)]), (112, []), (112, [keyed(5)])]
    assert rows_after(10, steps)[3] == [False], "younger than the first one"


def test_one_mark_expires_alone() -> None:
    steps = [(0, [keyed(5)]), (5, [keyed(5, pid=1)]), (11, []), (11, [keyed(5), keyed(5, pid=1)])]
    assert rows_after(10, steps)[3] == [True, False]


def test_sqe_counts_whole_seconds() -> None:
    """The second batch is 1999 ms later: more than the expiry of a second, but the next second only."""
    steps = [(1000, [keyed(5)]), (2999, []), (2999, [keyed(5)])]
    assert rows_after(1000, steps)[2] == [True]
    assert rows_after(1000, steps, compat="sqe")[2] == [False]
    steps = [(1999, [keyed(5)]), (3000, []), (3000, [keyed(5)])]
    assert rows_after(1000, steps, compat="sqe")[2] == [True]


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"compat": "sqe"}])
def test_state_stays_bounded_while_producers_and_topics_come_and_go(settings: dict[str, Any]) -> None:
    """Each hour for 2,000 hours a new producer, each day a new topic: two days of marks remain."""
    rows: dict[bytes, bytes] = {}
    largest = 0
    for hour in range(2000):
        topic = replace(LINES, topic_id=(hour // 24).to_bytes(16, "big"), topic=f"lines-{hour // 24:03}")
        record = keyed(hour, pid=hour, of=topic)
        rows = run_batch(partial(SqeReplays, **settings), rows, [record], hour * 3_600_000).rows
        assert len(rows) <= 5
        largest = max(largest, sum(len(row) + len(content) for row, content in rows.items()))
    assert largest <= 49 * 45 + 4 * 120


def test_a_mark_is_as_large_as_documented() -> None:
    key = SqeKey(-(2**63), -(2**31), -(2**63))
    plain = run_batch(SqeReplays, {}, [replace(LINES, key=key.to_bytes())], now_ms=2**47).rows
    (content,) = (content for row, content in plain.items() if row.startswith(b"marks/"))
    assert len(content) <= 45
    position = root_position(2**31, 2**63 - 1) + bytes(4)
    lanes = [
        replace(LINES, key=key.to_bytes(), spot=Spot(2**64 - lane, position), offset=2**62) for lane in (1, 2)
    ]
    full = run_batch(SqeReplays, {}, lanes, now_ms=2**47).rows
    (content,) = (content for row, content in full.items() if row.startswith(b"marks/"))
    assert len(content) <= 45 + 2 * (35 + len(position))


def test_marks_lie_in_order() -> None:
    sources = [(2, 1), (-1, 3), (2, 0)]
    rows = run_batch(
        SqeReplays, {}, [keyed(1, pid=pid, partition=partition) for pid, partition in sources]
    ).rows
    (content,) = (content for row, content in rows.items() if row.startswith(b"marks/"))
    marks = SqeMarks.FromString(content).marks
    assert [(mark.process_id, mark.partition) for mark in marks] == sorted(sources)


def test_limits_stop_and_change_nothing() -> None:
    replays = SqeReplays(MemoryTable(), max_marks=2, max_lanes=2)
    assert [replays.accept(keyed(1, pid=pid)).forward for pid in (1, 2)] == [True, True]
    with pytest.raises(TooManyLanes, match=r"lines\[1\].*more than 2 pairs of producer"):
        replays.accept(keyed(1, pid=3))
    assert not replays.accept(keyed(1, pid=2)).forward
    replays = SqeReplays(MemoryTable(), max_lanes=2)
    assert [replays.accept(enveloped(1, lane=lane)).forward for lane in (1, 2)] == [True, True]
    with pytest.raises(TooManyLanes, match="more than 2 lanes"):
        replays.accept(enveloped(1, lane=3))


# --- crashes and laws -----------------------------------------------------------------------------


def test_a_retried_batch_loses_nothing() -> None:
    """In SQE a failed attempt moves the marks of the next: the batch is dropped as its own replay."""
    table = MemoryTable()
    attempt = SqeReplays(table)
    assert attempt.accept(keyed(5)).forward
    assert SqeReplays(table).accept(keyed(5)).forward


@dataclass(frozen=True)
class Step:
    """One record of a made-up input: consistent, as lanes are."""

    partition: int
    pid: int
    offset: int
    root: int
    lane: int
    ordinal: int

    def record(self) -> Record:
        made = enveloped(self.offset, root=self.root, lane=self.lane, ordinal=self.ordinal)
        key = SqeKey(self.pid, 0, self.offset).to_bytes()
        return replace(made, key=key, partition=self.partition, spot=made.spot if self.lane else NOWHERE)


few = st.integers(0, 2)
steps = st.builds(Step, st.integers(0, 1), st.integers(0, 1), st.integers(0, 3), few, few, few)
histories = st.lists(st.tuples(st.integers(0, 4), st.lists(steps, max_size=6)), max_size=6)
compats = st.sampled_from([None, "sqe"])


@given(histories, compats)
def test_a_batch_written_in_part_is_completed_by_its_redo(
    history: list[tuple[int, list[Step]]], compat: Any
) -> None:
    times = accumulate(pause_s * 1000 for pause_s, _ in history)
    batches = [
        ([step.record() for step in steps], now_ms) for now_ms, (_, steps) in zip(times, history, strict=True)
    ]
    check_redo(partial(SqeReplays, expiry_ms=3000, compat=compat), batches)


@given(st.lists(steps, max_size=12), st.data(), compats)
def test_a_prefix_fed_again_changes_nothing(batch: list[Step], data: st.DataObject, compat: Any) -> None:
    records = [step.record() for step in batch]
    check_prefix(partial(SqeReplays, compat=compat), records, data.draw(st.integers(0, len(records))))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 5)), max_size=20))
def test_sqe_s_rule_is_kept_literally(keys: list[tuple[int, int, int]]) -> None:
    highest: dict[tuple[int, int], int] = {}
    expected = []
    for pid, partition, offset in keys:
        expected.append(offset > highest.get((pid, partition), -1))
        highest[pid, partition] = max(offset, highest.get((pid, partition), -1))
    records = [keyed(offset, pid=pid, partition=partition) for pid, partition, offset in keys]
    assert passes(records) == passes(records, compat="sqe") == expected
