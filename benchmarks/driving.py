"""What the driver does for each batch of a flow with many partitions; `benchmarks.scale` shows it.

No server: the protocol runs as in production, on a broker and a store in memory. What these take, and the tasks, is not counted, for in
a cluster others do that. Counted are the driver's processor time for each step, its calls, and the bytes of plans and commits.
"""

from __future__ import annotations

import json
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, Final, cast

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.chain import root_position
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.envelope.partitioner import Partitioner
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Environment, Ports
from sqe_chain.plans.events import COMMIT, PERSIST, PROCESS, PUBLISH, SEAL, Event
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Log, StateStore
from sqe_chain.protocol.services import service_of
from sqe_chain.task.results import spread
from sqe_chain.testing.clock import SteppingClock

SIZES: Final = (16, 64, 256, 1_000)
LANES: Final = (16, 32, 64, 128)
"""Where lanes grow as the square of the partitions: at a thousand, the records alone would be a million."""
ACTIVE: Final = 16
"""Partitions with records where most are silent."""
RECORDS: Final = 4
"""Of each partition with records."""
BATCHES: Final = 5

LOOK, DECIDE, PACK, CHECK, PLAN, REPORT = "look", "decide", "pack", "check", "plan", "report"
STEPS: Final = (LOOK, DECIDE, PACK, CHECK, PLAN, "seal", "publish", "persist", "commit", REPORT)
"""What the driver does, in its order. `pack` is what an engine of many processes packs and unpacks for its tasks."""
_NAMES: Final = {PROCESS: CHECK, SEAL: "seal", PUBLISH: "publish", PERSIST: "persist", COMMIT: "commit"}
_AFTER: Final = {PROCESS: PLAN, COMMIT: REPORT}
_ELSEWHERE: Final = "elsewhere"


class World(StrEnum):
    """What is measured."""

    FOLD = "fold"
    SILENT = "silent"
    LANES = "lanes"
    REPUBLISH = "republish"


