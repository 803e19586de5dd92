"""Kinds of windows of event time: tumbling, hopping and sessions as in Kafka Streams, and days, weeks and months of a time zone.

>>> Hopping(size_ms=10, advance_ms=5).spans(12)
[Span(start_ms=5, end_ms=15), Span(start_ms=10, end_ms=20)]
>>> Tumbling(size_ms=10).spans(12)
[Span(start_ms=10, end_ms=20)]
>>> (day,) = Calendar("day", "Europe/Berlin").spans(1_743_300_000_000)  # the clocks are put forward
>>> (day.end_ms - day.start_ms) // 3_600_000
23
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import ClassVar, Final, Literal, Protocol, TypeVar
from zoneinfo import ZoneInfo

from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.flow.declaration import WindowShape, caller_line, check_choice, check_duration, check_int
from sqe_chain.flow.filtering import DAY_MS
from sqe_chain.flow.stored import Span
from sqe_chain.stages.clock import bucket_length

MAX_OVERLAP: Final = 1_000_000
"""Hopping windows that one record may lie in."""


@dataclass(frozen=True, slots=True)
class Hopping(WindowShape):
    """Windows of one size that begin at every multiple of the advance (since 1970), and overlap.

    A record lies in all that begin at or before it and end after it: at most size / advance of them. As in Kafka Streams, a
    record from 1970 or later lies in no window that begins before 1970. With an offset, the last one that began in 1969 counts.

    Attributes:
        size_ms: length, 1 to 10**15.
        advance_ms: from one beginning to the next; at most the size, and at least 1 and a millionth of the size.
        offset_ms: by how much later than multiples of the advance they begin; 0 to below the advance.

    Raises:
        FlowError: a length is out of its bounds.
    """

    size_ms: int
    advance_ms: int
    offset_ms: int = 0
    overlap: ClassVar = True

    def __post_init__(self) -> None:
        check_duration("size_ms", self.size_ms, where := caller_line(), 1)
        check_int("advance_ms", self.advance_ms, 1, self.size_ms, where)
        check_int("size_ms / advance_ms", self.size_ms // self.advance_ms, 1, MAX_OVERLAP, where)
        check_int("offset_ms", self.offset_ms, 0, self.advance_ms - 1, where)

    def spans(self, timestamp_ms: int) -> list[Span]:
        """The windows that a record of this time lies in, in the order of their beginnings."""
        since_ms = (timestamp_ms - self.offset_ms) % self.advance_ms
        count = (self.size_ms - 1 - since_ms) // self.advance_ms + 1
        starts = (timestamp_ms - since_ms - back * self.advance_ms for back in reversed(range(count)))
        first_ms = self.offset_ms - self.advance_ms if self.offset_ms else 0
        return [
            Span(at_ms, at_ms + self.size_ms) for at_ms in starts if at_ms >= first_ms or timestamp_ms < 0
        ]


@dataclass(frozen=True, slots=True)
class Tumbling(WindowShape):
    """Windows of one size, one after the other, aligned to 1970.

    Attributes:
        size_ms: length, 1 to 10**15.
        offset_ms: by how much later than multiples of the size they begin; 0 to below the size. For days of a time zone
            take `Calendar`: an offset does not follow the clocks when they are put forward or back.

    Raises:
        FlowError: the length or the offset is out of its bounds.
    """

    size_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        check_duration("size_ms", self.size_ms, where := caller_line(), 1)
        check_int("offset_ms", self.offset_ms, 0, self.size_ms - 1, where)

    @property
    def advance_ms(self) -> int:
        """From one beginning to the next."""
        return self.size_ms

    def spans(self, timestamp_ms: int) -> list[Span]:
        """The window that a record of this time lies in."""
        start_ms = timestamp_ms - (timestamp_ms - self.offset_ms) % self.size_ms
        return [Span(start_ms, start_ms + self.size_ms)]


CalendarUnit = Literal["day", "week", "month"]
_LONGEST_MS: Final[dict[CalendarUnit, int]] = {"day": 2 * DAY_MS, "week": 8 * DAY_MS, "month": 32 * DAY_MS}
"""An upper bound: time zones have skipped or repeated up to a day."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Calendar(WindowShape):
    """Days, weeks (from Monday) or months of a time zone, one after the other.

    A day in Berlin has 23, 24 or 25 hours, by the time zone data of the machine. All machines of a service need the same.

    Attributes:
        unit: "day", "week" or "month".
        time_zone: its name in the IANA database, such as "Europe/Berlin".

    Raises:
        FlowError: there is no such unit, or the machine knows no such time zone.
    """

    unit: CalendarUnit
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        where = caller_line()
        check_choice("unit", self.unit, tuple(_LONGEST_MS), where)
        try:
            _zone(self.time_zone)
        except (LookupError, ValueError, TypeError, OSError) as error:
            raise FlowError(
                f"{where}: time_zone={self.time_zone!r} is not known here; names are like 'Europe/Berlin'. A machine without "
                "time zone data needs the package 'tzdata'"
            ) from error

    @property
    def longest_ms(self) -> int:
        """No window is longer than this."""
        return _LONGEST_MS[self.unit]

    def spans(self, timestamp_ms: int) -> list[Span]:
        """The window that a record of this time lies in.

        Raises:
            PoisonError: the time lies outside the calendar: before the year 1, or after 9999.
        """
        zone = _zone(self.time_zone)
        try:
            day = (_EPOCH + timestamp_ms * _MILLISECOND).astimezone(zone).date()
            first = self._first_day(day)
            after = self._next(first)
            if timestamp_ms >= _begin_ms(
                after, zone
            ):  # after midnight the clocks were put back to before midnight
                first, after = after, self._next(after)
            return [Span(_begin_ms(first, zone), _begin_ms(after, zone))]
        except (OverflowError, ValueError) as error:
            raise PoisonError(
                f"event time {timestamp_ms} ms lies outside the calendar, years 1 to 9999"
            ) from error

    def _first_day(self, day: date) -> date:
        if self.unit == "week":
            return day - timedelta(days=day.weekday())
        return day.replace(day=1) if self.unit == "month" else day

    def _next(self, first: date) -> date:
        if self.unit == "month":
            return (first + timedelta(days=31)).replace(day=1)
        return first + timedelta(days=7 if self.unit == "week" else 1)


