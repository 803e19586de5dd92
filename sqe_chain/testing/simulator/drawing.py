"""Schedules drawn from a seed: which world, what is fed, which faults come when."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sqe_chain.partitioner import partition_of
from sqe_chain.testing.simulator import facts, malformed
from sqe_chain.testing.simulator.schedule import Schedule, Step
from sqe_chain.testing.simulator.world import DAY_MS
from sqe_chain.testing.simulator.worlds import TWO, chance, world_of

ROUNDS: Final = (1, 1, 1, 2, 2, 3)
LEAST_FAULTS: Final = 3
LONG: Final = 24
"""Records of one partition that are read side by side."""


def drawn(seed: int) -> Schedule:
    """The schedule of a seed; always the same one.

    Args:
        seed: any whole number.
    """
    return _Drawing(random.Random(seed)).schedule()  # noqa: S311 - not for secrets


class _Drawing:
    """Draws the steps of a world."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.world = world_of(draw)
        self.steps: list[Step] = []
        self.number = 0
        self.sames: list[str] = []
        self.special = False
        self.strays = draw.choice([0.15, 0.6])

    def schedule(self) -> Schedule:
        for _ in range(self.draw.choice(ROUNDS)):
            self._round()
        while Schedule(self.world, tuple(self.steps)).faults() < LEAST_FAULTS:
            self._round()
        return Schedule(self.world, tuple(self.steps))

    def _round(self) -> None:
        draw, world = self.draw, self.world
        for topic in world.origins():
            self.steps.append(self._feed(topic, draw.choice([1, 2, 4, 6])))
        if chance(self.draw, 0.45):
            self.steps += self._special()
        for name in self._services():
            if chance(self.draw, 0.85) or name == "totals":
                self.steps.append(self._run(name))

    def _services(self) -> list[str]:
        return list(self.world.flows())

    # ------------------------------------------------------------------ facts

    def _feed(self, topic: str, count: int) -> Step:
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
        if self._siblings():
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

    # ------------------------------------------------------------------ services under faults

    def _run(self, name: str) -> Step:
        draw = self.draw
        count = draw.choice([0, 1, 1, 2]) if name != "totals" else draw.choice([1, 1, 2, 3])
        return ["run", name, draw.choice([1, 2, 3]), [self._fault(name) for _ in range(count)]]

    def _fault(self, name: str) -> list[Any]:
        draw = self.draw
        if name == "totals" and chance(draw, 0.2):
            return ["between states", draw.randrange(4)]
        writes = chance(self.draw, 0.4)
        what = draw.choice(["crash", "crash", "silence", "silence", "meanwhile"])
        reach = (8 if writes else 24) if name not in {"totals", "reader"} else (16 if writes else 60)
        at = int(reach * draw.random() ** 1.5)
        fault: list[Any] = [what, at, draw.choice(["before", "after"]), writes]
        if what == "silence":
            fault.append(draw.choice([1, 1, 2, 5]))
        if what == "meanwhile":
            fault.append(self._others(name))
        return fault

    def _others(self, name: str) -> list[Step]:
        """What others do while a run stands still: the same service too."""
        draw = self.draw
        steps: list[Step] = []
        # Numbers rise in the order of feeding; doors are opened before they are closed, also where a transaction is open.
        if chance(self.draw, 0.4) and self.world.sieve != "sequences" and not self.world.doors:
            steps.append(self._feed(self.world.origins()[0], 2))
        for other in self._services():
            if other == name or chance(self.draw, 0.3):
                faults = [] if chance(self.draw, 0.7) else [["crash", draw.randrange(20), "after", False]]
                steps.append(["run", other, draw.choice([1, 1, 2]), faults])
        return steps

    # ------------------------------------------------------------------ what else may happen

    def _special(self) -> list[Step]:
        """One of all that may happen beside crashes and outages, as far as the world has it."""
        world, plain, hops = self.world, self.world.sieve == "", self.world.hops
        in_place = plain and not world.doors and world.partitions == world.state_partitions > 1
        keyed = world.doors or world.sieve == "roots"
        once = not self.special
        offered: list[tuple[bool, int, Callable[[], list[Step]]]] = [
            (True, 1, self._election),
            (True, 1, self._zombie),
            (True, 1, self._transaction),
            (True, 1, self._jump),
            (True, 3, self._rebuild),
            (True, 2, self._roll_back),
            (True, 1, self._move),
            (hops > 0, 1, self._rewind),
            (hops > 0, 1, self._forget),
            (hops > 1, 2, self._interleave),
            (in_place, 3, self._late_stray),
            (world.block > LONG and world.records > LONG and not keyed, 1, self._long_block),
            (world.poison != "stop", 2, self._rubbish),
            (world.sieve == "windows", 5, self._close_windows),
            (once and world.recreated == "skip", 6, self._recreate_between),
            (once and world.raw, 9, self._recreate_raw),
            (once and plain and hops > 0, 2, self._change),
            (once and not keyed, 1, self._grow),
        ]
        weights = [weight * possible for possible, weight, _ in offered]
        (chosen,) = self.draw.choices([step for _, _, step in offered], weights)
        return chosen()

    def _topic(self) -> str:
        topics = [*self.world.origins(), *(["mid"] if self.world.hops == TWO else []), "far"]
        return self.draw.choice(topics)

    def _election(self) -> list[Step]:
        return [["elect", self._topic(), self.draw.randrange(3)]]

    def _transaction(self) -> list[Step]:
        topic = self._topic()
        if topic in {"mid", "far"} and self.world.hops:
            topic = self.world.origins()[0]
        return [["open", topic, self.draw.randrange(3)], self._run(self._services()[0]), ["abort"]]

    def _jump(self) -> list[Step]:
        return [["jump", self.draw.choice([-3_600_000, -1_000, 60_000, 3_600_000])]]

    def _grow(self) -> list[Step]:
        self.special = True
        return [["grow", self.world.origins()[0], 1]]

    def _zombie(self) -> list[Step]:
        name = self.draw.choice(self._services())
        topic = self.world.origins()[0]
        return [
            ["run", name, 1, []],
            ["start", name],
            self._feed(topic, 2),
            *(["run", other, 1, []] for other in self._services()),
            ["wake", name, 1, [self._fault(name)] if chance(self.draw, 0.5) else []],
        ]

    def _rubbish(self) -> list[Step]:
        world, draw = self.world, self.draw
        topics = [topic for topic in ("mid", "far") if topic == "far" or world.hops == TWO]
        if world.raw and not world.hops:
            return self._election()
        steps: list[Step] = (
            [["run", name, 1, []] for name in self._services()] if chance(self.draw, 0.6) else []
        )
        for _ in range(draw.choice([1, 1, 2])):
            kind = draw.choice(malformed.KINDS)
            steps.append(["rubbish", draw.choice(topics), draw.randrange(3), kind])
        return [*steps, self._feed(world.origins()[0], 2)]

    def _rewind(self) -> list[Step]:
        name = self.draw.choice([name for name in self._services() if name.startswith("hop")])
        return [["rewind", name, self.draw.choice([1, 3, 100])], ["run", name, 1, []]]

    def _forget(self) -> list[Step]:
        name = self.draw.choice([name for name in self._services() if name.startswith("hop")])
        return [["forget", name]]

    def _interleave(self) -> list[Step]:
        """Two runs of a republisher, and a reader that starts anew in the middle of what they say in turns."""
        if not self.world.doors:
            self.world = replace(self.world, records=3)  # a batch that ends before the other run's
        others = ["run", "hop2", 2, []], ["wake", "hop1", 1, []], ["kill", "hop2"]
        fault = ["meanwhile", self.draw.choice([0, 1, 1]), "after", True, [*others]]
        return [
            ["run", "hop1", 9, []],
            ["start", "hop1"],
            self._along_one_lane(),
            ["run", "hop1", 1, []],
            self._along_one_lane(),
            ["run", "hop1", 1, [fault]],
            ["run", "hop2", 2, []],
        ]

    def _late_stray(self) -> list[Step]:
        """Keys at home in every partition, behind them one that is not, and a crash between two state partitions."""
        draw, count = self.draw, self.world.partitions
        self.world = replace(self.world, block=1, buckets=1)
        home = {partition_of(key.encode(), count): key for key in facts.KEYS}
        fed = []
        places = sorted(home)
        stray, goal = draw.sample(places, 2) if len(places) > 1 else (0, 0)
        for key, place in [*((home[at], at) for at in places), (home[goal], stray)]:
            self.number += 1
            fed.append([place, f"{self.number} {key} {home[place]} {facts.SOUND} g{self.number} 1"])
        if self.world.hops:
            fed = [[0, fact] for _, fact in fed]
        hops: list[Step] = [["run", name, 2, []] for name in self._services() if name.startswith("hop")]
        crash = ["between states", draw.randrange(count * self.world.stages)]
        return [
            ["run", "totals", 2, []],
            ["feed", self.world.origins()[0], fed],
            *hops,
            ["kill", "totals"],
            ["run", "totals", 1, [crash]],
            ["run", "totals", 1, []],
        ]

    def _long_block(self) -> list[Step]:
        """So many records of one partition that they are read side by side, malformed ones in their middle."""
        topic, partition = self.world.origins()[0], self.draw.randrange(self.world.partitions)
        steps: list[Step] = []
        for _ in range(self.draw.choice([1, 2])):
            kind, _, fed = self._feed(topic, LONG)
            fed = [[partition, f"{text}"] for _, text in fed]
            steps.append([kind, topic, fed])
            if self.world.poison != "stop" and not self.world.raw:
                steps.append(["rubbish", topic, partition, self.draw.choice(malformed.KINDS)])
        return steps

    def _along_one_lane(self) -> Step:
        fed = []
        for _ in range(3):
            self.number += 1
            fed.append([0, f"{self.number} a a {facts.SOUND} g{self.number} {3 if self._siblings() else 1}"])
        return ["feed", self.world.origins()[0], fed]

    def _siblings(self) -> bool:
        return self.world.recreated == "skip"

    def _rebuild(self) -> list[Step]:
        draw, topic = self.draw, self.world.origins()[0]
        hops: list[Step] = [["run", name, 2, []] for name in self._services() if name.startswith("hop")]
        if chance(draw, 0.5):  # die while outputs are on their way; then others come
            crash = ["crash", draw.randrange(1, 6), "after", True]
            return [
                *hops,
                ["run", "totals", 2, []],
                self._feed(topic, 4),
                *hops,
                ["run", "totals", 1, [crash]],
                self._feed(topic, 4),
                *hops,
                ["rebuild", False, []],
            ]
        steps: list[Step] = []
        for _ in range(draw.choice([1, 2, 3, 3])):
            faults = [["crash", draw.randrange(14), draw.choice(["before", "after"]), True]]
            steps.append(["rebuild", chance(draw, 0.4), faults if chance(draw, 0.5) else []])
        return steps

    def _roll_back(self) -> list[Step]:
        draw, world = self.draw, self.world
        stages = (
            ["first", *(["second"] if world.stages == TWO else [])]
            if world.sieve != "windows"
            else ["windows"]
        )
        whole = chance(self.draw, 0.3) and not world.reader
        stage = None if whole else draw.choice(stages)
        cells = None if chance(self.draw, 0.5) else [draw.randrange(world.state_partitions * world.buckets)]
        crash = [["crash", draw.randrange(14), draw.choice(["before", "after"]), True]]
        return [
            ["run", "totals", 1, []],
            ["copy"],
            self._feed(world.origins()[0], 3),
            *(["run", name, 1, []] for name in self._services() if name.startswith("hop")),
            ["run", "totals", 1, crash if chance(self.draw, 0.7) else []],
            ["roll back", stage, None if whole else cells],
        ]

    def _move(self) -> list[Step]:
        faults = [["crash", self.draw.randrange(10), self.draw.choice(["before", "after"]), True]]
        return [["move", faults if chance(self.draw, 0.6) else []]]

    def _close_windows(self) -> list[Step]:
        """Time passes, windows close; who is asked for their rows has no answer, or finds another run at work."""
        draw, topic = self.draw, self.world.origins()[0]
        steps: list[Step] = [["settle"], ["jump", 3 * DAY_MS], self._feed(topic, 6)]
        steps += [["run", name, 2, []] for name in self._services() if name.startswith("hop")]
        faults: list[list[Any]] = [
            ["silence", at, "before", False, 1] for at in draw.sample(range(4, 24), draw.choice([1, 3, 3]))
        ]
        if chance(draw, 0.2):
            faults = [["meanwhile", draw.randrange(4, 16), "before", False, [["run", "totals", 2, []]]]]
        return [*steps, ["run", "totals", 2, faults]]

    def _recreate_between(self) -> list[Step]:
        self.special = True
        return [
            ["run", "hop1", 2, []],
            ["run", "hop2", 1, []],
            ["run", "totals", 1, []],
            ["recreate", "mid", self.world.partitions],
            ["run", "hop1", 1, []],
        ]

    def _recreate_raw(self) -> list[Step]:
        self.special = True
        parts = self.draw.choice([1, 1, self.world.partitions, self.world.partitions + 1])
        settle: list[Step] = [["settle"]] if not self.world.hops or chance(self.draw, 0.5) else []
        down: list[Step] = [["kill", name] for name in self._services()[:1] if chance(self.draw, 0.6)]
        return [*settle, *down, ["recreate", self.world.origins()[0], parts]]

    def _change(self) -> list[Step]:
        """The code changes while a plan is unfinished."""
        self.special = True
        draw = self.draw
        crash = ["crash", draw.randrange(2, 14), draw.choice(["before", "after"]), True]
        return [["run", "totals", 3, [crash]], ["change", draw.choice(["stages", "sources"])]]
