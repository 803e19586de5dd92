"""Stream time: the greatest event time that one state partition has seen, and a guard for it.

Every record moves it, also one that is dropped or has no key; nothing moves it back. It decides what is late,
what is purged and which windows close, so one timestamp from a broken clock would make everything after
it late. `JumpGuard` says how far one record may move it.

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
from typing import Literal

from sqe_chain._proto.windows_pb2 import ClockRow
from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.filtering import DAY_MS
from sqe_chain.stages.record import Reason, Record, Verdict

JumpPolicy = Literal["hold", "drop", "stop"]
"""What becomes of a record too far ahead; see `JumpGuard`."""


@dataclass(frozen=True, slots=True)
class JumpGuard:
    """How far ahead of stream time one record may be.

    A record farther ahead does not move stream time. But a topic may have been silent for long: when
    `confirmations` records in a row are too far ahead, and within `max_jump_ms` of each other, stream time
    follows them. The very first record of a state partition is compared with the service's clock; until one is
    believed, those from too far ahead go on and are not remembered, if the policy is `hold`.

    Attributes:
        max_jump_ms: milliseconds by which one record may move stream time; 1 or more.
        confirmations: how many such records in a row are believed; 1 or more.
        policy: what becomes of those that are not believed yet. `hold`: they are handled like others, and what
            remembers them counts from the stream time at which they came, until they are believed. `drop`:
            dropped as malformed. `stop`: `PoisonError`, so the flow's poison policy decides; a record that is
            excluded so confirms nothing.

    Raises:
        FlowError: a number is out of its bounds.
    """

    max_jump_ms: int = DAY_MS
    confirmations: int = 3
    policy: JumpPolicy = "hold"

    def __post_init__(self) -> None:
        if self.max_jump_ms < 1 or self.confirmations < 1:
            raise FlowError(
                f"a jump guard needs max_jump_ms and confirmations of 1 or more, "
                f"not {self.max_jump_ms} and {self.confirmations}"
            )
        if self.policy not in {"hold", "drop", "stop"}:
            raise FlowError(f"a jump guard's policy is hold, drop or stop, not {self.policy!r}")

    def refuse(self, record: Record, now_ms: int | None) -> Verdict:
        """The verdict on a record too far ahead, where the policy is `drop` or `stop`.

        Args:
            record: the record.
            now_ms: stream time; None: there is none yet, and the record is too far ahead of the clock.

        Raises:
            PoisonError: the policy is `stop`.
        """
        than = "the service's clock" if now_ms is None else f"stream time {now_ms} ms"
        found = f"event time {record.timestamp_ms} ms is more than {self.max_jump_ms} ms ahead of {than}"
        if self.policy == "stop":
            raise PoisonError(
                f"{record.topic}[{record.partition}] offset {record.offset}: {found}. Either its clock is wrong "
                f"(choose a poison policy for it), or the topic was silent for long (set a larger max_jump_ms)"
            )
        return Verdict(forward=False, reason=Reason.MALFORMED, detail=found)


def check_guard(guard: object) -> None:
    """Raises FlowError if this is neither a guard nor None."""
    if guard is not None and not isinstance(guard, JumpGuard):
        raise FlowError(f"guard={guard!r}: a JumpGuard, or None")


class StreamTime:
    """Stream time of one state partition while a batch runs.

    Args:
        clock: the stored row; None: nothing was seen yet.
        guard: None: every timestamp is believed.
        clock_ms: the service's clock, which the guard compares the very first record with; None: that one is
            believed.

    Attributes:
        now_ms: stream time; None before the first record.
        before_ms: stream time at the beginning of the batch.
        confirmed: rows of records that were not believed when they came, and are now; whoever reads them clears
            them.
    """

    __slots__ = (
        "_ahead",
        "_ahead_lowest_ms",
        "_ahead_rows",
        "_clock_ms",
        "_guard",
        "before_ms",
        "confirmed",
        "now_ms",
    )

    def __init__(
        self, clock: ClockRow | None = None, *, guard: JumpGuard | None = None, clock_ms: int | None = None
    ) -> None:
        clock = clock or ClockRow()
        self.now_ms = clock.stream_time_ms if clock.HasField("stream_time_ms") else None
        self.before_ms = self.now_ms
        self._guard = guard
        self._clock_ms = clock_ms
        self._ahead = clock.ahead
        self._ahead_lowest_ms = clock.ahead_lowest_ms
        self._ahead_rows = list(clock.ahead_rows)
        self.confirmed: list[bytes] = []

    def observe(self, timestamp_ms: int, row: bytes | None = None) -> bool:
        """Let a record move stream time.

        Args:
            timestamp_ms: its event time.
            row: the row that will remember it; see `confirmed`.

        Returns:
            False if it is too far ahead to be believed: stream time stays.
        """
        now_ms, guard = self.now_ms, self._guard
        known_ms = self._clock_ms if now_ms is None else now_ms
        if guard is not None and known_ms is not None and timestamp_ms - known_ms > guard.max_jump_ms:
            self._count(timestamp_ms, guard)
            if self._ahead < guard.confirmations:
                if row is not None and now_ms is not None:
                    self._ahead_rows.append(row)
                return False
            self.confirmed += self._ahead_rows
        if self._ahead:
            self._begin_run(0, 0)
        if now_ms is None or timestamp_ms > now_ms:
            self.now_ms = timestamp_ms
        return True

    def advance(self, to_ms: int) -> None:
        """Move stream time from outside, for inputs that are silent; never back, and past any guard."""
        if self.now_ms is None or to_ms > self.now_ms:
            self.now_ms = to_ms
            self._begin_run(0, 0)

    def save(self, clock: ClockRow) -> None:
        """Set this object's fields of the row to be stored."""
        if self.now_ms is not None:
            clock.stream_time_ms = self.now_ms
        clock.ahead = self._ahead
        clock.ahead_lowest_ms = self._ahead_lowest_ms
        del clock.ahead_rows[:]
        clock.ahead_rows.extend(self._ahead_rows)

    def _count(self, timestamp_ms: int, guard: JumpGuard) -> None:
        if self._ahead and abs(timestamp_ms - self._ahead_lowest_ms) <= guard.max_jump_ms:
            self._ahead += 1
            self._ahead_lowest_ms = min(timestamp_ms, self._ahead_lowest_ms)
        else:
            self._begin_run(1, timestamp_ms)

    def _begin_run(self, ahead: int, lowest_ms: int) -> None:
        self._ahead, self._ahead_lowest_ms = ahead, lowest_ms
        self._ahead_rows = []
