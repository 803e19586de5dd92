"""Our side: a service on Spark that processes a backlog, as `sqe-chain run` would run it."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from benchmarks.machine import Spent
from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.engines.spark import SparkEngine
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Engine, Environment, Ports
from sqe_chain.plans.events import Committed, Event, Persisted, When
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import StateStore
from sqe_chain.protocol.batch import FlowRun
from sqe_chain.protocol.services import service_of


class Clock:
    """The system's time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def wait(self, milliseconds: int) -> bool:
        """Wait; there is no request to stop."""
        return threading.Event().wait(milliseconds / 1_000)


@dataclass(slots=True)
class Notes:
    """An observer that keeps what the benchmarks need.

    Attributes:
        inputs: records of each batch.
        batch_ms: time of each batch, in milliseconds.
        rows: states written in each persist.
        held: records that wait for event time after the last batch.
    """

    inputs: list[int] = field(default_factory=list)
    batch_ms: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    held: int = 0
    steps_s: dict[int, float] = field(default_factory=dict)
    _began: float = 0.0

    def step(self, number: int, when: When) -> None:
        """Add up the time of each numbered step."""
        now = time.perf_counter()
        if when == "before":
            self._began = now
        else:
            self.steps_s[number] = self.steps_s.get(number, 0.0) + now - self._began

    def event(self, event: Event) -> None:
        """Keep the counts of a batch."""
        if isinstance(event, Persisted):
            self.rows.append(event.rows)
        if isinstance(event, Committed):
            self.inputs.append(event.inputs)
            self.batch_ms.append(event.batch_ms)
            self.held = event.held or 0


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of one side.

    Attributes:
        seconds: wall time.
        cpu_s: processor time of the Python that does the work (clients' threads included).
        all_cpu_s: of all its processes, Java included.
    """

    seconds: float
    cpu_s: float
    all_cpu_s: float


@dataclass(slots=True)
class Run:
    """The cost of processing a backlog.

    Attributes:
        seconds: wall time, from the first batch on; claim and recovery are not counted.
        spent: processor time and memory.
        notes: the counts of each batch.
    """

    seconds: float
    spent: Spent
    notes: Notes

    @property
    def timed(self) -> Timed:
        """Its times."""
        return Timed(self.seconds, self.spent.python_s, self.spent.python_s + self.spent.java_s)


@dataclass(slots=True)
class Service:
    """A service, started and ready for its first batch.

    Args:
        flow: the flow.
        session: the Spark session; None: it runs in this process.
        bootstrap: Kafka.
        redis: URL of the store, or the store.
        max_records: records of one batch.
        in_place: see `Settings.in_place`.
    """

    flow: Flow
    session: SparkSession | None
    bootstrap: str
    redis: str | StateStore
    max_records: int
    in_place: bool = True
    notes: Notes = field(default_factory=Notes)
    protocol: FlowRun = field(init=False)

    def __post_init__(self) -> None:
        """Claim and recover."""
        log = KafkaLog(self.bootstrap)
        store = open_store(self.redis) if isinstance(self.redis, str) else self.redis
        ports = Ports(log, {"": store})
        for node in self.flow.compile().outputs:
            log.create_topic(node.topic, node.partitions)
        engine: Engine = (
            InProcessEngine(self.flow.compile(), log, ports.store)
            if self.session is None
            else SparkEngine(self.flow.compile(), log, ports.stores, self.session)
        )
        env = Environment(
            self.flow.compile(),
            ports,
            engine,
            self.notes,
            Clock(),
            lambda: uuid.uuid4().hex,
            Settings(max_records=self.max_records, max_bytes=1 << 29, in_place=self.in_place),
        )
        self.protocol = service_of(env)
        self.protocol.start()

    def work_off(self) -> Run:
        """Process batches until nothing is left; the time is that until nothing more can be done at once."""
        self.notes.inputs.clear()
        self.notes.batch_ms.clear()
        with Spent() as spent:
            began = time.perf_counter()
            while self.protocol.batch().worked and self.protocol.lag():
                pass
            seconds = time.perf_counter() - began
        while (
            self.notes.held or self.protocol.lag()
        ):  # by event time the last records wait until partitions count as idle: it is not work
            time.sleep(0.05)
            self.protocol.batch()
        return Run(seconds, spent, self.notes)
