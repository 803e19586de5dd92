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

`WindowedAggregate` asks them for each record, and keeps windows in rows (`window_rows.py`). What a flow declares is in
`windowed.py`; runs of values that are only folded, in `window_runs.py`.

Source: windowed aggregations of Kafka Streams, with `suppress(untilWindowCloses)`; clock, windower and fold are Bytewax's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Generic

from sqe_chain.codecs import Codec
from sqe_chain.flow.declaration import check_bool, check_duration, check_windows, state_codec
from sqe_chain.flow.shapes import check_callable, check_nothing
from sqe_chain.flow.stored import Span
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.stages.own_values import OwnValues, state_left
from sqe_chain.stages.record import FORWARD, Reason, Record, Verdict, dropped
from sqe_chain.stages.table import write_row
from sqe_chain.stages.timed_stage import MONTH_GUARD, ExpiringRows, KeyedStage
from sqe_chain.stages.window_rows import (
    OPEN,
    RETAINED,
    OpenWindow,
    Result,
    ShownWindows,
    State,
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
        # An older version may have left stream time one beyond the latest: a window that begins there has none of it.
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
