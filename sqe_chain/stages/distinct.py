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

from dataclasses import dataclass, replace
from typing import Any, Literal

from sqe_chain._proto.windows_pb2 import FirstsRow
from sqe_chain.flow.declaration import check_duration, check_windows
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import STANDARD, StageTraits
from sqe_chain.flow.stored import Span
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.stages.identity import Identity, by_key
from sqe_chain.stages.record import FORWARD, NOWHERE, Reason, Record, Spot, Verdict, dropped
from sqe_chain.stages.record_work import FORWARDING
from sqe_chain.stages.timed_stage import MONTH_GUARD, RememberingStage, RuleKind
from sqe_chain.stages.windowing import Calendar, Sessions, Tumbling, bucket_of, closes_ms, joined, touching


@dataclass(slots=True)
class First:
    """A window of one id, with the lane and position of the record that began it.

    Attributes:
        listed_ms: the moment at which the timetable lists it; None: not yet listed.
    """

    span: Span
    spot: Spot
    listed_ms: int | None = None


class Distinct(RememberingStage[First]):
    """Drop records that fall into a window in which their id was seen before.

    Guarantees, for one state partition (the engine brings equal ids together):

    * Tumbling windows: the first record to arrive in each window is forwarded.
    * Sessions: a record that begins one is forwarded; one that extends it or joins two of them is dropped.
    * A record without id is forwarded; it moves stream time as every record does, dropped or not.
    * A record with the lane and position of the one that began its window is the same record, and is forwarded again.
      Of joined sessions it is the one that began the earliest. An element without a position of its own (`NOWHERE`) never is.
    * A record is late when stream time has passed the end of its window (and the gap, of a session) by the grace. The end
      of its session is its own time, if that is later than the others'.

    Two records a millisecond apart may lie in two windows: where that matters, use `Deduplicate`.

    Bound: one row for each id seen in an open window, with at most 129 bytes of name. Each of its open windows (at most
    2 + grace / size; of sessions 3 + grace / gap) takes about 35 bytes and the position's length. The time index has the name and 8 bytes.

    Args:
        windows: tumbling windows or sessions.
        grace_ms: how long stream time may be past the end of a window that still takes records; 0 to 10**15.
        identity: gives a record's id.
        late: `drop`: a late record is dropped; `forward`: it is forwarded, and not remembered.
        others: as for `TimedStage`; with a guard's policy `hold` records too far ahead are dropped, too.
    """

    def __init__(
        self,
        table: RowTable,
        *,
        windows: Tumbling | Calendar | Sessions,
        grace_ms: int,
        identity: Identity = by_key,
        late: Literal["drop", "forward"] = "drop",
        guard: JumpGuard | None = MONTH_GUARD,
        clock_ms: int | None = None,
    ) -> None:
        check_windows(windows, type(self).__name__, overlap=False)
        check_duration("grace_ms", grace_ms, type(self).__name__)
        self._windows = windows
        self._grace_ms = grace_ms
        # A record that is not late may lie a gap after the end of a session.
        self._kept_ms = grace_ms + (windows.gap_ms if isinstance(windows, Sessions) else 0)
        bucket_ms, phase_ms = bucket_of(windows, self._kept_ms)
        super().__init__(
            table,
            guard,
            identity=identity,
            late=late,
            decode=_decode,
            encode=_encode,
            end_of=self._end_of,
            bucket_ms=bucket_ms,
            phase_ms=phase_ms,
            clock_ms=clock_ms,
        )

    def accept(self, record: Record) -> Verdict:
        """Decide on one record.

        Raises:
            PoisonError: it is too far ahead, and the guard's policy is `stop`.
            Exception: whatever `identity` raises; the record has then changed nothing.
        """
        row = self._row(record)
        believed = self._timetable.follow(record)
        now_ms = self._timetable.time.now_ms
        if row is not None and not believed and self._guard is not None:
            return self._guard.refuse(record, now_ms)
        if row is None or now_ms is None or self._table.settled(row):
            return FORWARD  # of a row that an earlier attempt has written, the windows of then may be purged
        opened = self._expiring.at(row)
        windows = self._found(opened, record.timestamp_ms, now_ms)
        if not windows:
            return self._begin(row, opened, record, now_ms)
        if isinstance(self._windows, Sessions):
            self._join(row, opened, windows, record.timestamp_ms)
        first = windows[0]
        if first.spot == record.spot != NOWHERE:
            return FORWARD
        return dropped(Reason.DUPLICATE, _where(first.span), first.spot)

    def _found(self, opened: list[First], timestamp_ms: int, now_ms: int) -> list[First]:
        if isinstance(self._windows, Sessions):
            sessions = touching(opened, timestamp_ms, self._windows.gap_ms)
            return sessions if self._closes(joined(sessions, timestamp_ms)) > now_ms else []
        return [first for first in opened if first.span.start_ms <= timestamp_ms < first.span.end_ms]

    def _begin(self, row: bytes, opened: list[First], record: Record, now_ms: int) -> Verdict:
        at_ms = record.timestamp_ms
        span = Span(at_ms, at_ms) if isinstance(self._windows, Sessions) else self._windows.spans(at_ms)[0]
        first = First(span, record.spot)
        if self._closes(span) > now_ms:
            self._expiring.replace(row, [*opened, first])
        elif self._late == "drop":
            return dropped(Reason.LATE, f"{_where(span)} was closed at stream time {now_ms} ms")
        return FORWARD

    def _join(self, row: bytes, opened: list[First], windows: list[First], timestamp_ms: int) -> None:
        """Make one session of those found. It keeps the last one's listing: when that is due, the row is listed again."""
        span = joined(windows, timestamp_ms)
        if len(windows) == 1 and windows[0].span == span:
            return
        session = First(span, windows[0].spot, windows[-1].listed_ms)
        self._expiring.replace(row, [first for first in opened if first not in windows] + [session])

    def _closes(self, span: Span) -> int:
        return closes_ms(self._windows, span, self._grace_ms)

    def _end_of(self, first: First) -> int:
        return closes_ms(self._windows, first.span, self._kept_ms)


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
class DistinctKind(RuleKind[Distinct]):
    """The kind of `distinct`."""

    name = "distinct"
    rule = Distinct
    late_choices = ("drop", "forward", "stop")
    own_setting = "grace_ms"

    windows: Any
    grace_ms: int = 0
    late: Any = "drop"
    guard: Any = STANDARD
    time: DeclaredFunction | None = None

    @property
    def traits(self) -> StageTraits:
        return replace(FORWARDING, order="times", guard=self.time_guard, own_times=self.own_times)
