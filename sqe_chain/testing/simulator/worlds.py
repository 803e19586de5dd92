"""Worlds drawn at random."""

from __future__ import annotations

import random
from typing import Final

from sqe_chain.testing.simulator.world import Doors, Poison, Sieve, World

TWO: Final = 2
"""Of hops, or stages."""


def chance(draw: random.Random, probability: float) -> bool:
    """True so often."""
    return draw.random() < probability


def world_of(draw: random.Random) -> World:
    """A world: small, and every part of it in some."""
    sieve: Sieve = draw.choice(
        ["", "", "", "", "deduplicate", "distinct", "roots", "sequences", "windows", "windows"]
    )
    hops = draw.choice([0, 0, 1, 1, 2, 2])
    poison: Poison = draw.choice(("stop", "skip", "skip", "dead_letter"))
    plain = sieve == ""
    doors: Doors = draw.choice(("fold", "changes")) if plain and chance(draw, 0.3) else ""
    if doors == "changes" or (doors and poison == "stop"):
        hops = 0
    partitions = draw.choice([1, 2, 2, 3])
    recreated = plain and hops == TWO and chance(draw, 0.3)
    raw = (hops > 0 and chance(draw, 0.2)) or (plain and hops == 0 and chance(draw, 0.5))
    return World(
        hops=hops,
        twin=hops > 0 and plain and not recreated and chance(draw, 0.25),
        raw=raw,
        partitions=partitions,
        state_partitions=partitions if chance(draw, 0.6) else draw.choice([1, 2, 3]),
        stages=draw.choice([1, 2]) if sieve != "windows" else 1,
        sieve=sieve,
        buckets=draw.choice([1, 1, 1, 2]) if plain else 1,
        poison=poison,
        recreated="skip" if recreated else "stop",
        view=plain and not doors and chance(draw, 0.15),
        strays=bool(doors) or (sieve != "roots" and chance(draw, 0.35)),
        doors=doors,
        limits=plain and not doors and chance(draw, 0.3),
        reader=draw.choice(["", "", "aggregation", "republisher"]) if plain else "",
        block=draw.choice([1, 2, 3, 1_000]),
        rows=draw.choice([1, 1, 2, 5_000]),
        records=draw.choice([3, 5, 400_000]) if not doors else 400_000,
        keep_plans=draw.choice([2, 3, 20]),
        columns=chance(draw, 0.5),
    )
