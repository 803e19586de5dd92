"""The workloads: what is computed, what must come out, and when the last of it is visible."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from benchmarks.peers.flows import Screws, Total
from benchmarks.peers.records import Records

Totals = Mapping[str, tuple[int, ...]]
"""Key -> events and sums."""


class Workload(StrEnum):
    """What is measured."""

    FLAT_MAP = "w1-flat-map"
    FOLD = "w2-fold"
    TWO_STAGES = "w3-two-stages"

    @property
    def called(self) -> str:
        """For people."""
        return _TITLES[self]

    def expected(self, records: Records) -> Totals:
        """What must come out, computed from the records alone."""
        if self is Workload.TWO_STAGES:
            return {line: (one.events, one.fastened, one.failed) for line, one in records.by_line().items()}
        robots = records.by_robot()
        if self is Workload.FOLD:
            return {robot: (one.events, one.fastened, one.failed) for robot, one in robots.items()}
        fastened = {robot: (one.events, one.fastened) for robot, one in robots.items()}
        return fastened | {f"{robot}!": (one.events, one.failed) for robot, one in robots.items()}

    def findings(self) -> Findings:
        """Takes what a system writes."""
        return Added() if self is Workload.FLAT_MAP else Latest()


_TITLES = {
    Workload.FLAT_MAP: "W1: flat-map 1 to 2, two keys",
    Workload.FOLD: "W2: fold into 1,000 keys, changes out",
    Workload.TWO_STAGES: "W3: two stages, shuffled between, changes out",
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

    @abstractmethod
    def take(self, key: str, payload: bytes) -> None:
        """Take a record of the output."""


class Added(Findings):
    """Counts and sums of all records of a key."""

    tails = False

    def __init__(self) -> None:
        super().__init__()
        self._decode = msgspec.json.Decoder(Screws).decode

    def take(self, key: str, payload: bytes) -> None:
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

    def take(self, key: str, payload: bytes) -> None:
        """The newest one counts."""
        total = self._decode(payload)
        self.events += total.events - self.totals.get(key, (0,))[0]
        self.totals[key] = (total.events, total.fastened, total.failed)


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
