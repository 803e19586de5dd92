"""The clock of a stage in one state partition: stream time, and what is due when it reaches a certain moment.

*Stream time* is the greatest event time that the state partition has seen. Every record moves it, even one that is dropped
or has no key; nothing moves it back. It decides what is late, what is purged and which windows close, so one timestamp from
a broken clock would make everything after it late. `JumpGuard` limits how far one record may move it.

    >>> time = StreamTime(guard=JumpGuard(max_jump_ms=1_000, confirmations=2))
    >>> [time.observe(at_ms) for at_ms in (5, 3, 900_000, 7)]
    [True, True, False, True]
    >>> time.now_ms
    7
    >>> [time.observe(at_ms) for at_ms in (900_000, 900_001)]
    [False, True]
    >>> time.now_ms
    900001

The *timetable* is an index in rows of what is due when stream time reaches a certain moment. Purging and closing must find
what is due without reading everything. So each row of a stage is listed at the moment at which it is due, in index rows, by
buckets of stream time:

    a                        the manifest: all buckets and their index rows
    b<end><group><part>      index rows: listings of the bucket that ends then
    ...                      the stage's own rows; their names sort after `b` and before `z`
    z                        stream time

A second timetable, by the batch's clock, has rows of the same kinds at `c`, `d` and `y`. Then the stage's own rows sort between
`d` and `y`.

Why this survives a crash between two chunks of one batch (the rule of `sqe_chain.flow.table`):

* Stream time depends on itself and on the records. It has the greatest name, so it keeps its old value until all
  other rows are written.
* The stage's own rows depend on themselves, on stream time, and on the listings that became due in this batch,
  by which they are found. Such listings are older than the batch, which lists only future moments. It removes none of them:
  their index rows are removed in a later batch.
* Index rows depend on themselves and on the stage's rows. The name of an index row contains a group number, which
  depends on `z`.
* A batch removes the index rows of buckets that had passed *before* it. It finds them by the manifest, which is
  written first and therefore lists them for one batch more.

Bounds: an index row grows until 4,096 records were seen, then another is begun; so a batch rewrites at most that
many older listings. A listing takes the row's name and about 6 bytes. Index rows are kept for two batches longer
than their bucket.

Source: KIP-655 and Kafka Streams, where stream time is lost with the process and has no guard.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Final, Literal, NamedTuple
from zlib import crc32

from sqe_chain._proto.windows_pb2 import ClockRow, IndexRow, ManifestRow
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS, check_timestamp
from sqe_chain.errors import PoisonError
from sqe_chain.flow.declaration import TimeGuard, caller_line, check_choice, check_duration, check_int
from sqe_chain.flow.filtering import DAY_MS
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.record import Reason, Record, Verdict, dropped
from sqe_chain.stages.table import write_row

MAX_HELD: Final = 256
MAX_CONFIRMATIONS: Final = 1_000_000
_NEVER: Final = 1 << 64

JumpPolicy = Literal["hold", "drop", "stop"]
"""What becomes of a record that is too far ahead; see `JumpGuard`."""


@dataclass(frozen=True, slots=True)
class JumpGuard(TimeGuard):
    """How far ahead of stream time one record may be.

    A record farther ahead does not move stream time, until `confirmations` records in a row are too far ahead, within
    `max_jump_ms` of each other. The very first record of a state partition is compared with the service's clock.

    Attributes:
        max_jump_ms: milliseconds by which one record may move stream time; 1 to 10**15.
        confirmations: how many such records in a row are believed; 1 to 1,000,000.
        policy: what becomes of those that are not believed yet. `hold`: they are handled like others, and the last 256 of them are
            remembered until stream time reaches them. `drop`: dropped as `ahead`. `stop`: `PoisonError`, so the flow's poison policy
            decides; they confirm nothing.

    Raises:
        FlowError: a number is out of its bounds.
    """

    max_jump_ms: int = DAY_MS
    confirmations: int = 3
    policy: JumpPolicy = "hold"

    def __post_init__(self) -> None:
        check_duration("max_jump_ms", self.max_jump_ms, where := caller_line(), 1)
        check_int("confirmations", self.confirmations, 1, MAX_CONFIRMATIONS, where)
        check_choice("policy", self.policy, ("hold", "drop", "stop"), where)

    def refuse(self, record: Record, now_ms: int | None) -> Verdict:
        """The verdict on a record too far ahead, where the policy is `drop` or `stop`.

        Args:
            record: the record.
            now_ms: stream time; None: there is none yet, and the record is too far ahead of the clock.

        Raises:
            PoisonError: the policy is `stop`.
        """
        than = "the service's clock" if now_ms is None else f"stream time {now_ms} ms"
        detail = f"event time {record.timestamp_ms} ms is more than {self.max_jump_ms} ms ahead of {than}"
        if self.policy == "stop":
            raise PoisonError(
                f"{record.topic}[{record.partition}] offset {record.offset}: {detail}. Either its clock is wrong "
                f"(choose a poison policy for it), or the topic was silent for long (set a larger max_jump_ms)"
            )
        return dropped(Reason.AHEAD, detail)


class Held(NamedTuple):
    """A record that was too far ahead of stream time, and is remembered nevertheless.

    Attributes:
        row: the row that remembers it.
        timestamp_ms: its event time.
        noted_ms: stream time when it came.
    """

    row: bytes
    timestamp_ms: int
    noted_ms: int


class StreamTime:
    """Stream time of one state partition while a batch runs.

    Args:
        clock: the stored row; None: nothing was seen yet.
        guard: None: every timestamp is believed.
        clock_ms: the service's clock, which the guard compares the very first record with; None: that one is
            believed.
        hold_ms: for how long, in stream time, a record that is not believed is remembered.

    Attributes:
        now_ms: stream time; None before the first record.
        before_ms: stream time at the beginning of the batch.
        reached: held records that stream time has reached while they were still remembered. From now on they are like
            others. The reader of the list clears it.
    """

    __slots__ = (
        "_ahead",
        "_ahead_highest_ms",
        "_ahead_lowest_ms",
        "_clock_ms",
        "_guard",
        "_held",
        "_hold_ms",
        "_next_ms",
        "before_ms",
        "now_ms",
        "reached",
    )

    def __init__(
        self,
        clock: ClockRow | None = None,
        *,
        guard: JumpGuard | None = None,
        clock_ms: int | None = None,
        hold_ms: int = 0,
    ) -> None:
        clock = clock or ClockRow()
        self.now_ms = clock.stream_time_ms if clock.HasField("stream_time_ms") else None
        self.before_ms = self.now_ms
        self.reached: list[Held] = []
        self._guard = guard
        self._clock_ms = clock_ms
        self._hold_ms = hold_ms
        self._ahead = clock.ahead
        self._ahead_lowest_ms = clock.ahead_lowest_ms
        self._ahead_highest_ms = clock.ahead_highest_ms
        self._held = [Held(held.row, held.timestamp_ms, held.noted_ms) for held in clock.held]
        self._next_ms = self._next()

    def observe(self, timestamp_ms: int, row: bytes | None = None) -> bool:
        """Move stream time by one record.

        Args:
            timestamp_ms: its event time.
            row: the row that will remember it if it is not believed; see `reached`.

        Returns:
            False if it is too far ahead to be believed: stream time does not move.

        Raises:
            OutOfBounds: no event has this time.
        """
        # Farther away, rows and durations around it would not fit into 64 bits. Times before 1970 are times, here.
        if abs(timestamp_ms) > MAX_TIMESTAMP_MS:
            check_timestamp(timestamp_ms)
        now_ms, guard = self.now_ms, self._guard
        known_ms = self._clock_ms if now_ms is None else now_ms
        too_far = guard is not None and known_ms is not None and timestamp_ms - known_ms > guard.max_jump_ms
        # A pause in the past is no clock that runs ahead.
        if guard is not None and too_far and (self._clock_ms is None or timestamp_ms > self._clock_ms):
            if guard.policy == "stop":
                return False
            self._count(timestamp_ms, guard.max_jump_ms)
            if self._ahead < guard.confirmations:
                if row is not None and now_ms is not None:
                    self._held = [*self._held, Held(row, timestamp_ms, now_ms)][-MAX_HELD:]
                    self._next_ms = self._next()
                return False
            timestamp_ms = self._ahead_highest_ms  # confirmed: the whole run is believed, its latest included
        if self._ahead:
            self._begin_run(0, 0)
        if now_ms is None or timestamp_ms > now_ms:
            self._move(timestamp_ms)
        return True

    def follow(
        self, timestamp_ms: int, place_ms: int, row: bytes | None = None, *, own_time: bool = False
    ) -> bool:
        """Move stream time by a record whose place in the order of times is decided: `place_ms`, before its time if its clock ran ahead.

        Returns:
            False if its clock ran ahead. Of a record with a time of its own, whether the guard refuses it.
        """
        # By places alone: they never fall, and the flow has decided about clocks. By a time of its own, rows beside it would be late.
        to_ms, guard, now_ms = place_ms, self._guard, self.now_ms
        believed = guard is None or timestamp_ms - place_ms <= guard.max_jump_ms
        if own_time:
            # Its own time shows nothing of a clock.
            believed = believed or guard is None or guard.policy == "hold"
        if now_ms is None or to_ms > now_ms:
            self._move(to_ms)
        if guard is not None and not believed and row is not None and guard.policy != "stop":
            noted_ms = to_ms if now_ms is None else now_ms
            self._held = [*self._held, Held(row, timestamp_ms, noted_ms)][-MAX_HELD:]
            self._next_ms = self._next()
        return believed

    @property
    def quiet_until_ms(self) -> int:
        """The first event time that `observe` might not believe, now, or that reaches a held record."""
        return min(self.believed_until_ms, self._next_ms)

    @property
    def believed_until_ms(self) -> int:
        """The first event time that `observe` might not believe, now."""
        if self._guard is None or self.now_ms is None:
            return _NEVER if self._guard is None else -_NEVER
        return self.now_ms + self._guard.max_jump_ms + 1

    def advance(self, to_ms: int) -> None:
        """Move stream time without a record, for inputs that are silent; never back, and without asking the guard."""
        if self.now_ms is None or to_ms > self.now_ms:
            self._begin_run(0, 0)
            self._move(to_ms)

    def save(self, clock: ClockRow) -> None:
        """Write this object into the row that is to be stored."""
        if self.now_ms is not None:
            clock.stream_time_ms = self.now_ms
        clock.ahead = self._ahead
        clock.ahead_lowest_ms = self._ahead_lowest_ms
        clock.ahead_highest_ms = self._ahead_highest_ms
        del clock.held[:]
        for held in self._held:
            clock.held.add(row=held.row, timestamp_ms=held.timestamp_ms, noted_ms=held.noted_ms)

    def _move(self, to_ms: int) -> None:
        before_ms, self.now_ms = self.now_ms, to_ms
        if before_ms is None or to_ms < self._next_ms:
            return
        kept: list[Held] = []
        for held in self._held:
            over_ms = held.noted_ms + self._hold_ms + 1
            if held.timestamp_ms <= to_ms and before_ms < over_ms:
                self.reached.append(held)
            elif to_ms < over_ms:
                kept.append(held)
        self._held = kept
        self._next_ms = self._next()

    def _next(self) -> int:
        """First stream time at which a held record is reached or expires."""
        return min(
            (min(held.timestamp_ms, held.noted_ms + self._hold_ms + 1) for held in self._held), default=_NEVER
        )

    def _count(self, timestamp_ms: int, max_jump_ms: int) -> None:
        """Count one more of the run if it is close enough to the others; otherwise begin a new run."""
        lowest_ms = min(timestamp_ms, self._ahead_lowest_ms)
        highest_ms = max(timestamp_ms, self._ahead_highest_ms)
        if self._ahead and highest_ms - lowest_ms <= max_jump_ms:
            self._ahead += 1
            self._ahead_lowest_ms, self._ahead_highest_ms = lowest_ms, highest_ms
        else:
            self._begin_run(1, timestamp_ms)

    def _begin_run(self, ahead: int, at_ms: int) -> None:
        self._ahead, self._ahead_lowest_ms, self._ahead_highest_ms = ahead, at_ms, at_ms


MANIFEST: Final = b"a"
INDEX: Final = b"b"
CLOCK: Final = b"z"

GROUP_RECORDS: Final = 4_096
BUCKETS: Final = 64
"""About how many buckets a retention is cut into."""


class TimetableRows(NamedTuple):
    """Names of a timetable's rows; the stage's own rows lie between `listings` and `clock`.

    Attributes:
        manifest: all buckets and their index rows.
        listings: prefix of index rows.
        clock: stream time.
    """

    manifest: bytes
    listings: bytes
    clock: bytes


EVENT_TIME: Final = TimetableRows(MANIFEST, INDEX, CLOCK)
BATCH_CLOCK: Final = TimetableRows(b"c", b"d", b"y")
"""A second timetable of the same stage, by the batch's clock."""

