"""Draws worlds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from tests.lab.event_time_worlds.exploded import EXPLODED, exploded
from tests.lab.event_time_worlds.world import BEAT, JOINS, KINDS, UNIT_MS, Fact, Hop, Reader, Way, World
from tests.lab.reference.event_times import spread

DELAY_MS: Final = 6 * UNIT_MS
PAUSE_MS: Final = 40 * 24 * 3_600_000
"""Longer than the standard guard believes."""
TRAITS: Final = {
    "placed": 0.5,
    "delay": 0.7,
    "slow": 0.7,
    "live": 0.6,
    "pause": 0.2,
    "new partitions": 0.3,
    "faults": 0.4,
    "rewinds": 0.4,
    "rebuilds": 0.4,
    "between": 0.5,
    "two ways": 0.3,
    "still": 0.2,
    "ties": 0.3,
    "heartbeats": 0.3,
}
"""What a world may have -> in how many worlds; the caller can omit each of them."""
_KEYS: Final = "abcdef"


def draw(seed: int, *, kinds: tuple[str, ...] = KINDS, without: frozenset[str] = frozenset()) -> World:
    """The world of a seed.

    Args:
        seed: the seed.
        kinds: what readers may do.
        without: traits that it does not have.
    """
    rng = random.Random(seed)
    kind = rng.choice(kinds)
    if kind in EXPLODED:
        return exploded(
            rng,
            draw(
                seed,
                kinds=(kind.removeprefix("exploded-"),),
                without=without | {"pause", "heartbeats", "new partitions"},
            ),
        )
    has = {one: rng.random() < share and one not in without for one, share in TRAITS.items()}
    two = kind in JOINS or has["two ways"]
    ways = tuple(_way(rng, first=not at) for at in range(1 + two))
    readers = tuple(_reader(rng, ways) for _ in range(rng.choice((1, 1, 2))))
    facts = tuple(_facts(rng, ways, has))
    backlog = rng.random() < 0.4
    steps = tuple(_steps(rng, ways, len(readers), len(facts), has, backlog=backlog))
    if not has["still"]:
        steps = tuple(one for step in steps for one in (("t1", step) if step[0] in "pr" else (step,)))
    ends = rng.random() < 0.6, rng.random() < 0.3
    beats = has["heartbeats"] and kind in ("tumbling", "hopping", "sessions")
    if beats:
        facts = tuple(replace(fact, key=BEAT) if rng.random() < 0.15 else fact for fact in facts)
    return World(kind, DELAY_MS, ways, facts, readers, steps, *ends, beats)


def _way(rng: random.Random, *, first: bool) -> Way:
    count = rng.choice((0, 1, 1, 1, 2, 2) if first else (0, 0, 1))
    hops = tuple(
        Hop(
            rng.randrange(1, 4), rng.choice((2, 5, 10, 10)), rng.random() < 0.3, rng.choice((1, 2, 4, 9, 100))
        )
        for _ in range(count)
    )
    return Way(rng.randrange(1, 5), hops)


def _reader(rng: random.Random, ways: tuple[Way, ...]) -> Reader:
    inputs = [way.hops[-1].partitions if way.hops else way.partitions for way in ways]
    parts = inputs[0] if rng.random() < 0.6 else rng.randrange(1, 4)
    max_bytes = rng.choice((100_000_000, 100_000_000, 300))
    return Reader(parts, rng.random() < 0.7, rng.choice((1, 2, 3, 4, 9, 9, 20, 1_000)), max_bytes)


def _facts(rng: random.Random, ways: tuple[Way, ...], has: dict[str, bool]) -> Iterator[Fact]:
    weights = [
        [rng.choice((1, 1, 8, 30)) if has["slow"] else 1 for _ in range(way.partitions)] for way in ways
    ]
    oldest_ms = [rng.choice((0, 0, DELAY_MS // 2, DELAY_MS - 1)) for _ in range(6)]
    exact, scale = rng.random() < 0.3, rng.choice((1, 1, 3))
    for _ in range(rng.randrange(4, 26) if scale == 1 else rng.randrange(15, 40)):
        way = rng.randrange(len(ways))
        key = rng.choice(_KEYS[:2] if has["ties"] else _KEYS)
        partition = rng.choices(range(len(weights[way])), weights[way])[0]
        if has["new partitions"] and rng.random() < 0.2:
            partition = rng.randrange(6)
        if has["placed"] and rng.random() < 0.9:
            partition = spread(key, ways[way].partitions)
        gap_ms = rng.choice(
            (0, 0, UNIT_MS, UNIT_MS, 2 * UNIT_MS, 9 * UNIT_MS if rng.random() < 0.1 else UNIT_MS)
        )
        gap_ms *= scale
        if has["ties"] and rng.random() < 0.6:
            gap_ms = 0
        if has["pause"] and rng.random() < 0.06:
            gap_ms = PAUSE_MS
        age_ms = rng.randrange(oldest_ms[partition % ways[way].partitions] + 1) if has["delay"] else 0
        if not exact:
            age_ms -= age_ms % UNIT_MS
        yield Fact(way, partition, key, gap_ms, age_ms)


def _steps(
    rng: random.Random,
    ways: tuple[Way, ...],
    readers: int,
    facts: int,
    has: dict[str, bool],
    *,
    backlog: bool,
) -> Iterator[str]:
    republishers = sum(len(way.hops) for way in ways)
    services = [f"p{number}" for number in range(republishers)] + [f"r{number}" for number in range(readers)]
    if backlog:
        yield from ["f"] * facts
    late = rng.random() < 0.2
    share: list[float] = [1.0] * len(services)
    if not backlog and has["live"]:
        for _ in range(facts):
            yield "f"
            yield from (service for service in services if rng.random() < 0.8)
            if rng.random() < 0.2:
                yield from _step(rng, ways, services, share, has)
        return
    for number in range(rng.randrange(8, 45)):
        if number % 12 == 0:  # outages, and services that are slower than others
            share = [rng.choice((0.0, 0.2, 1, 1, 3)) for _ in services]
            if late and number == 0:
                share[-1] = 0.0
        if rng.random() < 0.4:
            yield f"t{rng.choice((UNIT_MS, 2 * UNIT_MS, 7 * UNIT_MS))}"
        yield from _step(rng, ways, services, share, has)


def _step(
    rng: random.Random, ways: tuple[Way, ...], services: list[str], share: list[float], has: dict[str, bool]
) -> Iterator[str]:
    at = rng.random()
    one = rng.choice(services)
    if at < 0.4:
        yield from ["f"] * rng.choice((1, 1, 2, 3))
    elif at < 0.5 and has["between"]:
        yield "l"
    elif at < 0.52 and has["new partitions"]:
        yield f"g{rng.randrange(len(ways))}"
    elif at < 0.58 and has["faults"]:
        yield f"{one[0].upper()}{one[1:]}:{rng.randrange(30)}"
    elif at < 0.61 and has["rewinds"] and one[0] == "p":
        yield f"w{one[1:]}:{rng.randrange(1, 9)}"
    elif at < 0.64 and has["faults"] and one[0] == "p":
        yield f"{rng.choice('zZ')}{one[1:]}"
    elif at < 0.67 and has["rebuilds"] and one[0] == "r":
        yield f"b{one[1:]}:{rng.choice((1, 3, 100))}"
    elif sum(share):
        yield rng.choices(services, share)[0]
