"""What goes wrong and when, drawn from a seed: the same for every system."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A fault."""

    CONSUMER = "kill -9 of the consumer"
    REPUBLISHER = "kill -9 of the republisher"
    BROKER = "kill -9 and restart of the broker"
    STORE = "kill -9 and restart of the databases"
    ZOMBIE = "pause of the consumer, while another takes over"
    REWIND = "rewind of the republisher by an operator"


DECK = (
    Kind.CONSUMER,
    Kind.CONSUMER,
    Kind.REPUBLISHER,
    Kind.REPUBLISHER,
    Kind.BROKER,
    Kind.STORE,
    Kind.ZOMBIE,
    Kind.REWIND,
)
"""The faults of a storm; the seed draws their order."""

FIRST, LAST = 0.15, 0.9
"""Shares of the reports between which faults strike: before, all is calm, and behind the last one more reports follow."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: what.
        at: how many reports are sent before it.
        back: how many reports of each partition a rewind repeats; 0 for the others.
    """

    kind: Kind
    at: int
    back: int = 0


def draw(seed: int, reports: int) -> list[Fault]:
    """The faults of a storm.

    Args:
        seed: the same gives the same.
        reports: of the whole storm.

    >>> draw(1, 1_000) == draw(1, 1_000)
    True
    """
    random_ = random.Random(f"faults-{seed}")
    kinds = random_.sample(DECK, len(DECK))
    slot = (LAST - FIRST) / len(DECK)
    return [
        Fault(
            kind,
            int(reports * (FIRST + slot * (number + 0.5 * random_.random()))),
            random_.randint(reports // 40, reports // 20) if kind is Kind.REWIND else 0,
        )
        for number, kind in enumerate(kinds)
    ]
