"""Whether a service is alive, and whether it is ready: the answers to ``/live`` and ``/ready``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqe_chain.protocol.events import Event, Recovered, Standby, Stopped
from sqe_chain.protocol.interfaces import Observer

STUCK_MS = 15 * 60_000
"""A loop that has neither waited nor made progress for this long is stuck. One step of a batch may take minutes."""

Answer = tuple[bool, str]
"""Yes or no, and a sentence for people."""


@dataclass(slots=True)
class Health(Observer):
    """Knows from its events whether a service is alive and ready.

    Args:
        quiet_ms: returns for how long the loop has made no progress; 0 while it waits (`ServiceClock.quiet_ms`).
    """

    quiet_ms: Callable[[], int]
    _ready: bool = False
    _doing: str = "starting"

    def live(self) -> Answer:
        """Whether the loop makes progress, or waits: as a standby, or for a broker or store that is unavailable."""
        quiet_ms = self.quiet_ms()
        if quiet_ms < STUCK_MS:
            return True, "the service is making progress"
        return False, f"no progress for {quiet_ms // 1_000} s, last event: {self._doing}"

    def ready(self) -> Answer:
        """Whether the flow is claimed and recovered, and this run works on it; a standby is not ready."""
        return self._ready, "at work" if self._ready else self._doing

    def event(self, event: Event) -> None:
        """Note what the service does."""
        self._doing = event.name
        if isinstance(event, Recovered):
            self._ready = True
        elif isinstance(event, Standby | Stopped):
            self._ready = False
