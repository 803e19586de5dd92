"""Virtual time."""

from __future__ import annotations

from collections.abc import Callable

from sqe_chain.plans.environment import Clock


class SteppingClock(Clock):
    """A clock that advances by a millisecond each time it is read, and whose waits return at once.

    It starts in the year 2100, so that no test event is in its future by accident.

    Args:
        stop_after: number of waits after which `wait` reports that the service is asked to stop.
        now_ms: initial time, in milliseconds since 1970.

    Attributes:
        now: present time, in milliseconds since 1970.
        waits: waits so far.
        while_waiting: called in each wait, when its time has passed: what others do meanwhile.
    """

    def __init__(self, stop_after: int = 100, now_ms: int = 4_102_444_800_000) -> None:
        self.now = now_ms
        self.waits = 0
        self.while_waiting: Callable[[], object] | None = None
        self._stop_after = stop_after

    def now_ms(self) -> int:
        self.now += 1
        return self.now

    def wait(self, milliseconds: int) -> bool:
        self.now += milliseconds
        self.waits += 1
        if self.while_waiting is not None:
            self.while_waiting()
        return self.waits >= self._stop_after

    def jump(self, milliseconds: int) -> None:
        """Set the clock forward, or back with a negative number."""
        self.now += milliseconds
