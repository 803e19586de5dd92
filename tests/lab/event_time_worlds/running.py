"""Executes the steps of a world with the package's services, on a broker and a store in memory and a clock of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ChainError, ServiceStopped, Superseded, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Bounds, TopicPartition
from sqe_chain.testing import Crash, Rehearsal
from sqe_chain.testing.clock import SteppingClock
from tests.lab.event_time_worlds.flows import reader, republisher
from tests.lab.event_time_worlds.world import BEGIN_MS, Fact, Hop, World

_numbers = itertools.count()
_REST: Final = 4
"""Rounds without work after which a world rests."""
_ROUNDS: Final = 400
"""Rounds in which a world comes to rest. Readers of one record a batch, behind a republisher that was rewound often, need a hundred."""


class Wrong(AssertionError):
    """A world did not give what it must. Its first word names the kind."""


class Clock(SteppingClock):
    """Does not move until the world moves it."""

    def __init__(self) -> None:
        super().__init__(stop_after=1 << 60, now_ms=BEGIN_MS)

    def now_ms(self) -> int:
        return self.now


class BusyLog(MemoryLog):
    """A broker to which records are appended between the looks at the ends of two partitions."""

    between: Callable[[], object] = staticmethod(lambda: None)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        found: dict[TopicPartition, Bounds] = {}
        for partition in partitions:
            found |= super().bounds([partition])
            self.between()
        return found


class InMemory:
    """Where the services of a world run: in this process, on a broker and stores in memory.

    Attributes:
        prefix: begins the names of its topics and flows.
    """

    prefix = ""

    def log(self, clock: Clock) -> Any:
        """The broker."""
        log = BusyLog(f"world-{next(_numbers)}")
        log.set_clock(lambda: clock.now)
        return log

    def service(self, flow: Flow, log: Any, settings: Settings, partitions: dict[str, int]) -> Rehearsal:
        """A service, with a store of its own."""
        store = MemoryStore(f"{log.name}-{flow.name}")
        return Rehearsal(flow, log=log, store=store, partitions=partitions, settings=settings)

    def end(self, log: Any, services: Iterable[Rehearsal]) -> None:
        """Forget the broker and the stores."""
        for service in services:
            for store in service.stores.values():
                if isinstance(store, MemoryStore):
                    store.restore_all()
        log.clear()


class Run:
    """One world while it runs.

    Steps are a character and numbers:

    - ``f`` appends the next fact, ``l`` appends it at the next look at ends; ``t3000`` lets time pass;
    - ``g0`` gives the first root topic one more partition;
    - ``p0`` and ``r0`` are a batch of a republisher and of a reader; ``P0:5`` and ``R0:5`` crash it at its sixth call from now;
    - ``z0`` pauses a republisher and starts another one, ``Z0`` is a batch of the one that was paused;
    - ``w0:3`` rewinds a republisher by three records of each partition;
    - ``b0:4`` rebuilds a reader in batches of four records.
    """

    def __init__(self, world: World, where: InMemory | None = None) -> None:
        self.world, self.where = world, where or InMemory()
        self.clock = Clock()
        self.log = self.where.log(self.clock)
        self.prefix = self.where.prefix
        self.times_ms: dict[int, int] = {}
        self.last_ms: dict[tuple[int, int], int] = {}
        self.appended = 0
        self.appending = 0
        self.zombies: dict[int, list[Any]] = {}
        if isinstance(self.log, BusyLog):
            self.log.between = self._append_between
        self.republishers = [
            self._service(self._hop_flow(*where), hop.max_records)
            for way, one in enumerate(world.ways)
            for where, hop in self._hops(way, one.hops)
        ]
        for way, one in enumerate(world.ways):
            self.log.create_topic(self._root(way), one.partitions)
        self.readers = [
            self._service(
                self._reader_flow(f"{self.prefix}reader{number}", one.state_partitions),
                one.max_records,
                max_bytes=one.max_bytes,
                in_place=one.in_place,
            )
            for number, one in enumerate(world.readers)
        ]

    def _hop_flow(self, name: str, source: str, target: str, raw: bool, hop: Hop) -> Flow:
        return republisher(name, source, target, raw, hop)

    def _reader_flow(self, name: str, state_partitions: int) -> Flow:
        return reader(name, self.world.kind, self.sources(), state_partitions, beats=self.world.beats)

    def _value(self, number: int, fact: Fact, at_ms: int) -> dict[str, object]:
        del at_ms
        return {"k": fact.key, "n": number}

    def sources(self) -> tuple[tuple[str, bool], ...]:
        """The topics that readers read, and whether each is a root."""
        return tuple(
            (self._middle(way, len(one.hops) - 1), False) if one.hops else (self._root(way), True)
            for way, one in enumerate(self.world.ways)
        )

    def _service(self, flow: Flow, max_records: int, **settings: Any) -> Rehearsal:
        world = self.world
        partitions = {self._root(way): one.partitions for way, one in enumerate(world.ways)}
        partitions |= {
            self._middle(way, at): hop.partitions
            for way, one in enumerate(world.ways)
            for at, hop in enumerate(one.hops)
        }
        own = Settings(max_records=max_records, idle_ms=world.delay_ms, **settings)
        rehearsal = self.where.service(flow, self.log, own, partitions)
        rehearsal.clock = self.clock
        return rehearsal

    # ------------------------------------------------------------------ steps

    def run(self) -> None:
        """Execute the steps, then let all services finish without faults."""
        try:
            for step in self.world.steps:
                self.step(step)
            while self.append():
                pass
            self.finish()
        except ChainError as error:
            raise Wrong(f"stopped: {type(error).__name__}: {error}") from error

    def step(self, step: str) -> None:
        """Execute one step."""
        actions: dict[str, Callable[..., object]] = {
            "f": self.append,
            "l": self._append_later,
            "t": self._wait,
            "g": self._grow,
            "p": lambda number: self._batch(self.republishers[number]),
            "r": lambda number: self._batch(self.readers[number]),
            "P": lambda number, calls: self.republishers[number].crash_at_call(calls),
            "R": lambda number, calls: self.readers[number].crash_at_call(calls),
            "z": self._pause,
            "Z": self._wake,
            "w": self._rewind,
            "b": self._rebuild,
        }
        actions[step[0]](*(int(one) for one in step[1:].split(":") if one))

    def _append_later(self) -> None:
        self.appending += 1

    def _wait(self, milliseconds: int) -> None:
        self.clock.now += milliseconds

    def _grow(self, way: int) -> None:
        topic = self._root(way)
        self.log.grow(topic, self.log.describe([topic])[topic].partitions + 1)

    def append(self) -> bool:
        """Append the next fact; False if there is none."""
        number, facts = self.appended, self.world.facts
        if number == len(facts):
            return False
        self.appended += 1
        self.clock.now += facts[number].gap_ms
        self._append(number, facts[number])
        return True

    def _append(self, number: int, fact: Fact) -> None:
        topic = self._root(fact.way)
        count = self.log.describe([topic])[topic].partitions
        partition = fact.partition % count
        # A partition that is new has no record from before it was there.
        begun_ms = (
            BEGIN_MS - self.world.delay_ms
            if fact.partition < self.world.ways[fact.way].partitions
            else self.clock.now
        )
        at_ms = max(self.last_ms.get((fact.way, partition), begun_ms), self.clock.now - fact.age_ms)
        self.last_ms[fact.way, partition] = self.times_ms[number] = at_ms
        value = json.dumps(self._value(number, fact, at_ms)).encode()
        self.log.append(topic, partition, value, fact.key.encode(), None, at_ms)

    def _append_between(self) -> None:
        if self.appending:
            self.appending -= 1
            self.append()

    def _batch(self, service: Rehearsal) -> bool:
        """One batch; True unless there was nothing to do."""
        if any(self._awaited(topic) for topic in service.flow.input_topics):
            return True
        try:
            return service.batch()
        except (Crash, Superseded, Unavailable):
            service.service = None
        return True

    def _awaited(self, topic: str) -> bool:
        """Whether a topic of a republisher is empty that will not stay so: who writes it is not known before its first message."""
        own = topic.removeprefix(self.prefix)
        if own.startswith("root") or self.log.records(topic):
            return False
        way, _, at = own.removeprefix("mid").partition(".")
        names = {f"{self.prefix}hop{way}.{n}" for n in range(int(at) + 1)}
        before = [service for service in self.republishers if service.flow.name in names]
        return any(fact.way == int(way) for fact in self.world.facts[self.appended :]) or any(
            map(self._behind, before)
        )

    def _behind(self, service: Rehearsal) -> bool:
        (topic,) = service.flow.input_topics
        partitions = [(topic, one) for one in range(service.log.describe([topic])[topic].partitions)]
        commits, bounds = service.commits(), self._ends(partitions)
        return any(
            bound.stable_end > (commits[tp].offset if tp in commits else 0) for tp, bound in bounds.items()
        )

    def _ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Ask the broker, and append nothing meanwhile."""
        log = self.log
        return MemoryLog.bounds(log, partitions) if isinstance(log, MemoryLog) else log.bounds(partitions)

    def _pause(self, number: int) -> None:
        service = self.republishers[number]
        try:
            self.zombies.setdefault(number, []).append(service.zombie())
        except Crash:
            service.service = None

    def _wake(self, number: int) -> None:
        for zombie in self.zombies.get(number, []):
            try:
                zombie.wake()
            except (Crash, Superseded, ServiceStopped):
                self.zombies[number].remove(zombie)
            return

    def _rewind(self, number: int, back: int) -> None:
        service = self.republishers[number]
        try:
            service.rewind({tp: max(0, commit.offset - back) for tp, commit in service.commits().items()})
        except Crash:
            service.service = None

    def _rebuild(self, number: int, max_records: int) -> None:
        service = self.readers[number]
        before, service.settings = service.settings, replace(service.settings, max_records=max_records)
        try:
            if self._ran(service):
                service.rebuild()
        except Crash:
            service.service = None
        finally:
            service.settings = before

    @staticmethod
    def _ran(service: Rehearsal) -> bool:
        home, _ = service.stores[""].home(service.flow.name)
        return home is not None and home.number >= 0

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """Run all services without faults until nothing is left."""
        for service in (*self.republishers, *self.readers):
            service.cancel()
            service.script.steps.clear()
        if not self.world.by_clock:
            for service in (*self.republishers, *self.readers):
                service.run_until_caught_up()
            return
        quiet = 0
        for _ in range(_ROUNDS):
            self.clock.now += self.world.delay_ms
            worked = [self._batch(service) for service in (*self.republishers, *self.readers)]
            quiet = 0 if any(worked) else quiet + 1
            if quiet == _REST:
                return
        raise Wrong(f"restless: after {_ROUNDS} rounds there is still something to do")

    def close(self) -> None:
        """Forget the broker and the stores."""
        self.where.end(self.log, (*self.republishers, *self.readers))

    def _root(self, way: int) -> str:
        return f"{self.prefix}root{way}"

    def _middle(self, way: int, at: int) -> str:
        return f"{self.prefix}mid{way}.{at}"

    def _hops(self, way: int, hops: tuple[Any, ...]) -> Iterator[tuple[tuple[str, str, str, bool, Any], Any]]:
        for at, hop in enumerate(hops):
            source = self._middle(way, at - 1) if at else self._root(way)
            yield (f"{self.prefix}hop{way}.{at}", source, self._middle(way, at), not at, hop), hop
