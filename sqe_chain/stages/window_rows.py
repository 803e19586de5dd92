"""The rows of windows: open ones by key, retained final ones each, and for views each window in a row of its own."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sqe_chain._proto.windows_pb2 import WindowsRow
from sqe_chain.codecs import Codec, codec_for
from sqe_chain.flow.stored import Span
from sqe_chain.flow.table import RowTable

OPEN: Final = b"w"
"""Rows of the open windows of a key."""
RETAINED: Final = b"r"
"""Rows of final windows, one each."""
SHOWN: Final = b"v"
"""Rows that show a window to programs that read the store (`view=`). Their names sort between those of the others,
because they are made of open windows: what a row becomes may depend on later names only."""

_SPAN: Final = struct.Struct(">QQ")
_SIGN: Final = 1 << 63

State = TypeVar("State")


class Result(NamedTuple):
    """A window with its state.

    Attributes:
        key: the key.
        span: the window's beginning and end; see `Span` for what its end is.
        state: what its records were folded into.
    """

    key: bytes
    span: Span
    state: Any


@dataclass(slots=True)
class OpenWindow(Generic[State]):
    """An open window of a key.

    Attributes:
        span: its beginning and end.
        state: live.
        listed_ms: the moment at which the stored timetable lists it; None: not yet listed.
        reminded_ms: the moment at which the timetable of this batch lists it.
    """

    span: Span
    state: State
    listed_ms: int | None
    reminded_ms: int


def retained_row(key: bytes, span: Span) -> bytes:
    """The name of the row of a window that is final."""
    return RETAINED + _SPAN.pack(span.start_ms + _SIGN, span.end_ms + _SIGN) + key


def retained_in(row: bytes) -> tuple[bytes, int]:
    """Key and beginning in the name of such a row."""
    start_ms, _ = _SPAN.unpack_from(row, len(RETAINED))
    return row[len(RETAINED) + _SPAN.size :], start_ms - _SIGN


def windows_in(content: bytes, codec: Codec[Any]) -> list[OpenWindow[Any]]:
    """The windows in a row."""
    return [
        OpenWindow(
            Span(stored.start_ms, stored.start_ms + stored.length_ms),
            codec.decode(stored.state),
            stored.start_ms + stored.listed_after_ms,
            stored.start_ms + stored.listed_after_ms,
        )
        for stored in WindowsRow.FromString(content).windows
    ]


def windows_row(windows: Iterable[OpenWindow[Any]], codec: Codec[Any]) -> bytes:
    """The content of the row of these windows, in the order of their beginnings."""
    row = WindowsRow()
    for window in sorted(windows, key=attrgetter("span")):
        start_ms, end_ms = window.span
        row.windows.add(
            start_ms=start_ms,
            length_ms=end_ms - start_ms,
            state=codec.encode(window.state),
            listed_after_ms=0 if window.listed_ms is None else window.listed_ms - start_ms,
        )
    return row.SerializeToString(deterministic=True)


def results_in(rows: Mapping[bytes, bytes], state: type[Any] | Codec[Any]) -> list[Result]:
    """Every window in a table's rows, for reports and audits: open ones and retained ones.

    Args:
        rows: names and contents of all rows.
        state: type of the state, or its codec.

    Returns:
        In the order (key, window).
    """
    codec = state if isinstance(state, Codec) else codec_for(state)
    results = (result for name, content in rows.items() for result in results_of(name, content, codec))
    return sorted(results, key=lambda result: result[:2])


def results_of(name: bytes, content: bytes, codec: Codec[Any]) -> list[Result]:
    """The windows in one row; none if the row belongs to the timetable.

    Raises:
        Exception: the content does not hold such states: google.protobuf.message.DecodeError, or what the codec raises.
    """
    return [Result(key, span, codec.decode(state)) for key, span, state in spans_in(name, content)]


def spans_in(name: bytes, content: bytes) -> list[tuple[bytes, Span, bytes]]:
    """The same with encoded states."""
    if name.startswith(OPEN):
        key = name[len(OPEN) :]
    elif name.startswith(RETAINED):
        key, _ = retained_in(name)
    else:
        return []
    return [
        (key, Span(window.start_ms, window.start_ms + window.length_ms), window.state)
        for window in WindowsRow.FromString(content).windows
    ]


def shown_row(key: bytes, start_ms: int) -> bytes:
    """The name of the row that shows a window.

    >>> shown_row(b"robot-7", 3_600_000)
    b'vrobot-7@3600000'
    """
    return SHOWN + key + b"@%d" % start_ms


def key_of_shown(row: bytes) -> bytes:
    """The key in the name of such a row."""
    return row[len(SHOWN) :].rpartition(b"@")[0]


def shown_content(span: Span, state: bytes, *, final: bool) -> bytes:
    """The content of such a row."""
    window = WindowsRow.Window(
        start_ms=span.start_ms, length_ms=span.end_ms - span.start_ms, state=state, final=final
    )
    return WindowsRow(windows=[window]).SerializeToString(deterministic=True)


class ShownWindows:
    """The rows that show windows, while a batch runs.

    A row shows its window at the end of the last batch that changed it. It is deleted when the window is final, or no longer
    retained, or has become part of another session.
    """

    def __init__(self, table: RowTable, codec: Codec[Any]) -> None:
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
                    content = shown_content(window.span, self._codec.encode(window.state), final=False)
                    wanted[shown_row(key, window.span.start_ms)] = content
        for row, content in retained.items():
            (final,) = WindowsRow.FromString(content).windows
            span = Span(final.start_ms, final.start_ms + final.length_ms)
            name = shown_row(*retained_in(row))
            wanted[name] = shown_content(span, final.state, final=True)
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


def _is_final(content: bytes | None) -> bool:
    return content is not None and WindowsRow.FromString(content).windows[0].final
