"""Windows close once, at their moment and in order, with all that came in time, however batches are cut and torn."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain._proto.windows_pb2 import WindowsRow
from sqe_chain.errors import PoisonError
from sqe_chain.flow.stored import Span
from sqe_chain.flow.table import RowTable
from sqe_chain.stages import clock
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.stages.record import Reason, Record
from sqe_chain.stages.table import MemoryTable
from sqe_chain.stages.window_rows import SHOWN, Result, results_in
from sqe_chain.stages.window_runs import WindowRuns
from sqe_chain.stages.windowing import Hopping, Sessions, Tumbling, Windowing
from tests.support.partial_writes import Rows, run_with_partial_writes

Closed = tuple[bytes, Span, str]
Step = Record | int
"""A record, or a moment to which stream time is moved from outside."""


def write(state: StringValue, value: str) -> None:
    """Not commutative, so that the order of folding shows."""
    state.value += value


def append(state: StringValue, later: StringValue) -> None:
    state.value += later.value


def event(at_ms: int, value: str = "x", key: bytes | None = b"k") -> Record:
    return Record(key=key, value=value, timestamp_ms=at_ms)


def stage_on(table: RowTable, windows: Windowing, **options: object) -> WindowRuns[StringValue]:
    return WindowRuns(table, windows=windows, state=StringValue, fold=write, merge=append, **options)


def windows_in(results: list[Result]) -> list[Closed]:
    return [(result.key, result.span, result.state.value) for result in results]


def run(
    table: RowTable, batch: list[Step], windows: Windowing, **options: object
) -> tuple[list[bool], list[Closed]]:
    stage = stage_on(table, windows, **options)
    verdicts = []
    for step in batch:
        if isinstance(step, int):
            stage.advance(step)
        else:
            verdicts.append(stage.accept(step).forward)
    results = windows_in(stage.take_results())
    assert stage.take_results() == []
    stage.finish(0)
    return verdicts, results


def test_a_tumbling_window_closes_with_the_record_that_passes_its_end_and_lateness() -> None:
    stage = stage_on(MemoryTable(), Tumbling(10), lateness_ms=5)
    for at_ms, value in ((3, "a"), (12, "b"), (9, "c"), (14, "d")):
        assert stage.accept(event(at_ms, value)).forward
    assert stage.take_results() == []
    assert stage.accept(event(15, "e")).forward
    assert windows_in(stage.take_results()) == [(b"k", Span(0, 10), "ac")]
    late = stage.accept(event(9))
    assert (late.forward, late.reason) == (False, Reason.LATE)
    stage.advance(25)
    assert windows_in(stage.take_results()) == [(b"k", Span(10, 20), "bde")]


def test_a_session_is_prolonged_and_joined_and_closes_behind_gap_and_lateness() -> None:
    stage = stage_on(MemoryTable(), Sessions(10), lateness_ms=20)
    for at_ms, value in ((0, "a"), (20, "c"), (10, "b"), (30, "d")):
        assert stage.accept(event(at_ms, value)).forward
    stage.advance(60)
    assert stage.take_results() == []
    stage.advance(61)
    assert windows_in(stage.take_results()) == [(b"k", Span(0, 30), "acbd")]
    assert stage.accept(event(30)).reason is Reason.LATE
    assert stage.accept(event(31)).forward


@pytest.mark.parametrize("fails", ["merge", "fold"])
def test_a_record_that_fails_between_two_sessions_changes_neither(fails: str) -> None:
    """The state of the earlier one is not the one that is merged into: otherwise it would hold the later one's, too."""

    def merge(state: StringValue, later: StringValue) -> None:
        state.value += later.value
        if fails == "merge":
            raise ValueError("no merge")

    def fold(state: StringValue, value: str) -> None:
        if value == "joins":
            raise ValueError("no fold")
        state.value += value

    stage = WindowRuns(
        MemoryTable(), windows=Sessions(10), state=StringValue, fold=fold, merge=merge, lateness_ms=20
    )
    for at_ms, value in ((0, "a"), (20, "c")):
        assert stage.accept(event(at_ms, value)).forward
    with pytest.raises(ValueError, match=f"no {fails}"):
        stage.accept(event(10, "joins"))
    stage.advance(100)
    assert windows_in(stage.take_results()) == [(b"k", Span(0, 0), "a"), (b"k", Span(20, 20), "c")]


