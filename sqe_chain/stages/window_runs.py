"""Windows by runs: values that only change the state of one open window each are folded without a record around them.

It is the fast path of `windows.py`. What it cannot decide by itself it leaves to `WindowedAggregate.accept`, so both give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqe_chain.codecs import Codec
from sqe_chain.errors import PoisonError
from sqe_chain.flow.shapes import check_nothing
from sqe_chain.flow.stored import Span
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.user_code import RunError
from sqe_chain.stages.window_rows import OPEN, OpenWindow, State
from sqe_chain.stages.windows import WindowedAggregate


class WindowRuns(WindowedAggregate[State]):
    """`WindowedAggregate`, with the same arguments, which also folds runs of records."""

    def __init__(self, table: RowTable, *, state: type[State] | Codec[State], **settings: Any) -> None:  # noqa: ANN401 - see `WindowedAggregate`
        super().__init__(table, state=state, **settings)
        # Span -> key -> its window, while `fold_run` changes it. Invariant: all of them are open; empty between two batches.
        self._in_use: dict[Span, dict[bytes, OpenWindow[State]]] = {}

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

        It costs a small part of `accept`, but changes states without copies, so nothing of the batch may be used when a fold raises. Not for sessions
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
                # The record itself moves stream time, before it is folded: it may close its own window.
                span = self._open_span(at_ms, max(now_ms, to_ms))
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

    def finish(self, now_ms: int) -> None:
        super().finish(now_ms)
        self._in_use.clear()

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

    def _give(self, key: bytes, window: OpenWindow[State], at_ms: int) -> None:
        self._in_use.pop(window.span, None)  # its windows close together
        super()._give(key, window, at_ms)
