"""What happens: reports of several robots, drawn from a seed. A total shows by itself which facts it contains, and how often.

A robot has 15 facts. The amount of its fact number i is 16 to the power of i. A system simply adds up amounts. Digit i of its sum, to
base 16, is then how often it has counted fact i: 0 is lost, 2 is doubled. A lost fact and a doubled one cannot hide each other.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

BASE = 16
PER_ROBOT = 15
"""Facts of a robot: 60 bits, which every system adds up exactly."""

PER_REPORT = 3
"""Facts in one report, of different robots mostly: the republisher makes a message of each."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a robot did.

    Attributes:
        robot: who, the key of its total.
        index: 0 to 14.
    """

    robot: str
    index: int

    @property
    def amount(self) -> int:
        """What it adds to the sum of its robot."""
        return int(BASE**self.index)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that happens in one storm.

    Attributes:
        seed: draws the order.
        robots: how many.
    """

    seed: int
    robots: int

    @property
    def count(self) -> int:
        """How many facts."""
        return self.robots * PER_ROBOT

    @property
    def reports(self) -> int:
        """How many reports."""
        return self.count // PER_REPORT

    def names(self) -> list[str]:
        """The robots."""
        return [f"robot-{number:05d}" for number in range(self.robots)]

    def all(self) -> list[Fact]:
        """All facts, in the order in which they happen."""
        facts = [Fact(robot, index) for robot in self.names() for index in range(PER_ROBOT)]
        random.Random(self.seed).shuffle(facts)
        return facts

    def messages(self) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of each report. The key is the gateway that sends it."""
        facts = self.all()
        for number in range(self.reports):
            part = facts[number * PER_REPORT : (number + 1) * PER_REPORT]
            items = [{"robot": fact.robot, "amount": fact.amount} for fact in part]
            yield f"gateway-{number % 40}".encode(), json.dumps({"report": number, "items": items}).encode()


def fact_in(robot: str, amount: int) -> Fact:
    """The fact that a republished message holds.

    >>> fact_in("robot-00001", 256)
    Fact(robot='robot-00001', index=2)
    """
    return Fact(robot, (amount.bit_length() - 1) // 4)


def digits(total: int) -> list[int]:
    """How often each fact is counted in a sum.

    >>> digits(0x201)[:4]
    [1, 0, 2, 0]
    """
    return [total >> 4 * index & BASE - 1 for index in range(PER_ROBOT)]
