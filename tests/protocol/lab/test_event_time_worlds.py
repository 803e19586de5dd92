"""Goal: what services by event time give depends on the facts alone: a fold over all of them in the order of their times.

Method: random worlds of `tests.lab.event_time_worlds`. `python -m tests.lab.event_time_worlds --worlds 20000 --jobs 2` runs many more.
"""

from __future__ import annotations

import pytest

from tests.lab.event_time_worlds.__main__ import verdict
from tests.lab.event_time_worlds.drawing import draw
from tests.lab.event_time_worlds.exploded import EXPLODED
from tests.lab.event_time_worlds.shrinking import shrunk
from tests.lab.event_time_worlds.world import Fact, Hop, Reader, Way, World
from tests.lab.reference.event_times import Delivery, Reference

SHARES, WORLDS = 8, 25
PAUSE_MS = 40 * 24 * 3_600_000


@pytest.mark.parametrize("share", range(SHARES))
def test_worlds_give_what_their_facts_give(share: int) -> None:
    for seed in range(share * WORLDS, (share + 1) * WORLDS):
        world = draw(seed)
        difference = verdict(world)
        assert not difference, (
            f"seed {seed}: {difference}\npython -m tests.lab.event_time_worlds --world '{world.text()}'"
        )


@pytest.mark.parametrize("share", range(SHARES))
def test_worlds_of_uploads_give_what_their_rows_give(share: int) -> None:
    for seed in range(share * WORLDS // 2, (share + 1) * WORLDS // 2):
        world = draw(seed, kinds=EXPLODED)
        difference = verdict(world)
        assert not difference, (
            f"seed {seed}: {difference}\npython -m tests.lab.event_time_worlds --world '{world.text()}'"
        )


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
def test_worlds_in_which_records_were_lost(world: World) -> None:
    assert not verdict(world)


SMALL = {
    "a rebuild publishes what waited when it began": (
        '["table",6000,[[1,[]],[1,[]]],[[0,0,"a",0,0]],[[1,false,1000,100000000]],["f","r0","b0:3"],false,false]'
    ),
    "a rebuild takes what waited when it began": (
        '["timers",6000,[[3,[]]],[[0,1,"a",0,0],[0,1,"a",0,0],[0,1,"a",0,0],[0,0,"a",1000,0],[0,1,"a",0,0],[0,2,"a",0,0]],'
        '[[1,false,1000,100000000]],["f","f","f","f","f","f","r0","b0:3"],true,false]'
    ),
    "a rebuild behind a topic in which nothing was written yet": (
        '["tumbling",6000,[[1,[[1,10,false,100]]],[1,[]]],[[1,0,"a",0,1970],[1,0,"a",0,0]],[[1,false,1000,100000000]],'
        '["l","f","r0","b0:1"],false,false]'
    ),
    "two batches while the clock stands still": (
        '["sessions",6000,[[2,[]]],[[0,0,"a",0,4552],[0,0,"a",0,3918],[0,1,"a",0,0]],[[1,false,1000,100000000]],'
        '["f","f","r0","f","r0"],true,false]'
    ),
    "two batches behind republishers while the clock stands still": (
        '["tumbling",6000,[[1,[[1,10,false,100],[3,10,false,100]]]],[[0,0,"a",0,0],[0,0,"a",0,0],[0,0,"b",0,0],'
        '[0,0,"a",0,0],[0,0,"d",1000,0]],[[1,false,4,100000000]],["f","f","f","f","f","p0","p1","r0","r0"],true,false]'
    ),
    "what was stated elsewhere is believed once a partition is read to its end": (
        '["sessions",6000,[[3,[[2,10,false,2]]]],[[0,2,"a",0,0],[0,2,"a",0,0],[0,1,"a",0,0],[0,2,"a",0,0],[0,'
        '0,"a",3000,0],[0,5,"a",0,0],[0,0,"a",0,0],[0,2,"a",0,0],[0,1,"beat",0,0],[0,2,"d",6000,0]],[[1,'
        'false,4,300]],["g0","f","f","f","f","f","p0"],false,false,true]'
    ),
    "a writer is silent once its republishers have committed what was there": (
        '["table",6000,[[1,[]],[2,[[1,10,false,100]]]],[[1,0,"a",0,0],[1,1,"a",0,2000]],[[1,false,1000,'
        '100000000]],["f","p0","f","r0","t7000","r0"],false,false,false]'
    ),
    "a silent writer may still give what is not older than the delay": (
        '["table",6000,[[4,[[3,2,true,2],[3,2,false,100]]],[3,[]]],[[0,2,"a",0,0],[0,0,"e",0,0],[0,2,"d",0,'
        '1456],[0,3,"a",3000,0],[1,0,"c",3000,5445],[0,1,"e",6000,5749],[1,0,"a",3000,2938],[1,2,"d",0,938],'
        '[0,0,"f",6000,5712],[1,0,"e",3000,2252],[1,2,"f",0,1906],[1,1,"d",0,5116]],[[1,true,1000,'
        '100000000]],["f","f","f","f","f","f","f","p0","p1","r0","f","f","f","p0","r0","f","r0"],false,false,'
        "false]"
    ),
    "at one time, topic, partition and offset decide": (
        '["hopping",6000,[[2,[]]],[[0,0,"a",0,0],[0,0,"a",0,0],[0,0,"a",0,0],[0,0,"d",0,0],[0,1,"d",0,0]],'
        "[[1,false,2,100000000]],[],false,false,false]"
    ),
    "a republisher takes no writer for idle whose records it reads in the batch": (
        '["tumbling",6000,[[4,[[1,10,false,100],[1,10,false,9]]]],[[0,0,"a",0,0],[0,0,"a",0,0],[0,0,"a",0,0],'
        '[0,0,"a",0,0],[0,0,"a",0,0],[0,0,"a",0,0],[0,0,"a",0,0],[0,0,"a",0,0],[0,3,"a",0,0],[0,0,"a",6000,0],'
        '[0,0,"a",0,0]],[[1,false,2,100000000]],[],true,false,false]'
    ),
    "a republisher states what it knew before the batch": (
        '["distinct",6000,[[2,[[1,10,false,100]]]],[[0,1,"a",0,4000],[0,1,"a",0,0],[0,0,"a",0,0]],[[1,false,'
        "1,100000000]],[],false,false,false]"
    ),
}
"""Small worlds that some code has got wrong."""
PAUSES = {
    "on two lanes of one partition": (
        '["hopping",6000,[[2,[[1,10,false,100]]],[1,[]]],[[0,1,"a",0,0],[0,0,"a",3456000000,0]],'
        "[[1,false,1000,100000000]],[],false,false]"
    ),
    "behind two republishers": (
        '["chained",6000,[[1,[[3,10,true,100],[1,10,false,100]]]],[[0,0,"a",0,0],[0,0,"a",3456000000,0]],'
        "[[1,false,1000,100000000]],[],false,false]"
    ),
    "with timers": (
        '["timers",6000,[[3,[[1,10,false,100],[1,10,false,100]]]],[[0,2,"a",0,0],[0,0,"a",3456000000,0]],'
        "[[1,false,1000,100000000]],[],false,false]"
    ),
    "before a republisher is rewound": (
        '["sessions",6000,[[1,[[1,10,false,100],[1,10,false,100]]],[1,[]]],[[0,0,"a",0,0],[0,0,"a",3456000000,0]],'
        '[[1,false,1000,100000000]],["f","f","p0","p1","w1:6"],false,false]'
    ),
    "in what was not read when a republisher was rewound": (
        '["hopping",6000,[[1,[[1,10,false,100]]],[1,[[1,10,false,100]]]],[[1,0,"a",0,0],[1,0,"a",3456000000,0]],'
        '[[1,false,1000,100000000]],["f","f","p1","w1:7"],false,false]'
    ),
}
"""Small worlds with a pause that is longer than the guard believes."""


@pytest.mark.parametrize("text", SMALL.values(), ids=SMALL)
def test_small_worlds_give_what_their_facts_give(text: str) -> None:
    assert not verdict(World.of(text))


@pytest.mark.parametrize("text", PAUSES.values(), ids=PAUSES)
def test_nothing_is_lost_after_a_long_pause(text: str) -> None:
    assert not verdict(World.of(text))


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