def test_a_record_that_fails_between_two_sessions_changes_neither_though_merge_took_parts() -> None:
    def merge(state: dict[str, Any], later: dict[str, Any]) -> None:
        state["values"] = later["values"]

    def fold(state: dict[str, Any], value: str) -> None:
        state.setdefault("values", []).append(value)
        if value == "joins":
            raise ValueError("no fold")

    stage = WindowRuns(
        MemoryTable(), windows=Sessions(10), state=dict, fold=fold, merge=merge, lateness_ms=20
    )
    for at_ms, value in ((0, "a"), (20, "c")):
        assert stage.accept(event(at_ms, value)).forward
    with pytest.raises(ValueError, match="no fold"):
        stage.accept(event(10, "joins"))
    stage.advance(100)
    assert [result.state["values"] for result in stage.take_results()] == [["a"], ["c"]]


@pytest.mark.parametrize(
    ("windows", "in_runs"),
    [(Sessions(10), False), (Hopping(10, 10), False), (Tumbling(10), False), (Tumbling(10), True)],
    ids=["sessions", "hopping", "tumbling", "tumbling in runs"],
)
def test_with_less_lateness_windows_of_before_are_emitted_all_the_same(
    windows: Windowing, in_runs: bool
) -> None:
    """The stored timetable lists them at the moment at which they would have closed."""
    table = MemoryTable()
    run(table, [event(0, "a"), event(20, "b")], windows, lateness_ms=100)
    stage = stage_on(table, windows)
    if in_runs:
        assert stage.fold_run(write, [b"k"], ["c"], [50], 0) == 0, "it needs `accept`"
    stage.accept(event(50, "c"))
    assert [result.state.value for result in stage.take_results()] == ["a", "b"]
    stage.finish(0)
    _, results = run(table, [99], windows)
    assert [value for _, _, value in results] == ["c"]


@pytest.mark.parametrize("windows", [Sessions(10), Tumbling(10)], ids=["sessions", "tumbling"])
def test_with_less_lateness_all_windows_of_before_close_at_the_end_of_the_input(windows: Windowing) -> None:
    table = MemoryTable()
    run(table, [event(0, "a"), event(20, "b", b"l")], windows, lateness_ms=100)
    stage = stage_on(table, windows)
    stage.close_all(20)
    assert [result.state.value for result in stage.take_results()] == ["a", "b"]
    stage.finish(0)
    assert results_in(dict(table.rows()), StringValue) == []


def test_with_less_lateness_a_window_closes_in_time_if_another_one_of_its_key_is_due() -> None:
    table = MemoryTable()
    run(table, [event(0, "a"), event(58, "b")], Sessions(10), lateness_ms=50)
    _, results = run(table, [61, 70], Sessions(10))
    assert [value for _, _, value in results] == ["a", "b"]


@pytest.mark.parametrize(
    ("at_ms", "spans"),
    [(7, [(0, 45)]), (22, [(0, 45)]), (50, [(0, 50)]), (70, [(0, 15), (30, 30), (45, 45), (70, 70)])],
)
def test_after_a_change_of_the_gap_a_record_joins_all_sessions_that_are_near_then(
    at_ms: int, spans: list[tuple[int, int]]
) -> None:
    """Of sessions that the old gap had kept apart, one brings the next; what no record touches stays apart."""
    table = MemoryTable()
    before = [event(0, "a"), event(15, "b"), event(30, "c"), event(45, "d")]
    run(table, [*before[:1], event(8, "-"), *before[1:]], Sessions(10), lateness_ms=200)
    _, results = run(table, [event(at_ms, "e"), 999], Sessions(20), lateness_ms=200)
    assert [(span.start_ms, span.end_ms) for _, span, _ in results] == spans
    assert sorted("".join(value for _, _, value in results)) == sorted("a-bcde")


def test_a_prolonged_session_closes_behind_those_that_end_before_it() -> None:
    table = MemoryTable()
    run(table, [event(0, key=b"a"), event(5, key=b"b")], Sessions(10))
    run(table, [event(9, key=b"a")], Sessions(10))
    _, results = run(table, [99], Sessions(10))
    assert [(key, span) for key, span, _ in results] == [(b"b", Span(5, 5)), (b"a", Span(0, 9))]


def test_a_fold_that_fails_leaves_no_window_half_changed() -> None:
    def fold(state: Int64Value, value: object) -> None:
        state.value += 1
        if state.value == 2:
            raise ValueError("two is too many")

    stage = WindowRuns(MemoryTable(), windows=Hopping(10, 5), state=Int64Value, fold=fold)
    stage.accept(event(7))
    with pytest.raises(ValueError, match="two is"):
        stage.accept(event(12))
    stage.advance(100)
    results = stage.take_results()
    assert [(result.span.start_ms, result.state) for result in results] == [
        (0, Int64Value(value=1)),
        (5, Int64Value(value=1)),
    ]


