"""Goal: values that are joined with a table in runs give what they give one by one, each at the same record.

Method: Hypothesis; batches with new stage objects on one table, rows written in part and the batch again.
"""

from __future__ import annotations

from typing import Literal

from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.flow.table import RowTable
from sqe_chain.flow.units import UnitRun
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.stages.record import Record
from sqe_chain.stages.record_work import moves_in
from sqe_chain.stages.table_join import TableJoin
from tests.support.partial_writes import RecordingTable, Rows, run_with_partial_writes

GUARD = JumpGuard(max_jump_ms=60, confirmations=2, policy="drop")
How = Literal["inner", "left"]
Told = list[tuple[int, str]]
"""Index of the record that gave an output, and the output."""


def pair(value: StringValue, change: StringValue | None) -> StringValue | None:
    if value.value.endswith("5"):
        return None  # no output
    return StringValue(value=f"{value.value} {change.value if change else '-'}")


def is_second(record: Record) -> bool:
    return record.topic == "second"


def join_on(table: RowTable, how: How, history_ms: int | None) -> TableJoin:
    static, kept_ms = history_ms is None, history_ms or 0
    return TableJoin(
        table, combine=pair, is_second=is_second, how=how, history_ms=kept_ms, static=static, guard=GUARD
    )


def taken(join: TableJoin, index: int) -> Told:
    return [(index, value.value) for _, value in join.take_results() if isinstance(value, StringValue)]


def one_by_one(join: TableJoin, batch: list[Record]) -> tuple[list[bool], Told]:
    verdicts, told = list[bool](), Told()
    for index, record in enumerate(batch):
        verdicts.append(join.accept(record).forward)
        told += taken(join, index)
    join.finish(0)
    return verdicts, [*told, (join.joined, str(join.unmatched))]


def in_runs(join: TableJoin, batch: list[Record]) -> tuple[list[bool], Told]:
    verdicts, told = list[bool](), Told()
    keys, values, times = zip(*((one.key, one.value, one.timestamp_ms) for one in batch), strict=True)
    orders = [-1 if one.place_ms is None else one.place_ms for one in batch]
    moves, placed = moves_in(UnitRun([], [], [], list(times), orders, [], []))
    while (index := len(verdicts)) < len(batch):
        seconds = (number for number in range(index, len(batch)) if is_second(batch[number]))
        end = next(seconds, len(batch))
        joined = (
            join.join_run(pair, keys, values, times, index, end, moves, placed=placed)
            if index < end
            else index
        )
        told += taken(join, joined - 1)
        verdicts += [True] * (joined - index)
        if joined == index:
            verdicts.append(join.accept(batch[index]).forward)
            told += taken(join, index)
    join.finish(0)
    return verdicts, [*told, (join.joined, str(join.unmatched))]


@st.composite
def batches(draw: st.DrawFn) -> list[list[Record]]:
    """Times go on, now and then back, and sometimes by more than is believed, or than the place of the record."""
    at_ms, found = 0, list[list[Record]]()
    placed = draw(st.booleans())
    for _ in range(draw(st.integers(1, 3))):
        batch: list[Record] = []
        for _ in range(draw(st.integers(1, 20))):
            at_ms = max(0, at_ms + draw(st.sampled_from([0, 1, 1, 2, 3, 9, -4, -12])))
            jump = draw(st.sampled_from([0] * 14 + [20, 200]))
            topic, key = (
                draw(st.sampled_from(["first", "first", "second"])),
                draw(st.sampled_from([b"a", b"b"])),
            )
            value = StringValue(value=str(at_ms))
            place_ms = max([at_ms, *(one.place_ms or 0 for one in batch)]) if placed else None
            back = (
                draw(st.sampled_from([0] * 9 + [7, 20])) if placed else 0
            )  # behind its place, though nothing came before
            own_ms = max(0, at_ms + jump - back)
            batch.append(Record(key=key, value=value, timestamp_ms=own_ms, topic=topic, place_ms=place_ms))
        found.append(batch)
    return found


@given(batches(), st.sampled_from(["inner", "left"]), st.sampled_from([0, 8, None]))
def test_runs_give_what_single_records_give(
    found: list[list[Record]], how: How, history_ms: int | None
) -> None:
    rows: Rows = {}
    other: Rows = {}
    for batch in found:

        def single(table: RowTable, batch: list[Record] = batch) -> tuple[list[bool], Told]:
            return one_by_one(join_on(table, how, history_ms), batch)

        def run(table: RowTable, batch: list[Record] = batch) -> tuple[list[bool], Told]:
            return in_runs(join_on(table, how, history_ms), batch)

        assert run(RecordingTable(other)) == single(RecordingTable(rows))
        rows, other = run_with_partial_writes(rows, single), run_with_partial_writes(other, run)
        assert other == rows


def test_a_value_whose_clock_ran_ahead_of_its_place_is_no_part_of_a_run() -> None:
    """It moves stream time to its place; moved to its time, what comes after it would be late."""
    join, value = join_on(RecordingTable({}), "inner", 0), StringValue(value="1")
    assert join.accept(Record(key=b"a", value=value, timestamp_ms=1, place_ms=1)).forward
    moves, placed = moves_in(UnitRun([], [], [], [2, 9], [2, 3], [], []))
    assert join.join_run(pair, [b"a", b"a"], [value, value], [2, 9], 0, 2, moves, placed=placed) == 1


def test_a_value_that_is_late_at_its_own_place_is_no_part_of_a_run() -> None:
    join, value = join_on(RecordingTable({}), "left", 5), StringValue(value="1")
    assert join.accept(Record(key=b"a", value=value, timestamp_ms=1, place_ms=1)).forward
    assert join.join_run(pair, [b"a"], [value], [2], 0, 1, [9], placed=True) == 0
    assert not join.accept(Record(key=b"a", value=value, timestamp_ms=2, place_ms=9)).forward
