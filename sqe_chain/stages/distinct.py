"""Distinct: forward the first of the records that have the same id in one window.

    >>> from sqe_chain.stages.record import Record
    >>> from sqe_chain.stages.table import MemoryTable
    >>> from sqe_chain.stages.windowing import Sessions
    >>> burst = Distinct(MemoryTable(), windows=Sessions(gap_ms=9), grace_ms=60)
    >>> times = [4, 5, 6, 23, 22, 24, 34, 33, 32, 7, 22, 35]
    >>> [at_ms for at_ms in times if burst.accept(Record(key=b"k", timestamp_ms=at_ms)).forward]
    [4, 23, 34]

Source: an alternative that KIP-655 rejected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqe_chain._proto.windows_pb2 import FirstsRow
from sqe_chain.flow.declaration import (
    check_choice,
    check_duration,
    check_guard,
    check_windows,
)
from sqe_chain.flow.filtering import guard_setting
from sqe_chain.flow.shapes import check_callable
from sqe_chain.flow.stage_kind import STANDARD, StageTraits
from sqe_chain.flow.stored import Span
from sqe_chain.flow.table import Table
from sqe_chain.stages.expiring_rows import ExpiringRows
from sqe_chain.stages.identity import Identity, by_key, row_of, rows_of
from sqe_chain.stages.record import FORWARD, NOWHERE, Reason, Record, Spot, Verdict
from sqe_chain.stages.record_work import FILTER, RecordFunctions, RecordKind
from sqe_chain.stages.stream_time import JumpGuard
from sqe_chain.stages.timetable import Timetable
from sqe_chain.stages.windowing import (
    WINDOW_GUARD,
    Calendar,
    Sessions,
    Tumbling,
    bucket_of,
    closes_ms,
    joined,
    touching,
)


@dataclass(slots=True)
class First:
    """A window of one id, with the record that began it.

    Attributes:
        span: its beginning and end.
        spot: lane and position of the record that began it.
        listed_ms: the moment at which the timetable lists it; None: not yet listed.
    """

    span: Span
    spot: Spot
    listed_ms: int | None = None


class Distinct:
    """Drop records that fall into a window in which their id was seen before.

    Guarantees, for one state partition (the engine brings equal ids together):

    * Tumbling windows: the first record to arrive in each window is forwarded.
    * Sessions: a record that begins one is forwarded; one that extends it or joins two of them is dropped.
    * A record without id is forwarded; it moves stream time as every record does, dropped or not.
    * A record with the lane and position of the one that began its window is the same record, and is forwarded again
      (of joined sessions: the one that began the earliest). An element that has no position of its own (`NOWHERE`)
      never is.
    * A record is late when stream time has passed the end of its window (and the gap, of a session) by the grace.

    Two records a millisecond apart may lie in two windows: where that matters, use `Deduplicate`.

    Bound: one row for each id seen in an open window: at most 129 bytes of name, and for each of its open
    windows (at most 2 + grace / size, or gap) about 35 bytes and the position's length; and 8 bytes with the name
    again in the time index.

    Args:
        table: its rows.
        windows: tumbling windows or sessions.
        grace_ms: how long stream time may be past the end of a window that still takes records; 0 to 10**15.
        identity: gives a record's id.
        late: `drop`: a late record is dropped; `forward`: it is forwarded, and not remembered.
        guard: for stream time, with policy `drop` or `stop`; None: every timestamp is believed.
        clock_ms: what the guard compares the very first record with; None: that one is believed.

    Raises:
        FlowError: a setting is out of its bounds.
    """

    def __init__(
        self,
        table: Table,
        *,
        windows: Tumbling | Calendar | Sessions,
        grace_ms: int,
        identity: Identity = by_key,
        late: Literal["drop", "forward"] = "drop",
        guard: JumpGuard | None = WINDOW_GUARD,
        clock_ms: int | None = None,
    ) -> None:
        where = type(self).__name__
        check_windows(windows, where, overlap=False)
        check_duration("grace_ms", grace_ms, where)
        check_callable("identity", identity, where)
        check_choice("late", late, ("forward", "drop"), where)
        check_guard(guard, where)
        self._windows = windows
        self._grace_ms = grace_ms
        self._identity = identity
        self._late = late
        self._guard = guard
        bucket_ms, phase_ms = bucket_of(windows, grace_ms)
        self._timetable = Timetable(
            table, bucket_ms=bucket_ms, phase_ms=phase_ms, guard=guard, clock_ms=clock_ms
        )
        self._expiring = ExpiringRows(
            table, self._timetable, decode=_decode, encode=_encode, end_of=self._end_of
        )

    @property
    def stream_time_ms(self) -> int | None:
        """Stream time; None before the first record."""
        return self._timetable.time.now_ms

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """Names of the rows that `accept` will read for these records."""
        return rows_of(self._identity, records)

    def accept(self, record: Record) -> Verdict:
        """Decide on one record.

        Raises:
            PoisonError: it is too far ahead, and the guard's policy is `stop`.
            Exception: whatever `identity` raises; the record has then changed nothing.
        """
        row = row_of(self._identity, record)
        believed = self._timetable.observe(record.timestamp_ms, place_ms=record.place_ms)
        now_ms = self._timetable.time.now_ms
        if row is not None and not believed and self._guard is not None:
            return self._guard.refuse(record, now_ms)
        if row is None or now_ms is None:
            return FORWARD
        opened = self._expiring.at(row)
        found = self._found(opened, record.timestamp_ms)
        if not found:
            return self._begin(row, opened, record, now_ms)
        if isinstance(self._windows, Sessions):
            self._join(row, opened, found, record.timestamp_ms)
        first = found[0].spot
        if first not in (NOWHERE, record.spot):
            return Verdict(
                forward=False, reason=Reason.DUPLICATE, original=first, detail=_where(found[0].span)
            )
        if first == NOWHERE:
            return Verdict(forward=False, reason=Reason.DUPLICATE, detail=_where(found[0].span))
        return FORWARD

    def advance(self, to_ms: int) -> None:
        """Move stream time without a record, for inputs that are silent: the same in every attempt of a batch."""
        self._timetable.time.advance(to_ms)

    def finish(self, now_ms: int) -> None:
        """End the batch: purge by stream time, and write. The next batch may begin with this object or a new one.

        Args:
            now_ms: the batch's clock; not used, for only stream time counts here.
        """
        del now_ms
        self._expiring.finish(row for _, row in self._timetable.take_due())
        self._timetable.finish()

    def _found(self, opened: list[First], timestamp_ms: int) -> list[First]:
        if isinstance(self._windows, Sessions):
            return touching(opened, timestamp_ms, self._windows.gap_ms)
        return [first for first in opened if first.span.start_ms <= timestamp_ms < first.span.end_ms]

    def _begin(self, row: bytes, opened: list[First], record: Record, now_ms: int) -> Verdict:
        at_ms = record.timestamp_ms
        span = Span(at_ms, at_ms) if isinstance(self._windows, Sessions) else self._windows.spans(at_ms)[0]
        first = First(span, record.spot)
        if self._end_of(first, now_ms) > now_ms:
            self._expiring.replace(row, [*opened, first])
        elif self._late == "drop":
            return Verdict(
                forward=False,
                reason=Reason.LATE,
                detail=f"{_where(span)} was closed at stream time {now_ms} ms",
            )
        return FORWARD

    def _join(self, row: bytes, opened: list[First], found: list[First], timestamp_ms: int) -> None:
        """Make one session of those found. It keeps the last one's listing: when that is due, the row is listed again."""
        span = joined(found, timestamp_ms)
        if len(found) == 1 and found[0].span == span:
            return
        one = First(span, found[0].spot, found[-1].listed_ms)
        self._expiring.replace(row, [first for first in opened if first not in found] + [one])

    def _end_of(self, first: First, now_ms: int) -> int:
        del now_ms
        return closes_ms(self._windows, first.span, self._grace_ms)


