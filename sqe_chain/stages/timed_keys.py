"""The rows of aggregates with timers: for each key its state, its timers, and when it expires."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sqe_chain._proto.timers_pb2 import TimersRow
from sqe_chain.codecs import Codec
from sqe_chain.flow.timers import Timer

KEYS: Final = b"k"
"""Prefix of the rows of keys."""


@dataclass(slots=True)
class TimedKey:
    """A key, while a batch runs.

    Attributes:
        state: its state; None: it has none, and no timers.
        timers: name -> time.
        last_ms: time of its last record; None: its state does not expire.
        expires_ms: when its state is removed; None: never.
        listed_ms: the moment at which the stored timetable lists its row; None: it does not.
        reminded_ms: the first moment at which the timetable will wake it in this batch.
        reached_ms: the latest time of a timer that has fired since its last record.
        back: how often since then a timer has set one that is not after itself.
    """

    state: Any = None
    timers: dict[str, int] = field(default_factory=dict)
    last_ms: int | None = None
    expires_ms: int | None = None
    listed_ms: int | None = None
    reminded_ms: int | None = None
    reached_ms: int | None = None
    back: int = 0

    def first(self) -> Timer | None:
        """The timer that is due first; at the same moment by name."""
        return min((Timer(name, at_ms) for name, at_ms in self.timers.items()), key=_moment, default=None)

    def used(self, at_ms: int, expire_after_ms: int) -> None:
        """A record has come: its state stays for so long after the latest of them."""
        self.last_ms = at_ms if self.last_ms is None else max(at_ms, self.last_ms)
        self.expires_ms = self.last_ms + expire_after_ms

    def next_ms(self) -> int | None:
        """When something is due next; None: never."""
        timer = min(self.timers.values(), default=None)
        if timer is None or self.expires_ms is None:
            return self.expires_ms if timer is None else timer
        return min(timer, self.expires_ms)

    def forget(self) -> None:
        """Remove the state and all timers."""
        self.state, self.timers, self.last_ms, self.expires_ms = None, {}, None, None


def key_in(codec: Codec[Any], expire_after_ms: int | None, content: bytes | None) -> TimedKey:
    """The key in a row.

    Args:
        codec: of the state.
        expire_after_ms: how long a state stays without a record; None: for ever.
        content: of the row; None: there is none.

    Raises:
        Exception: it does not hold such a state: google.protobuf.message.DecodeError, or what the codec raises.
    """
    if content is None:
        return TimedKey()
    row = TimersRow.FromString(content)
    listed_ms = row.listed_ms if row.HasField("listed_ms") else None
    timers = {timer.name: timer.at_ms for timer in row.timers}
    key = TimedKey(codec.decode(row.state), timers, listed_ms=listed_ms, reminded_ms=listed_ms)
    if expire_after_ms is not None and row.HasField("last_ms"):
        key.used(row.last_ms, expire_after_ms)
    return key


def row_of(codec: Codec[Any], key: TimedKey) -> bytes | None:
    """The content of a key's row; None: it needs none.

    Args:
        codec: of the state.
        key: the key.
    """
    if key.state is None:
        return None
    row = TimersRow(state=codec.encode(key.state), last_ms=key.last_ms, listed_ms=key.listed_ms)
    for name, at_ms in sorted(key.timers.items()):
        row.timers.add(name=name, at_ms=at_ms)
    return row.SerializeToString(deterministic=True)


def state_in(name: bytes, content: bytes, codec: Codec[Any]) -> tuple[bytes, Any] | None:
    """Key and state of a row; None if the row belongs to the timetable.

    Args:
        name: of the row.
        content: of the row.
        codec: of the state.

    Raises:
        Exception: see `key_in`.
    """
    if not name.startswith(KEYS):
        return None
    return name[len(KEYS) :], key_in(codec, None, content).state


def _moment(timer: Timer) -> tuple[int, str]:
    return timer.at_ms, timer.name