_zone = lru_cache(maxsize=64)(ZoneInfo)


@lru_cache(maxsize=1024)
def _begin_ms(day: date, zone: ZoneInfo) -> int:
    """The first millisecond of a day: midnight, the first one of two, or where there is none, what comes in its place."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    return (midnight.astimezone(UTC) - _EPOCH) // _MILLISECOND


@dataclass(frozen=True, slots=True)
class Sessions(WindowShape):
    """Records of a key whose event times are at most a gap apart, in whatever order they arrive.

    A record that lies within the gap of two sessions merges them.

    Attributes:
        gap_ms: longest time between two records of a session, milliseconds, 0 to 10**15. It is inclusive: with a gap of 10,
            records at 24 and 34 are one session.

    Raises:
        FlowError: the gap is out of its bounds.
    """

    gap_ms: int
    merges: ClassVar = True

    def __post_init__(self) -> None:
        check_duration("gap_ms", self.gap_ms, caller_line())


Windowing = Tumbling | Hopping | Calendar | Sessions


def closes_ms(windowing: Windowing, span: Span, grace_ms: int) -> int:
    """First stream time at which a window no longer takes records, if it waits `grace_ms` for late ones.

    >>> closes_ms(Tumbling(size_ms=10), Span(0, 10), 5), closes_ms(Sessions(gap_ms=10), Span(4, 7), 5)
    (15, 23)
    """
    if isinstance(windowing, Sessions):
        return span.end_ms + windowing.gap_ms + grace_ms + 1
    return span.end_ms + grace_ms


def life_ms(windowing: Windowing, grace_ms: int) -> int:
    """Longest time, in stream time, for which a window stays open if no further record extends it."""
    if isinstance(windowing, Sessions):
        return grace_ms + windowing.gap_ms + 1
    return grace_ms + (windowing.longest_ms if isinstance(windowing, Calendar) else windowing.size_ms)


def bucket_of(windowing: Windowing, grace_ms: int) -> tuple[int, int]:
    """Length and phase of the timetable's buckets, so that windows close at the end of one.

    About 64 of them in the life of a window, or one for each advance if there are fewer.
    """
    length_ms = bucket_length(life_ms(windowing, grace_ms))
    if isinstance(windowing, Sessions | Calendar):
        return length_ms, 0
    phase_ms = grace_ms + windowing.size_ms + windowing.offset_ms
    return -(-length_ms // windowing.advance_ms) * windowing.advance_ms, phase_ms


class HasSpan(Protocol):
    """An item that belongs to a window."""

    span: Span


Held = TypeVar("Held", bound=HasSpan)


def touching(sessions: Iterable[Held], timestamp_ms: int, gap_ms: int) -> list[Held]:
    """The sessions that a record of this time makes one, in the order of their beginnings.

    None, one or two, as long as the gap stays: open sessions of a key are then more than a gap apart. Those that were opened with a
    smaller gap may lie nearer to each other, and one may bring the next.
    """
    rest, begin_ms, end_ms = list(sessions), timestamp_ms, timestamp_ms
    held: list[Held] = []
    while rest:  # each round but the last takes one of them at least
        near, far = list[Held](), list[Held]()
        for session in rest:
            touches = session.span.start_ms - gap_ms <= end_ms and begin_ms <= session.span.end_ms + gap_ms
            (near if touches else far).append(session)
        if not near:
            break
        held, rest = held + near, far
        begin_ms = min(begin_ms, *(session.span.start_ms for session in near))
        end_ms = max(end_ms, *(session.span.end_ms for session in near))
    return sorted(held, key=lambda session: session.span)


def joined(sessions: Iterable[HasSpan], timestamp_ms: int) -> Span:
    """The span of one session made of these and a record."""
    spans = [Span(timestamp_ms, timestamp_ms), *(session.span for session in sessions)]
    return Span(min(span.start_ms for span in spans), max(span.end_ms for span in spans))


Place = tuple[Span, list[Held]]
"""A window that a record lies in: its span with the record, and the open windows that it is made of, by their beginnings.

