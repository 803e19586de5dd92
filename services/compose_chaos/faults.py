"""Which faults hit which services, only from a seed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import combinations, islice
from random import Random

SERVERS = ("kafka", "redis", "cassandra", "postgres")
SERVICES = ("standardize", "totals")
SIMULATOR = "simulate"
ALL = (*SERVERS, *SERVICES, SIMULATOR)

LASTS_S = (0.5, 4.0)
"""How long something is down; a pause lasts this long after the takeover."""
CUT_OFF_S = (2.0, 10.0)
"""How long something has no network. Some clients notice within this time, some do not."""


class Kind(Enum):
    """The kind of a fault."""

    KILL = "kill -9"
    TAKEOVER = "pause past a takeover of"
    DISCONNECT = "disconnect"
    EVERYTHING = "kill -9 and restart everything:"


@dataclass(frozen=True, slots=True)
class ChaosFault:
    """One fault.

    Attributes:
        victims: to which services of the compose file, all at once.
        wait_s: how long the stack runs undisturbed before it.
        lasts_s: how long it lasts.
    """

    kind: Kind
    victims: tuple[str, ...]
    wait_s: float
    lasts_s: float

    def __str__(self) -> str:
        """Its name in notes."""
        return f"{self.kind.value} {' + '.join(self.victims)}"


def plan(seed: int, count: int, first: int = 1) -> list[ChaosFault]:
    """The faults of one run, from a seed; those before the first one, counted from 1, are skipped.

    Kinds take turns, so few faults are of many kinds already: a pair, a takeover, a disconnection, a single
    one, everything. 29 faults or more have each single victim, each pair and each disconnection among them.
    """
    return list(islice(_endless(Random(seed)), first - 1, first - 1 + count))


def _endless(random: Random) -> Iterator[ChaosFault]:
    killed = (*SERVERS, *SERVICES)
    pairs = list(combinations(killed, 2))
    while True:
        turns: list[list[tuple[Kind, tuple[str, ...]]]] = [
            [(Kind.KILL, pair) for pair in random.sample(pairs, len(pairs))],
            [(Kind.TAKEOVER, ("totals",))],
            [(Kind.DISCONNECT, (victim,)) for victim in random.sample(killed, len(killed))],
            [(Kind.KILL, (victim,)) for victim in random.sample(killed, len(killed))],
            [(Kind.EVERYTHING, ALL)],
        ]
        for round_ in range(max(map(len, turns))):
            for kind, victims in (turn[round_] for turn in turns if round_ < len(turn)):
                lasts_s = random.uniform(*(CUT_OFF_S if kind is Kind.DISCONNECT else LASTS_S))
                yield ChaosFault(kind, victims, wait_s=random.uniform(0, 3), lasts_s=lasts_s)
