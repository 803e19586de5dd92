"""What is fed, drawn: facts of all kinds, and where they lie."""

from __future__ import annotations

import random
from typing import Any, Final

from sqe_chain.testing.simulator import facts
from sqe_chain.testing.simulator.schedule import Step
from sqe_chain.testing.simulator.world import chance, world_of

TWO: Final = 2
"""Of hops, or stages."""


class Feeding:
    """Draws a world, and what is fed into it.

    Args:
        draw: where chance comes from.

    Attributes:
        world: the world.
        steps: drawn so far.
        number: of the last fact.
        sames: what filters by id compare, of the facts so far.
        special: something has happened that happens once.
        strays: how often a key lies elsewhere, in worlds where keys do.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.world = world_of(draw)
        self.steps: list[Step] = []
        self.number = 0
        self.sames: list[str] = []
        self.special = False
        self.strays = draw.choice([0.15, 0.6])

    def feed(self, topic: str, count: int) -> Step:
        """So many facts, or a door that opens and closes."""
        if self.world.doors and chance(self.draw, 0.7):
            return self._doors(topic)
        fed = [fact for _ in range(count) for fact in self._facts()]
        return ["feed", topic, fed]

    def _facts(self) -> list[list[Any]]:
        draw, world = self.draw, self.world
        key = draw.choice(facts.KEYS)
        route = draw.choice(facts.KEYS) if world.strays and chance(draw, self.strays) else key
        kind, copies = facts.SOUND, 1
        if world.poison != "stop" and chance(self.draw, 0.12):
            kind = draw.choice(self._kinds())
        elif world.limits and chance(draw, 0.15):
            kind = facts.AHEAD
        self.number += 1
        same = f"g{self.number}"
        if world.sieve in {"deduplicate", "distinct"}:
            if kind not in facts.ODD_TIMES:
                if self.sames and chance(self.draw, 0.3):
                    same = draw.choice(self.sames)
                self.sames.append(same)
            copies = draw.choice([1, 3]) if kind == facts.FIRST else 1
        units = draw.choice([1, 1, 2, 3]) if world.sieve in {"", "windows"} and kind != facts.HOP else 1
        if self.siblings():
            units = 3
        if world.sieve == "windows" and chance(self.draw, 0.2):
            key = route = facts.BEAT
            kind, units = facts.BEATS, 1
        # Filters by key want each key's facts in the order of one root.
        partition = facts.KEYS.index(key) if world.sieve == "roots" else draw.randrange(world.partitions)
        fed = []
        for copy in range(copies):
            self.number += bool(copy)
            fed.append([partition, f"{self.number} {key} {route} {kind} {same} {units}"])
        return fed

    def _kinds(self) -> list[str]:
        world = self.world
        found = [facts.BEFORE, facts.FIRST, facts.SURROGATE, facts.MUTE]
        if world.sieve != "windows":
            found += [facts.FIRST, facts.SECOND, facts.LAST] if world.stages == TWO else [facts.FIRST]
        if world.hops:
            found.append(facts.HOP)
        if world.view:
            found += [facts.UNSHOWN] * 3
        if world.limits:
            found += [facts.KEYLESS] * 2
        if world.sieve in {"deduplicate", "distinct", "windows"} and not world.raw:
            found += [facts.EARLIEST, facts.LATEST] * 2
        return found

    def _doors(self, topic: str) -> Step:
        """Doors that open on one partition and close on another: in the order of units."""
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

    def along_one_lane(self) -> Step:
        """Three facts of one key and one partition."""
        units = 3 if self.siblings() else 1
        return ["feed", self.world.origins()[0], [self.sound(0, units) for _ in range(3)]]

    def sound(self, partition: int, units: int) -> list[Any]:
        """A sound fact of the first key."""
        self.number += 1
        return [partition, f"{self.number} a a {facts.SOUND} g{self.number} {units}"]

    def siblings(self) -> bool:
        """Every fact becomes several units, to be told apart."""
        return self.world.recreated == "skip"