None of them: it is a new one. Two: sessions that become one.
"""


class Windower(ABC):
    """Which windows a record lies in, and when they close. It keeps nothing: the open windows of a key come as an argument.

    Args:
        windows: their kind.
        grace_ms: how long stream time may be past the end of a window, of a session also past its gap, that still takes records.
    """

    def __init__(self, windows: Windowing, grace_ms: int) -> None:
        self.bucket_ms, self.phase_ms = bucket_of(windows, grace_ms)
        self._after_end_ms = closes_ms(windows, Span(0, 0), grace_ms)

    @abstractmethod
    def spans(self, at_ms: int) -> list[Span]:
        """The windows of a record that is alone, in the order of their beginnings.

        Raises:
            PoisonError: its time lies outside the calendar.
        """

    @abstractmethod
    def places(self, opened: Sequence[Held], at_ms: int, now_ms: int) -> list[Place[Held]]:
        """The windows that a record lies in and that take it; none if it is late.

        Args:
            opened: the open windows of its key.
            at_ms: its event time.
            now_ms: stream time.

        Raises:
            PoisonError: its time lies outside the calendar.
        """

    def may_have_closed(self, at_ms: int, now_ms: int) -> bool:
        """Whether any window of a record of this time is closed, or may have been; see `places`."""
        return any(self.closes_ms(span) <= now_ms for span in self.spans(at_ms))

    def closes_ms(self, span: Span) -> int:
        """First stream time at which a window no longer takes records."""
        return span.end_ms + self._after_end_ms

    def last_close_ms(self, at_ms: int) -> int:
        """When the last window closes that a record of this time lies in."""
        try:
            return max(map(self.closes_ms, self.spans(at_ms)), default=at_ms)
        except PoisonError:  # beyond the calendar, hence beyond all its windows
            return at_ms


class FixedWindower(Windower):
    """Windows that lie where they lie, whatever records come."""

    def __init__(self, windows: Tumbling | Hopping | Calendar, grace_ms: int) -> None:
        super().__init__(windows, grace_ms)
        self._windows = windows

    def spans(self, at_ms: int) -> list[Span]:
        return self._windows.spans(at_ms)

    def places(self, opened: Sequence[Held], at_ms: int, now_ms: int) -> list[Place[Held]]:
        held, ended_ms = {window.span: window for window in opened}, now_ms - self._after_end_ms
        return [
            (span, [held[span]] if span in held else [])
            for span in self._windows.spans(at_ms)
            if span.end_ms > ended_ms
        ]


class SessionWindower(Windower):
    """Sessions, which grow with their records, and merge."""

    def __init__(self, windows: Sessions, grace_ms: int) -> None:
        super().__init__(windows, grace_ms)
        self._gap_ms, self._grace_ms = windows.gap_ms, grace_ms

    def may_have_closed(self, at_ms: int, now_ms: int) -> bool:
        # One that ended up to a gap before is closed once stream time has passed this time and the grace.
        return at_ms + self._grace_ms < now_ms

    def spans(self, at_ms: int) -> list[Span]:
        return [Span(at_ms, at_ms)]

    def places(self, opened: Sequence[Held], at_ms: int, now_ms: int) -> list[Place[Held]]:
        held = touching(opened, at_ms, self._gap_ms)
        span = joined(held, at_ms)
        return [(span, held)] if self.closes_ms(span) > now_ms else []


def windower_of(windows: Windowing, grace_ms: int) -> Windower:
    """What finds the windows of records."""
    return (
        SessionWindower(windows, grace_ms)
        if isinstance(windows, Sessions)
        else FixedWindower(windows, grace_ms)
    )