TITLES: Final = {
    World.FOLD: "an aggregate, as many state partitions as input partitions, records in all of them",
    World.SILENT: f"the same, records in {ACTIVE} input partitions",
    World.LANES: "an aggregate behind a republisher that gives other keys: as many lanes in each partition as there are partitions",
    World.REPUBLISH: "no stages, records in all input partitions, as many output partitions",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What one batch costs the driver.

    Attributes:
        world: what is measured.
        partitions: of the input, of states and of the output.
        steps_us: step -> microseconds of processor time, in the best of several batches.
        calls: call of a port -> how many of it the driver makes.
        plan_bytes: of its plan; 0 without plans.
        commit_bytes: of all metadata in its largest commit.
        longest_metadata: of one partition in its commit, in characters.
        task_bytes: what all tasks get and return together.
        tasks: that read something.
    """

    world: World
    partitions: int
    steps_us: Mapping[str, float]
    calls: Mapping[str, int]
    plan_bytes: int
    commit_bytes: int
    longest_metadata: int
    task_bytes: int
    tasks: int

    @property
    def driver_us(self) -> float:
        """All steps."""
        return sum(self.steps_us.values())


@dataclass(slots=True)
class Meter:
    """Charges processor time to what is going on; hears the steps of a run.

    Attributes:
        spent_ns: what -> nanoseconds.
        calls: of ports, by the driver.
        task_bytes: see `Figures`.
        tasks: see `Figures`.
        commits: of each commit of a batch the lengths of its metadata.
        plan_bytes: of the last plan.
    """

    spent_ns: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    task_bytes: int = 0
    tasks: int = 0
    commits: list[list[int]] = field(default_factory=list)
    plan_bytes: int = 0
    _now: str = _ELSEWHERE
    _since_ns: int = 0

    def begin_batch(self) -> None:
        """Forget what was before."""
        self.turn(LOOK)
        self.spent_ns.clear()
        self.calls.clear()
        self.commits.clear()

    def looked(self) -> None:
        """The ends of the logs are known: next it is decided."""
        if self._now == LOOK:
            self.turn(DECIDE)

    def turn(self, to: str) -> str:
        """Charge the time since the last turn; gives what was going on."""
        now_ns, before = time.process_time_ns(), self._now
        self.spent_ns[before] += now_ns - self._since_ns
        self._now, self._since_ns = to, time.process_time_ns()
        return before

    @contextmanager
    def charging(self, to: str) -> Iterator[None]:
        """In this context charge something else."""
        before = self.turn(to)
        try:
            yield
        finally:
            self.turn(before)

    def step(self, number: int, when: str) -> None:
        """See `Observer`."""
        if when == "before":
            self.turn(_NAMES.get(number, REPORT))
        else:
            self.turn(_AFTER.get(number, REPORT))

    def event(self, event: Event) -> None:
        """Nobody listens."""


class MeteredPort:
    """A log or a store: its own time is not the driver's, its calls are counted."""

    def __init__(self, port: object, meter: Meter) -> None:
        self._port = port
        self._meter = meter

    def __getattr__(self, name: str) -> object:
        """The port's; a call of it is counted."""
        known = getattr(self._port, name)
        if not callable(known):
            return known
        meter = self._meter

        def call(*given: Any, **named: Any) -> object:  # noqa: ANN401 - of any method
            with meter.charging(_ELSEWHERE):
                meter.calls[name] += 1
                if name == "commit":
                    meter.commits.append([len(commit.metadata) for commit in given[-1].values()])
                elif name == "set_home":
                    meter.plan_bytes = len(given[3] or b"")
                found = known(*given, **named)
            if name == "bounds":
                meter.looked()
            return MeteredPort(found, meter) if name == "join" else found

        return call


class MeteredEngine:
    """An engine whose tasks are not the driver's work. What it would pack for tasks elsewhere, and unpack of them, is."""

    def __init__(self, engine: InProcessEngine, meter: Meter) -> None:
        self._engine = engine
        self._meter = meter

    def __getattr__(self, name: str) -> object:
        """Everything that packs nothing."""
        return _elsewhere(getattr(self._engine, name), self._meter)

    def process(self, job: Any, portions: Any) -> Any:  # noqa: ANN401 - see `Engine`
        """See `Engine.process`."""
        return self._run(self._engine.process, job, portions)

    def republish(self, job: Any, portions: Any) -> Any:  # noqa: ANN401 - see `Engine`
        """See `Engine.republish`."""
        return self._run(self._engine.republish, job, portions)

    def _run(self, run: Callable[[Any, Any], Any], job: Any, portions: Any) -> Any:  # noqa: ANN401 - see `Engine`
        meter = self._meter
        with meter.charging(PACK):
            packed = [pickle.dumps(task) for task in spread(job, portions)]
        with meter.charging(_ELSEWHERE):
            report = run(job, portions)
            returned = pickle.dumps(report)
            meter.tasks = len(packed)
            meter.task_bytes = sum(map(len, packed)) + len(pickle.dumps(job)) + len(returned)
        with meter.charging(PACK):
            return pickle.loads(returned)  # noqa: S301 - made here


def _elsewhere(call: Callable[..., object], meter: Meter) -> Callable[..., object]:
    def charged(*given: Any) -> object:  # noqa: ANN401 - of any method
        with meter.charging(_ELSEWHERE):
            return call(*given)

    return charged


def add(state: dict[str, int], value: dict[str, int]) -> None:
    """The fold."""
    state["n"] = state.get("n", 0) + value["n"]


def flow_of(world: World, partitions: int) -> Flow:
    """The flow of a world."""
    flow = Flow("scale", state_partitions=partitions)
    source = flow.source("in", dict, raw=world is not World.LANES)
    if world is World.REPUBLISH:
        source.to("out", key=lambda value: value["k"], partitions=partitions)
    else:
        stage = source.aggregate("sums", key=lambda value: value["k"], state=dict, fold=add)
        stage.changes().to("out", partitions=partitions)
    return flow


def keys_of(partitions: int) -> list[str]:
    """A key for each partition."""
    partition_of, found = Partitioner(partitions), dict[int, str]()
    for number in count():
        key = f"key-{number}"
        found.setdefault(partition_of(key.encode()), key)
        if len(found) == partitions:
            return [found[partition] for partition in range(partitions)]
    raise AssertionError("there is always a next number")


class Records:
    """The records of a world, batch after batch."""

    def __init__(self, world: World, partitions: int, log: MemoryLog) -> None:
        self._world = world
        self._log = log
        self._keys = keys_of(partitions)
        self._written = 0
        self._lanes = [
            OutputTemplate(lane=0, topic="raw", topic_id=b"r" * 16, partition=root, output="up/in")
            for root in range(partitions if world is World.LANES else 0)
        ]

    def write(self) -> int:
        """Write those of the next batch; gives their number."""
        active = self._keys[:ACTIVE] if self._world is World.SILENT else self._keys
        before = self._written
        for partition, key in enumerate(active):
            payload = json.dumps({"k": key, "n": 1}).encode()
            values = (self._wrapped(lane, key, payload) for lane in self._lanes)
            for value in values if self._lanes else [payload] * RECORDS:
                self._log.append("in", partition, value, key.encode(), None, self._written)
                self._written += 1
        return self._written - before

    def _wrapped(self, lane: OutputTemplate, key: str, payload: bytes) -> bytes:
        at = self._written
        value, _ = lane.encode(
            b"", at, 1, 0, 1, root_position(1, at), at, key.encode(), "json:dict", [payload]
        )
        return value


def measure(world: World, partitions: int, batches: int) -> Figures:
    """What a batch costs the driver, in the best of several."""
    name = f"scale-{world}-{partitions}-{time.monotonic_ns()}"
    log, store, meter = MemoryLog(name), MemoryStore(name), Meter()
    flow = flow_of(world, partitions).compile()
    for topic in ("in", "out"):
        log.create_topic(topic, partitions)
    for partition in range(partitions):  # as after months: each ends elsewhere
        log.truncate_before("out", partition, 1_000_000 + partition * 7_919_321 % 10_000_000)
    records, runs = Records(world, partitions, log), count()
    env = Environment(
        flow,
        Ports(cast("Log", MeteredPort(log, meter)), {"": cast("StateStore", MeteredPort(store, meter))}),
        cast("Any", MeteredEngine(InProcessEngine(flow, log, lambda _stage: store), meter)),
        meter,
        SteppingClock(),
        lambda: f"{next(runs):016x}",
        Settings(allow_weak_durability=True),
    )
    run, best = service_of(env), dict[str, float]()
    run.start()
    for _ in range(batches + 1):  # the first one makes what the others have already
        wanted = records.write()
        meter.begin_batch()
        result = run.batch()
        meter.turn(_ELSEWHERE)
        if result.inputs != wanted:
            raise AssertionError(f"{result.inputs} records were read, {wanted} were written")
        taken = {step: meter.spent_ns[step] / 1e3 for step in STEPS}
        best = {step: min(taken[step], best.get(step, taken[step])) for step in STEPS}
    sizes = max(meter.commits, key=sum)
    calls = dict(sorted(meter.calls.items()))
    return Figures(
        world,
        partitions,
        best,
        calls,
        meter.plan_bytes,
        sum(sizes),
        max(sizes),
        meter.task_bytes,
        meter.tasks,
    )
