"""One world, drawn from a seed: flows, operators, new code and kills, in any order; then all is finished and judged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import cast

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import DeadLettersLost
from sqe_chain.operations.failed import FailedSelection
from sqe_chain.operations.parked import parked_in
from sqe_chain.ports import Message
from tests.lab.failed_worlds.actors import Actor
from tests.lab.failed_worlds.flows import LAST
from tests.lab.failed_worlds.judging import Partitions, Texts, count, difference, single, texts_of
from tests.lab.failed_worlds.system import System

_MOST_CALLS = 40
"""Calls that an actor makes in one turn at most."""


class NotKnown(Exception):
    """A flow refuses to go on: it cannot know what it has skipped."""


class Wrong(Exception):
    """Something does not hold."""


class World(System):
    """What happens to the flows; see `System`."""

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
        except NotKnown:
            self._count("refused permanently")
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
            self.operators += [self._operator(f) for _ in range(self._has_work(f) * rng.choice((1, 2)))]
        elif kind < 0.57 and self.operators:
            self._step(rng.choice(self.operators))
        elif kind < 0.59 and f in self.live:  # paused; another run begins
            self._count("zombie")
            self.zombies.append(self.live.pop(f))
        elif kind < 0.62 and self.zombies:
            self._step(rng.choice(self.zombies))
        elif kind < 0.65:
            (self._read_again if kind < 0.63 else self._forget)(f)
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
        for actor in [actor for actor in self.zombies if actor.flow == f != "S"]:
            actor.kill()  # the rest of a batch that it has begun would be of its own code
            self._ended(actor)
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

    def _read_again(self, f: str) -> None:
        """Rewind a flow without stages, or rebuild; the command may be killed. No run is alive meanwhile."""
        if f != "S" and not self.rewinds:
            return
        if f in self.live:
            self.live.pop(f).kill()
        actor = Actor(f, self._again(f))
        if self.rng.random() < 0.3:
            actor.step(self.rng.randint(1, 40))
            actor.kill()
        actor.drain()
        self._ended(actor)

    def _forget(self, f: str) -> None:
        """Retention takes the oldest dead-letter records, but none that an unfinished batch or release needs. Nobody is paused until then."""
        if f == "S" or self.policy[f] != "dead_letter" or not self.forgets:
            return
        commits = self.log.committed(f, [(self.way[f][0], p) for p in range(self.parts[self.way[f][0]])])
        if f in self.live:
            self.live.pop(f).kill()
        if any("begun" in json.loads(commit.metadata) for commit in commits.values()):
            return
        for actor in [actor for actor in self.operators if actor.flow == f]:
            actor.kill()
            self._ended(actor)
        topic = f"{f}.dead-letters"
        partition = self.rng.randrange(self.kept_in[f])
        records = [*self.records_of(f, LAST).list()]
        offsets = list(self.log.kept(topic, partition))
        if not offsets or any(record.status == "releasing" for record in records):
            return
        self.forgotten[f] |= self._statuses(f, self.way[f][0])
        self.log.truncate_before(topic, partition, self.rng.choice(offsets) + 1)
        self._count("forgotten")

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
        if isinstance(refused, DeadLettersLost):
            raise NotKnown
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
            said = self.forgotten[f] | self._statuses(f, source)
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


def verdict(seed: int) -> tuple[str, Counter[str]]:
    """What is wrong with the world of a seed, empty if nothing is; and what happened in it."""
    world = World(seed)
    try:
        world.run()
    except Wrong as wrong:
        return str(wrong), world.names
    return "", world.names
