"""Draws worlds."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.lab.reference.world import Doors, Poison, StageName, TableAt, World


def chance(draw: random.Random, probability: float) -> bool:
    """True with this probability."""
    return draw.random() < probability


def random_world(draw: random.Random) -> World:
    """A small random world; every feature occurs in some of them."""
    kind: StageName = draw.choice(
        ["", "", "", "", "deduplicate", "distinct", "roots", "sequences", "windows", "windows"]
    )
    hops = draw.choice([0, 0, 1, 1, 2, 2])
    poison: Poison = draw.choice(("stop", "skip", "skip", "dead_letter"))
    plain = kind == ""
    doors: Doors = draw.choice(("fold", "changes")) if plain and chance(draw, 0.3) else ""
    if doors == "changes" or (doors and poison == "stop"):
        hops = 0
    partitions = draw.choice([1, 2, 2, 3])
    recreated = plain and hops > 1 and chance(draw, 0.3)
    raw = (hops > 0 and chance(draw, 0.2)) or (plain and hops == 0 and chance(draw, 0.3))
    return World(
        hops=hops,
        twin=hops > 0 and plain and not recreated and chance(draw, 0.25),
        raw=raw,
        partitions=partitions,
        state_partitions=partitions if chance(draw, 0.6) else draw.choice([1, 2, 3]),
        stages=draw.choice([1, 2]) if kind != "windows" else 1,
        kind=kind,
        buckets=draw.choice([1, 1, 1, 2]) if plain else 1,
        poison=poison,
        recreated="skip" if recreated else "stop",
        view=plain and not doors and chance(draw, 0.15),
        mispartitioned=bool(doors) or (kind != "roots" and chance(draw, 0.35)),
        doors=doors,
        limits=plain and not doors and chance(draw, 0.3),
        beside=plain and chance(draw, 0.2),
        reader=draw.choice(["", "", "", "", "aggregation", "republisher"]) if plain else "",
        block=draw.choice([1, 2, 3, 1_000]),
        rows=draw.choice([1, 1, 2, 5_000]),
        records=draw.choice([3, 5, 400_000]) if not doors else 400_000,
        keep_plans=draw.choice([2, 3, 20]),
        carrier=draw.choice(["value", "value", "headers"]),
    )


def extended_world(world: World, draw: random.Random) -> World:
    """The world with what came later: tables, files, JSON, columns, declared aggregates.

    Args:
        world: from `random_world`.
        draw: another source of randomness, so that worlds and schedules stay what they were without these.
    """
    table: TableAt = ""
    plain = world.kind == ""
    if world.kind != "windows" and chance(draw, 0.25 if plain else 0.12):
        table = draw.choice(("beside", "beside", "after")) if plain else "after"
    replaced = chance(draw, 0.5)
    files = world.hops > 0 and world.recreated == "stop" and world.kind in {"", "sequences"}
    files = files and chance(draw, 0.15)
    json = not world.view and chance(draw, 0.12)
    return replace(
        world,
        table=table,
        replaced=replaced and table != "",
        files=files,
        raw=world.raw and not files,
        json=json,
        batches=chance(draw, 0.08),
        declared=plain and chance(draw, 0.1),
    )


def newest_world(world: World, draw: random.Random) -> World:
    """The world with what came last: codecs of its own.

    Args:
        world: from `extended_world`.
        draw: a third source of randomness.
    """
    own = not (world.json or world.view or world.batches) and chance(draw, 0.1)
    return replace(world, own=own)


def publishing_world(world: World, draw: random.Random) -> World:
    """The world with what shows how outputs of one input are kept together: joins, and stages that publish what they let pass.

    Args:
        world: from `newest_world`.
        draw: another source of randomness.
    """
    if world.kind in {"deduplicate", "distinct", "roots"} and chance(draw, 0.35):
        world = replace(world, kind="join")
    return replace(world, told=world.kind != "" and chance(draw, 0.6))


def transactional_world(world: World, draw: random.Random) -> World:
    """The world, perhaps with transactions.

    Args:
        world: from `publishing_world`.
        draw: another source of randomness.
    """
    return replace(world, transactional=chance(draw, 0.2))
