"""Generate schedules from a seed: the world, its input, and the faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sqe_chain.envelope.partitioner import partition_of
from tests.lab.reference import facts
from tests.lab.reference.world import DAY_MS
from tests.lab.simulator import malformed
from tests.lab.simulator.damage_generator import LONG, DamageGenerator
from tests.lab.simulator.fact_generator import LATER, TWO
from tests.lab.simulator.schedule import Schedule, Step
from tests.lab.simulator.world_generator import chance

ROUNDS: Final = (1, 1, 1, 1, 1, 1, 2)
LEAST_FAULTS: Final = 3


def drawn(seed: int) -> Schedule:
    """The schedule of a seed; the same seed always gives the same schedule.

    Args:
        seed: any whole number.
    """
    later = {name: random.Random(f"{seed} {name}") for name in LATER}
    return _ScheduleGenerator(random.Random(seed), later).schedule()


class _ScheduleGenerator(DamageGenerator):
    """Generates the steps of a schedule."""

    def schedule(self) -> Schedule:
        for _ in range(self.draw.choice(ROUNDS)):
            self._round()
        self.steps.append(["trouble", LEAST_FAULTS])
        return Schedule(self.world, tuple(self.steps))

    def _round(self) -> None:
        draw, world = self.draw, self.world
        for topic in world.origins():
            self.steps.append(self.feed(topic, draw.choice([1, 2, 2, 4])))
        if chance(self.draw, 0.45):
            special = self._special_steps()
            self.steps += special + self._folded_at_once(special)
        self.steps += self._later_steps()
        self.steps += self._newest_steps()
        self.steps += self._latest_steps()
        self.steps += self.damage_steps()
        self.steps += self._decided_steps()
        self.steps += self._transactional_steps()
        for name in self._services():
            if chance(self.draw, 0.85) or name == "totals":
                self.steps.append(self._run(name))

    def _services(self) -> list[str]:
        return self.world.services()

    # ------------------------------------------------------------------ services under faults

    def _run(self, name: str) -> Step:
        draw = self.draw
        count = draw.choice([0, 0, 1]) if name != "totals" else draw.choice([1, 1, 2])
        faults = [self._fault(name) for _ in range(count)]
        if name == "totals" and self.world.table and chance(self.more, 0.6):
            faults.append(self._fault_of_table())
        return ["run", name, draw.choice([1, 2, 3]), faults]

    def _fault_of_table(self) -> list[Any]:
        """A fault at one of the few calls of the table in each batch."""
        more = self.more
        if chance(more, 0.25):
            return ["between steps of the table", more.randrange(8)]
        writes, when = chance(more, 0.5), more.choice(["before", "after"])
        at = int((8 if writes else 20) * more.random() ** 1.5)
        what = more.choice(["crash", "crash", "silence", "meanwhile"])
        fault: list[Any] = [f"table {what}", at, when, writes]
        if what == "silence":
            fault.append(more.choice([1, 1, 2, 5]))
        if what == "meanwhile":
            steps: list[Step] = [["compact", []]] if chance(more, 0.5) else []
            if not steps or chance(more, 0.5):
                steps.append(["run", "totals", 1, []])
            fault.append(steps)
        return fault

    def _later_steps(self) -> list[Step]:
        """What happens to tables and files; and other functions, while nothing is unfinished."""
        world, more = self.world, self.more
        steps: list[Step] = []
        hops: list[Step] = [["run", name, 1, []] for name in self._services() if name.startswith("hop")]
        if world.table and chance(more, 0.4):  # rows of two plans, so that some replace others
            again: list[Step] = [self.feed(world.origins()[0], more.choice([2, 4])), *hops]
            crash = ["table crash", more.randrange(6), more.choice(["before", "after"]), chance(more, 0.5)]
            faults = [crash] if chance(more, 0.3) else []
            if not faults and chance(more, 0.5):  # rows come, and another compaction, which knows of them
                others = [self.feed(world.origins()[0], 2), *hops, ["run", "totals", 1, []], ["compact", []]]
                faults = [["table meanwhile", more.randrange(1, 6), "before", False, others]]
            steps += [["run", "totals", 1, []], *again, ["run", "totals", 1, []], ["compact", faults]]
        if world.table and chance(more, 0.1):
            steps.append(["vacuum"])
        if world.table and chance(more, 0.1):
            again = [self.feed(world.origins()[0], 2), *hops]
            steps += [["run", "totals", 1, []], ["copy"], *again, ["run", "totals", 1, []], ["table back"]]
        if world.files and chance(more, 0.5):
            steps.append(["file", more.choice(["rename", "copy"]), more.randrange(4)])
        if world.kind == "" and not world.view and chance(more, 0.04):
            steps.append(["change", "functions"])
        return steps

    def _newest_steps(self) -> list[Step]:
        """Code that changes while a plan is unfinished, and an origin that is created again while it is read."""
        world, newest = self.world, self.newest
        if self.special_done or world.kind:
            return []
        if world.hops and chance(newest, 0.06):
            self.special_done = True
            feed = self.feed(world.origins()[0], 2)
            hops: list[Step] = [["run", name, 2, []] for name in self._services() if name.startswith("hop")]
            crash = ["crash", newest.randrange(2, 10), newest.choice(["before", "after"]), True]
            change: Step = ["change", newest.choice(["stages", "sources"])]
            return [feed, *hops, ["run", "totals", 3, [crash]], change]
        if world.totals_read_raw and chance(newest, 0.3):
            self.special_done = True
            topic = world.origins()[0]
            again: list[Step] = [self._recreated(topic, world.partitions)]
            fault = ["meanwhile", newest.randrange(16), newest.choice(["before", "after"]), False, again]
            return [["settle"], self.feed(topic, 2), ["run", "totals", 2, [fault]]]
        return []

    def _folded_at_once(self, special: list[Step]) -> list[Step]:
        """A rebuild where inputs or code have changed and no run has noticed."""
        world, latest = self.world, self.latest
        if not special or special[-1][0] not in {"recreate", "grow", "change"} or not chance(latest, 0.3):
            return []
        return [self.feed(world.origins()[0], 2), ["rebuild", False, []]]

    def _latest_steps(self) -> list[Step]:
        """A rebuild that another run overtakes: the service, a rebuild, or one that goes on with what was interrupted."""
        world, latest = self.world, self.latest
        if world.table or world.files or not chance(latest, 0.06):
            return []
        if world.totals_read_raw and not self.special_done:
            return self._recreate_while_folded()
        steps: list[Step] = [["run", "totals", 1, []]]
        if chance(latest, 0.5):
            steps.append(["rebuild", False, [["crash", latest.randrange(14), "after", True]]])
        others: list[Step] = [["rebuild", chance(latest, 0.5), []]]
        if chance(latest, 0.4):
            others = [["run", "totals", 1, []], *(others if chance(latest, 0.5) else [])]
        at = int(150 * latest.random() ** 1.5)
        fault = ["meanwhile", at, latest.choice(["before", "after"]), False, others]
        return [*steps, ["rebuild", chance(latest, 0.4), [fault]], ["run", "totals", 1, []]]

    def _decided_steps(self) -> list[Step]:
        """Operators release or discard what the service has skipped, two at once, killed anywhere."""
        world, decided = self.world, self.decided
        if world.poison != "dead_letter" or not chance(decided, 0.4):
            return []
        faults: list[list[Any]] = []
        at = int(60 * decided.random() ** 1.5)
        when, writes = decided.choice(["before", "after"]), chance(decided, 0.5)
        match decided.randrange(4):
            case 0:
                faults.append(["crash", at, when, writes])
            case 1:
                faults.append(["meanwhile", at, when, False, [["decide", chance(decided, 0.5), []]]])
            case 2:
                faults.append(["meanwhile", at, when, False, [["run", "totals", 1, []]]])
        steps: list[Step] = [["decide", chance(decided, 0.6), faults]]
        rubbish: list[Step] = []
        if not world.totals_read_raw and chance(decided, 0.5):
            rubbish.append(["rubbish", "far", decided.randrange(3), decided.choice(malformed.KINDS)])
        return [*rubbish, ["run", "totals", 1, []], *steps, ["run", "totals", 1, []]]

    def _transactional_steps(self) -> list[Step]:
        """The service dies or sleeps around its transaction, and perhaps its markers are lost then."""
        world, draw = self.world, self.transactions
        if not world.transactional or not chance(draw, 0.5):
            return []
        hops: list[Step] = [["run", name, 2, []] for name in self._services() if name.startswith("hop")]
        fault: list[Any] = ["crash", int(12 * draw.random()), "after", True]
        if chance(draw, 0.4):
            others: list[Step] = [["run", "totals", 1, [["crash", draw.randrange(12), "after", True]]]]
            fault = ["meanwhile", draw.randrange(40), draw.choice(["before", "after"]), False, others]
        steps = [self.feed(world.origins()[0], 2), *hops, ["run", "totals", 2, [fault]]]
        return [*steps, ["markers"]] if chance(draw, 0.3) else steps

    def _recreate_while_folded(self) -> list[Step]:
        self.special_done = True
        latest, topic = self.latest, self.world.origins()[0]
        again: list[Step] = [self._recreated(topic, self.world.partitions), self.feed(topic, 2)]
        fault = [
            "meanwhile",
            int(60 * latest.random() ** 1.5),
            latest.choice(["before", "after"]),
            False,
            again,
        ]
        return [["settle"], ["rebuild", False, [fault]]]

    def _fault(self, name: str) -> list[Any]:
        draw = self.draw
        if name == "totals" and chance(draw, 0.2):
            return ["between states", draw.randrange(4)]
        writes = chance(self.draw, 0.4)
        what = draw.choice(["crash", "crash", "silence", "silence", "meanwhile"])
        reach = (5 if writes else 14) if name not in {"totals", "reader"} else (10 if writes else 40)
        at = int(reach * draw.random() ** 1.5)
        fault: list[Any] = [what, at, draw.choice(["before", "after"]), writes]
        if what == "silence":
            fault.append(draw.choice([1, 1, 2, 5]))
        if what == "meanwhile":
            fault.append(self._concurrent_steps(name))
        return fault

    def _concurrent_steps(self, name: str) -> list[Step]:
        """What other runs do while a run is paused, including runs of the same service."""
        draw = self.draw
        steps: list[Step] = []
        # Sequence numbers must rise and doors must open before they close, even while a transaction is open.
        if chance(self.draw, 0.4) and self.world.kind != "sequences" and not self.world.doors:
            steps.append(self.feed(self.world.origins()[0], 2))
        for other in self._services():
            if other == name or chance(self.draw, 0.3):
                faults = [] if chance(self.draw, 0.7) else [["crash", draw.randrange(20), "after", False]]
                steps.append(["run", other, draw.choice([1, 1, 2]), faults])
        return steps

    # ------------------------------------------------------------------ special steps

    def _special_steps(self) -> list[Step]:
        """One special event besides crashes and outages, of those that are possible in this world."""
        world, plain, hops = self.world, self.world.kind == "", self.world.hops
        in_place = plain and not world.doors and world.partitions == world.state_partitions > 1
        keyed = world.doors or world.kind == "roots"
        once = not self.special_done
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
            (in_place, 3, self._late_mis_partitioned_key),
            (plain and not world.doors, 3, self._publish_in_part),
            (world.block > LONG and world.records > LONG and not keyed, 1, self._long_block),
            (world.poison != "stop", 2, self._rubbish),
            (world.kind == "windows", 10, self._close_windows),
            (once and world.recreated == "skip", 6, self._recreate_between),
            (once and world.raw, 6, self._recreate_raw),
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
        self.special_done = True
        return [["grow", self.world.origins()[0], 1]]

    def _zombie(self) -> list[Step]:
        name = self.draw.choice(self._services())
        topic = self.world.origins()[0]
        return [
            ["run", name, 1, []],
            ["start", name],
            self.feed(topic, 2),
            *(["run", other, 1, []] for other in self._services()),
            ["wake", name, 1, [self._fault(name)] if chance(self.draw, 0.5) else []],
        ]

    def _rubbish(self) -> list[Step]:
        world, draw = self.world, self.draw
        topics = [topic for topic in ("mid", "far") if topic == "far" or world.hops == TWO]
        if world.totals_read_raw:
            return self._election()
        steps: list[Step] = (
            [["run", name, 1, []] for name in self._services()] if chance(self.draw, 0.6) else []
        )
        for _ in range(draw.choice([1, 1, 2])):
            kind = draw.choice(malformed.KINDS)
            steps.append(["rubbish", draw.choice(topics), draw.randrange(3), kind])
        return [*steps, self.feed(world.origins()[0], 2)]

    def _rewind(self) -> list[Step]:
        name = self.draw.choice([name for name in self._services() if name.startswith("hop")])
        return [["rewind", name, self.draw.choice([1, 3, 100])], ["run", name, 1, []]]

    def _forget(self) -> list[Step]:
        name = self.draw.choice([name for name in self._services() if name.startswith("hop")])
        return [["forget", name]]

    def _interleave(self) -> list[Step]:
        """Two runs of a republisher publish in turns, and a reader starts in the middle of their output."""
        if not self.world.doors:
            self.world = replace(self.world, records=3)  # a batch that ends before the other run's
        others = ["run", "hop2", 2, []], ["wake", "hop1", 1, []], ["kill", "hop2"]
        fault = ["meanwhile", self.draw.choice([0, 1, 1]), "after", True, [*others]]
        return [
            ["run", "hop1", 9, []],
            ["start", "hop1"],
            self.feed_one_lane(),
            ["run", "hop1", 1, []],
            self.feed_one_lane(),
            ["run", "hop1", 1, [fault]],
            ["run", "hop2", 2, []],
        ]

    def _late_mis_partitioned_key(self) -> list[Step]:
        """Keys in their own partitions, then one in another partition, and a crash between two state partitions."""
        draw, count = self.draw, self.world.partitions
        self.world = replace(self.world, block=1, buckets=1)
        home = {partition_of(key.encode(), count): key for key in facts.KEYS}
        fed = []
        partitions = sorted(home)
        elsewhere, goal = draw.sample(partitions, 2) if len(partitions) > 1 else (0, 0)
        for key, partition in [*((home[at], at) for at in partitions), (home[goal], elsewhere)]:
            self.number += 1
            fed.append([partition, f"{self.number} {key} {home[partition]} {facts.SOUND} g{self.number} 1"])
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
        """Enough records of one partition for reading them as columns, with malformed ones among them."""
        topic, partition = self.world.origins()[0], self.draw.randrange(self.world.partitions)
        steps: list[Step] = []
        for _ in range(self.draw.choice([1, 2])):
            kind, _, fed = self.feed(topic, LONG)
            fed = [[partition, f"{text}"] for _, text in fed]
            steps.append([kind, topic, fed])
            if self.world.poison != "stop" and not self.world.raw:
                steps.append(["rubbish", topic, partition, self.draw.choice(malformed.KINDS)])
        return steps

    def _rebuild(self) -> list[Step]:
        draw = self.draw
        steps: list[Step] = []
        if chance(self.draw, 0.5):  # crash while outputs are being published; then more input comes
            at = draw.randrange(1, 6)
            steps += [["run", "totals", 3, [["crash", at, draw.choice(["before", "after"]), True]]]]
            steps += [self.feed(self.world.origins()[0], 2)]
            steps += [["run", name, 2, []] for name in self._services() if name.startswith("hop")]
        if chance(draw, 0.2):  # two that complete, then there is nothing to resume
            return [*steps, ["rebuild", False, []], ["rebuild", False, []], ["rebuild", True, []]]
        for _ in range(draw.choice([1, 2, 2, 3])):
            faults = [["crash", draw.randrange(14), draw.choice(["before", "after"]), True]]
            steps.append(["rebuild", chance(self.draw, 0.4), faults if chance(self.draw, 0.7) else []])
        return steps

    def _publish_in_part(self) -> list[Step]:
        """A crash in the middle of publishing; then another fact comes, and states are rebuilt."""
        self.world = replace(self.world, state_partitions=1, records=400_000)
        hops: list[Step] = [["run", name, 2, []] for name in self._services() if name.startswith("hop")]
        partition = self.draw.randrange(self.world.partitions)
        first, then = (
            ["feed", self.world.origins()[0], [self.sound_fact(partition, units)]] for units in (3, 1)
        )
        outputs = ["between outputs", self.draw.randrange(8)]
        after: list[Step] = [["rebuild", False, []]] if chance(self.draw, 0.8) else []
        return [
            ["run", "totals", 9, []],
            first,
            *hops,
            ["run", "totals", 1, [outputs]],
            then,
            *hops,
            *after,
            ["run", "totals", 2, []],
        ]

    def _roll_back(self) -> list[Step]:
        draw, world = self.draw, self.world
        stages = (
            ["first", *(["second"] if world.stages == TWO else [])]
            if world.kind != "windows"
            else ["windows"]
        )
        whole = chance(self.draw, 0.3) and not world.reader
        stage = None if whole else draw.choice(stages)
        cells = None if chance(self.draw, 0.5) else [draw.randrange(world.state_partitions * world.buckets)]
        crash = [["crash", draw.randrange(14), draw.choice(["before", "after"]), True]]
        return [
            ["run", "totals", 1, []],
            ["copy"],
            self.feed(world.origins()[0], 3),
            *(["run", name, 1, []] for name in self._services() if name.startswith("hop")),
            ["run", "totals", 1, crash if chance(self.draw, 0.7) else []],
            ["roll back", stage, None if whole else cells],
        ]

    def _move(self) -> list[Step]:
        faults = [["crash", self.draw.randrange(10), self.draw.choice(["before", "after"]), True]]
        return [["move", faults if chance(self.draw, 0.6) else []]]

    def _close_windows(self) -> list[Step]:
        """Time passes and windows close, while the store is unavailable or another run is at work."""
        draw, topic = self.draw, self.world.origins()[0]
        steps: list[Step] = [["settle"], ["jump", 3 * DAY_MS], self.feed(topic, 6)]
        steps += [["run", name, 2, []] for name in self._services() if name.startswith("hop")]
        faults: list[list[Any]] = [
            ["store silence", at, "before", False, 1]
            for at in draw.sample(range(2, 20), draw.choice([1, 3, 3]))
        ]
        if chance(draw, 0.2):
            faults = [["meanwhile", draw.randrange(4, 16), "before", False, [["run", "totals", 2, []]]]]
        return [*steps, ["run", "totals", 2, faults]]

    def _recreate_between(self) -> list[Step]:
        self.special_done = True
        return [
            ["run", "hop1", 2, []],
            ["run", "hop2", 1, []],
            ["run", "totals", 1, []],
            self._recreated("mid", self.world.partitions),
            ["run", "hop1", 1, []],
        ]

    def _recreate_raw(self) -> list[Step]:
        self.special_done = True
        parts = self.draw.choice([1, self.world.partitions, self.world.partitions + 1])
        settle: list[Step] = [["settle"]] if not self.world.hops or chance(self.draw, 0.5) else []
        down: list[Step] = [["kill", name] for name in self._services()[:1] if chance(self.draw, 0.6)]
        return [*settle, *down, self._recreated(self.world.origins()[0], parts)]

    def _recreated(self, topic: str, partitions: int) -> Step:
        return ["recreate", topic, partitions, self.again.choice([*3 * ["commits deleted"], "commits kept"])]

    def _change(self) -> list[Step]:
        """The code changes while a plan is unfinished."""
        self.special_done = True
        draw = self.draw
        crash = ["crash", draw.randrange(2, 14), draw.choice(["before", "after"]), True]
        return [["run", "totals", 3, [crash]], ["change", draw.choice(["stages", "sources"])]]
