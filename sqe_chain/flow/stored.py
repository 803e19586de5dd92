"""States as they are stored, for readers of states."""

from __future__ import annotations

from typing import Any, NamedTuple


class Span(NamedTuple):
    """Beginning and end of a window, in event time.

    Attributes:
        start_ms: its first millisecond.
        end_ms: the first millisecond after it; of a session: the time of its last record.
    """

    start_ms: int
    end_ms: int


class StoredState(NamedTuple):
    """A state as it is stored.

    Attributes:
        key: its key.
        state: the state; None: this key has none.
        span: its window; None for stages without windows.
        final: whether its window is closed, so that the state will not change any more.
    """

    key: bytes
    state: Any | None
    span: Span | None = None
    final: bool = False


def printable_text(data: bytes) -> str | None:
    """These bytes as text, if they are printable UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None
