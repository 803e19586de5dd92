"""Ends a service: on signals, when the claim is lost, when an outage lasts too long."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType

from sqe_chain.plans.environment import Clock
from sqe_chain.plans.events import COMMIT, PERSIST, PUBLISH, SEAL, STEPS, Event, Waiting, When
from sqe_chain.plans.retrying import FIRST_WAIT_MS

_SLICE_S = 0.5
"""Longest delay until a signal is noticed that the system has delivered to another thread."""


ATTEMPT_MS = 10_000
"""How long clients wait for a server in one attempt, by default."""

SLOW_MS = 15_000
"""A step that waits for servers for longer gets a notice, before any time limit ends it."""

_WAITING_STEPS = frozenset({SEAL, PUBLISH, PERSIST, COMMIT})


class Stop:
    """A request to end, and its reason. The first reason is kept.

    Signal handlers call `request`, between any two instructions. So it must wake the waiter by a reentrant object, such
    as a SimpleQueue. An Event is not reentrant: a signal that comes while its lock is held would block without end.
    """

    def __init__(self) -> None:
        self._bell: SimpleQueue[None] = SimpleQueue()
        self.requested = False
        self.superseded = False
        self.reason = ""

    def request(self, reason: str, *, superseded: bool = False) -> None:
        """Ask the service to end after the current batch; when superseded, as soon as it notices."""
        self.superseded = self.superseded or superseded
        self.reason = self.reason or reason
        self.requested = True  # last: who sees it finds the reason
        self._bell.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for this time, or until asked to end; returns whether it was.

        Waits in slices: the system may deliver a signal to another thread, but Python runs the handler only in the main
        thread, when that wakes.
        """
        deadline = time.monotonic() + seconds
        while not self.requested and (rest := deadline - time.monotonic()) > 0:
            with suppress(Empty):
                self._bell.get(timeout=min(rest, _SLICE_S))
        return self.requested


class ServiceClock(Clock):
    """The clock of a service. As an observer it notes outages of brokers and stores, and progress of the loop.

    Implements `plans.environment.Clock` and `Observer`.

    Args:
        stop: the request to end; it ends every wait.
        give_up_ms: how long a broker or store may be unavailable before `wait` reports that the service has to stop;
            None: it may be so without end.
    """

    def __init__(self, stop: Stop, give_up_ms: int | None = None) -> None:
        self.stop = stop
        self._give_up_ms = give_up_ms
        # The step that waits for servers now, and when it counts as slow; None: none does, or it was reported.
        self._slow: tuple[str, int] | None = None
        # Since when nothing has answered; None: brokers and stores are available, as far as is known.
        self._away_since_ms: int | None = None
        # When the loop moved last; None while it waits. The threads of heartbeat and health only read it.
        self._moved_ms: int | None = self.ticks_ms()

    def quiet_ms(self) -> int:
        """For how long the loop has neither waited nor made progress; 0 while it waits."""
        moved_ms = self._moved_ms
        return 0 if moved_ms is None else self.ticks_ms() - moved_ms

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ticks_ms(self) -> int:
        """Milliseconds of a clock that never goes back, to measure durations."""
        return time.monotonic_ns() // 1_000_000

    def wait(self, milliseconds: int) -> bool:
        away = self._away_since_ms
        if away is not None and self._give_up_ms is not None and self.ticks_ms() - away >= self._give_up_ms:
            return True
        self._moved_ms = None
        try:
            return self.stop.wait(milliseconds / 1_000)
        finally:
            self._moved_ms = self.ticks_ms()

    def step(self, number: int, when: When) -> None:
        """A step begins or ends, so broker and store are available again."""
        self._away_since_ms = None
        self._moved_ms = now_ms = self.ticks_ms()
        waits = when == "before" and number in _WAITING_STEPS
        self._slow = (STEPS[number].doing, now_ms + SLOW_MS) if waits else None

    def slow_step(self) -> str:
        """The current step, if it has become slow since the last call; otherwise empty."""
        slow = self._slow
        if slow is None or self.ticks_ms() < slow[1]:
            return ""
        self._slow = None
        return slow[0]

    def event(self, event: Event) -> None:
        """Note since when a broker or store has been unavailable; any other event shows that it is available again."""
        now_ms, moved_ms = self.ticks_ms(), self._moved_ms
        self._moved_ms = now_ms
        if not isinstance(event, Waiting):
            self._away_since_ms = None
        elif self._away_since_ms is None or event.wait_ms == FIRST_WAIT_MS:  # another outage
            # Since the attempt began that has failed now; what came before it may have taken long.
            began_ms = now_ms - ATTEMPT_MS
            self._away_since_ms = began_ms if moved_ms is None else max(began_ms, moved_ms)


class Heartbeat:
    """Calls `beat` every second in a thread of its own, until it is left.

    Args:
        beat: writes one heartbeat; returns False if a newer run owns the flow.
        stop: asked to end when that happens.
        failed: called with the first error, and again only after a heartbeat has succeeded. An error is no reason to end:
            the service itself gets the same one, and waits or stops.
        seconds: between two heartbeats.
    """

    def __init__(
        self, beat: Callable[[], bool], stop: Stop, failed: Callable[[Exception], None], seconds: float = 1.0
    ) -> None:
        self._beat = beat
        self._stop = stop
        self._failed = failed
        self._seconds = seconds
        self._left = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="sqe-chain-heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """End the thread, after the current heartbeat."""
        self._left.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._left.wait(self._seconds):
            try:
                alive = self._beat()
            except Exception as error:  # noqa: BLE001 - the service gets the same error, and handles it
                if not self._failing:
                    self._failed(error)
                self._failing = True
                continue
            self._failing = False
            if not alive:
                self._stop.request("superseded", superseded=True)
                return


@contextmanager
def signals(stop: Stop, restore: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """SIGTERM and Ctrl-C end the service after the current batch; a second Ctrl-C ends it at once.

    Ending at once is a crash, which is safe.

    Args:
        stop: asked to end.
        restore: makes the terminal usable before the process ends at once.

    Yields:
        A function that installs the handlers again, to be called after code that replaces them (Spark does for Ctrl-C).
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and stop.requested:
            restore()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.request(signal.Signals(number).name)

    def install() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    install()
    try:
        yield install
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
