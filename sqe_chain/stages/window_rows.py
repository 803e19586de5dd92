"""The rows of windows: open ones in a row for each key, final ones that are retained in a row each."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sqe_chain._proto.windows_pb2 import WindowsRow
from sqe_chain.codecs import Codec, codec_for
from sqe_chain.flow.stored import Span

OPEN: Final = b"w"
"""Rows of the open windows of a key."""
RETAINED: Final = b"r"
"""Rows of final windows, one each."""

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
    for window in sorted(windows, key=_span_of):
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
    found = (result for name, content in rows.items() for result in results_of(name, content, codec))
    return sorted(found, key=lambda result: result[:2])


def results_of(name: bytes, content: bytes, codec: Codec[Any]) -> list[Result]:
    """The windows in one row; none if the row belongs to the timetable.

    Args:
        name: of the row.
        content: of the row.
        codec: of the state.

    Raises:
        Exception: the content does not hold such states: google.protobuf.message.DecodeError, or what the codec raises.
    """
    if name.startswith(OPEN):
        key = name[len(OPEN) :]
    elif name.startswith(RETAINED):
        key, _ = retained_in(name)
    else:
        return []
    return [
        Result(
            key,
            Span(stored.start_ms, stored.start_ms + stored.length_ms),
            codec.decode(stored.state),
        )
        for stored in WindowsRow.FromString(content).windows
    ]


def _span_of(window: OpenWindow[Any]) -> Span:
    return window.span
