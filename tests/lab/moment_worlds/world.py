"""One world, drawn from its seed and run: records, batches, kills, zombies, rewinds, rebuilds, and the end of the input."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from random import Random
from typing import Any, Final

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError, ServiceStopped, Superseded, Unavailable
from sqe_chain.ext.explain.trace import trace
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Crash, Rehearsal
from sqe_chain.testing.clock import SteppingClock
from tests.lab.moment_worlds.flows import DAY_MS, OLDEST_MS, SECOND_MS, Shape, Value, declared, fails
from tests.lab.moment_worlds.judging import judge
from tests.support.environments import environment_of

_numbers = itertools.count()
_BEGIN_MS: Final = 1_700_000_000_000
_IDLE_MS: Final = 60 * SECOND_MS


class Clock(SteppingClock):
    """Does not move until the world moves it."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(stop_after=1 << 60, now_ms=now_ms)

    def now_ms(self) -> int:
        return self.now


def drawn_shape(draw: Random) -> Shape:
    """The flows of a world."""
    return Shape(
        kind=draw.choice(["tumbling", "tumbling", "hopping", "sessions"]),
        earliest=draw.random() < 0.7,
        exploding=draw.random() < 0.4,
        passing=draw.random() < 0.4,
        separate=draw.random() < 0.3,
        by_start=draw.random() < 0.6,
        poison=draw.choice(["stop", "stop", "skip", "dead_letter"]),
        raw=draw.randrange(1, 4),
        middle=draw.randrange(1, 4),
        first=draw.randrange(1, 4),
        passed=draw.randrange(1, 4),
        first_states=draw.choice([1, 2, 3, 5]),
        second_states=draw.choice([1, 2, 3]),
    )


