"""Stream time: the greatest event time that one state partition has seen, and a guard for it.

Every record moves it, even one that is dropped or has no key; nothing moves it back. It decides what is late,
what is purged and which windows close, so one timestamp from a broken clock would make everything after
it late. `JumpGuard` limits how far one record may move it.

    >>> time = StreamTime(guard=JumpGuard(max_jump_ms=1_000, confirmations=2))
    >>> [time.observe(at_ms) for at_ms in (5, 3, 900_000, 7)]
    [True, True, False, True]
    >>> time.now_ms
    7
    >>> [time.observe(at_ms) for at_ms in (900_000, 900_001)]
    [False, True]
    >>> time.now_ms
    900001

Source: KIP-655 and Kafka Streams, where stream time is lost with the process and has no guard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from sqe_chain._proto.windows_pb2 import ClockRow
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS, check_timestamp
from sqe_chain.errors import PoisonError
from sqe_chain.flow.declaration import TimeGuard, caller_line, check_choice, check_duration, check_int
from sqe_chain.flow.filtering import DAY_MS
from sqe_chain.stages.record import Reason, Record, Verdict, dropped

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
        policy: what becomes of those that are not believed yet. `hold`: they are handled like others. The time for which the
            last 256 of them are remembered runs from the stream time at which they came, until it reaches them. `drop`: dropped as `ahead`. `stop`: `PoisonError`, so the flow's poison
            policy decides; they confirm nothing.

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

    def follow(self, timestamp_ms: int, place_ms: int, row: bytes | None = None) -> bool:
        """Move stream time by a record whose place in the order of times is decided: `place_ms`, before its time if its clock ran ahead.

        Returns:
            False if its clock ran ahead.
        """
        to_ms, guard, now_ms = min(timestamp_ms, place_ms), self._guard, self.now_ms
        believed = guard is None or timestamp_ms - place_ms <= guard.max_jump_ms
        if now_ms is None or to_ms > now_ms:
            self._move(to_ms)
        if guard is not None and not believed and row is not None and guard.policy != "stop":
            noted_ms = to_ms if now_ms is None else now_ms
            self._held = [*self._held, Held(row, timestamp_ms, noted_ms)][-MAX_HELD:]
            self._next_ms = self._next()
        return believed

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
