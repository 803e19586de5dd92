"""The rows of aggregates with timers: for each key its state, its timers, and when it expires."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sqe_chain._proto.timers_pb2 import TimersRow
from sqe_chain.codecs import Codec
from sqe_chain.flow.context import Clock
from sqe_chain.flow.timers import Timer, Timers

KEYS: Final = b"k"
"""Prefix of the rows of keys."""


def no_timers() -> Timers:
    """No timers, on neither clock."""
    return {"event": {}, "batch": {}}


@dataclass(slots=True)
class Listing:
    """Where the timetable of a clock lists a key's row.

    Attributes:
        stored_ms: the moment at which the stored timetable lists it; None: it does not.
        next_ms: the first moment at which the timetable will wake it in this batch; None: at none.
    """

    stored_ms: int | None = None
    next_ms: int | None = None


@dataclass(slots=True)
class TimedKey:
    """A key, while a batch runs.

    Attributes:
        state: its state; None: it has none, and no timers.
        timers: clock -> name -> time.
        last_ms: time of its last record; None: its state does not expire.
        expires_ms: when its state is removed; None: never.
        listings: where its row is listed.
        reached_ms: the latest time of a timer that has fired since its last record.
        back: how often since then a timer has set one that fires at once.
    """

    state: Any = None
    timers: Timers = field(default_factory=no_timers)
    last_ms: int | None = None
    expires_ms: int | None = None
    listings: dict[Clock, Listing] = field(default_factory=lambda: {"event": Listing(), "batch": Listing()})
    reached_ms: int | None = None
    back: int = 0

    def first(self, clock: Clock) -> Timer | None:
        """The timer that is due first; at the same moment by name."""
        if not self.timers[clock]:
            return None
        at_ms, name = min((at_ms, name) for name, at_ms in self.timers[clock].items())
        return Timer(name, at_ms, clock)

    def used(self, at_ms: int, expire_after_ms: int) -> None:
        """A record has come: its state stays for so long after the latest of them."""
        self.last_ms = at_ms if self.last_ms is None else max(at_ms, self.last_ms)
        self.expires_ms = self.last_ms + expire_after_ms

    def next_ms(self, clock: Clock) -> int | None:
        """When something is due next; None: never."""
        moments = list(self.timers[clock].values())
        if clock == "event" and self.expires_ms is not None:
            moments.append(self.expires_ms)
        return min(moments, default=None)

    def forget(self) -> None:
        """Remove the state and all timers."""
        self.state, self.timers, self.last_ms, self.expires_ms = None, no_timers(), None, None


def key_in(codec: Codec[Any], expire_after_ms: int | None, content: bytes | None) -> TimedKey:
    """The key in a row; `expire_after_ms`: how long a state stays without a record.

    Raises:
        Exception: it does not hold such a state: google.protobuf.message.DecodeError, or what the codec raises.
    """
    if content is None:
        return TimedKey()
    row = TimersRow.FromString(content)
    event_ms = row.listed_ms if row.HasField("listed_ms") else None
    batch_ms = row.clock_listed_ms if row.HasField("clock_listed_ms") else None
    timers: Timers = {
        "event": {timer.name: timer.at_ms for timer in row.timers},
        "batch": {timer.name: timer.at_ms for timer in row.clock_timers},
    }
    listings: dict[Clock, Listing] = {
        "event": Listing(event_ms, event_ms),
        "batch": Listing(batch_ms, batch_ms),
    }
    key = TimedKey(codec.decode(row.state), timers, listings=listings)
    if expire_after_ms is not None and row.HasField("last_ms"):
        key.used(row.last_ms, expire_after_ms)
    return key


def row_of(codec: Codec[Any], key: TimedKey) -> bytes | None:
    """The content of a key's row; None: it needs none."""
    if key.state is None:
        return None
    event_ms, batch_ms = key.listings["event"].stored_ms, key.listings["batch"].stored_ms
    row = TimersRow(
        state=codec.encode(key.state), last_ms=key.last_ms, listed_ms=event_ms, clock_listed_ms=batch_ms
    )
    for name, at_ms in sorted(key.timers["event"].items()):
        row.timers.add(name=name, at_ms=at_ms)
    for name, at_ms in sorted(key.timers["batch"].items()):
        row.clock_timers.add(name=name, at_ms=at_ms)
    return row.SerializeToString(deterministic=True)