def test_a_window_that_was_written_is_not_folded_again() -> None:
    """A fold that cannot take a value twice, as one that checks its state, does not fail in a redo."""

    def write_once(state: StringValue, text: str) -> None:
        if text in state.value:
            raise ValueError(text)
        state.value += text

    def batch(table: RowTable) -> None:
        windows = WindowRuns(
            table, windows=Tumbling(10), state=StringValue, fold=write_once, retention_ms=100
        )
        for at_ms, text, key in ((1, "x", b"a"), (2, "y", b"b"), (3, "z", b"a"), (12, "x", b"b")):
            windows.accept(event(at_ms, text, key))
        windows.finish(0)

    assert results_in(run_with_partial_writes({}, batch), StringValue) == [
        (b"a", Span(0, 10), StringValue(value="xz")),
        (b"b", Span(0, 10), StringValue(value="y")),
        (b"b", Span(10, 20), StringValue(value="x")),
    ]


def test_a_result_is_not_changed_any_more() -> None:
    stage = stage_on(MemoryTable(), Hopping(10, 5))
    stage.accept(event(7, "a"))
    stage.accept(event(11, "b"))
    first = stage.take_results()
    stage.accept(event(12, "c"))
    stage.finish(0)
    assert windows_in(first) == [(b"k", Span(0, 10), "a")]


def test_a_record_without_key_is_poison() -> None:
    with pytest.raises(PoisonError, match="no key"):
        stage_on(MemoryTable(), Tumbling(10)).accept(event(1, key=None))


def test_a_wrong_clock_closes_nothing_and_opens_nothing() -> None:
    table = MemoryTable()
    batch: list[Step] = [event(0), event(500), event(1)]
    verdicts, results = run(table, batch, Tumbling(10), guard=JumpGuard(max_jump_ms=100, policy="drop"))
    assert (verdicts, results) == ([True, False, True], [])
    assert windows_in(results_in(table.rows(), StringValue)) == [(b"k", Span(0, 10), "xx")]


@dataclass
class Naive:
    """The definition: every open window is looked at with every record."""

    windows: Windowing
    lateness_ms: int
    now_ms: int | None = None
    opened: list[tuple[bytes, Span, str]] = field(default_factory=list)

    def step(self, step: Step) -> tuple[list[bool], list[Closed]]:
        moved_to_ms = step if isinstance(step, int) else step.timestamp_ms
        self.now_ms = moved_to_ms if self.now_ms is None else max(self.now_ms, moved_to_ms)
        closed = [one for one in self.opened if self.closes_ms(one[1]) <= self.now_ms]
        closed.sort(key=lambda one: (self.closes_ms(one[1]), one[0], one[1]))
        self.opened = [one for one in self.opened if one not in closed]
        return [] if isinstance(step, int) else [self.fold(step)], closed

    def closes_ms(self, span: Span) -> int:
        if isinstance(self.windows, Sessions):
            return span.end_ms + self.windows.gap_ms + 1 + self.lateness_ms
        return span.end_ms + self.lateness_ms

    def fold(self, record: Record) -> bool:
        assert record.key is not None
        assert self.now_ms is not None
        at_ms, value = record.timestamp_ms, str(record.value)
        if isinstance(self.windows, Sessions):
            gap_ms = self.windows.gap_ms
            found = sorted(
                one
                for one in self.opened
                if one[0] == record.key and one[1].start_ms - gap_ms <= at_ms <= one[1].end_ms + gap_ms
            )
            ends = [at_ms, *(end for _, span, _ in found for end in span)]
            span = Span(min(ends), max(ends))
            if not found and self.closes_ms(span) <= self.now_ms:
                return False
            self.opened = [one for one in self.opened if one not in found]
            self.opened.append((record.key, span, "".join(one[2] for one in found) + value))
            return True
        spans = [span for span in self.windows.spans(at_ms) if self.closes_ms(span) > self.now_ms]
        held = {one[1]: one[2] for one in self.opened if one[0] == record.key}
        self.opened = [one for one in self.opened if one[0] != record.key]
        held |= {span: held.get(span, "") + value for span in spans}
        self.opened += [(record.key, span, value) for span, value in held.items()]
        return bool(spans)


steps = st.one_of(
    st.builds(
        event,
        st.integers(0, 120),
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from([b"", b"a", b"b", b"\xff" * 9]),
    ),
    st.integers(0, 120),
)
batches = st.lists(st.lists(steps, max_size=8), max_size=8)
kinds = st.sampled_from(
    [
        Tumbling(1),
        Tumbling(10),
        Tumbling(70),
        Hopping(10, 3),
        Hopping(70, 30),
        Sessions(0),
        Sessions(4),
        Sessions(30),
    ]
)


def shown_in(rows: Rows) -> dict[bytes, tuple[Span, str, bool]]:
    """The rows that show single windows."""
    found = {}
    for name, content in rows.items():
        if name.startswith(SHOWN):
            (window,) = WindowsRow.FromString(content).windows
            state = StringValue.FromString(window.state).value
            found[name] = Span(window.start_ms, window.start_ms + window.length_ms), state, window.final
    return found


