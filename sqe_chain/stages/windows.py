"""Windows: fold the values of a key into one state for each window of event time, and emit it when it is final.

    >>> from google.protobuf.wrappers_pb2 import Int64Value
    >>> from sqe_chain.stages.record import Record
    >>> from sqe_chain.stages.table import MemoryTable
    >>> from sqe_chain.stages.windowing import Tumbling
    >>> def add(state: Int64Value, screws: int) -> None:
    ...     state.value += screws
    >>> hours = WindowedAggregate(MemoryTable(), windows=Tumbling(size_ms=3_600_000), state=Int64Value, fold=add)
    >>> for at_ms, screws in ((10, 3), (3_599_999, 4), (3_600_000, 5)):
    ...     verdict = hours.accept(Record(key=b"robot-7", timestamp_ms=at_ms, value=screws))
    >>> [(result.key, result.span, result.state.value) for result in hours.take_results()]
    [(b'robot-7', Span(start_ms=0, end_ms=3600000), 7)]

A stage of windows is put together from three parts that do not know each other:

* the clock: stream time and what is due then, `clock.py`
* the windower: which windows a record lies in, which of them merge, when they close, `windowing.py`
* the fold: what values make of the state of a window, `WindowFold`

`WindowedAggregate` asks them for each record, and keeps windows in rows (`window_rows.py`). `WindowsKind` is what a flow declares.

Source: windowed aggregations of Kafka Streams, with `suppress(untilWindowCloses)`; clock, windower and fold are Bytewax's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from typing import Any, Generic

from sqe_chain._proto.window_result_pb2 import WindowResult
from sqe_chain._proto.windows_pb2 import WindowsRow
from sqe_chain.codecs import Codec
from sqe_chain.codecs.window import key_text, window_of
from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.flow.context import Origin
from sqe_chain.flow.declaration import check_bool, check_duration, check_windows, state_codec
from sqe_chain.flow.event_time import event_ms
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.shapes import check_callable, check_nothing
from sqe_chain.flow.stage_kind import STANDARD, EventTimeSpan, StageTask, StageTraits, StageWork
from sqe_chain.flow.stored import Span, StoredState
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.units import Push, Unit, UnitRun
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.stages.own_values import OwnValues, state_left
from sqe_chain.stages.record import FORWARD, Reason, Record, Verdict, dropped
from sqe_chain.stages.record_work import Given, RecordFunctions, RunWork, context_of, moves_in
from sqe_chain.stages.table import write_row
from sqe_chain.stages.timed_stage import MONTH_GUARD, ExpiringRows, KeyedStage, TimedKind
from sqe_chain.stages.user_code import RunError, guarded
from sqe_chain.stages.window_rows import (
    OPEN,
    RETAINED,
    SHOWN,
    OpenWindow,
    Result,
    ShownWindows,
    State,
    key_of_shown,
    results_of,
    retained_row,
    windows_in,
    windows_row,
)
from sqe_chain.stages.windowing import Sessions, Windowing, windower_of


class WindowFold(Generic[State]):
    """What values make of the state of a window. It changes copies, so that a fold or merge that fails changes nothing.

    Args:
        codec: of states.
        fold: see `WindowedAggregate`.
        merge: see `WindowedAggregate`; None: windows that do not merge.
    """

    def __init__(
        self,
        codec: Codec[State],
        fold: Callable[[State, Any], object],
        merge: Callable[[State, State], object] | None,
    ) -> None:
        self._codec, self._fold, self._merge = codec, fold, merge

    def folded(self, held: Sequence[OpenWindow[State]], value: object) -> State:
        """The state of one window, with one more value.

        Args:
            held: the open windows that it is made of, in the order of their beginnings; none: it is a new one.
            value: the value.
        """
        codec = self._codec
        state = codec.copy(held[0].state) if held else codec.new()
        if len(held) > 1:
            state = self._merged(state, held[1:])
        check_nothing("fold", self._fold, self._fold(state, value))
        return self.left(state)

    def left(self, state: State) -> State:
        """The state that a fold has left, as it is stored.

        Raises:
            PoisonError: it cannot be stored.
        """
        left: State = state_left(self._codec, state, "the fold of a window")
        return left

    def _merged(self, state: State, others: Sequence[OpenWindow[State]]) -> State:
        merge = self._merge
        if merge is None:
            raise AssertionError("windows of a fixed size do not merge")
        for later in others:
            check_nothing("merge", merge, merge(state, later.state))
        # It may have taken parts of a later state, which has to stay as it is if the fold fails.
        return self._codec.copy(state)


class WindowedAggregate(KeyedStage[Result], Generic[State]):
    """Fold records into windows; a window closes, once, when stream time passes its end plus the lateness.

    Guarantees, for one state partition:

    * A record is folded into every open window that it lies in. It is late, and dropped, if all of them were
      closed before. No record joins a closed session.
    * Results are final, and are available after the record (or `advance`) that moved stream time. Their order is that of
      the moments at which they close, then of keys, then of beginnings.
    * How the records are divided into batches changes neither verdicts nor results.
    * A batch that fails gives its results again. In a redo after a crash between two chunks of writing they may differ, for a
      window that was written is not folded again. By then everything was published.

    Bound: one row for each key with an open window. Each open window (at most (size + lateness) / advance + 1; for sessions
    lateness / gap + 2) takes its state and about 20 bytes. The time index has the key and about 6 bytes. Each retained window
    has a row with its state, the key twice, and about 40 bytes.

    Args:
        windows: their kind.
        state: type of the state, or its codec; a new window begins with ``state()``.
        fold: changes a state by a value, (state, value) -> None. When it raises, the record is in no window.
        merge: for sessions: changes the state of an earlier session by that of a later one, (state, later) -> None.
        lateness_ms: how long stream time may be past the end of a window that still takes records; 0 to 10**15.
        retention_ms: how long, in stream time, a closed window can still be read (`results_in`); 0 to 10**15.
        shown: also keep each window, open or retained, in a row of its own, for views: ``v``, its key, ``@`` and its
            beginning in milliseconds.
        others: as for `TimedStage`.

    Attributes:
        record: the current record; None before the first.
        missed: how many late records were not in all of their windows.
        changed: windows that the batch has opened or changed -> the record that did so last; None: not wanted.
    """

    row_prefix = OPEN
    keeps = "windows are kept by key"

    def __init__(  # noqa: PLR0913 - settings, each with its name
        self,
        table: RowTable,
        *,
        windows: Windowing,
        state: type[State] | Codec[State],
        fold: Callable[[State, Any], object],
        merge: Callable[[State, State], object] | None = None,
        lateness_ms: int = 0,
        retention_ms: int = 0,
        guard: JumpGuard | None = MONTH_GUARD,
        clock_ms: int | None = None,
        shown: bool = False,
    ) -> None:
        where = type(self).__name__
        check_windows(windows, where, overlap=True)
        check_duration("lateness_ms", lateness_ms, where)
        check_duration("retention_ms", retention_ms, where)
        check_callable("fold", fold, where, "nothing")
        if isinstance(windows, Sessions) or merge is not None:
            check_callable("merge", merge, where, "nothing")
        check_bool("shown", shown, where)
        self._windower = windower = windower_of(windows, lateness_ms)
        super().__init__(
            table,
            guard,
            bucket_ms=windower.bucket_ms,
            phase_ms=windower.phase_ms,
            exact=True,
            clock_ms=clock_ms,
        )
        self.record: Record | None = None
        self.changed: dict[tuple[bytes, Span], Record] | None = None
        self._values = OwnValues("a stream")
        self._codec = state if isinstance(state, Codec) else state_codec(where, state, None, where)
        self._fold = WindowFold(self._codec, fold, merge)
        self._retention_ms = retention_ms
        self._expiring = ExpiringRows(
            table,
            self._timetable,
            decode=lambda content: windows_in(content, self._codec),
            encode=lambda opened: windows_row(opened, self._codec),
            end_of=lambda window: windower.closes_ms(window.span),
            gives=True,
        )
        # All of these are of one batch, and empty between two.
        # Rows that were due. Invariant: what of their windows stream time has closed is among the results.
        self._due: set[bytes] = set()
        # Row of a window that is final and kept -> when it is kept no longer, and its content.
        self._closed: dict[bytes, tuple[int, bytes]] = {}
        # Span -> key -> its window, while `fold_run` changes it. Invariant: all of them are open.
        self._in_use: dict[Span, dict[bytes, OpenWindow[State]]] = {}
        self._views = ShownWindows(table, self._codec) if shown else None
        # Place of late records; None: nobody asks which of them miss windows.
        self._late_ms: int | None = None
        self.missed = 0

    def note_missed(self, late_ms: int | None) -> None:
        """Count in `missed` which records of this place miss windows: in time they would have been in all of them."""
        self._late_ms = late_ms

    def accept(self, record: Record) -> Verdict:
        """Close what the record's event time closes, then fold it; see `take_results`.

        Raises:
            PoisonError: it has no key; or it is too far ahead, and the guard's policy is `stop`.
            Exception: whatever `fold` or `merge` raises. The record is then in no window, but has moved stream time.
        """
        self.record = record
        row = self._row(record)
        settled = self._table.settled(row)
        if not settled:
            self._expiring.all_at(row)  # reading a row reminds of what is due in it
        # Before the fold: a record that moves stream time must not get into a window that it closes.
        _, refused = self._moved(record)
        if refused is not None:
            return refused
        if settled:  # an earlier attempt wrote it: to fold again would count twice
            return FORWARD
        now_ms = self._timetable.time.now_ms
        if now_ms is None:
            raise AssertionError("the record has moved stream time")
        if self._fold_into(row, record, now_ms):
            return FORWARD
        closed = f"was closed at stream time {now_ms} ms"
        return dropped(Reason.LATE, f"every window of event time {record.timestamp_ms} ms {closed}")

    def fold_run(
        self,
        fold: Callable[[Any, Any], object],
        keys: Sequence[bytes | None],
        values: Sequence[object],
        times_ms: Sequence[int],
        begin: int,
        moves_ms: Sequence[int] | None = None,
        *,
        placed: bool = False,
    ) -> int:
        """Fold records as `accept` does, from an index on, for as long as each of them only changes one open window.

        It costs a small part of `accept`, but changes states without copies, so the batch is worth nothing when a fold raises. Not for sessions
        or windows that overlap.

        Args:
            fold: see `WindowedAggregate`.
            keys: of the records.
            values: of the records.
            times_ms: their event times.
            begin: the index of the first.
            moves_ms: what moves stream time; `NEVER`: the record needs `accept`. None: their times do.
            placed: they have places in the order of times.

        Returns:
            The index of the first record that needs `accept`; the number of records if none does.

        Raises:
            RunError: `fold` has raised, or has left a state that cannot be stored.
        """
        timetable, moves_ms = self._timetable, moves_ms or times_ms
        now_ms, limit_ms = timetable.time.now_ms, timetable.ordinary_until_ms
        index = begin - 1
        start_ms = end_ms = 0
        opened: dict[bytes, OpenWindow[State]] = {}
        checks = not self._codec.self_checking
        if now_ms is None:
            return begin
        for index in range(begin, len(keys)):
            at_ms, to_ms = times_ms[index], moves_ms[index]
            if to_ms >= limit_ms:
                break
            if not start_ms <= at_ms < end_ms:
                span = self._open_span(at_ms, now_ms)
                if span is None:
                    break
                (start_ms, end_ms), limit_ms = span, min(limit_ms, self._windower.closes_ms(span))
                opened = self._in_use.setdefault(span, {})
            key: Any = keys[index]
            window = opened.get(key) or self._use(key, Span(start_ms, end_ms), limit_ms)
            if window is None:
                break
            try:
                if (given := fold(window.state, values[index])) is not None or checks:
                    check_nothing("fold", fold, given)
                    window.state = self._fold.left(window.state)
            except Exception as error:
                raise RunError(error, index) from error
            if to_ms > now_ms:  # noqa: PLR1730 - max() costs as much as half of the rest of the loop
                now_ms = to_ms
        else:
            index += 1
        timetable.observe_run(index - begin, now_ms, placed=placed)
        return index

    def still_open(self, key: bytes, span: Span) -> Result | None:
        """A window as it is now; None if it is not open."""
        windows = self._expiring.at(OPEN + key)
        return next((Result(key, span, window.state) for window in windows if window.span == span), None)

    def close_all(self, event_ms: int, *, early: bool = False) -> None:
        """Close every open window: those in which a record up to a moment, or up to stream time, can lie.

        Args:
            event_ms: the moment; the same in all state partitions, so that they agree on what is late from now on.
            early: also those that records with times of their own have opened beyond it. Then what is late from now on, within
                these windows, depends on the windows that this state partition had.
        """
        now_ms = self._timetable.time.now_ms
        # At the end of all input, stream time may be one beyond the latest: a window that begins there has none of it.
        latest_ms = event_ms if now_ms is None or now_ms == event_ms + 1 else max(now_ms, event_ms)
        self.advance(self._windower.last_close_ms(latest_ms))
        # What is left was listed for a later moment, when more lateness was declared.
        rows = [row for row in self._timetable.listed_rows() if row.startswith(OPEN)]
        self._table.load(rows)
        for row in rows:
            self._expiring.all_at(row)  # reading a row reminds of what is due in it
        self._do_due()
        if early:
            windows = chain.from_iterable(map(self._expiring.all_at, rows))
            self.advance(
                max((self._windower.closes_ms(window.span) for window in windows), default=latest_ms)
            )

    def finish(self, now_ms: int) -> None:
        stream_time_ms = self._timetable.time.now_ms
        retained: dict[bytes, bytes] = {}
        for row, (end_ms, content) in sorted(self._closed.items()):
            if stream_time_ms is None or end_ms > stream_time_ms:
                retained[row] = content
                self._table.put(row, content)
                self._timetable.file(row, end_ms)
        expired = [row for row in sorted(self._due) if row.startswith(RETAINED)]
        if self._views is not None:
            self._views.finish(self._expiring.at, retained, expired)
        for row in expired:
            write_row(self._table, row, None)
        self._expiring.finish(row for row in self._due if row.startswith(OPEN))
        super().finish(now_ms)
        self._due.clear()
        self._closed.clear()
        self._in_use.clear()

    def _fold_into(self, row: bytes, record: Record, now_ms: int) -> bool:
        """Fold a record into each window that it lies in and that takes it; False if there is none."""
        opened = self._expiring.all_at(row)
        if self._late_ms is not None and record.place_ms == self._late_ms:
            self.missed += self._windower.may_have_closed(record.timestamp_ms, now_ms)
        places = self._windower.places(opened, record.timestamp_ms, now_ms)
        if not places:
            return False
        states = []
        for _, held in places:
            # Each window folds a value of its own.
            value = record.value if len(places) == 1 else self._values.read_back(record.value)
            states.append(self._fold.folded(held, value))
        # Only after all folds have succeeded: a record that fails is in none of its windows.
        fresh: list[OpenWindow[State]] = []
        merged: list[OpenWindow[State]] = []
        for (span, held), state in zip(places, states, strict=True):
            self._note_changed(record.key, span, held)
            if not held:
                fresh.append(self._opened(row, span, state))
                continue
            # Sessions that merge go on as the last one, whose listing is the latest.
            window = held[-1]
            window.span, window.state = span, state
            if len(held) > 1:
                merged += held[:-1]
        if merged or fresh:
            opened = [window for window in opened if window not in merged] + fresh
        self._expiring.replace(row, opened)
        return True

    def _open_span(self, at_ms: int, now_ms: int) -> Span | None:
        """The only window of a record; None where `accept` has to look at the record."""
        try:
            (span,) = self._windower.spans(at_ms)
        except PoisonError:
            return None
        return span if self._windower.closes_ms(span) > now_ms else None

    def _use(self, key: bytes | None, span: Span, limit_ms: int) -> OpenWindow[State] | None:
        """An open window, which may be new, ready to be changed; None where `accept` has to look at the record.

        Args:
            key: its key.
            span: its beginning and end.
            limit_ms: up to where stream time moves before anything is looked up in the timetable again.
        """
        if key is None or self._table.settled(row := OPEN + key):
            return None
        windows = self._expiring.all_at(row)
        # It was listed for a later moment, when more lateness was declared.
        if any(self._windower.closes_ms(window.span) < limit_ms for window in windows):
            return None
        used = next((window for window in windows if window.span == span), None)
        if used is None:
            used = self._opened(row, span, self._codec.new())
            windows = [*windows, used]
        self._note_changed(key, span)
        self._expiring.replace(row, windows)
        self._in_use[span][key] = used
        return used

    def _opened(self, row: bytes, span: Span, state: State) -> OpenWindow[State]:
        at_ms = self._windower.closes_ms(span)
        self._timetable.remind(row, at_ms)
        return OpenWindow(span, state, None, at_ms)

    def _do_due(self) -> None:
        # A reminder names a row, and each window in it is judged by its own span. So what a merged session has left does nothing.
        for due_ms, row in self._take_due():
            self._due.add(row)
            if row.startswith(OPEN):
                self._close(row, due_ms)

    def _close(self, row: bytes, due_ms: int) -> None:
        """Close the windows of a key that end now; list those again that were extended."""
        kept: list[OpenWindow[State]] = []
        windows = self._expiring.all_at(row)
        for window in sorted(windows, key=lambda window: window.span):
            at_ms = self._windower.closes_ms(window.span)
            if at_ms <= due_ms:
                self._in_use.pop(window.span, None)  # its windows close together
                self._give(row[len(OPEN) :], window, at_ms)
                continue
            kept.append(window)
            if window.reminded_ms <= due_ms:
                window.reminded_ms = at_ms
                self._timetable.remind(row, at_ms)
        if len(kept) < len(windows):
            self._expiring.replace(row, kept)

    def _give(self, key: bytes, window: OpenWindow[State], at_ms: int) -> None:
        self._results.append(Result(key, window.span, window.state))
        self._note_changed(key, window.span)
        if self._retention_ms:
            row = retained_row(key, window.span)
            self._closed[row] = at_ms + self._retention_ms, windows_row([window], self._codec)

    def _note_changed(self, key: bytes | None, span: Span, held: Sequence[OpenWindow[State]] = ()) -> None:
        """Note a window that has changed, and those that it is made of, which may be no more."""
        if key is None or (self.changed is None and self._views is None):
            return
        for changed in (*[window.span for window in held], span):
            # Without a record, a heartbeat closes the window: what is closed is no early result.
            if self.changed is not None and self.record is not None:
                self.changed[key, changed] = self.record
            if self._views is not None:
                self._views.touch(key, changed)


@dataclass(frozen=True)
class WindowsKind(TimedKind[WindowedAggregate[Any]]):
    """The kind of `windowed`."""

    name = "windows"

    windows: Any
    states: Codec[Any]
    fold: DeclaredFunction
    merge: DeclaredFunction | None = None
    lateness_ms: int = 0
    late: Any = "drop"
    retention_ms: int = 0
    beats: DeclaredFunction | None = None
    guard: Any = STANDARD
    shown: bool = False
    time: DeclaredFunction | None = None

    @property
    def codec(self) -> Codec[Any]:
        return self.states

    @property
    def traits(self) -> StageTraits:
        # Only a stage that is declared with a view keeps a row for each window; retained ones can be read
        return StageTraits(
            method="windowed",
            called="filter",
            order="times",
            heartbeat=self.beats,
            guard=self.time_guard,
            gives_outputs=True,
            has_views=self.shown,
            falls_due=True,
            windowed=True,
            sides=("dropped", "changes"),
            may_be_last=bool(self.retention_ms),
            own_times=self.own_times,
        )

    def check(self, where: str, *, dead_letters: bool) -> None:
        if check_windows(self.windows, where, overlap=True).merges and self.merge is None:
            raise FlowError(
                f"{where}: sessions need merge=: a record between two sessions merges their states"
            )
        if self.merge is not None and self.merge.takes_context:
            raise FlowError(f"{where}: merge must take 2 argument(s), and no context")
        super().check(where, dead_letters=dead_letters)

    @property
    def only_folds(self) -> bool:
        """Whether a value does nothing but change the state of one window, so that it needs no record around it."""
        fixed = not (self.windows.overlap or self.windows.merges)
        plain = not any(function.takes_context for function in self.functions)
        guard, refuses = self.time_guard, False
        if self.time is not None and guard is not None:
            refuses = guard.policy != "hold"  # it judges each record
        return fixed and plain and not refuses and self.beats is None

    def start(self, task: StageTask) -> StageWork:
        return WindowsWork(self, task)

    def begin(self, stage: WindowedAggregate[Any], event_time: EventTimeSpan) -> None:
        super().begin(stage, event_time)
        stage.note_missed(event_time.late_ms)

    def stage(
        self, table: RowTable, functions: RecordFunctions, clock_ms: int | None
    ) -> WindowedAggregate[Any]:
        call: Callable[..., Any] = guarded(self.fold.function)

        @wraps(call)
        def fold_in_context(state: object, value: object) -> object:
            if windows.record is None:
                raise AssertionError("a fold is called for a record")
            context = context_of(windows.record, functions.now_ms)
            given = call(state, value, context)
            if context.state_deleted:
                raise PoisonError(
                    f"stage {functions.name!r}: delete_state() is not for windows: a window's state ends with the window"
                )
            return given

        windows: WindowedAggregate[Any] = WindowedAggregate(
            table,
            windows=self.windows,
            state=self.states,
            fold=fold_in_context if self.fold.takes_context else call,
            merge=None if self.merge is None else guarded(self.merge.function),
            lateness_ms=self.lateness_ms,
            retention_ms=self.retention_ms,
            shown=self.shown,
            **self.timing(clock_ms),
        )
        return windows

    def outputs(self, stage: WindowedAggregate[Any]) -> Iterable[Given]:
        """The windows that have become final, with the moment at which they did."""
        moments = stage.moments
        return (
            Given(
                result.key,
                self.value_of(result),
                "the window from {} to {} ms".format(*result.span),
                moments.get(index),
            )
            for index, result in enumerate(stage.take_results())
        )

    def value_of(self, result: Result) -> object:
        """A value of the flow's kind: JSON with its state, or the message for states in any other form."""
        key, (start_ms, end_ms), state = result
        if self.states.name == "json":
            return window_of(self.states.python_type)(key_text(key), start_ms, end_ms, state)
        encoded = self.states.encode(state)
        return WindowResult(
            key=key, start_ms=start_ms, end_ms=end_ms, type=self.states.type_name, state=encoded
        )

    def close(self, stage: WindowedAggregate[Any], event_ms: int) -> None:
        stage.close_all(event_ms, early=self.time is not None)

    def states_in(self, row: bytes, content: bytes) -> Iterable[StoredState]:
        # Each open window, and each final one that is retained
        final = row.startswith(RETAINED)
        for key, span, state in results_of(row, content, self.states):
            yield StoredState(key, state, span, final)

    def shown_in(self, row: bytes, content: bytes) -> Mapping[str, object] | None:
        # Each window that has a row of its own, as results in topics have it, and whether it is final
        if not row.startswith(SHOWN):
            return None
        (window,) = WindowsRow.FromString(content).windows
        return {
            "key": key_text(key_of_shown(row)),
            "start_ms": window.start_ms,
            "end_ms": window.start_ms + window.length_ms,
            "final": window.final,
            "state": self.states.to_view(self.states.decode(window.state)),
        }