_INDEX_NAME: Final = struct.Struct(">QQI")
_SIGN: Final = 1 << 63

_Bucket = ManifestRow.Bucket


def bucket_length(retention_ms: int) -> int:
    """Length of a bucket, for items that are kept for `retention_ms`: a 64th of it, at least 1 ms."""
    return max(1, retention_ms // BUCKETS)


def _index_rows(prefix: bytes, bucket: _Bucket) -> list[bytes]:
    """Names of every index row that a bucket may have."""
    return [
        prefix + _INDEX_NAME.pack(bucket.end_ms + _SIGN, group, part)
        for group in range(bucket.first_group, bucket.last_group + 1)
        for part in range(bucket.parts)
    ]


class Timetable:
    """Stream time and time index of one stage in one state partition, while a batch runs.

    Args:
        table: the stage's rows.
        bucket_ms: length of a bucket, 1 or more; it may differ from run to run.
        phase_ms: buckets end at this moment and at multiples of their length from it.
        exact: listings keep their moment; otherwise they become due at the end of their bucket, and no index row
            is read more than once.
        guard: see `JumpGuard`.
        clock_ms: see `StreamTime`.
        hold_ms: see `StreamTime`.
        names: of its rows.

    Attributes:
        time: stream time.
        listed_ms: after `finish`, the first moment at which something is listed that was not taken; None: nothing is.
    """

    def __init__(
        self,
        table: RowTable,
        *,
        bucket_ms: int,
        phase_ms: int = 0,
        exact: bool = False,
        guard: JumpGuard | None = None,
        clock_ms: int | None = None,
        hold_ms: int = 0,
        names: TimetableRows = EVENT_TIME,
    ) -> None:
        self._table = table
        self._bucket_ms = bucket_ms
        self._phase_ms = phase_ms
        self._exact = exact
        self._guard = guard
        self._clock_ms = clock_ms
        self._hold_ms = hold_ms
        self._names = names
        self.listed_ms: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._clock = ClockRow.FromString(self._table.get(self._names.clock) or b"")
        self.time = StreamTime(self._clock, guard=self._guard, clock_ms=self._clock_ms, hold_ms=self._hold_ms)
        manifest = ManifestRow.FromString(self._table.get(self._names.manifest) or b"")
        self._buckets = {bucket.end_ms: bucket for bucket in manifest.buckets}
        before_ms = self.time.before_ms
        self._unopened = sorted(
            (bucket for bucket in manifest.buckets if before_ms is None or bucket.end_ms > before_ms),
            key=lambda bucket: (-bucket.earliest_due_ms, -bucket.end_ms),
        )
        self._due: dict[int, list[bytes]] = {}
        self._moments: list[int] = []  # of all that is due, as a heap
        self._taken_ms: int | None = None  # the moment whose rows are a heap
        self._filed: set[tuple[int, bytes]] = set()
        self._records = 0

    def observe(self, timestamp_ms: int, row: bytes | None = None) -> bool:
        """Move stream time by a record; see `StreamTime.observe`. Call it, or `follow`, for every record, dropped or not."""
        believed = self.time.observe(timestamp_ms, row)
        self._records += 1
        return believed

    def follow(self, record: Record, row: bytes | None = None) -> bool:
        """The same by a record of a flow, which may have decided about its place; see `StreamTime.follow`."""
        if record.place_ms is None:
            return self.observe(record.timestamp_ms, row)
        self._records += 1
        return self.time.follow(record.timestamp_ms, record.place_ms, row, own_time=record.own_time)

    @property
    def ordinary_until_ms(self) -> int:
        """The lowest event time that `observe` may refuse, or that may make something due."""
        due_ms, believed_ms = self.next_due_ms, self.time.believed_until_ms
        return believed_ms if due_ms is None else min(due_ms, believed_ms)

    @property
    def next_due_ms(self) -> int | None:
        """The first moment at which something is, or may be, due; None: nothing is listed."""
        return min(
            [*self._moments[:1], *(bucket.earliest_due_ms for bucket in self._unopened[-1:])], default=None
        )

    def count(self) -> None:
        """Count a record that does not move stream time: the size of index rows goes by the records seen."""
        self._records += 1

    def observe_run(self, count: int, latest_ms: int, *, placed: bool) -> None:
        """`observe` for several records before `ordinary_until_ms`. None of them lies after its place.

        Args:
            count: how many.
            latest_ms: the latest of their times, or stream time if that is later.
            placed: they have places in the order of times.
        """
        if count and placed:
            self.time.follow(latest_ms, latest_ms)
        elif count:
            self.time.observe(latest_ms)
        self._records += count

    def listed_rows(self) -> list[bytes]:
        """All rows that are listed for a later moment, in order. It reads the whole index."""
        self._open(_NEVER)
        return sorted(set(chain.from_iterable(self._due.values())))

    def file(self, row: bytes, due_ms: int) -> None:
        """List a row, at the end of the batch, for a stream time that is later than then."""
        self._filed.add((due_ms, row))

    def remind(self, row: bytes, due_ms: int) -> None:
        """List a row for the rest of this batch only; see `take_due`."""
        rows = self._due.get(due_ms)
        if rows is None:
            self._due[due_ms] = [row]
            heappush(self._moments, due_ms)
        elif due_ms == self._taken_ms:
            heappush(rows, row)
        else:
            rows.append(row)

    def take_due(self) -> Iterator[tuple[int, bytes]]:
        """Listings that became due in this batch and were not taken yet, in the order (moment, row).

        While they are iterated, `remind` may add more. A row may come more than once, and it may no
        longer have anything due.
        """
        now_ms = self.time.now_ms
        if now_ms is None:
            return
        if self._unopened and self._unopened[-1].earliest_due_ms <= now_ms:
            self._open(now_ms)
        if self._moments and self._moments[0] <= now_ms:
            self._load_due(now_ms)
        while self._moments and self._moments[0] <= now_ms:
            due_ms = self._moments[0]
            rows = self._due[due_ms]
            if due_ms != self._taken_ms:
                heapify(rows)
                self._taken_ms = due_ms
            if rows:
                # The caller may list rows for this moment, or for one before it.
                yield due_ms, heappop(rows)
            else:
                heappop(self._moments)
                del self._due[due_ms]
                self._taken_ms = None

    def finish(self) -> None:
        """Write new listings, remove index rows of the past, write stream time. Another batch may begin."""
        # A bucket keeps the earliest moment that it ever listed, so this is known only while it is open.
        known_ms = [self.next_due_ms, *(due_ms for due_ms, _ in self._filed)]
        self.listed_ms = min([due_ms for due_ms in known_ms if due_ms is not None], default=None)
        before_ms, clock = self.time.before_ms, ClockRow()
        clock.CopyFrom(self._clock)
        if before_ms is not None:
            self._remove_passed(before_ms)
            clock.removed_to_ms = before_ms
        self._write_listings()
        self.time.save(clock)
        clock.group_records += self._records
        if clock.group_records >= GROUP_RECORDS:
            clock.group += 1
            clock.group_records = 0
        manifest = ManifestRow(buckets=[self._buckets[end_ms] for end_ms in sorted(self._buckets)])
        write_row(self._table, self._names.manifest, manifest.SerializeToString(deterministic=True) or None)
        write_row(self._table, self._names.clock, clock.SerializeToString(deterministic=True) or None)
        self._begin()

    def _open(self, now_ms: int) -> None:
        """Read the listings of every bucket in which something is due; skip those that were due in an earlier batch."""
        rows: dict[bytes, int] = {}
        while self._unopened and self._unopened[-1].earliest_due_ms <= now_ms:
            bucket = self._unopened.pop()
            rows |= dict.fromkeys(_index_rows(self._names.listings, bucket), bucket.end_ms)
        self._table.load(rows)
        before_ms = self.time.before_ms
        for row, end_ms in rows.items():
            for listing in IndexRow.FromString(self._table.get(row) or b"").listings:
                due_ms = end_ms - listing.before_end_ms
                if before_ms is None or due_ms > before_ms:
                    self.remind(listing.row, due_ms)

    def _load_due(self, now_ms: int) -> None:
        due: list[int] = []
        while self._moments and self._moments[0] <= now_ms:
            due.append(heappop(self._moments))
        self._table.load(dict.fromkeys(chain.from_iterable(self._due[due_ms] for due_ms in due)))
        for due_ms in due:
            heappush(self._moments, due_ms)

    def _write_listings(self) -> None:
        parts = 1 + self._records // GROUP_RECORDS
        group = self._clock.group
        added: defaultdict[bytes, set[tuple[int, bytes]]] = defaultdict(set)
        for due_ms, row in sorted(self._filed):
            end_ms = self._end_of(due_ms)
            listed_ms = due_ms if self._exact else end_ms
            part = crc32(row) % parts  # not hash(): it differs from process to process, and a redo must agree
            added[self._names.listings + _INDEX_NAME.pack(end_ms + _SIGN, group, part)].add(
                (end_ms - listed_ms, row)
            )
            bucket = self._buckets.get(end_ms)
            if bucket is None:
                bucket = _Bucket(end_ms=end_ms, earliest_due_ms=listed_ms, first_group=group)
                self._buckets[end_ms] = bucket
            bucket.earliest_due_ms = min(bucket.earliest_due_ms, listed_ms)
            bucket.last_group = group
            bucket.parts = max(bucket.parts, part + 1)
        self._table.load(added)
        for name, listings in added.items():
            old = IndexRow.FromString(self._table.get(name) or b"").listings
            listings.update((listing.before_end_ms, listing.row) for listing in old)
            content = IndexRow(
                listings=[
                    IndexRow.Listing(row=row, before_end_ms=before_end_ms)
                    for before_end_ms, row in sorted(listings)
                ]
            )
            self._table.put(name, content.SerializeToString(deterministic=True))

    def _remove_passed(self, before_ms: int) -> None:
        """Remove buckets that had passed before this batch: first their rows, in the next batch their manifest entry."""
        removed_to_ms = self._clock.removed_to_ms if self._clock.HasField("removed_to_ms") else None
        rows: list[bytes] = []
        for end_ms, bucket in list(self._buckets.items()):
            if removed_to_ms is not None and end_ms <= removed_to_ms:
                del self._buckets[end_ms]
            elif end_ms <= before_ms:
                rows += _index_rows(self._names.listings, bucket)
        self._table.load(rows)
        for row in rows:
            write_row(self._table, row, None)

    def _end_of(self, due_ms: int) -> int:
        return due_ms + (self._phase_ms - due_ms) % self._bucket_ms
