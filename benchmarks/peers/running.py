"""Runs one system on one workload: measures from its first record to its last visible output, and checks the results."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Self

from benchmarks.machine import cpu_s, own_cpu_s
from benchmarks.peers.outputs import Outputs
from benchmarks.peers.records import CLOSING
from benchmarks.peers.systems import Job, System
from benchmarks.peers.workloads import Totals, Workload, difference
from services.demo.process import Process, tail
from sqe_chain.ext.dev import KafkaServer, RedisServer

_LOOK_S = 0.02
_LINES_OF_LOG = 30


class Wrong(Exception):
    """A system did not do what it should; the text names what."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment of a run.

    Attributes:
        at_s: seconds on the monotonic clock.
        cpu_s: processor seconds so far, of all processes of the system and of Redis.
        records: records whose batches were committed before.
    """

    at_s: float
    cpu_s: float
    records: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of some records.

    Attributes:
        records: how many.
        seconds: of the clock.
        cpu_s: processor seconds.
    """

    records: int
    seconds: float
    cpu_s: float

    @property
    def records_per_s(self) -> float:
        """The rate."""
        return self.records / self.seconds

    @property
    def cpu_us_per_record(self) -> float:
        """Processor time of a record, in microseconds."""
        return self.cpu_s / self.records * 1e6


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one system.

    Attributes:
        whole: from the first record to the last output.
        later: the same after the first batch; None without batches, or with a single one.
        start_s: from the start of its processes to the first record, in seconds.
    """

    whole: Measured
    later: Measured | None
    start_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where systems run.

    Attributes:
        kafka: the broker, with the input topics.
        redis: the store of those that use one.
        records: how many the input has.
        stall_s: a system that makes no progress for so long has failed.
        limit_s: a run that takes longer is ended, and has failed.
    """

    kafka: KafkaServer
    redis: RedisServer
    records: int
    stall_s: float = 300.0
    limit_s: float = 3_600.0

    def run(self, system: System, workload: Workload, name: str, expected: Totals) -> Run:
        """Run a system once.

        Args:
            system: who.
            workload: what.
            name: of the run; no other has it.
            expected: what must come out.

        Raises:
            Wrong: it ended, made no progress, or its results are wrong.
        """
        with ExitStack() as ends:
            outputs = ends.enter_context(
                Outputs(self.kafka.bootstrap, name, system.source, workload.findings(), system.payload)
            )
            directory = ends.enter_context(TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True))
            bootstrap, redis = self.kafka.bootstrap, self.redis.url
            target, middle = outputs.target, outputs.middle
            job = Job(name, workload, bootstrap, redis, target, Path(directory), middle)
            goal = (
                sum(events for events, *_ in expected.values())
                if outputs.findings.tails
                else self.records + CLOSING
            )
            watch = ends.enter_context(_Watch(self, system, job, outputs, goal))
            run = watch.measure()
            watch.kill()
            outputs.drain()
            if wrong := difference(outputs.findings.totals, expected):
                raise Wrong(wrong)
            return run


@dataclass(slots=True)
class _Watch:
    """Watches one run from outside: lines that the system prints, offsets, outputs, processor time."""

    place: Place
    system: System
    job: Job
    outputs: Outputs
    goal: int
    _processes: list[Process] = field(default_factory=list)
    _heard: SimpleQueue[tuple[str, float, str]] = field(default_factory=SimpleQueue)
    _began_s: float = field(default_factory=time.monotonic)
    _first: Sample | None = None
    _batches: list[Sample] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Start the processes."""
        directory = self.job.directory
        environment = {
            "PYTHONPATH": str(self.system.tree),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(directory),
            "SPARK_LOCAL_DIRS": str(directory),
        }
        for number, command in enumerate(self.system.commands(self.job)):
            name = self._name(number)
            log = directory / f"{name}.log"
            self._processes.append(Process(name, command, log, self._heard, directory, environment))
        return self

    def __exit__(self, *_: object) -> None:
        """Kill them."""
        self.kill()

    def _name(self, number: int) -> str:
        return f"{self.system.name}-{number}"

    def kill(self) -> None:
        """Kill them: the states of a run are thrown away."""
        while self._processes:
            self._processes.pop().kill()

    def measure(self) -> Run:
        """Watch until the last output is visible."""
        progress, since_s = -1, time.monotonic()
        while True:
            self._listen()
            now_progress = self.outputs.progress()
            first = self._first
            if first and now_progress >= self.goal and self.outputs.stable():
                break
            if now_progress != progress:
                progress, since_s = now_progress, time.monotonic()
            self._check(time.monotonic() - since_s)
        last = self._sample(time.monotonic(), self.place.records)
        self._listen()  # the line about the last batch
        return Run(_between(first, last), self._later(last), first.at_s - self._began_s)

    def _later(self, last: Sample) -> Measured | None:
        first = self._batches[0] if self._batches else None
        if self.job.workload.services > 1:
            return None  # what the second service still has to do is not known
        if first is None or first.records >= self.place.records or first.at_s >= last.at_s:
            return None
        return _between(first, last)

    def _listen(self) -> None:
        """Read what the system prints, for a moment at least."""
        until_s = time.monotonic() + _LOOK_S
        while True:
            try:
                name, at_s, line = self._heard.get(timeout=max(0.0, until_s - time.monotonic()))
            except Empty:
                return
            if self.job.workload.services > 1 and name != self._name(0):
                continue  # the first service reads the input
            if self._first is None and self.system.begins(line):
                self._first = self._sample(at_s, 0)
            elif inputs := self.system.batch(line):
                done = self._batches[-1].records if self._batches else 0
                self._batches.append(self._sample(at_s, done + inputs))

    def _sample(self, at_s: float, records: int) -> Sample:
        pids = [process.pid for process in self._processes]
        return Sample(at_s, cpu_s(pids) + own_cpu_s(self.place.redis.identity.pid), records)

    def _check(self, idle_s: float) -> None:
        for process in self._processes:
            if process.ended is not None:
                raise Wrong(f"{process.name} ended with status {process.ended}:\n{self._tails()}")
        took_s = time.monotonic() - self._began_s
        if idle_s > self.place.stall_s or took_s > self.place.limit_s:
            raise Wrong(
                f"{self.outputs.progress():,} of {self.goal:,} records are done after {took_s:.0f} s, and nothing has "
                f"changed for {idle_s:.0f} s:\n{self._tails()}"
            )

    def _tails(self) -> str:
        return "\n".join(tail(process.log, _LINES_OF_LOG) for process in self._processes)


def _between(first: Sample, last: Sample) -> Measured:
    return Measured(last.records - first.records, last.at_s - first.at_s, last.cpu_s - first.cpu_s)
