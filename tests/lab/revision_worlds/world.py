"""One world, drawn from a seed: flows, corrections, rebuilds and kills, in any order; then all is finished and judged.

    raw ─ R ─ good ( ─ D ─ fine ) ─ S ( ─ out ─ T )

R and D have no stages, S and T have one. Version and revision of a flow are the same number. Operators correct, rewind, rebuild, and
release or discard what has failed, several at once, and each may be killed before any call. Paused runs of old code go on long after.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import cast

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.envelope.message import read
from sqe_chain.errors import ChainError, LostOffsets
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed import FailedSelection
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.settings import Settings
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.ports import Log
from sqe_chain.protocol.services import service_of
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faulty_ports import faulty_log
from tests.lab.failed_worlds.actors import Actor, TakingTurns
from tests.lab.revision_worlds.flows import KEYS, KINDS, Drawn, counting, republisher
from tests.lab.revision_worlds.judging import (
    Root,
    Seam,
    begun_revisions,
    covered,
    mixed,
    unknown_texts,
    wrong_texts,
)

_names = itertools.count()
_MOST_CALLS = 60
_STEP_MS = 1_000


class Wrong(Exception):
    """Something does not hold."""


class NotKnown(Exception):
    """Retention has taken what would be needed, and the package has refused by name."""


class World:
    """A chain of flows on one broker.

    Args:
        seed: what is drawn depends on it alone.

    Attributes:
        names: how often something happened, or was refused, by name.
        way: flow -> its input topic and its output topic.
        version: flow -> the code that is deployed.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        Drawn.seed, Drawn.failing = seed, rng.choice((0.0, 0.0, 0.2, 0.5))
        self.names, self.log = Counter[str](), MemoryLog(f"revision-world-{seed}-{next(_names)}")
        self.script = TakingTurns()
        self.parts = {topic: rng.randint(1, 2) for topic in ("raw", "good", "fine", "out")}
        self.parts["side"] = 1
        hop, self.kind = rng.random() < 0.6, rng.choice(KINDS)
        tail = self.kind != "window" and rng.random() < 0.4
        self.way = {"R": ("raw", "good")} | ({"D": ("good", "fine")} if hop else {})
        self.way |= {"S": ("fine" if hop else "good", "out" if tail else "")} | (
            {"T": ("out", "")} if tail else {}
        )
        self.version = dict.fromkeys(self.way, 1)
        settings = Settings(max_records=rng.choice((2, 3, 1_000)), max_excluded_share=1.0)
        self.rehearsals: dict[str, Rehearsal] = {}
        for f, (source, _) in self.way.items():
            self.rehearsals[f] = Rehearsal(
                self.flow(f, 1),
                partitions={source: self.parts[source], "side": 1},
                log=self.log,
                settings=settings,
            )
            self.rehearsals[f].script = self.script
        self.live: dict[str, Actor] = {}
        self.zombies, self.operators = list[Actor](), list[Actor]()
        # Calls that are left to an operator which will be killed.
        self.lives: dict[Actor, int] = {}
        self.left, self.corrections = rng.randint(4, 16), rng.randint(1, 4)
        self.retention = rng.random() < 0.25

    def flow(self, f: str, version: int, *, fixed: bool = False) -> CompiledFlow:
        """A version of a flow; fixed, it fails for nothing."""
        source, target = self.way[f]
        if f in "ST":
            kind = self.kind if f == "S" else "aggregate"
            return counting(f, version, source, target, self.parts[target or source], kind)
        return republisher(f, version, source, target, self.parts[target], fixed=fixed)

    # --- what happens ---------------------------------------------------------------------

    def run(self) -> None:
        """Let things happen, finish them, and judge.

        Raises:
            Wrong: something does not hold.
        """
        try:
            for _ in range(self.rng.choice((60, 120, 250))):
                self._happen()
            self._finish()
            self._judge()
        except NotKnown:
            self.names["ends with LostOffsets"] += 1
        finally:
            for actor in (*self.live.values(), *self.zombies, *self.operators):
                actor.kill()

    def _happen(self) -> None:
        rng, kind = self.rng, self.rng.random()
        f = rng.choice([*self.way])
        if kind < 0.13:
            self._feed(rng.randrange(self.parts["raw"]))
        elif kind < 0.14:
            self._repeat(rng.choice(["good", "fine", "out"]))
        elif kind < 0.18 and f in self.live:
            self.names["killed"] += 1
            self.live.pop(f).kill()
        elif kind < 0.22 and f in self.live:
            self.names["paused"] += 1
            self.zombies.append(self.live.pop(f))
        elif kind < 0.33:
            self._decide(f, kind)
        elif kind < 0.50 and self.operators:
            self._step(rng.choice(self.operators))
        elif kind < 0.58 and self.zombies:
            self._step(rng.choice(self.zombies))
        elif not (f in "ST" and self._busy(f)):
            self._step(self._running(f))
            if f in "ST" and f in self.live and rng.random() < 0.3:
                self._look(f)

    def _decide(self, f: str, kind: float) -> None:
        """An operator begins something, or retention does its work."""
        if kind < 0.27 and f in "RD" and self.corrections and not self._busy(f):
            self._begin_correction(f)
            if self.rng.random() < 0.15:  # two of them begin the same revision
                self._begin_correction(f)
        elif 0.27 <= kind < 0.29 and f in "ST" and not self._busy(f):
            self._end_runs(f)
            self._begin(f, self._rebuild(f))
        elif 0.29 <= kind < 0.30 and f in "RD" and not self._busy(f):
            self._end_runs(f)
            self._begin(f, self._rewind(f))
        elif 0.30 <= kind < 0.315 and f in "RD" and self._failed(f):
            self._begin(f, self._decide_failed(f))
        elif kind >= 0.315 and f != "R" and self.retention:
            self._forget(f)

    def _begin(self, f: str, work: Callable[[Actor], None]) -> None:
        actor = Actor(f, work)
        self.operators.append(actor)
        if self.rng.random() < 0.3:
            self.lives[actor] = self.rng.randint(1, 80)

    def _feed(self, partition: int) -> None:
        if not self.left:
            return
        self.left -= 1
        at = len(self.log.kept("raw", partition))
        value = StringValue(value=f"{partition}.{at}").SerializeToString()
        time_ms = _STEP_MS * (at + 1)
        self.log.append("raw", partition, value, b"%d" % at, timestamp_ms=time_ms)
        if self.kind == "join":
            side = StringValue(value=str(at % KEYS)).SerializeToString()
            self.log.append("side", 0, side, None, timestamp_ms=time_ms)

    def _repeat(self, topic: str) -> None:
        """A paused run of old code publishes again what it has published."""
        if topic not in self.log.describe([topic]):
            return
        partition = self.rng.randrange(self.parts[topic])
        records = [*self.log.kept(topic, partition).values()]
        if records:
            old = self.rng.choice(records)
            self.names["published again"] += 1
            self.log.append(
                topic, partition, old.value(), old.key(), old.headers(), timestamp_ms=old.timestamp()[1]
            )

    def _busy(self, f: str) -> bool:
        return any(actor.flow == f for actor in self.operators)

    def _end_runs(self, f: str) -> None:
        """The operator stops the service; one that is paused goes on unnoticed."""
        if f not in self.live:
            return
        if self.rng.random() < 0.5:
            self.zombies.append(self.live.pop(f))
        elif self.rng.random() < 0.5:
            self.live.pop(f).kill()
        else:
            self._stop(f)

    def _stop(self, f: str) -> None:
        actor = self.live.pop(f)
        actor.stopped = True
        while not actor.done:
            actor.step(1_000_000)
        self._ended(actor)

    def _forget(self, f: str) -> None:
        """Retention takes what its reader has read."""
        topic = self.way[f][0]
        partition = self.rng.randrange(self.parts[topic])
        known = self.log.committed(f, [(topic, partition)])
        read = known[topic, partition].offset if known else 0
        if read:
            self.names["retention"] += 1
            self.log.truncate_before(topic, partition, self.rng.randint(0, read))

    def _running(self, f: str) -> Actor:
        if f not in self.live:
            self.live[f] = Actor(f, self._service(f, self._deployed(f)))
        return self.live[f]

    def _deployed(self, f: str) -> int:
        """The code that a supervisor starts: of a flow that is corrected, that of the revision that has begun last."""
        if f in "RD":
            revisions = begun_revisions(self.log, f"{f}/{self.way[f][1]}", self.way[f][1])
            return max([1, *revisions])
        return self.version[f]

    def _step(self, actor: Actor) -> None:
        calls = min(self.rng.choice((1, 2, 5, 15, _MOST_CALLS)), self.lives.get(actor, _MOST_CALLS))
        actor.step(calls)
        if actor in self.lives:
            self.lives[actor] -= calls
            if not self.lives[actor] and not actor.done:
                self.names["operator killed"] += 1
                actor.kill()
        if not actor.done:
            return
        self._ended(actor)
        killed = self.lives.pop(actor, 1) == 0
        if killed and actor.flow in "RD" and self.corrections and self.rng.random() < 0.5:
            self._begin_correction(actor.flow)

    def _ended(self, actor: Actor) -> None:
        if actor.failed is not None:
            raise Wrong(f"{actor.flow}: {type(actor.failed).__name__}: {actor.failed}") from actor.failed
        if actor.refused is not None:
            self.names[f"{actor.flow}: {type(actor.refused).__name__}"] += 1
            self._next_version(actor.flow, actor.refused)
        for known in (self.operators, self.zombies):
            if actor in known:
                known.remove(actor)
        if self.live.get(actor.flow) is actor:
            del self.live[actor.flow]

    def _next_version(self, f: str, refused: ChainError) -> None:
        """The operator declares the revision that the error names."""
        text = str(refused)
        for asked in ("Declare revision=", "Expected revision="):
            if f in "ST" and asked in text:
                self.version[f] = int(text.partition(asked)[2].split()[0].rstrip(".,"))
        if f in "ST" and "Run sqe-chain rebuild first" in text:
            self.version[f] = max(1, self.version[f] - 1)

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

    def _begin_correction(self, f: str) -> None:
        self.corrections = max(0, self.corrections - 1)
        self._end_runs(f)
        latest = max([1, *begun_revisions(self.log, f"{f}/{self.way[f][1]}", self.way[f][1])])
        longest = max(len(self.log.kept("raw", partition)) for partition in range(self.parts["raw"]))
        time_ms = self.rng.choice((None, _STEP_MS * (1 + self.rng.randint(0, longest + 2))))
        self._begin(f, self._correct(f, latest + 1, time_ms))

    def _correct(self, f: str, version: int, time_ms: int | None) -> Callable[[Actor], None]:
        rehearsal = self.rehearsals[f]

        def work(_: Actor) -> None:
            rehearsal.flow = self.flow(f, version)
            service = Republisher(rehearsal._environment(None))
            service.correct(time_ms)
            service.leave()
            self.names["corrected"] += 1

        return work

    def _rebuild(self, f: str) -> Callable[[Actor], None]:
        rehearsal = self.rehearsals[f]

        def work(_: Actor) -> None:
            rehearsal.flow = self.flow(f, self.version[f])
            if rehearsal.stores[""].home(f)[0] is None:
                return
            rehearsal.rebuild()
            self.names["rebuilt"] += 1

        return work

    def _rewind(self, f: str) -> Callable[[Actor], None]:
        """The code that is deployed is rewound in some partitions."""
        rehearsal, version, seed = self.rehearsals[f], self._deployed(f), self.rng.random()

        def work(_: Actor) -> None:
            rng = random.Random(seed)
            rehearsal.flow = self.flow(f, version)
            service = Republisher(rehearsal._environment(None))
            service.start()
            topic = self.way[f][0]
            commits = self.log.committed(f, [(topic, at) for at in range(self.parts[topic])])
            begins = self.log.bounds(commits)
            service.rewind(
                {
                    tp: rng.randint(begins[tp].begin, commit.offset)
                    for tp, commit in commits.items()
                    if begins[tp].begin <= commit.offset and rng.random() < 0.7
                }
            )
            service.leave()
            self.names["rewound"] += 1

        return work

    def _records_of(self, f: str, version: int, log: Log) -> FailedLetters:
        flow = self.flow(f, version, fixed=True)
        return FailedLetters(flow, log, self.rehearsals[f].clock.now_ms, lambda: f"name-{next(_names)}")

    def _decide_failed(self, f: str) -> Callable[[Actor], None]:
        """Release or discard some of what has failed, with code that is right, and not deployed yet."""
        version, release, seed = self._deployed(f), self.rng.random() < 0.8, self.rng.random()

        def work(_: Actor) -> None:
            letters = self._records_of(f, version, faulty_log(self.log, self.script))
            rng = random.Random(seed)
            chosen = FailedSelection(
                places=frozenset(str(own) for own in letters.list() if rng.random() < 0.6)
            )
            if release:
                self.names["released"] += letters.release(chosen).released
            else:
                self.names["discarded"] += letters.discard(chosen).discarded

        return work

    def _failed(self, f: str) -> dict[tuple[str, str, int], bool]:
        """What a flow has skipped; see `judging.Letters`."""
        topic = f"{f}.dead-letters"
        if topic not in self.log.describe([topic]):
            return {}
        found: dict[tuple[str, str, int], bool] = {}
        for own in self._records_of(f, self._deployed(f), self.log).list():
            partition, _, offset = own.place.partition("[")[2].partition("]@")
            record = self.log.kept(topic, int(partition))[int(offset)]
            headers = dict(record.headers() or [])
            revision = int(headers.get("sqe-of-revision") or 1)
            value = record.value() or b""
            payloads = [StringValue.FromString(value)] if f == "R" else read(value).payloads_as(StringValue)
            for payload in payloads:  # of a collection all are skipped
                key = f, cast("StringValue", payload).value, revision
                found[key] = found.get(key, False) or own.status == "released"
        return found

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
            if f in "RD":
                self._finish_releases(f)
            self._drain(f)
            if f in "ST":
                self._judge_before(f)
                self._until_done(f, lambda f=f: self._rebuild(f), f"{f} cannot be rebuilt")  # type: ignore[misc]
                self._drain(f)

    def _finish_releases(self, f: str) -> None:
        """Those that were interrupted, by the code that began them."""
        if not self._failed(f):
            return
        refused = None
        for version in range(self._deployed(f), 0, -1):

            def work(_: Actor, version: int = version) -> None:
                self._records_of(f, version, self.log).release(FailedSelection(places=frozenset()))

            refused = self._alone(f, work)
            if refused is None:
                return
        raise Wrong(f"{f}: a release cannot be finished: {refused}")

    def _drain(self, f: str) -> None:
        """Finish what older code has begun, then all that there is."""
        if f in "ST":
            self._until_done(f, lambda: self._service(f, self.version[f]), f"{f} cannot finish")
            return
        newest = self._deployed(f)
        refused = None
        for version in (newest, *range(newest - 1, 0, -1), newest):
            refused = self._alone(f, self._service(f, version))
            if refused is None and version == newest:
                return
        raise Wrong(f"{f} cannot finish: {refused}")

    def _until_done(self, f: str, work: Callable[[], Callable[[Actor], None]], what: str) -> None:
        refused = None
        for _ in range(4):
            refused = self._alone(f, work())
            if refused is None:
                return
        raise Wrong(f"{what}: {refused}")

    def _alone(self, f: str, work: Callable[[Actor], None]) -> ChainError | None:
        actor = Actor(f, work)
        actor.stopped = True
        actor.drain()
        self._ended(actor)
        if isinstance(actor.refused, LostOffsets):
            if not self.retention:
                raise Wrong(f"{f} has lost nothing, and stops: {actor.refused}")
            raise NotKnown
        return actor.refused

    def _texts(self, f: str, *, waiting: bool = True) -> Counter[str]:
        """What counts in the states of a flow, also in windows that are open, and what waits for a timer."""
        rehearsal = self.rehearsals[f]
        states = [*rehearsal.states("all").values()]
        if waiting and f == "S" and self.kind == "window":
            states += [result.state for result in rehearsal.windows("hours")]
        if waiting and f == "S" and self.kind == "timer":
            states += rehearsal.states("held").values()
        return Counter(text for state in states for text in cast("StringValue", state).value.split())

    def _look(self, f: str) -> None:
        """At any time states have what one code made of each input, once. Those of a later stage are written first."""
        counted = self._texts(f, waiting=False)
        fault = mixed(counted) or mixed(self._texts(f) - counted)
        if fault:
            raise Wrong(f"{f}: {fault}")

    def _facts(self) -> tuple[list[Root], dict[str, dict[int, Seam]], dict[tuple[str, str, int], bool]]:
        hops = [f for f in self.way if f in "RD"]
        revisions = {f: begun_revisions(self.log, f"{f}/{self.way[f][1]}", self.way[f][1]) for f in hops}
        letters = {key: released for f in hops for key, released in self._failed(f).items()}
        roots = [
            (partition, offset)
            for partition in range(self.parts["raw"])
            for offset in range(len(self.log.kept("raw", partition)))
        ]
        return roots, revisions, letters

    def _judge_before(self, f: str) -> None:
        """Before it follows the newest revisions, a reader has counted all roots for which those that it follows are the newest."""
        if f != "S" or (plan := read_last_plan(self.rehearsals[f].stores[""], f)) is None:
            return
        roots, revisions, letters = self._facts()
        known = Revisions.of(plan)
        followed = {g: known.follows(f"{g}/{self.way[g][1]}") for g in revisions}
        fault = wrong_texts(self._texts("S"), covered(roots, revisions, followed), revisions, letters)
        if fault:
            raise Wrong(f"S, which follows {followed}: {fault}")

    def _judge(self) -> None:
        counted = self._texts("S")
        roots, revisions, letters = self._facts()
        fault = (
            mixed(counted) or wrong_texts(counted, roots, revisions, letters) or unknown_texts(counted, roots)
        )
        if fault:
            raise Wrong(f"S: {fault}")
        if "T" in self.way:
            # A timer that was due before a rebuild may wait again after it: its output is a replay then.
            missing, strange = self._texts("S", waiting=False) - self._texts("T"), self._texts("T") - counted
            if missing or strange:
                raise Wrong(f"T: too much {dict(strange)}, missing {dict(missing)}")


def verdict(seed: int) -> tuple[str, Counter[str]]:
    """What is wrong with the world of a seed, empty if nothing is; and what happened in it."""
    world = World(seed)
    try:
        world.run()
    except Wrong as wrong:
        return str(wrong), world.names
    return "", world.names
