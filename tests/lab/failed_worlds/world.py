"""One world, drawn from a seed: flows, operators, new code and kills, in any order; then all is finished and judged."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import cast

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.features.every import service_of
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed import UNDECIDED, FailedSelection
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.operations.parked import ParkedSelection, ParkedWork, parked_in
from sqe_chain.ports import Log, Message
from sqe_chain.protocol.republish import Republisher
from sqe_chain.protocol.settings import Settings
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faulty_ports import faulty_log
from tests.lab.failed_worlds.actors import Actor, TakingTurns
from tests.lab.failed_worlds.flows import KEYS, LAST, Drawn, republisher, totals
from tests.lab.failed_worlds.judging import Partitions, Texts, count, difference, single, texts_of

_names = itertools.count()
_MOST_CALLS = 40
"""Calls that an actor makes in one turn at most."""


class Wrong(Exception):
    """Something does not hold."""


class World:
    """A topic ``raw``, one or two flows without stages, and one with a stage.

    Args:
        seed: what is drawn depends on it alone.

    Attributes:
        names: how often something happened, or was refused, by name.
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

    def flow(self, f: str, version: int, *, releases: bool = False) -> CompiledFlow:
        """A version of a flow. Where flows are rewound, only what is released depends on the version: readers may have the rest."""
        gives = version if releases or not self.rewinds else 0
        source, target = self.way[f]
        if f == "S":
            return totals(f, version, self.policy[f], source)
        return republisher(
            f, version, gives, self.policy[f], (source, target, self.parts[target]), self.kept_in[f]
        )

    # --- what happens ---------------------------------------------------------------------

    def run(self) -> None:
        """Let things happen, finish them, and judge.

        Raises:
            Wrong: something does not hold.
        """
        try:
            for _ in range(self.rng.choice((40, 100, 200))):
                self._happen()
            self._finish()
            self._judge()
        finally:
            for actor in (*self.live.values(), *self.zombies, *self.operators):
                actor.kill()

    def _happen(self) -> None:
        rng, kind = self.rng, self.rng.random()
        f = rng.choice([*self.way, "R"])
        if kind < 0.15:
            self._feed(rng.randrange(self.parts["raw"]))
        elif kind < 0.22:
            self._new_code(f)
        elif kind < 0.25 and f in self.live:
            self._count("killed")
            self.live.pop(f).kill()
        elif kind < 0.36:
            if f == "S" or self._has_work(f):
                self.operators += [self._operator(f) for _ in range(rng.choice((1, 2)))]
        elif kind < 0.57 and self.operators:
            self._step(rng.choice(self.operators))
        elif kind < 0.59 and f == "S" and f in self.live:  # paused; another run begins
            self._count("zombie")
            self.zombies.append(self.live.pop(f))
        elif kind < 0.62 and self.zombies:
            self._step(rng.choice(self.zombies))
        elif kind < 0.63:
            self._read_again(f)
        else:
            self._step(self._running(f, self.version[f]))

    def _feed(self, partition: int) -> None:
        if not self.left:
            return
        self.left -= 1
        text = f"{partition}.{len(self.log.kept('raw', partition))}"
        value = StringValue(value=text).SerializeToString()
        self.log.append("raw", partition, value, text.encode(), timestamp_ms=1)

    def _new_code(self, f: str) -> None:
        if f in self.live and self.rng.random() < 0.5:
            self._stop(f)
        elif f in self.live:
            self.live.pop(f).kill()
        self.version[f] = self.rng.randint(0, LAST)

    def _stop(self, f: str) -> None:
        """Stop a run as SIGTERM does, after all that it has to do."""
        actor = self.live.pop(f)
        actor.stopped = True
        while not actor.done:
            actor.step(1_000_000)
        self._ended(actor)

    def _running(self, f: str, version: int) -> Actor:
        if f not in self.live:
            self.live[f] = Actor(f, self._service(f, version))
        return self.live[f]

    def _step(self, actor: Actor) -> None:
        actor.step(self.rng.choice((1, 2, 5, 15, _MOST_CALLS)))
        if actor in self.operators and not actor.done and self.rng.random() < 0.1:
            self._count("operator killed")
            actor.kill()
        if actor.done:
            self._ended(actor)

    def _ended(self, actor: Actor) -> None:
        if actor.failed is not None:
            raise Wrong(f"{actor.flow}: {type(actor.failed).__name__}: {actor.failed}") from actor.failed
        if actor.refused is not None:
            self._count(type(actor.refused).__name__)
        for known in (self.operators, self.zombies):
            if actor in known:
                known.remove(actor)
        if self.live.get(actor.flow) is actor:
            del self.live[actor.flow]

    def _count(self, name: str) -> None:
        self.names[name] += 1

    # --- who acts --------------------------------------------------------------------------

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
        return self.policy[f] == "dead_letter" and any(
            record.status in UNDECIDED for record in self.records_of(f, LAST).list()
        )

    def _operator(self, f: str) -> Actor:
        version = self.rng.choice(
            (self.version[f], self.rng.randint(0, LAST))
        )  # fixed code, not yet deployed
        kind = self.rng.choice(("release", "release", "release", "discard"))
        share, key = self.rng.choice((0.7, 1.0, 1.0)), str(self.rng.randrange(KEYS))
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

    def _read_again(self, f: str) -> None:
        """Rewind a flow without stages, or rebuild; the command may be killed. No run is alive meanwhile."""
        if f != "S" and not self.rewinds:
            return
        if f in self.live:
            self.live.pop(f).kill()
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

        actor = Actor(f, rebuild if f == "S" else rewind)
        if self.rng.random() < 0.3:
            actor.step(self.rng.randint(1, 40))
            actor.kill()
        actor.drain()
        self._ended(actor)

    # --- the end ---------------------------------------------------------------------------

    def _finish(self) -> None:
        for actor in (*self.operators, *self.zombies):
            while not actor.done:
                actor.stopped = True
                actor.step(1_000_000)
            self._ended(actor)
        for f in self.way:
            if f in self.live:
                self.live.pop(f).kill()
            self._finish_service(f)
            if f != "S" and self.policy[f] == "dead_letter":
                self._finish_releases(f)

    def _finish_service(self, f: str) -> None:
        refused = None
        for version in (LAST, *range(LAST)):
            actor = Actor(f, self._service(f, version))
            actor.stopped = True
            actor.drain()
            self._ended(actor)
            refused = actor.refused
            if refused is None:
                return
        raise Wrong(f"{f} cannot finish: {refused}")

    def _finish_releases(self, f: str) -> None:
        for version in (LAST, *range(LAST)):
            actor = Actor(f, lambda _, version=version: self._release_nothing(f, version))  # type: ignore[misc]
            actor.drain()
            self._ended(actor)
        statuses = Counter(record.status for record in self.records_of(f, LAST).list())
        if statuses["releasing"]:
            raise Wrong(f"{f}: {statuses['releasing']} releases cannot be finished")

    def _release_nothing(self, f: str, version: int) -> None:
        self.records_of(f, version).release(FailedSelection(places=frozenset()))

    def _judge(self) -> None:
        inputs = {texts_of(message, raw=True) for message in self.log.records("raw")}
        for f, (source, topic) in self.way.items():
            if f == "S":
                self._judge_states(inputs)
                return
            said = self._statuses(f, source)
            partitions = self._partitions(topic)
            counted = count(partitions, {})
            says_all = self.policy[f] == "dead_letter"
            wrong = difference(f, inputs, said, single(counted), says_all=says_all)
            if wrong:
                raise Wrong(f"{topic}: {wrong}")
            for _ in range(3):
                begins = {p: self.rng.randint(0, len(messages)) for p, messages in partitions.items()}
                twice = {text: n for text, n in single(count(partitions, begins)).items() if n > 1}
                if twice:
                    raise Wrong(f"{topic}: twice for a reader that begins at {begins}: {twice}")
            inputs = set(counted)

    def _partitions(self, topic: str) -> Partitions:
        return {p: list(self.log.kept(topic, p).values()) for p in range(self.parts[topic])}

    def _statuses(self, f: str, source: str) -> dict[Texts, str]:
        """What has become of what a flow has skipped, by its text."""
        if self.policy[f] != "dead_letter":
            return {}
        raw = source == "raw"
        return {
            texts_of(self.log.kept(record.topic, record.partition)[record.offset], raw=raw): record.status
            for record in self.records_of(f, LAST).list()
        }

    def _judge_states(self, inputs: Iterable[Texts]) -> None:
        rehearsal = self.rehearsals["S"]
        counted = Counter[str]()
        for state in rehearsal.states("all").values():
            counted.update(cast("StringValue", state).value.split())
        waiting = set[Texts]()
        if self.policy["S"] == "park":
            parked = parked_in(rehearsal.stores[""], self.flow("S", LAST))
            waiting = {texts_of(cast("Message", record)) for record in parked}
        for own in inputs:
            for text in own:
                if counted[text] > (own not in waiting):
                    raise Wrong(f"S counts {text} {counted[text]} times")
        strange = counted.keys() - {text for own in inputs for text in own}
        if strange:
            raise Wrong(f"S counts what nobody has published: {strange}")


def _numbers(result: object) -> list[int]:
    return [getattr(result, name, 0) for name in ("released", "discarded")]


def verdict(seed: int) -> tuple[str, Counter[str]]:
    """What is wrong with the world of a seed, empty if nothing is; and what happened in it."""
    world = World(seed)
    try:
        world.run()
    except Wrong as wrong:
        return str(wrong), world.names
    return "", world.names
