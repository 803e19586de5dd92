"""The flows of a world with their topics, and what runs and operators do with them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import cast

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed import UNDECIDED, FailedSelection
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.operations.parked import ParkedSelection, ParkedWork
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Log
from sqe_chain.protocol.services import service_of
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faulty_ports import faulty_log
from tests.lab.failed_worlds.actors import Actor, TakingTurns
from tests.lab.failed_worlds.flows import KEYS, LAST, Drawn, republisher, totals
from tests.lab.failed_worlds.judging import Texts

_names = itertools.count()


class System:
    """A topic ``raw``, one or two flows without stages, and one with a stage.

    Args:
        seed: what is drawn depends on it alone.

    Attributes:
        names: how often something happened, or was refused, by name.
        way: flow -> its input topic and its output topic.
        rewinds: flows without stages are rewound.
        forgets: retention takes dead-letter records.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        Drawn.seed, Drawn.rate = seed, rng.choice((0.2, 0.5, 0.9))
        self.rewinds = rng.random() < 0.5
        self.names, self.log = Counter[str](), MemoryLog(f"failed-world-{seed}-{next(_names)}")
        self.script = TakingTurns()
        parts = {topic: rng.randint(1, 2) for topic in ("raw", "good", "fine")}
        self.parts = parts
        way = {"R": ("raw", "good")} | ({"D": ("good", "fine")} if rng.random() < 0.5 else {})
        self.way = way | {"S": (way.get("D", way["R"])[1], "")}
        self.policy = {f: rng.choice(("dead_letter", "dead_letter", "skip")) for f in way}
        self.policy["S"] = rng.choice(("dead_letter", "park", "skip"))
        self.kept_in = {f: rng.randint(1, 2) for f in way}
        self.version = dict.fromkeys(self.way, 0)
        self.limit = rng.choice((2, 3, 1000))
        settings = Settings(max_records=self.limit, max_excluded_share=1.0)
        self.rehearsals: dict[str, Rehearsal] = {}
        for f, (source, _) in self.way.items():
            self.rehearsals[f] = Rehearsal(
                self.flow(f, 0), partitions={source: parts[source]}, log=self.log, settings=settings
            )
            self.rehearsals[f].script = self.script
        self.live: dict[str, Actor] = {}
        self.zombies, self.operators = list[Actor](), list[Actor]()
        self.left = rng.randint(3, 14)
        self.forgets = rng.random() < 0.3
        self.forgotten: dict[str, dict[Texts, str]] = {f: {} for f in self.way}

    def flow(self, f: str, version: int, *, releases: bool = False) -> CompiledFlow:
        """A version of a flow. Where flows are rewound, only what is released depends on the version: readers may have the rest."""
        gives = version if releases or not self.rewinds else 0
        source, target = self.way[f]
        if f == "S":
            return totals(f, version, self.policy[f], source)
        return republisher(
            f, version, gives, self.policy[f], (source, target, self.parts[target]), self.kept_in[f]
        )

    def _count(self, name: str) -> None:
        self.names[name] += 1

    def _service(self, f: str, version: int) -> Callable[[Actor], None]:
        rehearsal = self.rehearsals[f]

        def work(actor: Actor) -> None:
            rehearsal.flow = self.flow(f, version)
            service = service_of(rehearsal._environment(None))
            service.start()
            while True:
                if not service.batch().worked and not service.batch(at_end=True).worked:
                    if actor.stopped:
                        break
                    actor.rest()
            service.leave()

        return work

    def records_of(self, f: str, version: int, log: Log | None = None) -> FailedLetters:
        """What operators have for a flow without stages."""
        clock = self.rehearsals[f].clock
        return FailedLetters(
            self.flow(f, version, releases=True),
            log or self.log,
            clock.now_ms,
            lambda: f"name-{next(_names)}",
        )

    def _has_work(self, f: str) -> bool:
        """Whether anything is undecided."""
        if f == "S":
            return self.policy[f] == "park"
        return self.policy[f] == "dead_letter" and any(
            record.status in UNDECIDED for record in self.records_of(f, LAST).list()
        )

    def _operator(self, f: str) -> Actor:
        version = self.rng.choice(
            (self.version[f], self.rng.randint(0, LAST))
        )  # fixed code, not yet deployed
        kind = self.rng.choice(("release", "release", "release", "discard"))
        share, key = self.rng.choice((0.5, 0.7, 1.0)), str(self.rng.randrange(KEYS))
        seed = self.rng.random()

        def decide(_: Actor) -> None:
            letters = self.records_of(f, version, faulty_log(self.log, self.script))
            rng = random.Random(seed)
            places = frozenset(str(record) for record in letters.list() if rng.random() < share)
            selection = FailedSelection() if share == 1 else FailedSelection(places=places)
            result = letters.release(selection) if kind == "release" else letters.discard(selection)
            self._count(f"{kind}: {'some' if any(_numbers(result)) else 'none'}")

        def change_plans(_: Actor) -> None:
            rehearsal = self.rehearsals[f]
            rehearsal.flow = self.flow(f, version)
            if rehearsal.stores[""].home(f)[0] is None:
                return
            selection = ParkedSelection(key=None if share == 1 else f"{key}*")
            ParkedWork(rehearsal._environment(None), selection, kind == "discard").run()
            self._count(f"parked: {kind}")

        def nothing(_: Actor) -> None:
            return

        if self.policy[f] == "skip" or (f == "S" and self.policy[f] == "dead_letter"):
            return Actor(f, nothing)
        return Actor(f, change_plans if f == "S" else decide)

    def _again(self, f: str) -> Callable[[Actor], None]:
        """A rewind, or a rebuild."""
        version, seed, rehearsal = self.version[f], self.rng.random(), self.rehearsals[f]

        def rewind(_: Actor) -> None:
            rng = random.Random(seed)
            rehearsal.flow = self.flow(f, version)
            service = service_of(rehearsal._environment(None))
            service.start()
            topic = self.way[f][0]
            tps = [(topic, partition) for partition in range(self.parts[topic])]
            commits = self.log.committed(f, tps)
            cast("Republisher", service).rewind(
                {tp: rng.randint(0, commit.offset) for tp, commit in commits.items() if rng.random() < 0.7}
            )
            self._count("rewound")

        def rebuild(_: Actor) -> None:
            rehearsal.flow = self.flow(f, version)
            if rehearsal.stores[""].home(f)[0] is None:
                return
            rehearsal.rebuild()
            self._count("rebuilt")

        return rebuild if f == "S" else rewind


def _numbers(result: object) -> list[int]:
    return [getattr(result, name, 0) for name in ("released", "discarded")]