def test_a_window_that_a_longer_lateness_opened_again_is_shown_when_its_final_one_is_forgotten() -> None:
    table = MemoryTable()
    run(table, [event(5, "a"), event(12, "b")], Tumbling(10), retention_ms=20, shown=True)
    assert shown_in(table.rows())[b"vk@0"] == (Span(0, 10), "a", True)
    run(table, [event(6, "c")], Tumbling(10), lateness_ms=100, retention_ms=20, shown=True)
    run(table, [event(31, "d")], Tumbling(10), lateness_ms=100, retention_ms=20, shown=True)
    assert shown_in(table.rows())[b"vk@0"] == (Span(0, 10), "c", False)
    assert not any(name.startswith(b"r") for name in table.rows())


def views_of(retained: list[Closed], opened: list[Closed]) -> dict[bytes, tuple[Span, str, bool]]:
    """What they should be: a row for each window."""
    return {
        b"v%s@%d" % (key, span.start_ms): (span, state, final)
        for final, found in ((True, retained), (False, opened))
        for key, span, state in found
    }


@settings(max_examples=300, deadline=None)
@given(batches, kinds, st.sampled_from([0, 3, 50, 300]), st.sampled_from([0, 7, 200]), st.booleans())
def test_verdicts_and_results_are_those_of_the_definition_in_batches_torn_anywhere(
    lists: list[list[Step]], windows: Windowing, lateness_ms: int, retention_ms: int, shown: bool
) -> None:
    naive = Naive(windows, lateness_ms)
    options: dict[str, Any] = {"lateness_ms": lateness_ms, "retention_ms": retention_ms, "shown": shown}
    rows: Rows = {}
    closed: list[Closed] = []
    with patch.object(clock, "GROUP_RECORDS", 3):
        for batch in lists:
            expected: tuple[list[bool], list[Closed]] = [], []
            for step in batch:
                verdicts, results = naive.step(step)
                expected[0].extend(verdicts)
                expected[1].extend(results)
            assert run(MemoryTable(rows), batch, windows, **options) == expected
            rows = run_with_partial_writes(rows, partial(run, batch=batch, windows=windows, **options))
            closed += expected[1]
            retained = [one for one in closed if naive.closes_ms(one[1]) + retention_ms > (naive.now_ms or 0)]
            assert windows_in(results_in(rows, StringValue)) == sorted(retained + naive.opened)
            assert shown_in(rows) == (views_of(retained, naive.opened) if shown else {})


@pytest.mark.parametrize(
    ("windows", "windows_of_a_key"), [(Tumbling(1_000), 2), (Hopping(1_000, 250), 6), (Sessions(300), 1)]
)
def test_the_bound_holds_for_fifty_windows(windows: Windowing, windows_of_a_key: int) -> None:
    """A key of 20 bytes begins each 25 ms, has a record at its beginning and 250 ms later; 20 batches a second."""
    table = MemoryTable()
    most = 0
    for batch in range(20 * 50):
        stage = stage_on(table, windows, lateness_ms=100)
        for at_ms in range(batch * 50, batch * 50 + 50, 25):
            for age_ms in range(0, 500, 250):
                stage.accept(event(at_ms, "x", b"%020d" % (at_ms - age_ms)))
        stage.take_results()
        stage.finish(0)
        rows = table.rows()
        most = max(most, sum(row.startswith(b"w") for row in rows))
        size = sum(len(row) + len(content) for row, content in rows.items())
        each = 21 + windows_of_a_key * (9 + 20 + 1.5 * (21 + 6))
        assert size <= each * 80 + 64 * 40
    assert 20 < most <= 80


@pytest.mark.parametrize("windows", [Tumbling(10), Hopping(20, 10), Sessions(5)])
def test_the_end_of_the_input_closes_what_stream_time_has_opened_beyond_the_event_time_given(
    windows: Windowing,
) -> None:
    """A window that stays open would never be published, and stream time must not go back."""
    stage = stage_on(MemoryTable(), windows)
    assert stage.accept(event(105)).forward
    stage.close_all(0)
    assert {span for _, span, _ in windows_in(stage.take_results())} == (
        {Span(105, 105)} if isinstance(windows, Sessions) else set(windows.spans(105))
    )
    assert not stage.accept(event(105)).forward


def test_a_session_extended_before_a_batch_ends_at_its_old_moment_closes_at_its_new_one() -> None:
    """It was listed for the moment that was reached, so it has to be listed again."""
    table = MemoryTable()
    batches: list[list[Step]] = [[event(0, "a")], [event(4, "b"), event(6, key=b"l")], [10]]
    results = [run(table, batch, Sessions(5))[1] for batch in batches]
    assert results == [[], [], [(b"k", Span(0, 4), "ab")]]
