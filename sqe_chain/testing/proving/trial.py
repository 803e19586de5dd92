"""One run of a flow under a schedule: in memory, with the real protocol, and with everything looked at."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.message import is_enveloped, read
from sqe_chain.errors import EnvelopeError, Superseded, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.events import When
from sqe_chain.plans.settings import Settings
from sqe_chain.testing.clock import SteppingClock
from sqe_chain.testing.faults import Crash, FaultScript, InjectedFault, PortCall
from sqe_chain.testing.invariants import Violation
from sqe_chain.testing.proving.audit import Audit
from sqe_chain.testing.proving.outcome import RunOutcome, collect_outcome
from sqe_chain.testing.proving.schedule import Fault, FedRecord, PassThrough, Point, Schedule, Service
from sqe_chain.testing.proving.watching import Watch, move_tables_to, watch_flow
from sqe_chain.testing.rehearsal import Rehearsal

_HALVES: Final = 2
"""The inputs are fed in two parts: what is redone in the second meets states of the first."""
_DAY_MS: Final = 86_400_000
_MOST_BATCHES: Final = 200
_MOST_WAITS: Final = 1_000
_READS: Final[Mapping[str, str]] = {
    "broker": "a read of the log",
    "store": "a read of a store",
    "table": "a read of a table",
}


class _StandingClock(SteppingClock):
    """A clock that does not move by itself: what depends on it is equal in all runs. `jump` lets time pass."""

    def now_ms(self) -> int:
        return self.now

    def wait(self, milliseconds: int) -> bool:
        del milliseconds
        self.waits += 1
        return self.waits >= _MOST_WAITS


@dataclass(slots=True)
class _PointScript(FaultScript):
    """A script of faults that notes all points where something could happen.

    Attributes:
        service: whose calls these are.
        points: in the order in which they were passed, separately for before and after calls.
    """

    service: Service = "flow"
    points: dict[When, list[Point]] = field(default_factory=lambda: {"before": [], "after": []})
    _step: int = 0

    def step(self, number: int, when: When) -> None:
        self._step = number if when == "before" else 0
        FaultScript.step(self, number, when)

    def at(self, call: PortCall, when: When) -> None:
        passed, name = self.points[when], call.text or _READS[call.of]
        passed.append(Point(len(passed), when, name, call.write, self._step, self.service))
        FaultScript.at(self, call, when)


@dataclass(slots=True)
class Trial:
    """What a run has shown."""

    schedule: Schedule
    outcome: RunOutcome | None = None
    points: list[Point] = field(default_factory=list)
    fired: list[str] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    violation: Violation | None = None
    checked: Mapping[str, int] = field(default_factory=dict)
    cells: Mapping[Any, Any] = field(default_factory=dict)
    functions: int = 0


class Bench:
    """Where a flow is run again and again, always in the same world; `declared`: without watches."""

    def __init__(
        self,
        flow: CompiledFlow,
        records: Sequence[FedRecord],
        partitions: Mapping[str, int],
        settings: Settings,
        watch: Watch,
        directory: Path,
    ) -> None:
        self.declared = flow
        self.watch = watch
        self.flow = watch_flow(move_tables_to(flow, directory), watch)
        self.records = records
        self.partitions = partitions
        self.settings = settings
        self._directory = directory
        self.name = f"prove {flow.name}"
        self.upstream, self.not_upstream = _types_by_topic(flow, records)

    def run(self, schedule: Schedule, reference: Trial | None = None) -> Trial:
        """Run the flow.

        Raises:
            ChainError: the flow stops without anything that happened.
        """
        return _Run(self, schedule, reference).run()

    def clear(self) -> None:
        """Forget the world."""
        MemoryLog(self.name).clear()
        for name in {"", *(stage.store or "" for stage in self.flow.stages)}:
            self.store(name, 1).restore_all()
        for directory in self._directory.iterdir():
            shutil.rmtree(directory, ignore_errors=True)

    def store(self, name: str, rows: int) -> MemoryStore:
        """The store that stages call so."""
        return MemoryStore(f"{self.name} {name}", rows)

    def rehearsal(self, schedule: Schedule) -> Rehearsal:
        """The service under proof."""
        settings = replace(self.settings, in_place=schedule.in_place and self.settings.in_place)
        settings = replace(settings, max_records=schedule.batch) if schedule.batch else settings
        names = {"", *(stage.store or "" for stage in self.flow.stages)}
        return Rehearsal(
            self.flow,
            partitions=self.partitions,
            log=MemoryLog(self.name),
            store={name: self.store(name, schedule.rows) for name in names},
            settings=settings,
            block_records=schedule.block,
        )

    def upstream_rehearsal(self, schedule: Schedule) -> Rehearsal | None:
        """The service upstream, which republishes the inputs as they are."""
        if not schedule.upstream or not self.upstream:
            return None
        flow = Flow(f"{self.flow.name}.upstream"[-100:])
        for topic, type_name in self.upstream.items():
            stream = flow.source(origin_of(topic), bytes, codec=PassThrough(type_name))
            stream.to(
                topic,
                partitions=self.partitions.get(topic, 1),
                codec=PassThrough(type_name),
                carrier=schedule.carrier,
            )
        partitions = {origin_of(topic): self.partitions.get(topic, 1) for topic in self.upstream}
        store = self.store("upstream", 1)
        return Rehearsal(flow, partitions=partitions, log=MemoryLog(self.name), store=store)


class _Run:
    """One run."""

    def __init__(self, bench: Bench, schedule: Schedule, reference: Trial | None) -> None:
        self._bench = bench
        self._schedule = schedule
        self._reference = reference
        bench.clear()
        self._clock = _StandingClock()
        self._most_batches = _MOST_BATCHES + 4 * len(schedule.inputs)
        self._upstream = bench.upstream_rehearsal(schedule)
        self._service = bench.rehearsal(schedule)
        self._trial = Trial(schedule)
        known: Mapping[Any, Any] = {}
        if reference is not None and not schedule.upstream and reference.schedule.batch == schedule.batch:
            known = reference.cells
        self._audit = Audit(self._service.flow, self._service.stores, known)
        services: list[tuple[Service, Rehearsal]] = [("flow", self._service)]
        if self._upstream is not None:
            services.insert(0, ("upstream", self._upstream))
        self._scripts = []
        for name, service in services:
            script = _PointScript(service=name)
            service.script, service.clock = script, self._clock
            script.injected = [
                self._injected(fault, service) for fault in schedule.faults if fault.service == name
            ]
            self._scripts.append(script)
        self._service.script.watch = self._audit.on_call

    def run(self) -> Trial:
        trial, schedule, watch = self._trial, self._schedule, self._bench.watch
        begun = watch.made
        watch.unreachable = {begun + 1 + number: self._hear for number in schedule.unreachable}
        try:
            for half in range(_HALVES):
                self._feed(half)
                if self._upstream is not None:
                    self._work(self._upstream, rewind=half in schedule.rewinds)
                    self._work(self._service)
                else:
                    self._work(self._service, rewind=half in schedule.rewinds)
                self._clock.jump(_DAY_MS)
            for script in self._scripts:  # what comes now is not disturbed
                trial.points += [point for passed in script.points.values() for point in passed]
            trial.functions = watch.made - begun
            watch.unreachable.clear()
            self._service.cancel()
            self._work(self._service)
            self._audit.check_at_rest(self._service.log)
            trial.outcome = collect_outcome(self._service)
        except Violation as violation:
            trial.violation = violation
        except Exception as error:
            if schedule == schedule.reference:
                raise
            trial.violation = Violation("sound", f"the service stopped: {type(error).__name__}: {error}")
        finally:
            watch.unreachable.clear()
        trial.checked, trial.cells = self._audit.checked, self._audit.seen
        return trial

    def _hear(self, text: str) -> None:
        self._trial.fired.append(text)
        self._trial.happened.append("unreachable")

    def _feed(self, half: int) -> None:
        numbers, bench = self._schedule.inputs, self._bench
        middle = (len(numbers) + 1) // 2
        upstream = bench.upstream if self._upstream is not None else {}
        for number in numbers[:middle] if half == 0 else numbers[middle:]:
            record = bench.records[number]
            topic = origin_of(record.feed.topic) if record.feed.topic in upstream else record.feed.topic
            more = record.feed.headers, record.feed.timestamp_ms
            self._service.log.append(topic, record.partition, record.value, record.key, *more)

    def _work(self, service: Rehearsal, *, rewind: bool = False) -> None:
        """Run a service until it is caught up, as a supervisor does; then perhaps let it publish everything again."""
        service.run_until_caught_up(self._most_batches)
        if rewind:
            self._trial.fired.append(f"{service.flow.name!r} is rewound, and publishes everything again")
            self._trial.happened.append("rewind")
            self._pass_time(service)
            with suppress(Crash, Superseded, Unavailable):
                service.rewind(dict.fromkeys(service.commits(), 0))
            service.run_until_caught_up(self._most_batches)

    def _pass_time(self, service: Rehearsal) -> None:
        """A service that seals no plans reads the clock again when it does something again."""
        if service is self._service and not service.flow.keeps_plans:
            self._clock.jump(_DAY_MS)

    def _injected(self, fault: Fault, service: Rehearsal) -> InjectedFault:
        def act() -> None:
            script = service.script
            self._trial.happened.append(fault.what)
            if isinstance(script, _PointScript):
                self._trial.fired.append(script.points[fault.when][-1].with_fault(fault.what))
            if fault.what == "crash":
                self._pass_time(service)
                raise Crash("at this call")
            if fault.what == "no answer":
                raise Unavailable("no answer at this call")
            mine, service.service = service.service, None
            service.start()
            service.run_until_caught_up(self._most_batches)
            if service.service is None:
                service.service = mine

        return InjectedFault(act, None, fault.when, passes=fault.call)


def origin_of(topic: str) -> str:
    """The topic from which the service upstream republishes a topic."""
    return f"{topic}.origin"[-240:]


def _types_by_topic(
    flow: CompiledFlow, records: Sequence[FedRecord]
) -> tuple[dict[str, str], dict[str, str]]:
    """Input topics that a service upstream can republish, with the type of their payloads; and why others cannot be."""
    types_by_topic: dict[str, str] = {}
    refused: dict[str, str] = {}
    for source in flow.sources:
        for topic in source.topics if source.files is None else ():
            types = {_type_of(record) for record in records if record.feed.topic == topic}
            if source.raw:
                refused[topic] = "it is read raw: what is there twice is two messages"
            elif len(types) != 1 or "" in types:
                refused[topic] = "its records are not envelopes with payloads of one type"
            else:
                types_by_topic[topic] = types.pop()
    return types_by_topic, refused


def _type_of(record: FedRecord) -> str:
    """The type of a record's payloads; empty: a service upstream could not hand it on."""
    if not is_enveloped(record.value):
        return ""
    with suppress(EnvelopeError):
        envelope = read(record.value)
        return envelope.type if None not in envelope.payloads and not envelope.chain.links else ""
    return ""
