"""What the page knows of the service that runs beside it: its newest events, how long the steps of batches took, its last error."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from sqe_chain.errors.safe_text import shown
from sqe_chain.ext.web.site import Json
from sqe_chain.plans.events import PROCESS, STEPS, Committed, Event, Failed, Observer, Waiting, When

EVENTS: Final = 12
"""Newest events that are kept: each watcher gets them with each change."""
BATCHES: Final = 50
"""Newest batches that are kept."""


@dataclass(slots=True)
class History(Observer):
    """Hears what a service does, and keeps what is new. The page asks from another thread.

    Args:
        now_s: returns seconds; only differences matter.
        now_ms: returns milliseconds since 1970.
    """

    now_s: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    _events: deque[Json] = field(default_factory=lambda: deque(maxlen=EVENTS))
    _batches: deque[Json] = field(default_factory=lambda: deque(maxlen=BATCHES))
    _open: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=BATCHES))
    _began_s: dict[int, float] = field(default_factory=dict)
    _last_error: Json | None = None
    _lock: Lock = field(default_factory=Lock)

    def step(self, number: int, when: When) -> None:
        """Measure a step. A batch begins with its first step after those of the batch before, which may not be committed yet."""
        if number < PROCESS:
            return
        if when == "before":
            self._began_s[number] = self.now_s()
            if number == PROCESS and (not self._open or set(self._open[-1]) - {STEPS[PROCESS].name}):
                self._open.append({})
        elif self._open:
            steps, name = self._open[-1], STEPS[number].name
            steps[name] = steps.get(name, 0.0) + self.now_s() - self._began_s.get(number, self.now_s())

    def event(self, event: Event) -> None:
        kept = {name: value for name, value in event.fields().items() if name not in event.for_programs}
        with self._lock:
            self._events.append({"event": event.name, "at_ms": self.now_ms(), **kept})
            match event:
                case Committed():
                    self._batches.append(self._batch(event))
                case Failed():
                    self._last_error = self._error("PoisonError", event.first)
                case Waiting():
                    self._last_error = self._error("Unavailable", f"waiting to {event.what}: {event.reason}")

    def events(self) -> list[Json]:
        """The newest events, oldest first."""
        with self._lock:
            return list(self._events)

    def batches(self) -> list[Json]:
        """The newest batches, oldest first."""
        with self._lock:
            return list(self._batches)

    def last_error(self) -> Json | None:
        """The newest error that the service went on after; None: there was none."""
        with self._lock:
            return self._last_error

    def _batch(self, event: Committed) -> Json:
        steps = self._open.popleft() if self._open else {}
        return {
            "number": event.plan,
            "ended_ms": self.now_ms(),
            "records": event.inputs,
            "replays": event.replays,
            "skipped": event.excluded,
            "outputs": event.outputs,
            "batch_ms": event.batch_ms,
            "steps": {name: round(1_000 * seconds, 1) for name, seconds in steps.items()},
        }

    def _error(self, name: str, text: str) -> Json:
        return {"error": name, "text": shown(text), "at_ms": self.now_ms(), "record": None, "entry": name}