class WindowsWork(RunWork):
    """The work of windows: record by record, or in runs where values are only folded."""

    rows = OPEN

    def __init__(self, kind: WindowsKind, task: StageTask) -> None:
        super().__init__(kind, task)
        self._declared = kind
        # Runs change states without copies: not where an input may be taken back. They note no records: not for early results.
        self._in_runs = kind.only_folds and not (task.reversible or task.changes)
        if task.changes:
            self._stage.changed = {}
        # Each window that the batch has changed and that is open at its end, with the input that changed it last.
        self._early: list[tuple[Origin, Result]] = []

    def apply(self, units: Sequence[Unit]) -> None:
        if not self._in_runs:
            super().apply(units)
            return
        run = UnitRun.of(units)
        self._load(run)
        # The user's own function: a fold that fails ends the attempt, so nobody has to know whose error it was.
        times_ms, (moves_ms, placed) = run.times_ms, moves_in(run)
        if self._declared.time is not None:
            times_ms, moves_ms = self._own_times(run, self._declared.time), run.orders_ms
        if not times_ms:  # it fails on its record
            super().apply(run)
            return
        index, fold_run, fold = 0, self._stage.fold_run, self._declared.fold.function
        while index < len(run):  # each turn takes one unit at least
            try:
                index = fold_run(fold, run.keys, run.values, times_ms, index, moves_ms, placed=placed)
            except RunError as error:
                self._stop(run, error.index, error)
            if index < len(run):
                super().apply((run[index],))
                index += 1

    @property
    def missed(self) -> int:
        missed: int = self._stage.missed
        return missed

    def finish(self) -> None:
        for (key, span), record in (self._stage.changed or {}).items():
            result = self._stage.still_open(key, span)
            if result is not None:
                self._early.append((record.unit[4], result))
        super().finish()

    def _own_times(self, run: UnitRun, time: DeclaredFunction) -> list[int]:
        """The times of the values of a run; none where they have to be looked at one by one."""
        call = time.function
        if min(run.orders_ms) < 0:
            return []
        try:
            return [event_ms(call(value)) for value in run.values]
        except Exception:  # noqa: BLE001 - user code may raise anything
            return []

    def push_changes(self, push: Push) -> None:
        """Pass early results to the operators after `changes()`, in the order (last input that changed it, key, window)."""
        for origin, result in sorted(
            self._early, key=lambda early: (early[0].order, early[0].tp.topic_id, *early[1][:2])
        ):
            push(self._declared.value_of(result), result.key, b"", origin)
