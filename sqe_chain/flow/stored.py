"""What stands in a row that a stage has stored, for whoever reads states."""

from __future__ import annotations

from typing import Any, NamedTuple


class Span(NamedTuple):
    """A window's place in event time.

    Attributes:
        start_ms: its first millisecond.
        end_ms: the first millisecond behind it; of a session: the time of its last record.
    """

    start_ms: int
    end_ms: int


class StoredState(NamedTuple):
    """A state as it is stored.

    Attributes:
        key: its key.
        state: the state; None: there is none under this key.
        span: the window that it is of; None for states that live as long as their key.
        final: of a window: whether it is closed, so that nothing changes it any more.
    """

    key: bytes
    state: Any | None
    span: Span | None = None
    final: bool = False
