"""A row of its own for each window, so that programs that read the store find it by key and beginning (`view=`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sqe_chain._proto.windows_pb2 import WindowsRow
from sqe_chain.codecs import Codec
from sqe_chain.flow.stored import Span
from sqe_chain.flow.table import Table
from sqe_chain.stages.window_rows import OPEN, OpenWindow, retained_in

SHOWN: Final = b"v"
"""Between the other two, because they are made of open windows: what a row becomes may depend on later names only."""


def shown_row(key: bytes, start_ms: int) -> bytes:
    """The name of the row that shows a window.

    >>> shown_row(b"robot-7", 3_600_000)
    b'vrobot-7@3600000'
    """
    return SHOWN + key + b"@%d" % start_ms


def key_of_shown(row: bytes) -> bytes:
    """The key in the name of such a row."""
    return row[len(SHOWN) :].rpartition(b"@")[0]


class ShownWindows:
    """The rows that show windows, while a batch runs.

    A row shows its window as it is at the end of the last batch that changed it, and is deleted with the window: when it
    is final, or no longer retained, or has become part of another session.

    Args:
        table: the stage's rows.
        codec: of the states.
    """

    def __init__(self, table: Table, codec: Codec[Any]) -> None:
        self._table = table
        self._codec = codec
        self._touched: defaultdict[bytes, set[int]] = defaultdict(set)

    def touch(self, key: bytes, span: Span) -> None:
        """Note that a window was opened, changed or closed, or is a part of another session now."""
        self._touched[key].add(span.start_ms)

    def finish(
        self,
        opened: Callable[[bytes], Iterable[OpenWindow[Any]]],
        retained: Mapping[bytes, bytes],
        expired: Iterable[bytes],
    ) -> None:
        """Write the rows of windows that were touched; at the end of the batch, before open windows are written.

        Args:
            opened: row of a key -> its open windows.
            retained: rows of windows that have become final in this batch and are kept, with their contents.
            expired: rows of final windows that are kept no longer.
        """
        wanted: dict[bytes, bytes | None] = {}
        for key, starts in self._touched.items():
            wanted |= {shown_row(key, start_ms): None for start_ms in starts}
            for window in opened(OPEN + key):
                if window.span.start_ms in starts:
                    content = self._content(window.span, self._codec.encode(window.state), final=False)
                    wanted[shown_row(key, window.span.start_ms)] = content
        for row, content in retained.items():
            (one,) = WindowsRow.FromString(content).windows
            span = Span(one.start_ms, one.start_ms + one.length_ms)
            name = shown_row(*retained_in(row))
            wanted[name] = self._content(span, one.state, final=True)
        over = {shown_row(*retained_in(row)) for row in expired}
        self._table.load(sorted({name for name, content in wanted.items() if content is None} | over))
        for name in over:
            if _is_final(wanted.get(name) or self._table.get(name)):
                wanted[name] = None
        for name, now in sorted(wanted.items()):
            if now is not None:
                self._table.put(name, now)
            elif self._table.get(name) is not None:
                self._table.delete(name)
        self._touched.clear()

    def _content(self, span: Span, state: bytes, *, final: bool) -> bytes:
        window = WindowsRow.Window(
            start_ms=span.start_ms, length_ms=span.end_ms - span.start_ms, state=state, final=final
        )
        return WindowsRow(windows=[window]).SerializeToString(deterministic=True)


def _is_final(content: bytes | None) -> bool:
    return content is not None and WindowsRow.FromString(content).windows[0].final