class World:
    """The world of a seed.

    Attributes:
        happened: how often what happened.
    """

    def __init__(self, seed: int) -> None:
        self.draw = draw = Random(seed)
        self.shape, self.happened = drawn_shape(draw), Counter[str]()
        # Then places lie on the last millisecond before windows end.
        self.on_edges = draw.random() < 0.4
        self.longest_ms = draw.choice([0, 2 * SECOND_MS, OLDEST_MS])
        self.clock = Clock(_BEGIN_MS - self.on_edges)
        self.log = MemoryLog(f"moments-{next(_numbers)}")
        self.log.set_clock(lambda: self.clock.now)
        self.last_ms, self.rows, self.count = dict[int, int](), list[Value](), 0
        self.zombies = list[Any]()
        self.services = {flow.name: self._service(flow) for flow in declared(self.shape)}

    def _service(self, flow: Any) -> Rehearsal:
        shape = self.shape
        service = Rehearsal(
            flow,
            log=self.log,
            store=MemoryStore(f"{self.log.name}-{flow.name}"),
            partitions={
                "raw": shape.raw,
                "middle": shape.middle,
                "first": shape.first,
                "passed": shape.passed,
            },
            settings=Settings(
                max_records=self.draw.choice([1, 2, 3, 5, 9, 100]),
                idle_ms=_IDLE_MS if flow.name == "second" else 4 * SECOND_MS,
            ),
        )
        service.clock = self.clock
        return service

    def run(self) -> None:
        """Run it, and judge it.

        Raises:
            AssertionError: it is wrong.
        """
        try:
            for _ in range(self.draw.choice([2, 10, 40])):
                self.append()
            for _ in range(self.draw.randrange(20, 120)):
                self.step()
            self.end(close=False)
            if self.draw.random() < 0.3:
                self.compare_with_traces()
            self.end(close=True)
            if self.draw.random() < 0.3:  # another load
                self.clock.now += 11 * DAY_MS
                for _ in range(10):
                    self.append()
                for _ in range(20):
                    self.step()
                self.end(close=True)
        finally:
            for service in self.services.values():
                for store in service.stores.values():
                    if isinstance(store, MemoryStore):
                        store.restore_all()
            self.log.clear()

    # ------------------------------------------------------------------ what happens

    def append(self) -> None:
        """Append an upload."""
        draw, shape = self.draw, self.shape
        self.clock.now += draw.choice([0, 0, 1, 1, 2]) * SECOND_MS
        self.clock.now += 0 if self.on_edges else draw.choice([0, 0, 1, 17])
        partition = draw.randrange(shape.raw)
        least_ms = self.last_ms.get(partition, 0)
        place_ms = max(least_ms, self.clock.now - draw.choice([0, 0, 1, 3]) * SECOND_MS)
        self.last_ms[partition] = place_ms
        rows = []
        for number in range(draw.choice([1, 1, 2, 4])):
            away_ms = draw.randrange(self.longest_ms + 1)
            away_ms -= away_ms % SECOND_MS if self.on_edges or draw.random() < 0.5 else 0
            at_ms = place_ms + away_ms * (bool(number) if shape.earliest else -1)
            rows.append({"k": draw.choice("abcdef"), "n": self.count, "at": at_ms})
            self.count += 1
        draw.shuffle(rows)
        self._note(rows)
        self.log.append("raw", partition, json.dumps({"rows": rows}).encode(), b"x", None, place_ms)

    def _note(self, rows: list[Value]) -> None:
        """Rows count that are in no input of the first flow in which one fails."""
        inputs = defaultdict[object, list[Value]](list)
        for index, row in enumerate(rows):
            own = (row["k"], index if self.shape.separate else 0) if self.shape.exploding else 0
            inputs[own].append(row)
        for own_rows in inputs.values():
            if self.shape.poison == "stop" or not any(map(fails, own_rows)):
                self.rows += own_rows
            else:
                self.happened["poison"] += 1

    def step(self) -> None:
        """One step."""
        draw, at = self.draw, self.draw.random()
        name = draw.choice(list(self.services))
        service = self.services[name]
        if at < 0.35:
            self.append()
        elif at < 0.7:
            for each in self.services.values():
                if draw.random() < 0.6:
                    self._batch(each)
        elif at < 0.75:
            self.clock.now += draw.choice([1, 3, 5]) * SECOND_MS
        elif at < 0.83:
            service.crash_at_call(draw.randrange(40), draw.choice(["before", "after"]))
        elif not self._awaits(service):
            self._interfere(service, at)

    def _interfere(self, service: Rehearsal, at: float) -> None:
        if at < 0.86:
            self._pause(service)
        elif at < 0.89 and self.zombies:
            self._wake(self.draw.choice(self.zombies))
        elif at < 0.93:
            self._do_again(service)

    def _awaits(self, service: Rehearsal) -> bool:
        """Whether an input is empty: who writes it is not known before its first message."""
        return any(topic != "raw" and not self.log.records(topic) for topic in service.flow.input_topics)

    def _batch(self, service: Rehearsal) -> None:
        if self._awaits(service):
            return
        try:
            service.batch()
        except (Crash, Superseded, Unavailable) as error:
            self.happened[type(error).__name__] += 1
            service.service = None

    def _pause(self, service: Rehearsal) -> None:
        try:
            self.zombies.append(service.zombie())
        except Crash:
            service.service = None

    def _wake(self, zombie: Any) -> None:
        try:
            zombie.wake()
        except (Crash, Superseded, ServiceStopped, Unavailable):
            self.zombies.remove(zombie)

    def _do_again(self, service: Rehearsal) -> None:
        """Rewind a republisher; rebuild a flow with stages, or let it publish again."""
        draw = self.draw
        offsets = {tp: commit.offset for tp, commit in service.commits().items()}
        try:
            if service.flow.name in ("explode", "pass"):
                service.rewind({tp: max(0, offset - draw.randrange(1, 9)) for tp, offset in offsets.items()})
                self.happened["rewind"] += 1
                return
            home, _ = service.stores[""].home(service.flow.name)
            if home is None or home.number < 0:
                return
            if draw.random() < 0.4:
                service.rebuild()
                self.happened["rebuild"] += 1
            else:
                service.rebuild(
                    {tp: draw.randint(0, offset) for tp, offset in offsets.items()}, republish=True
                )
                self.happened["republish"] += 1
        except Crash:
            service.service = None
        except ConfigurationError:
            self.happened["refused"] += 1
            service.service = None

    # ------------------------------------------------------------------ the end

    def end(self, *, close: bool) -> None:
        """Run all services without faults until nothing is left, and judge; `close`: their windows are closed."""
        for service in self.services.values():
            service.cancel()
            service.script.steps.clear()
        for service in self.services.values():
            if not self._awaits(service):
                service.run_until_caught_up()
                if close and service.flow.stages:
                    service.close_windows()
        judge(self.log, self.shape, self.rows, closed=close)

    def compare_with_traces(self) -> None:
        """What the records give in a trace is what is stored."""
        for name in ("first", "second"):
            service = self.services[name]
            home, _ = service.stores[""].home(name)
            if home is None or home.number < 0:
                continue
            env = environment_of(service)
            for key in sorted({window.key for window in service.windows(name)})[:3]:
                found = trace(env, env.flow.stages[0], [key])
                assert found.equal is True, f"trace: {name} {key!r}: {found.different} {found.missing}"
                self.happened["trace"] += 1


def verdict(seed: int) -> tuple[str, Counter[str]]:
    """What is wrong in the world of a seed, or nothing; and how often what happened."""
    world = World(seed)
    try:
        world.run()
    except AssertionError as error:
        return f"{error} in {world.shape}", world.happened
    except Exception as error:  # noqa: BLE001 - whatever a service raises is wrong
        return f"raised {type(error).__name__}: {error} in {world.shape}", world.happened
    return "", world.happened
