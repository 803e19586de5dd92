"""Random input: facts of all kinds, and their partitions."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from tests.lab.reference import facts
from tests.lab.simulator.schedule import Step
from tests.lab.simulator.world_generator import (
    chance,
    extended_world,
    newest_world,
    publishing_world,
    random_world,
    transactional_world,
)

TWO: Final = 2
"""Hops or stages."""


LATER: Final = {
    "more": "tables, files, JSON, columns",
    "newest": "codecs of its own",
    "latest": "rebuilds that others overtake",
    "again": "topics that are created again",
    "damage": "logs that lose something, and standbys",
    "told": "joins, and what stages let pass and drop",
    "decided": "what operators decide about failed records",
    "transactions": "transactions",
}
"""Sources of randomness, and what for."""


class FactGenerator:
    """Generates a random world and its input.

    Args:
        draw: the source of randomness.
        later: one for each feature that came later, so that a seed still gives the schedule that it gave without that: see `LATER`.

    Attributes:
        world: the world.
        steps: generated so far.
        number: of the last fact.
        filter_ids: of the facts so far; what filters by id compare.
        special_done: whether a step that happens at most once has been generated.
        misplaced_probability: how often a key is in another partition than murmur2's, in worlds with mis-partitioned keys.
    """

    def __init__(self, draw: random.Random, later: Mapping[str, random.Random]) -> None:
        self.draw, self.more, self.newest, self.latest = draw, later["more"], later["newest"], later["latest"]
        self.again, self.damage, told = later["again"], later["damage"], later["told"]
        self.decided, self.transactions = later["decided"], later["transactions"]
        world = publishing_world(
            newest_world(extended_world(random_world(draw), self.more), self.newest), told
        )
        self.world = transactional_world(world, self.transactions)
        self.steps: list[Step] = []
        self.number = 0
        self.filter_ids: list[str] = []
        self.special_done = False
        self.misplaced_probability = draw.choice([0.15, 0.6])

    def feed(self, topic: str, count: int) -> Step:
        """A step that feeds this many facts, or a door that opens and closes."""
        if self.world.doors and chance(self.draw, 0.7):
            return self._doors(topic)
        fed = [fact for _ in range(count) for fact in self._facts()]
        return ["feed", topic, fed]

    def _facts(self) -> list[list[Any]]:
        draw, world = self.draw, self.world
        key = draw.choice(facts.KEYS)
        route = (
            draw.choice(facts.KEYS)
            if world.mispartitioned and chance(draw, self.misplaced_probability)
            else key
        )
        kind, copies = facts.SOUND, 1
        if world.poison != "stop" and chance(self.draw, 0.12):
            kind = draw.choice(self._kinds())
        elif world.limits and chance(draw, 0.15):
            kind = facts.AHEAD
        later = self._later_kinds()
        if later and kind in facts.GOOD and world.poison != "stop" and chance(self.more, 0.15):
            kind = self.more.choice(later)
        self.number += 1
        same = f"g{self.number}"
        if world.kind in {"deduplicate", "distinct"}:
            if kind not in facts.ODD_TIMES:
                if self.filter_ids and chance(self.draw, 0.3):
                    same = draw.choice(self.filter_ids)
                self.filter_ids.append(same)
            copies = draw.choice([1, 3]) if kind == facts.FIRST else 1
        several = world.kind in {"", "windows", "join"} and kind != facts.HOP
        units = draw.choice([1, 1, 2, 3]) if several else 1
        if self.splits_facts():
            units = 3
        if world.kind == "windows" and chance(self.draw, 0.2):
            key = route = facts.BEAT
            kind, units = facts.BEATS, 1
        # Filters by key need each key's facts in the order of one root.
        partition = facts.KEYS.index(key) if world.kind == "roots" else draw.randrange(world.partitions)
        fed = []
        for copy in range(copies):
            self.number += bool(copy)
            fed.append([partition, f"{self.number} {key} {route} {kind} {same} {units}"])
        return fed

    def _kinds(self) -> list[str]:
        world = self.world
        found = [facts.BEFORE, facts.FIRST, facts.SURROGATE, facts.MUTE]
        if world.kind != "windows":
            found += [facts.FIRST, facts.SECOND, facts.LAST] if world.stages == TWO else [facts.FIRST]
        if world.hops:
            found.append(facts.HOP)
        if world.view:
            found += [facts.UNSHOWN] * 3
        if world.limits:
            found += [facts.KEYLESS] * 2
        if world.kind in {"deduplicate", "distinct", "windows"} and not world.raw:
            found += [facts.EARLIEST, facts.LATEST] * 2
        return found

    def _later_kinds(self) -> list[str]:
        found = [facts.ROWLESS, facts.HOMELESS, facts.LARGE] if self.world.table else []
        return [*found, facts.UNCOUNTED] if self.world.declared else found

    def _doors(self, topic: str) -> Step:
        """Feed doors that open on one partition and close on another."""
        draw, world = self.draw, self.world
        key = draw.choice(facts.KEYS)
        kinds = [(facts.OPEN, 0), (facts.CLOSE, world.partitions - 1)]
        if world.poison != "stop" and not world.hops and chance(draw, 0.4):
            kinds.insert(1, (facts.BAD_CLOSE, 0))
        fed: list[list[Any]] = []
        for kind, partition in kinds:
            self.number += 1
            fed.append([partition, f"{self.number} {key} {facts.KEYS[partition]} {kind} g{self.number} 1"])
        return ["feed", topic, fed]

    def feed_one_lane(self) -> Step:
        """Three facts of one key and one partition."""
        units = 3 if self.splits_facts() else 1
        return ["feed", self.world.origins()[0], [self.sound_fact(0, units) for _ in range(3)]]

    def sound_fact(self, partition: int, units: int) -> list[Any]:
        """A sound fact of the first key."""
        self.number += 1
        return [partition, f"{self.number} a a {facts.SOUND} g{self.number} {units}"]

    def splits_facts(self) -> bool:
        """Whether every fact becomes several units, each with its own key."""
        return self.world.recreated == "skip"