def _where(span: Span) -> str:
    return f"the window from {span.start_ms} ms to {span.end_ms} ms"


def _decode(content: bytes) -> list[First]:
    return [
        First(
            Span(stored.start_ms, stored.start_ms + stored.length_ms),
            Spot(stored.lane, stored.position),
            stored.start_ms + stored.listed_after_ms,
        )
        for stored in FirstsRow.FromString(content).firsts
    ]


def _encode(firsts: list[First]) -> bytes:
    row = FirstsRow()
    for first in firsts:
        row.firsts.add(
            start_ms=first.span.start_ms,
            length_ms=first.span.end_ms - first.span.start_ms,
            lane=first.spot.lane,
            position=first.spot.position,
            listed_after_ms=(first.listed_ms or 0) - first.span.start_ms,
        )
    return row.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class DistinctKind(RecordKind[Distinct]):
    """The kind of `distinct`; see there, and `Distinct`."""

    name = "distinct"

    windows: Any
    grace_ms: int = 0
    late: Any = "drop"
    guard: Any = STANDARD

    @property
    def traits(self) -> StageTraits:
        guard = WINDOW_GUARD if self.guard == STANDARD else self.guard
        return replace(FILTER, order="times", guard=guard)

    def check(self, where: str, *, dead_letters: bool) -> None:
        check_choice("late", self.late, ("drop", "forward", "stop"), where)
        super().check(where, dead_letters=dead_letters)

    def stage(self, table: Table, functions: RecordFunctions, clock_ms: int | None) -> Distinct:
        del functions
        return Distinct(
            table,
            windows=self.windows,
            grace_ms=self.grace_ms,
            late="drop" if self.late == "stop" else self.late,
            clock_ms=clock_ms,
            **guard_setting(self.guard),
        )
