"""Figures of a service for the panel, from its events. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sqe_chain.protocol.events import (
    CLAIM,
    COMMIT,
    PERSIST,
    PROCESS,
    PUBLISH,
    RECOVER,
    SEAL,
    CaughtUp,
    Claimed,
    Committed,
    Event,
    Notice,
    Persisted,
    Recovered,
    Sealed,
    Standby,
    Waiting,
    When,
)

RATE_WINDOW_S = 10.0
"""The input rate is the mean over this time."""

_DOING = {
    CLAIM: "claiming",
    RECOVER: "recovering",
    PROCESS: "processing",
    SEAL: "sealing",
    PUBLISH: "publishing",
    PERSIST: "persisting",
    COMMIT: "committing",
}


@dataclass(slots=True)
class Statistics:
    """Implements `protocol.interfaces.Observer`.

    Attributes:
        now_s: returns seconds since 1970.
        doing: what the service does, in a few words.
        notice: the last notice for people; empty when all is well.
        epoch: of the claim; 0 without one.
        plan: number of the last plan; -1 without one.
        inputs: messages read.
        replays: of these, replays ignored.
        excluded: of these, left out by the poison policy.
        outputs: messages published.
        rows: states written.
        batches: batches committed.
        batch_ms: how long the last batch took, in milliseconds.
        lag: offsets that were there when the last batch began, and are not in it.
        held: records that wait for event time.
        holder: "topic/partition" that holds them back; empty when nothing waits.
        persisted_s: when states were last written, seconds since 1970; 0 never.
    """

    now_s: Callable[[], float]
    doing: str = "starting"
    notice: str = ""
    epoch: int = 0
    plan: int = -1
    inputs: int = 0
    replays: int = 0
    excluded: int = 0
    outputs: int = 0
    rows: int = 0
    batches: int = 0
    batch_ms: int = 0
    lag: int = 0
    held: int = 0
    holder: str = ""
    persisted_s: float = 0.0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _began_s: float = 0.0

    def step(self, number: int, when: When) -> None:
        """Note what the service does."""
        if when == "before":
            self.doing = _DOING[number]

    def event(self, event: Event) -> None:
        """Count."""
        match event:
            case Claimed():
                self.epoch = event.epoch
            case Recovered():
                self.plan = self.plan if event.plan is None else event.plan
                self._began_s = self.now_s()
            case Sealed():
                self.plan = event.plan
            case Persisted():
                self.rows += event.rows
                self.persisted_s = self.now_s()
            case Committed():
                self._count_batch(event)
            case CaughtUp():
                self.doing, self.lag, self.notice = "waiting for input", 0, ""
            case Waiting():
                self.doing, self.notice = f"waiting to {event.what}", event.reason
            case Standby():
                self.doing = "standby: another run holds the flow"
            case Notice():
                self.notice = event.text

    def rate(self) -> float:
        """Inputs per second, the mean of the last seconds."""
        now_s = self.now_s()
        while self._recent and self._recent[0][0] < now_s - RATE_WINDOW_S:
            self._recent.popleft()
        seconds = min(RATE_WINDOW_S, max(1.0, now_s - self._began_s))
        return sum(inputs for _, inputs in self._recent) / seconds

    def _count_batch(self, event: Committed) -> None:
        self.doing, self.notice = "waiting for the next batch", ""
        self.batches += 1
        self.inputs += event.inputs
        self.replays += event.replays
        self.excluded += event.excluded
        self.outputs += event.outputs
        self.lag = event.lag
        self.held, self.holder = event.held or 0, event.holder or ""
        self.batch_ms = event.batch_ms
        self._recent.append((self.now_s(), event.inputs))
