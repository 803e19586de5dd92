"""Judges totals: what is lost, what is doubled, and whether the upstream had published it again. It shares no code with any system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from benchmarks.storm.facts import PER_ROBOT, Fact, Facts, digits

Totals = Mapping[str, tuple[int, int]]
"""Robot -> how many facts its total contains, and their sum."""


class Verdict(StrEnum):
    """What a system did in a storm.

    Lost and doubled facts are one verdict: where both can happen, luck decides which of them does. The numbers show which.
    """

    EXACT = "exact"
    REPEATED = "counts what comes again"
    MISCOUNTED = "miscounts what came once"
    NONE = "no verdict"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is wrong with totals.

    Attributes:
        robots: how many there are.
        wrong: how many of them have a wrong total.
        lost: facts that are not counted.
        repeated: how often a fact is counted too often because the republisher published it again.
        doubled: how often a fact is counted too often that was not published as often.
        torn: totals whose number of facts differs from what their sum contains.
        again: messages that the republisher published though the same fact was in the topic before.
    """

    robots: int
    wrong: int
    lost: int
    repeated: int
    doubled: int
    torn: int
    again: int

    @property
    def exact(self) -> bool:
        """Whether each total is right."""
        return self.wrong == 0

    @property
    def verdict(self) -> Verdict:
        """The worst of what is wrong."""
        if self.lost or self.doubled or self.torn:
            return Verdict.MISCOUNTED
        return Verdict.REPEATED if self.repeated else Verdict.EXACT


def judge(facts: Facts, totals: Totals, published: Mapping[Fact, int]) -> Judgement:
    """Compare totals with the facts.

    Args:
        facts: what happened.
        totals: what the system has.
        published: fact -> how many messages of the republisher hold it.
    """
    wrong = lost = repeated = doubled = torn = 0
    expected = (PER_ROBOT, sum(Fact("", index).amount for index in range(PER_ROBOT)))
    for robot in facts.names():
        events, total = totals.get(robot, (0, 0))
        counts = digits(total)
        wrong += (events, total) != expected
        torn += events != sum(counts)
        for index, count in enumerate(counts):
            times = max(1, published.get(Fact(robot, index), 0))
            lost += count == 0
            repeated += max(0, min(count, times) - 1)
            doubled += max(0, count - times)
    again = sum(times - 1 for times in published.values())
    return Judgement(facts.robots, wrong, lost, repeated, doubled, torn, again)


def at_stake(published: Iterable[Fact], totals: Totals) -> int:
    """How many facts were published, and are in no total yet.

    >>> at_stake([Fact("robot-00001", 0), Fact("robot-00001", 2)], {"robot-00001": (1, 0x100)})
    1
    """
    return sum(not digits(totals.get(fact.robot, (0, 0))[1])[fact.index] for fact in published)


@dataclass(slots=True)
class Reader:
    """What a program outside sees that reads the published totals, each as it comes.

    Attributes:
        latest: robot -> the total that it saw last.
        seen: how many totals.
        too_high: totals that contain a fact more than once: they were never true.
        went_back: totals that lack a fact which an earlier total of the same robot had.
    """

    latest: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: int = 0
    too_high: int = 0
    went_back: int = 0

    def take(self, robot: str, events: int, total: int) -> None:
        """See a total."""
        before = digits(self.latest.get(robot, (0, 0))[1])
        after = digits(total)
        self.seen += 1
        self.too_high += max(after) > 1
        self.went_back += any(new < old for new, old in zip(after, before, strict=True))
        self.latest[robot] = (events, total)


@dataclass(slots=True)
class Published:
    """What the republisher has published, seen from outside.

    Attributes:
        times: fact -> how many messages hold it.
    """

    times: Counter[Fact] = field(default_factory=Counter)

    def take(self, fact: Fact) -> None:
        """See a message."""
        self.times[fact] += 1

    def complete(self, facts: Facts) -> bool:
        """Whether each fact was published."""
        return len(self.times) == facts.count
