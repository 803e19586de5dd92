"""Goal: what services by event time give depends on the facts alone: a fold over all of them in the order of their times.

Method: random worlds of `tests.event_time_worlds`. `python -m tests.event_time_worlds --worlds 20000 --jobs 2` runs many more.
"""

from __future__ import annotations

import pytest

from tests.event_time_worlds.__main__ import verdict
from tests.event_time_worlds.drawing import draw
from tests.event_time_worlds.reference import Delivery, Reference
from tests.event_time_worlds.shrinking import shrunk
from tests.event_time_worlds.world import Fact, Hop, Reader, Way, World

SHARES, WORLDS = 8, 25
KNOWN = frozenset({"pause", "slow", "delay", "live", "two ways"})
"""Traits of worlds in which records are lost."""
PASSES = Hop(1, 10, by_number=False, max_records=100)
PAUSE_MS = 40 * 24 * 3_600_000


@pytest.mark.parametrize("share", range(SHARES))
def test_worlds_give_what_their_facts_give(share: int) -> None:
    for seed in range(share * WORLDS, (share + 1) * WORLDS):
        world = draw(seed, without=KNOWN)
        said = verdict(world)
        assert not said, f"seed {seed}: {said}\npython -m tests.event_time_worlds --world '{world.text()}'"


def world_of(
    facts: list[Fact],
    steps: list[str],
    *,
    kind: str = "tumbling",
    partitions: int = 1,
    state_partitions: int = 1,
    hops: tuple[Hop, ...] = (),
) -> World:
    return World(
        kind,
        6_000,
        (Way(partitions, hops),),
        tuple(facts),
        (Reader(state_partitions, in_place=True, max_records=1_000, max_bytes=100_000_000),),
        tuple(steps),
        by_clock=False,
        close=False,
    )


LOST = {
    "a pause that is longer than the guard believes": world_of(
        [Fact(0, 0, "a", 0, 0), Fact(0, 0, "a", PAUSE_MS, 0)], []
    ),
    "a partition that was silent for longer than the delay": world_of(
        [
            Fact(0, 1, "a", 0, 0),
            *[Fact(0, 0, "a", 1_000, 0)] * 12,
            Fact(0, 1, "a", 1_000, 4_000),
            Fact(0, 0, "a", 0, 0),
        ],
        ["f", "r0"] * 15,
        partitions=2,
    ),
    "a key that lies elsewhere, after others": world_of(
        [Fact(0, 1, "d", 0, 0), Fact(0, 1, "d", 6_000, 0), Fact(0, 0, "d", 0, 5_000)],
        ["f", "f", "r0"],
        partitions=2,
        state_partitions=2,
    ),
    "a rebuild in other batches of what ran in place": world_of(
        [Fact(0, 1, "a", 0, 0), Fact(0, 1, "a", 0, 0), Fact(0, 1, "a", 0, 0), Fact(0, 1, "d", 0, 0)],
        ["f", "f", "f", "f", "r0", "b0:1"],
        kind="deduplicate",
        partitions=3,
        state_partitions=3,
    ),
}


@pytest.mark.parametrize("world", LOST.values(), ids=LOST)
@pytest.mark.xfail(strict=True, reason="known losses")
def test_worlds_in_which_records_are_lost(world: World) -> None:
    assert not verdict(world)


def test_a_world_is_read_as_it_was_printed() -> None:
    world = draw(7)
    assert World.of(world.text()) == world


def test_a_world_is_made_as_small_as_what_is_wrong_with_it_allows() -> None:
    small = shrunk(draw(11), lambda world: any(fact.key == "b" for fact in world.facts))
    assert (len(small.facts), len(small.readers), small.steps) == (1, 1, ())


def test_the_reference_takes_facts_by_time_topic_partition_and_offset() -> None:
    deliveries = [
        Delivery(2_000, "t", 0, 0, "a", 0, second=False),
        Delivery(1_000, "t", 1, 1, "a", 1, second=False),
        Delivery(1_000, "t", 1, 0, "a", 2, second=False),
        Delivery(6_000, "t", 0, 1, "a", 3, second=False),
    ]
    found = Reference("tumbling", 1, deliveries)
    assert found.states() == {("a", 0, 5_000): [2, 1, 0], ("a", 5_000, 10_000): [3]}
    assert found.results == [
        [("a", {"key": "a", "start_ms": 0, "end_ms": 5_000, "state": {"ns": [2, 1, 0]}})]
    ]
