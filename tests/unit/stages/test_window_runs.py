"""Goal: records that are folded in runs give what they give one by one: verdicts, rows, and each result at the same record.

Method: Hypothesis; batches with new stage objects on one table, rows written in part and the batch again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.errors import PoisonError
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.units import UnitRun
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.stages.record import Record
from sqe_chain.stages.record_work import moves_in
from sqe_chain.stages.user_code import RunError
from sqe_chain.stages.window_runs import WindowRuns
from sqe_chain.stages.windowing import Tumbling
from tests.support.partial_writes import RecordingTable, Rows, run_with_partial_writes

SHARED: list[str] = []
"""What a fold puts into each state: a stage must not let two states share it."""
GUARD = JumpGuard(max_jump_ms=60, confirmations=2, policy="drop")
Batch = tuple[int, list[Record]]
"""A moment to which stream time is moved before it, and its records."""
Told = list[tuple[int, bytes, int, str]]
"""Index of the record that closed a window, key, beginning, state; -1 for the end of the batch."""


@dataclass
class Text:
    """A state in JSON whose fields nobody can change from elsewhere; `share` is to become a float."""

    value: str = ""
    share: float = 0


@dataclass
class Texts:
    """A state in JSON that could share an object."""

    values: list[str] = field(default_factory=list)

    @property
    def value(self) -> str:
        return "".join(self.values)


State = StringValue | Text | Texts
STATES: list[type[State]] = [StringValue, Text, Texts]


def write(state: State, value: str) -> None:
    """Not commutative, so that the order of folding shows."""
    if isinstance(state, Texts):
        SHARED[:] = [*state.values, value]
        state.values = SHARED
        return
    state.value += value
    if isinstance(state, Text):
        state.share = len(state.value)


def stage_on(table: RowTable, lateness_ms: int, state: type[State] = StringValue) -> WindowRuns[Any]:
    return WindowRuns(
        table,
        windows=Tumbling(10),
        state=state,
        fold=write,
        lateness_ms=lateness_ms,
        retention_ms=25,
        guard=GUARD,
    )


def one_by_one(stage: WindowRuns[Any], batch: Batch) -> tuple[list[bool], Told]:
    beat_ms, records = batch
    stage.advance(beat_ms)
    told, verdicts = taken(stage, 0), list[bool]()
    for index, record in enumerate(records):
        verdicts.append(stage.accept(record).forward)
        told += taken(stage, index)
    stage.finish(0)
    return verdicts, told + taken(stage, -1)


def in_runs(stage: WindowRuns[Any], batch: Batch) -> tuple[list[bool], Told]:
    beat_ms, records = batch
    stage.advance(beat_ms)
    told, verdicts = taken(stage, 0), list[bool]()
    keys, values, times = zip(
        *((record.key, record.value, record.timestamp_ms) for record in records), strict=True
    )
    orders = [-1 if record.place_ms is None else record.place_ms for record in records]
    moves, placed = moves_in(UnitRun([], [], [], list(times), orders, [], []))
    while (index := len(verdicts)) < len(records):
        end = stage.fold_run(write, keys, values, times, index, moves, placed=placed)
        assert taken(stage, end) == []
        verdicts += [True] * (end - index)
        if end < len(records):
            verdicts.append(stage.accept(records[end]).forward)
            told += taken(stage, end)
    stage.finish(0)
    return verdicts, told + taken(stage, -1)


def taken(stage: WindowRuns[Any], index: int) -> Told:
    return [(index, result.key, result.span.start_ms, result.state.value) for result in stage.take_results()]


@st.composite
def batches(draw: st.DrawFn) -> list[Batch]:
    """Times go on, now and then back, and sometimes by more than is believed, or than the place of the record."""
    at_ms, found = 0, list[Batch]()
    placed = draw(st.booleans())
    for _ in range(draw(st.integers(1, 3))):
        batch: list[Record] = []
        beat_ms = draw(st.sampled_from([0, at_ms + 30]))
        at_ms = max(at_ms, beat_ms)
        for _ in range(draw(st.integers(1, 25))):
            at_ms = max(0, at_ms + draw(st.sampled_from([0, 0, 1, 1, 2, 3, 6, 10, 11, -4, -12])))
            jump = draw(st.sampled_from([0] * 14 + [20, 200]))
            key = draw(st.sampled_from([b"a", b"b", b"c"]))
            place_ms = max([at_ms, *(record.place_ms or 0 for record in batch)]) if placed else None
            back = (
                draw(st.sampled_from([0] * 9 + [7, 20])) if placed else 0
            )  # behind its place, though nothing came before
            own_ms = max(0, at_ms + jump - back)
            batch.append(Record(key=key, value=f"{at_ms} ", timestamp_ms=own_ms, place_ms=place_ms))
        found.append((beat_ms, batch))
    return found


@given(batches(), st.sampled_from([0, 5, 25]), st.sampled_from(STATES))
def test_runs_give_what_single_records_give(found: list[Batch], lateness_ms: int, state: type[State]) -> None:
    rows: Rows = {}
    other: Rows = {}
    for batch in found:

        def single(table: RowTable, batch: Batch = batch) -> tuple[list[bool], Told]:
            return one_by_one(stage_on(table, lateness_ms, state), batch)

        def run(table: RowTable, batch: Batch = batch) -> tuple[list[bool], Told]:
            return in_runs(stage_on(table, lateness_ms, state), batch)

        assert run(RecordingTable(other)) == single(RecordingTable(rows))
        rows, other = run_with_partial_writes(rows, single), run_with_partial_writes(other, run)
        assert other == rows


def test_what_an_earlier_attempt_has_written_is_not_folded_again() -> None:
    """The row of `a` is settled: a fold may refuse a value that it has seen."""
    stage = stage_on(RecordingTable({}, b"wa"), 0)
    assert stage.accept(Record(key=b"b", value="x", timestamp_ms=1)).forward
    assert stage.fold_run(write, [b"b", b"a", b"b"], ["x", "x", "x"], [2, 3, 4], 0) == 1


def test_a_record_that_closes_its_own_window_is_late() -> None:
    """Its place, which moves stream time, is behind the end of the window that its time lies in."""
    stage = stage_on(RecordingTable({}), 25)
    assert stage.accept(Record(key=b"a", value="x", timestamp_ms=25, place_ms=25)).forward
    assert stage.fold_run(write, [b"b"], ["x"], [12], 0, [50], placed=True) == 0
    assert not stage.accept(Record(key=b"b", value="x", timestamp_ms=12, place_ms=50)).forward


def test_a_state_that_cannot_be_stored_fails_at_the_record_that_left_it() -> None:
    """Not when its window closes: another record would be to blame."""
    stage = stage_on(RecordingTable({}), 0, Text)
    assert stage.accept(Record(key=b"b", value="x", timestamp_ms=1)).forward
    with pytest.raises(RunError, match="cannot be stored") as raised:
        stage.fold_run(write, [b"a", b"a", b"a"], ["x", "\ud800", "x"], [2, 3, 4], 0)
    assert raised.value.index == 1
    assert isinstance(raised.value.raised, PoisonError)


def test_a_record_whose_clock_ran_ahead_of_its_place_is_no_part_of_a_run() -> None:
    """It moves stream time to its place; moved to its time, what comes after it would be late."""
    stage = stage_on(RecordingTable({}), 0)
    assert stage.accept(Record(key=b"a", value="x", timestamp_ms=1, place_ms=1)).forward
    moves, placed = moves_in(UnitRun([], [], [], [2, 9], [2, 3], [], []))
    assert stage.fold_run(write, [b"a", b"a"], ["x", "x"], [2, 9], 0, moves, placed=placed) == 1
