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

Beside it: shapes and spans of windows, `windowing.py`; their rows, `window_rows.py`; when they close, `timetable.py`; what a
stage of windows gives and reads, `window_kind.py`.

Source: windowed aggregations of Kafka Streams, with `suppress(untilWindowCloses)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from sqe_chain.codecs import Codec
from sqe_chain.errors import PoisonError
from sqe_chain.flow.declaration import check_bool, check_duration, check_windows, state_codec
from sqe_chain.flow.shapes import check_callable, check_nothing
from sqe_chain.flow.stored import Span
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.live_rows import ExpiringRows
from sqe_chain.stages.own_values import OwnValues, state_left
from sqe_chain.stages.record import FORWARD, Reason, Record, Verdict, dropped
from sqe_chain.stages.stream_time import JumpGuard
from sqe_chain.stages.table import write_row
from sqe_chain.stages.timed_stage import MONTH_GUARD, KeyedStage
from sqe_chain.stages.user_code import RunError
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
from sqe_chain.stages.windowing import Sessions, Windowing, bucket_of, closes_ms, joined, touching


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
        bucket_ms, phase_ms = bucket_of(windows, lateness_ms)
        super().__init__(table, guard, bucket_ms=bucket_ms, phase_ms=phase_ms, exact=True, clock_ms=clock_ms)
        self.record: Record | None = None
        self.changed: dict[tuple[bytes, Span], Record] | None = None
        self._values = OwnValues("a stream")
        self._windows = windows
        self._codec = state if isinstance(state, Codec) else state_codec(where, state, None, where)
        self._fold = fold
        self._merge = merge
        self._retention_ms = retention_ms
        self._expiring = ExpiringRows(
            table,
            self._timetable,
            decode=lambda content: windows_in(content, self._codec),
            encode=lambda opened: windows_row(opened, self._codec),
            end_of=lambda window: self._closes(window.span),
        )
        self._due: set[bytes] = set()
        self._closed: dict[bytes, tuple[int, bytes]] = {}
        self._views = ShownWindows(table, self._codec) if shown else None
        self._spans: Any = getattr(windows, "spans", None)
        self._after_end_ms = closes_ms(windows, Span(0, 0), lateness_ms)
        self._in_use: dict[Span, dict[bytes, OpenWindow[State]]] = {}

    def accept(self, record: Record) -> Verdict:
        """Close what the record's event time closes, then fold it; see `take_results`.

        Raises:
            PoisonError: it has no key; or it is too far ahead, and the guard's policy is `stop`.
            Exception: whatever `fold` or `merge` raises. The record is then in no window, but has moved stream time.
        """
        self.record = record
        row = self._row(record)
        # Before the fold: a record that moves stream time must not get into a window that it closes.
        _, refused = self._moved(record)
        if refused is not None:
            return refused
        if self._table.settled(row):  # an earlier attempt wrote it: to fold again would count twice
            return FORWARD
        into = self._into_session if isinstance(self._windows, Sessions) else self._into_all
        if into(row, record):
            return FORWARD
        closed = f"was closed at stream time {self.stream_time_ms} ms"
        return dropped(Reason.LATE, f"every window of event time {record.timestamp_ms} ms {closed}")

    def fold_run(
        self,
        fold: Callable[[Any, Any], object],
        keys: Sequence[bytes | None],
        values: Sequence[object],
        times_ms: Sequence[int],
        begin: int,
    ) -> int:
        """Fold records as `accept` does, from an index on, for as long as each of them only changes one open window.

        It costs a small part of `accept`, but changes states without copies, so the batch is worth nothing when a fold raises. Not for sessions,
        windows that overlap, or states that have to be checked.

        Returns the index of the first record that needs `accept`; the number of records if none does.

        Raises:
            RunError: `fold` has raised.
        """
        timetable = self._timetable
        now_ms, limit_ms = timetable.time.now_ms, timetable.ordinary_until_ms
        index = begin - 1
        start_ms = end_ms = 0
        opened: dict[bytes, OpenWindow[State]] = {}
        if now_ms is None:
            return begin
        for index in range(begin, len(keys)):
            at_ms = times_ms[index]
            if at_ms >= limit_ms:
                break
            if not start_ms <= at_ms < end_ms:
                span = self._only_span(at_ms)
                if span is None or self._closes(span) <= now_ms:
                    break
                (start_ms, end_ms), limit_ms = span, min(limit_ms, self._closes(span))
                opened = self._in_use.setdefault(span, {})
            key: Any = keys[index]
            window = opened.get(key) or self._use(key, Span(start_ms, end_ms))
            if window is None:
                break
            try:
                if (given := fold(window.state, values[index])) is not None:
                    check_nothing("fold", fold, given)
            except Exception as error:
                raise RunError(error, index) from error
            if at_ms > now_ms:  # noqa: PLR1730 - max() costs as much as half of the rest of the loop
                now_ms = at_ms
        else:
            index += 1
        timetable.observe_run(index - begin, now_ms)
        return index

    def still_open(self, key: bytes, span: Span) -> Result | None:
        """A window as it is now; None if it is not open."""
        windows = self._expiring.at(OPEN + key)
        return next((Result(key, span, window.state) for window in windows if window.span == span), None)

    def close_all(self, event_ms: int) -> None:
        """Close every open window: those in which a record up to a moment, or up to stream time, can lie.

        Args:
            event_ms: the moment; the same in all state partitions, so that they agree on what is late from now on.
        """
        now_ms = self._timetable.time.now_ms
        latest_ms = event_ms if now_ms is None else max(now_ms, event_ms)
        self.advance(self._last_moment(latest_ms))

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

    def _into_all(self, row: bytes, record: Record) -> bool:
        """Fold a record into each of its open windows; False if none is open."""
        now_ms = self._timetable.time.now_ms
        if now_ms is None or isinstance(self._windows, Sessions):
            raise AssertionError("asked for windows of a fixed size, after a record was observed")
        held = {window.span: window for window in self._expiring.all_at(row)}
        folded: dict[Span, State] = {}
        spans = [span for span in self._windows.spans(record.timestamp_ms) if self._closes(span) > now_ms]
        for span in spans:
            # Each window folds a value of its own.
            value = record.value if len(spans) == 1 else self._values.read_back(record.value)
            folded[span] = self._folded(held[span].state if span in held else None, value)
        # Only after all folds have succeeded: a record that fails is in none of its windows.
        for span, state in folded.items():
            self._note_changed(record.key, span)
            if span in held:
                held[span].state = state
            else:
                held[span] = self._opened(row, span, state)
        if folded:
            self._expiring.replace(row, list(held.values()))
        return bool(folded)

    def _into_session(self, row: bytes, record: Record) -> bool:
        """Fold a record into its session, merging two if it lies between them; False if the session was closed."""
        now_ms = self._timetable.time.now_ms
        if now_ms is None or not isinstance(self._windows, Sessions) or self._merge is None:
            raise AssertionError("asked for sessions, after a record was observed")
        opened = self._expiring.at(row)
        touched = touching(opened, record.timestamp_ms, self._windows.gap_ms)
        span = joined(touched, record.timestamp_ms)
        if self._closes(span) <= now_ms:
            return False
        # At most two: open sessions of a key are more than a gap apart. The earlier one's state takes the later one's.
        state: State | None = None
        for window in touched:
            if state is None:
                state = self._codec.copy(window.state)
            else:
                check_nothing("merge", self._merge, self._merge(state, window.state))
        state = self._folded(state, record.value)
        for old in (*(window.span for window in touched), span):
            self._note_changed(record.key, old)
        session = self._opened(row, span, state) if not touched else touched[-1]
        session.span, session.state = span, state
        self._expiring.replace(row, [window for window in opened if window not in touched] + [session])
        return True

    def _last_moment(self, latest_ms: int) -> int:
        """When the last window closes that a record of this time lies in."""
        if isinstance(self._windows, Sessions):
            return self._closes(Span(latest_ms, latest_ms))
        try:
            return max((self._closes(span) for span in self._windows.spans(latest_ms)), default=latest_ms)
        except PoisonError:  # beyond the calendar, hence beyond all its windows
            return latest_ms

    def _only_span(self, at_ms: int) -> Span | None:
        """The window of a record where windows do not overlap; None where the calendar ends."""
        try:
            (span,) = self._spans(at_ms)
        except PoisonError:
            return None
        return Span(*span)

    def _use(self, key: bytes | None, span: Span) -> OpenWindow[State] | None:
        """An open window, which may be new, ready to be changed; None where `accept` has to look at the record."""
        if key is None or self._table.settled(row := OPEN + key):
            return None
        windows = self._expiring.all_at(row)
        used = next((window for window in windows if window.span == span), None)
        if used is None:
            used = self._opened(row, span, self._codec.new())
            windows = [*windows, used]
        self._note_changed(key, span)
        self._expiring.replace(row, windows)
        self._in_use[span][key] = used
        return used

    def _opened(self, row: bytes, span: Span, state: State) -> OpenWindow[State]:
        at_ms = self._closes(span)
        self._timetable.remind(row, at_ms)
        return OpenWindow(span, state, None, at_ms)

    def _folded(self, state: State | None, value: object) -> State:
        """Fold into a copy, so that a fold that fails changes nothing."""
        codec = self._codec
        changed = codec.new() if state is None else codec.copy(state)
        check_nothing("fold", self._fold, self._fold(changed, value))
        left: State = state_left(codec, changed, "the fold of a window")
        return left

    def _do_due(self) -> None:
        # A reminder names a row, and each window in it is judged by its own span. So what a merged session has left does nothing.
        for due_ms, row in self._timetable.take_due():
            self._due.add(row)
            if row.startswith(OPEN):
                self._close(row, due_ms)

    def _close(self, row: bytes, due_ms: int) -> None:
        """Close the windows of a key that end now; list those again that were extended."""
        kept: list[OpenWindow[State]] = []
        windows = self._expiring.all_at(row)
        for window in sorted(windows, key=lambda window: window.span):
            at_ms = self._closes(window.span)
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

    def _note_changed(self, key: bytes | None, span: Span) -> None:
        # Without a record, a heartbeat closes the window: what is closed is no early result.
        if self.changed is not None and key is not None and self.record is not None:
            self.changed[key, span] = self.record
        if self._views is not None and key is not None:
            self._views.touch(key, span)

    def _closes(self, span: Span) -> int:
        return span.end_ms + self._after_end_ms
