"""What a service has done so far, counted from its events: for the panel, and for Prometheus. Pure: the time is an argument."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqe_chain.features.events import Filtered, Ignored, NewerRevision, TableFlushed
from sqe_chain.plans.events import (
    STEPS,
    CaughtUp,
    Claimed,
    Committed,
    Event,
    Notice,
    Observer,
    Persisted,
    Recovered,
    Sealed,
    Standby,
    Waiting,
    When,
)

_RATE_WINDOW_S: Final = 10.0
"""The input rate is the mean over this time."""
_BATCH_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
"""Upper bounds, in seconds, between which the times of batches and steps are counted."""
_LATENCY_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600)
"""The same from the time of a record until its state is stored."""


@dataclass(slots=True)
class Times:
    """How long something took, each time.

    Attributes:
        bounds: upper bounds, in seconds.
        counts: the number of times up to each of the bounds, and above the last.
    """

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, seconds: float) -> None:
        """Count one more; a clock that was set back gives 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum_s += seconds


@dataclass(slots=True, eq=False)
class Statistics(Observer):
    """Figures of a service.

    Attributes:
        now_s: returns seconds since 1970.
        doing: what the service does, in a few words.
        notice: the last notice for people; empty when all is well.
        epoch: of the claim; 0 without one.
        plan: number of the last plan; None without one: 0 is the number of a plan.
        replays: of these, replays ignored.
        excluded: of these, skipped by the poison policy.
        filtered: (stage, reason) -> messages that filters dropped or reported.
        superseded: messages ignored because a newer revision of an output upstream counts for their roots.
        newer: messages ignored because they are of revisions that the flow does not follow.
        behind: output upstream -> the newest revision that was met and is not followed.
        waits: waits for a broker or store that was unavailable.
        batch_ms: how long the last batch took, in milliseconds.
        batch_times: how long each batch took.
        step_times: the same of each numbered step.
        latency: from the time of the newest record of a batch until the batch is committed.
        lag: offsets that were there when the last batch began, and are not in it.
        lag_by_partition: the same for each "topic/partition" of the last batch.
        flushed: (table, "topic/partition") -> offset up to which the table has all rows.
        parked: records that are parked; None if none can be.
        held: records that wait for event time; None if no stage goes by it.
        holder: "topic/partition" that holds them back; empty when nothing waits.
        watermark_ms: up to where event time is known there, milliseconds since 1970; None when that is not known.
        event_time_ms: newest timestamp of a record read, milliseconds since 1970; None before the first.
        persisted_s: when states were last written, seconds since 1970; 0 never.
    """

    now_s: Callable[[], float]
    doing: str = "starting"
    notice: str = ""
    epoch: int = 0
    plan: int | None = None
    inputs: int = 0
    replays: int = 0
    excluded: int = 0
    outputs: int = 0
    filtered: Counter[tuple[str, ...]] = field(default_factory=Counter)
    superseded: int = 0
    newer: int = 0
    behind: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    waits: int = 0
    batches: int = 0
    batch_ms: int = 0
    batch_times: Times = field(default_factory=lambda: Times(_BATCH_SECONDS))
    step_times: dict[int, Times] = field(default_factory=dict)
    latency: Times = field(default_factory=lambda: Times(_LATENCY_SECONDS))
    lag: int = 0
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    flushed: dict[tuple[str, str], int] = field(default_factory=dict)
    parked: int | None = None
    held: int | None = None
    holder: str = ""
    watermark_ms: int | None = None
    event_time_ms: int | None = None
    persisted_s: float = 0.0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _began_s: float = 0.0
    _steps_began_s: dict[int, float] = field(default_factory=dict)

    def step(self, number: int, when: When) -> None:
        if when == "before":
            self.doing = STEPS[number].doing
            self._steps_began_s[number] = self.now_s()
        elif (began_s := self._steps_began_s.pop(number, None)) is not None:
            self.step_times.setdefault(number, Times(_BATCH_SECONDS)).add(self.now_s() - began_s)

    def event(self, event: Event) -> None:
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
            case Filtered():
                for name, count in event.counts.items():
                    stage, _, reason = name.rpartition("/")
                    self.filtered[stage, reason] += count
            case Ignored():
                self.superseded += event.superseded
                self.newer += event.newer
            case TableFlushed():
                self.flushed.update({(event.table, tp): offset for tp, offset in event.offsets.items()})
            case _:
                self._note(event)

    def _note(self, event: Event) -> None:
        match event:
            case CaughtUp():
                self.doing, self.lag, self.notice = "waiting for input", 0, ""
                self.lag_by_partition = dict.fromkeys(self.lag_by_partition, 0)
            case Waiting():
                self.waits += 1
                self.doing, self.notice = f"waiting to {event.what}", event.reason
            case Standby():
                self.doing = "standby: another run holds the flow"
            case Notice():
                self.notice = event.text
            case NewerRevision():
                self.behind[event.output] = event.revision
                self.notice = f"revision {event.revision} of {event.output} is ignored, the flow follows {event.follows}: sqe-chain rebuild"

    def rate(self) -> float:
        """Inputs per second, the mean of the last seconds."""
        now_s = self.now_s()
        while self._recent and self._recent[0][0] < now_s - _RATE_WINDOW_S:
            self._recent.popleft()
        seconds = min(_RATE_WINDOW_S, max(1.0, now_s - self._began_s))
        return sum(inputs for _, inputs in self._recent) / seconds

    @property
    def event_time_lag_s(self) -> float:
        """Seconds from the newest record read until now; not a number before the first."""
        return float("nan") if self.event_time_ms is None else self.now_s() - self.event_time_ms / 1_000

    def _count_batch(self, event: Committed) -> None:
        self.doing, self.notice = "waiting for the next batch", ""
        self.batches += 1
        self.inputs += event.inputs
        self.replays += event.replays
        self.excluded += event.excluded
        self.outputs += event.outputs
        self.lag, self.lag_by_partition = event.lag, event.lag_by_partition
        self.parked = event.parked
        self.held, self.holder, self.watermark_ms = event.held, event.holder or "", event.watermark_ms
        self.batch_ms = event.batch_ms
        self.batch_times.add(event.batch_ms / 1_000)
        if event.event_time_ms > 0:
            self.latency.add(self.now_s() - event.event_time_ms / 1_000)
            self.event_time_ms = max(event.event_time_ms, self.event_time_ms or 0)
        self._recent.append((self.now_s(), event.inputs))
