"""Timers of a key, as user code sees them: `Timer`, and a context that sets them.

A key has at most one timer of a name on each clock. Which of them are due, and when, the stage decides
(`sqe_chain.stages.timers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sqe_chain.envelope.head import MAX_TIMESTAMP_MS
from sqe_chain.errors import PoisonError
from sqe_chain.flow.context import Clock, Context, Origin

_MAX_NAME: Final = 120
"""Characters of a timer's name."""
NOTHING_REACHED: Final[Mapping[Clock, int]] = {}

Timers = dict[Clock, dict[str, int]]
"""Clock -> name -> time."""


class Timer(NamedTuple):
    """A timer that fires.

    Attributes:
        name: its name; "" if it has none.
        at_ms: the time that it was set for, milliseconds since 1970.
        clock: "event": by event time; "batch": by the batch's clock.
    """

    name: str
    at_ms: int
    clock: Clock = "event"


class KeyTimers:
    """What one call of a fold, or of `on_timer`, does with the timers and the state of its key.

    Args:
        key: the key.
        timers: clock -> name -> time. The caller takes over what a call has left here, unless it fails.
        stage: name of the stage, for error texts.
        allowed: whether anything fires: the stage has an `on_timer`.
        reached: in `on_timer`, clock -> up to where a timer that is set now counts as one that fires at once.

    Attributes:
        key: the key.
        timers: as the call has left them.
        state_deleted: whether `delete_state` was called.
        went_back: whether in `on_timer` a timer was set that would fire at once.
    """

    __slots__ = ("_allowed", "_reached", "_stage", "key", "state_deleted", "timers", "went_back")

    def __init__(
        self,
        key: bytes,
        timers: Timers,
        stage: str,
        *,
        allowed: bool,
        reached: Mapping[Clock, int] = NOTHING_REACHED,
    ) -> None:
        self.key = key
        self.timers = timers
        self.state_deleted = False
        self.went_back = False
        self._stage = stage
        self._allowed = allowed
        self._reached = reached

    def set_timer(self, at_ms: int, name: str = "", clock: Clock = "event") -> None:
        """Set the timer of this name; see `Context.set_timer`."""
        timers = self._timers_by(clock)
        if not self._allowed:
            raise PoisonError(
                f"stage {self._stage!r}: set_timer() in an aggregate without on_timer=: declare what fires"
            )
        if type(at_ms) is not int or not 0 <= at_ms <= MAX_TIMESTAMP_MS:
            raise PoisonError(
                f"stage {self._stage!r}: set_timer(at_ms={at_ms!r}); milliseconds since 1970, a whole number, 0 to "
                f"{MAX_TIMESTAMP_MS}, such as context.timestamp_ms + 60_000"
            )
        timers[self._checked(name)] = at_ms
        # The stage counts these: timers that set each other for a time that is reached would fire without end.
        if at_ms <= self._reached.get(clock, -1):
            self.went_back = True

    def delete_timer(self, name: str = "", clock: Clock = "event") -> None:
        """Delete the timer of this name; see `Context.delete_timer`."""
        self._timers_by(clock).pop(self._checked(name), None)

    def delete_state(self) -> None:
        """Remove the state after this call, and all timers of the key with it."""
        self.state_deleted = True

    def _timers_by(self, clock: Clock) -> dict[str, int]:
        timers = self.timers.get(clock)
        if timers is None:
            raise PoisonError(
                f"stage {self._stage!r}: the clock of a timer is 'event' or 'batch', got {clock!r:.200}"
            )
        return timers

    def _checked(self, name: str) -> str:
        if type(name) is not str or len(name) > _MAX_NAME:
            raise PoisonError(
                f"stage {self._stage!r}: a timer's name must be text of at most {_MAX_NAME} characters, got {name!r:.200}"
            )
        return name


class TimersContext(Context):
    """The context of a fold, or of `on_timer`, in an aggregate with timers. In `on_timer` its input is the one that moved event time."""

    __slots__ = ("_timers",)

    def __init__(self, origin: Origin, now_ms: int, timers: KeyTimers) -> None:
        super().__init__(origin, timers.key, now_ms)
        self._timers = timers

    def delete_state(self) -> None:
        # The key's timers are deleted with it
        super().delete_state()
        self._timers.delete_state()

    def set_timer(self, at_ms: int, name: str = "", clock: Clock = "event") -> None:
        self._timers.set_timer(at_ms, name, clock)

    def delete_timer(self, name: str = "", clock: Clock = "event") -> None:
        self._timers.delete_timer(name, clock)
