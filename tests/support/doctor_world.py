"""A flow in memory that has counted ten numbers, and the broker, store and machine that the doctor examines it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.ext.doctor.checks import examine
from sqe_chain.ext.doctor.command import diagnose
from sqe_chain.ext.doctor.diagnostic import Diagnostic
from sqe_chain.ext.doctor.facts import Gathering
from sqe_chain.ext.doctor.machine import Disk, Machine
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Header, Log, StateStore
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import FaultScript
from sqe_chain.testing.faulty_ports import faulty_log, faulty_store
from tests.support.number_flows import add

_names = count()
DURABLE = {"replicas": 3, "min_insync_replicas": 2}
WELL = Machine(
    disks=(Disk(Path("/srv"), 1 << 40, 1 << 41),),
    open_files=65_536,
    memory_free=8 << 30,
    java="/usr/bin/java",
    java_version=17,
    spark=True,
    numpy=True,
    python=(3, 11),
)
OF_MACHINES = frozenset({"disk-full", "open-files", "memory", "no-java", "old-java", "no-numpy"})
WEEK_MS = 7 * 86_400_000


class DurableStore(MemoryStore):
    """A store in memory that claims to be durable."""

    now_ms = 0
    ahead_ms = 0

    def check(self) -> list[str]:
        return []

    def clocks(self) -> dict[str, int]:
        return {"store-1": self.now_ms + self.ahead_ms}


def key_of(value: Int64Value) -> str:
    return f"k{value.value % 3}"


def totals(
    state: type = Int64Value,
    partitions: int = 1,
    *,
    raw: bool = False,
    fold: Callable[[Int64Value, Int64Value], None] = add,
    transactional: bool = False,
) -> CompiledFlow:
    flow = Flow("totals", state_partitions=2, poison="dead_letter", transactional=transactional)
    stage = flow.source("numbers", Int64Value, raw=raw).aggregate("total", key=key_of, state=state, fold=fold)
    stage.changes().to("sums", partitions=partitions)
    return flow.compile()


def double(value: Int64Value) -> Int64Value:
    return Int64Value(value=2 * value.value)


def doubled() -> CompiledFlow:
    flow = Flow("doubled", poison="dead_letter")
    flow.source("numbers", Int64Value).map(double).to("sums", partitions=1)
    return flow.compile()


@dataclass
class World:
    """A flow that has counted ten numbers, and the broker, store and machine that it is examined with."""

    flow: CompiledFlow
    service: Rehearsal
    store: DurableStore
    machine: Machine = WELL
    alive: bool = True
    later_ms: int = 0

    @classmethod
    def make(cls, flow: CompiledFlow) -> World:
        store = DurableStore(f"doctor-{next(_names)}")
        service = Rehearsal(flow, partitions={"numbers": 2}, store=store)
        service.log.set_commits_kept(WEEK_MS)
        for topic in ("numbers", "sums", flow.dead_letter_topic):
            service.log.configure(topic, **DURABLE)
        if flow.marker_topic:
            service.log.configure(flow.marker_topic, compacted=True, **DURABLE)
        for number in range(10):
            service.feed("numbers", Int64Value(value=number), partition=number % 2, timestamp_ms=1_000)
        service.run_until_caught_up()
        return cls(service.flow, service, store)

    def examine(self, script: FaultScript | None = None) -> list[Diagnostic]:
        """All that the facts show."""
        return examine(replace(self._gathering(script).gather(), machine=self.machine))

    def diagnose(self, script: FaultScript | None = None) -> list[Diagnostic]:
        """What the command finds, but for this machine."""
        return [finding for finding in diagnose(self._gathering(script)) if finding.check not in OF_MACHINES]

    def _gathering(self, script: FaultScript | None) -> Gathering:
        def wait(_milliseconds: int) -> None:
            home, _ = self.store.home("totals")
            if self.alive and home is not None:
                self.store.beat("totals", home.epoch, home.run_id)

        now_ms = self.service.clock.now_ms() + self.later_ms
        self.store.now_ms = now_ms
        log: Log = self.service.log
        store: StateStore = self.store
        if script is not None:
            log, store = faulty_log(log, script), faulty_store(store, script)
        return Gathering(self.flow, log, {"": store}, lambda: now_ms, wait)

    def work(self) -> None:
        """A record comes, and the service is done with it."""
        self.service.feed("numbers", Int64Value(value=1), partition=0, timestamp_ms=1_000)
        self.service.batch()

    def configure(self, topic: str, **settings: object) -> None:
        self.service.log.configure(topic, **{**DURABLE, **settings})

    def set_header(self, change: Callable[[Header], Header]) -> None:
        before = self.store.headers("totals", "total", [0])[0]
        assert before is not None
        self.store.write("totals", "total", 0, before, change(before), [])
