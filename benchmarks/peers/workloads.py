"""The workloads: what is computed, what must come out, and when the last of it is visible."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from benchmarks.peers.flows import WINDOW_MS, Count, Fastening, Screws, Total
from benchmarks.peers.records import CLOSER, Records

Totals = Mapping[str, tuple[int, ...]]
"""Key -> events and sums."""


class Workload(StrEnum):
    """What is measured."""

    FLAT_MAP = "w1-flat-map"
    FOLD = "w2-fold"
    TWO_STAGES = "w3-two-stages"
    WINDOWS = "w4-windows"
    CHAIN = "w5-chain"
    FILTER = "w6-filter"

    @property
    def called(self) -> str:
        """For people."""
        return _TITLES[self]

    def expected(self, records: Records) -> Totals:
        """What must come out, computed from the records alone."""
        if self is Workload.TWO_STAGES:
            return {line: (one.events, one.fastened, one.failed) for line, one in records.by_line().items()}
        if self is Workload.WINDOWS:
            return {window_key(*at): (events, 1) for at, events in records.by_window(WINDOW_MS).items()}
        if self is Workload.FILTER:
            passed = records.once_by_robot()
            return {robot: (one.events, one.fastened, one.failed, 0) for robot, one in passed.items()}
        robots = records.by_robot()
        if self is Workload.FOLD:
            return {robot: (one.events, one.fastened, one.failed) for robot, one in robots.items()}
        fastened = {robot: (one.events, one.fastened) for robot, one in robots.items()}
        found = fastened | {f"{robot}!": (one.events, one.failed) for robot, one in robots.items()}
        if self is Workload.CHAIN:
            return {robot: (events, screws, 0) for robot, (events, screws) in found.items()}
        return found

    def findings(self) -> Findings:
        """Takes what a system writes."""
        return _FINDINGS.get(self, Latest)()

    @property
    def services(self) -> int:
        """How many services compute it, one behind the other."""
        return 2 if self is Workload.CHAIN else 1


_TITLES = {
    Workload.FLAT_MAP: "W1: flat-map 1 to 2, two keys",
    Workload.FOLD: "W2: fold into 1,000 keys, changes out",
    Workload.TWO_STAGES: "W3: two stages, shuffled between, changes out",
    Workload.WINDOWS: "W4: counts in windows of 10 s of event time, once each",
    Workload.CHAIN: "W5: W1 and W2 in a chain of two services",
    Workload.FILTER: "W6: filter by id, one record of ten is sent again",
}


class Findings(ABC):
    """What was found in the output of a system.

    Attributes:
        tails: whether it is read while the system runs, because only its content shows when everything is there.
            Otherwise committed offsets show that.
        totals: what was found.
        events: events in it.
    """

    tails: ClassVar[bool]

    def __init__(self) -> None:
        self.totals: dict[str, tuple[int, ...]] = {}
        self.events = 0

    def take(self, key: str, payload: bytes) -> None:
        """Take a record of the output."""
        if not key.startswith(CLOSER):
            self._take(key, payload)

    @abstractmethod
    def _take(self, key: str, payload: bytes) -> None:
        """Take a record of the output that counts."""


class Added(Findings):
    """Counts and sums of all records of a key."""

    tails = False

    def __init__(self) -> None:
        super().__init__()
        self._decode = msgspec.json.Decoder(Screws).decode

    def _take(self, key: str, payload: bytes) -> None:
        """Add up."""
        screws = self._decode(payload)
        events, total = self.totals.get(key, (0, 0))
        # A record that names another robot than its key belongs to neither.
        self.totals[key] = (events + (screws.robot == key), total + screws.screws)
        self.events += 1


class Latest(Findings):
    """The last total of each key."""

    tails = True

    def __init__(self) -> None:
        super().__init__()
        self._decode = msgspec.json.Decoder(Total).decode

    def _take(self, key: str, payload: bytes) -> None:
        """The newest one counts."""
        total = self._decode(payload)
        self.events += total.events - self.totals.get(key, (0,))[0]
        self.totals[key] = (total.events, total.fastened, total.failed)


class Windows(Findings):
    """How many records each window has, and how many results: one, if it is right."""

    tails = True

    def __init__(self) -> None:
        super().__init__()
        self._decode = msgspec.json.Decoder(_Counted).decode

    def _take(self, key: str, payload: bytes) -> None:
        """Add up."""
        window = self._decode(payload)
        named = window_key(window.key if window.key == key else f"{key} is {window.key}", window.start_ms)
        events, results = self.totals.get(named, (0, 0))
        self.totals[named] = (events + window.found, results + 1)
        self.events += window.found


class Passed(Findings):
    """Counts and sums of the records of a robot that came through the filter, and how many came more than once."""

    tails = True

    def __init__(self) -> None:
        super().__init__()
        self._decode = msgspec.json.Decoder(Fastening).decode
        self._reports = set[int]()

    def _take(self, key: str, payload: bytes) -> None:
        """Add up."""
        one = self._decode(payload)
        events, fastened, failed, again = self.totals.get(key, (0, 0, 0, 0))
        repeated = one.report in self._reports
        self._reports.add(one.report)
        self.totals[key] = (events + 1, fastened + one.fastened, failed + one.failed, again + repeated)
        self.events += 1


class _Counted(msgspec.Struct):
    """A result of a window: Kafka Streams states the count itself, ours in the state."""

    key: str
    start_ms: int
    events: int = 0
    state: Count | None = None

    @property
    def found(self) -> int:
        """How many records."""
        return self.events if self.state is None else self.state.events


def window_key(robot: str, start_ms: int) -> str:
    """How a window of a robot is named."""
    return f"{robot}@{start_ms}"


_FINDINGS: dict[Workload, type[Findings]] = {
    Workload.FLAT_MAP: Added,
    Workload.WINDOWS: Windows,
    Workload.FILTER: Passed,
}


def difference(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> str:
    """What is wrong, in a few words; empty if nothing is.

    >>> difference({"a": (1, 2)}, {"a": (1, 2)})
    ''
    >>> difference({"a": (1, 2), "c": (1, 1)}, {"a": (1, 3), "b": (1, 1)})
    "3 of 2 keys are wrong: 'a' has (1, 2) instead of (1, 3)"
    """
    wrong = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
    if not wrong:
        return ""
    first = wrong[0]
    says = f"{first!r} has {found.get(first, 'nothing')} instead of {expected.get(first, 'nothing')}"
    return f"{len(wrong):,} of {len(expected):,} keys are wrong: {says}"
