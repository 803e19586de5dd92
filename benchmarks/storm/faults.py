"""What goes wrong and when, drawn from a seed: the same for every system. And whether a storm contained all of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A fault."""

    CONSUMER = "kill -9 of the consumer, three lives in a row"
    REPUBLISHER = "kill -9 of the republisher"
    BROKER = "kill -9 and restart of the broker"
    STORE = "kill -9 and restart of the databases"
    ZOMBIE = "pause of the consumer, while another takes over"
    REWIND = "rewind of the republisher by an operator"


DECK = (
    Kind.CONSUMER,
    Kind.REPUBLISHER,
    Kind.REPUBLISHER,
    Kind.BROKER,
    Kind.STORE,
    Kind.ZOMBIE,
    Kind.REWIND,
)
"""The faults of a storm; the seed draws their order."""

MOMENTS_S = (0.25, 0.5, 0.75)
"""When a life of the consumer ends, in seconds behind its first publication; the seed draws their order.

All systems that commit by time do so each second, or more often. Kills at one moment of that second would find a system with much
uncommitted work or with none, by luck.
"""

FIRST, LAST = 0.15, 0.9
"""Shares of the reports between which faults strike: before, all is calm, and behind the last one more reports follow."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: what.
        at: how many reports are sent before it.
        back: how many reports of each partition a rewind repeats; 0 for the others.
        moments_s: how long each life of the consumer goes on behind its first publication; of its kills only.
    """

    kind: Kind
    at: int
    back: int = 0
    moments_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that struck.

    Attributes:
        kind: what.
        at_stake: how many facts were in the republisher's topic then, and in no total that a reader sees. Work on them was begun, or
            was to begin. It is counted at kills of the consumer; 0 for the others.
    """

    kind: Kind
    at_stake: int = 0


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
            tuple(random_.sample(MOMENTS_S, len(MOMENTS_S))) if kind is Kind.CONSUMER else (),
        )
        for number, kind in enumerate(kinds)
    ]


def lacking(strikes: Iterable[Strike], again: int) -> Iterator[str]:
    """What a storm did not contain. Then it gives no verdict: another one might have been worse.

    Args:
        strikes: what struck.
        again: messages that the republisher published though their fact was in the topic before.
    """
    struck = Counter(strike.kind for strike in strikes if strike.kind is not Kind.CONSUMER or strike.at_stake)
    for kind, times in Counter(DECK).items():
        wanted = times * len(MOMENTS_S) if kind is Kind.CONSUMER else times
        if struck[kind] < wanted:
            yield f"{kind}: struck {struck[kind]} of {wanted} times"
    if not again:
        yield "nothing was published again"
