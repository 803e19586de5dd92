"""States as they are stored, for readers of states."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqe_chain.errors import ChangedType, text_of
from sqe_chain.errors.outage import raise_outage

_LONGEST_NAME: Final = 60
"""Bytes of a key that a text names."""
HEXADECIMAL: Final = "0x"
"""What a key begins with that is given as hexadecimal digits."""


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


def unreadable(what: str, error: Exception) -> ChangedType:
    """The error for a stored row that the declared type does not read, though `check_types` has found no difference.

    Raises:
        Unavailable: the type's codec could not reach what it needs.
    """
    raise_outage(error, what)
    return ChangedType(
        f"{what}: what is stored there cannot be read: {type(error).__name__}: {text_of(error).rstrip('.')}. Expected what the type that "
        "is declared now has written. Declare it as it was then, or fold the states again with sqe-chain rebuild"
    )


def named_key(key: bytes) -> str:
    """A key as texts of errors name it; of a long one its beginning.

    >>> named_key(b"R7")
    "key b'R7'"
    """
    rest = len(key) - _LONGEST_NAME
    return f"key {key!r}" if rest <= 0 else f"key {key[:_LONGEST_NAME]!r} and {rest} more bytes"


def printable_text(data: bytes) -> str | None:
    """These bytes as text, if they are printable UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def readable(data: bytes) -> str:
    """Bytes as text for people: UTF-8 if it is printable, else hexadecimal.

    >>> readable("Schraube №7".encode()), readable(bytes([0, 255]))
    ('Schraube №7', '0x00ff')
    """
    text = printable_text(data)
    return f"0x{data.hex()}" if text is None else text


def readable_key(key: bytes) -> str:
    """A key as text. A command that gets this text means this key: what follows ``0x`` is always hexadecimal.

    >>> readable_key(b"robot-7"), readable_key(bytes([0, 255])), readable_key(b"0x41")
    ('robot-7', '0x00ff', '0x30783431')
    """
    text = readable(key)
    return f"{HEXADECIMAL}{key.hex()}" if text.startswith(HEXADECIMAL) else text
