"""Whether a service lives, and whether it works: what ``/live`` and ``/ready`` answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqe_chain.protocol.events import Event, Recovered, Standby, Stopped
from sqe_chain.protocol.interfaces import When

STUCK_MS = 15 * 60_000
"""A loop that has neither waited nor got on for so long counts as stuck. One step of a batch may take minutes."""

Answer = tuple[bool, str]
"""Whether all is well, and a sentence for people."""


@dataclass(slots=True)
class Health:
    """Implements `protocol.interfaces.Observer`.

    Args:
        quiet_ms: for how long the service's loop has not got on; 0 while it waits (`ServiceClock.quiet_ms`).
    """

    quiet_ms: Callable[[], int]
    _ready: bool = False
    _doing: str = "starting"

    def live(self) -> Answer:
        """The loop moves. It does as a standby too, and while it waits for a broker or store that is away."""
        quiet_ms = self.quiet_ms()
        if quiet_ms < STUCK_MS:
            return True, "the service moves"
        return False, f"nothing has happened for {quiet_ms // 1_000} s, last {self._doing}"

    def ready(self) -> Answer:
        """The flow is claimed and recovered, and this run works on it; a standby is not ready."""
        return self._ready, "at work" if self._ready else self._doing

    def step(self, number: int, when: When) -> None:
        """Steps tell nothing that events do not."""

    def event(self, event: Event) -> None:
        """Note what the service does."""
        self._doing = event.name
        if isinstance(event, Recovered):
            self._ready = True
        elif isinstance(event, Standby | Stopped):
            self._ready = False
