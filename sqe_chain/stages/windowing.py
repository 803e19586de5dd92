"""Kinds of windows of event time, as in Kafka Streams: tumbling, hopping, sessions.

>>> Hopping(size_ms=10, advance_ms=5).spans(12)
[Span(start_ms=5, end_ms=15), Span(start_ms=10, end_ms=20)]
>>> Tumbling(size_ms=10).spans(12)
[Span(start_ms=10, end_ms=20)]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeVar

from sqe_chain.flow.declaration import WindowKind, caller_line, check_duration, check_int
from sqe_chain.flow.filtering import DAY_MS
from sqe_chain.flow.stored import Span
from sqe_chain.stages.stream_time import JumpGuard
from sqe_chain.stages.timetable import bucket_length

WINDOW_GUARD: Final = JumpGuard(max_jump_ms=31 * DAY_MS, policy="drop")
"""Not `hold`: a window in the far future would never close."""
MAX_OVERLAP: Final = 1_000_000
"""Hopping windows that one record may lie in."""


@dataclass(frozen=True, slots=True)
class Hopping(WindowKind):
    """Windows of one size that begin at every multiple of the advance (since 1970), and overlap.

    A record lies in all that begin at or before it and end after it: at most size / advance of them. As
    in Kafka Streams, a record from 1970 or later lies in no window that begins before 1970.

    Attributes:
        size_ms: length, 1 to 10**15.
        advance_ms: from one beginning to the next; at most the size, and at least 1 and a millionth of the size.

    Raises:
        FlowError: a length is out of its bounds.
    """

    size_ms: int
    advance_ms: int
    overlap: ClassVar = True

    def __post_init__(self) -> None:
        check_duration("size_ms", self.size_ms, where := caller_line(), 1)
        check_int("advance_ms", self.advance_ms, 1, self.size_ms, where)
        check_int("size_ms / advance_ms", self.size_ms // self.advance_ms, 1, MAX_OVERLAP, where)

    def spans(self, timestamp_ms: int) -> list[Span]:
        """The windows that a record of this time lies in, in the order of their beginnings."""
        last_ms = timestamp_ms - timestamp_ms % self.advance_ms
        count = (self.size_ms - 1 - timestamp_ms % self.advance_ms) // self.advance_ms + 1
        starts = (last_ms - back * self.advance_ms for back in reversed(range(count)))
        return [Span(at_ms, at_ms + self.size_ms) for at_ms in starts if at_ms >= 0 or timestamp_ms < 0]


@dataclass(frozen=True, slots=True)
class Tumbling(WindowKind):
    """Windows of one size, one after the other, aligned to 1970.

    Attributes:
        size_ms: length, 1 to 10**15.

    Raises:
        FlowError: the length is out of its bounds.
    """

    size_ms: int

    def __post_init__(self) -> None:
        check_duration("size_ms", self.size_ms, caller_line(), 1)

    @property
    def advance_ms(self) -> int:
        """From one beginning to the next."""
        return self.size_ms

    def spans(self, timestamp_ms: int) -> list[Span]:
        """The window that a record of this time lies in."""
        start_ms = timestamp_ms - timestamp_ms % self.size_ms
        return [Span(start_ms, start_ms + self.size_ms)]


@dataclass(frozen=True, slots=True)
class Sessions(WindowKind):
    """Records of a key whose event times are at most a gap apart, in whatever order they arrive.

    A record that lies within the gap of two sessions joins them.

    Attributes:
        gap_ms: longest time between two records of a session, milliseconds, 0 to 10**15, inclusive: with a gap of 10,
            records at 24 and 34 are one session.

    Raises:
        FlowError: the gap is out of its bounds.
    """

    gap_ms: int
    join: ClassVar = True

    def __post_init__(self) -> None:
        check_duration("gap_ms", self.gap_ms, caller_line())


Windowing = Tumbling | Hopping | Sessions


def closes_ms(windowing: Windowing, span: Span, grace_ms: int) -> int:
    """First stream time at which a window no longer takes records.

    Args:
        windowing: its kind.
        span: its beginning and end.
        grace_ms: how long it waits for late records.

    >>> closes_ms(Tumbling(size_ms=10), Span(0, 10), 5), closes_ms(Sessions(gap_ms=10), Span(4, 7), 5)
    (15, 23)
    """
    if isinstance(windowing, Sessions):
        return span.end_ms + windowing.gap_ms + grace_ms + 1
    return span.end_ms + grace_ms


def life_ms(windowing: Windowing, grace_ms: int) -> int:
    """Longest time, in stream time, for which a window stays open if no further record extends it."""
    return grace_ms + (windowing.gap_ms + 1 if isinstance(windowing, Sessions) else windowing.size_ms)


def bucket_of(windowing: Windowing, grace_ms: int) -> tuple[int, int]:
    """Length and phase of the timetable's buckets, so that windows close at the end of one.

    About 64 of them in the life of a window, or one for each advance if there are fewer.
    """
    length_ms = bucket_length(life_ms(windowing, grace_ms))
    if isinstance(windowing, Sessions):
        return length_ms, 0
    return -(-length_ms // windowing.advance_ms) * windowing.advance_ms, grace_ms + windowing.size_ms


class HasSpan(Protocol):
    """An item that belongs to a window."""

    span: Span


Held = TypeVar("Held", bound=HasSpan)


def touching(sessions: Iterable[Held], timestamp_ms: int, gap_ms: int) -> list[Held]:
    """The sessions that a record of this time belongs to, in the order of their beginnings: none, one or two."""
    return sorted(
        (one for one in sessions if one.span.start_ms - gap_ms <= timestamp_ms <= one.span.end_ms + gap_ms),
        key=lambda one: one.span,
    )


def joined(sessions: Iterable[HasSpan], timestamp_ms: int) -> Span:
    """The span of one session made of these and a record."""
    spans = [Span(timestamp_ms, timestamp_ms), *(one.span for one in sessions)]
    return Span(min(span.start_ms for span in spans), max(span.end_ms for span in spans))
