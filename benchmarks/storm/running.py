"""Runs one system through one storm: the producer, the faults, and what is right at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from confluent_kafka import Producer

from benchmarks.storm.facts import Facts
from benchmarks.storm.faults import Fault, Kind, draw
from benchmarks.storm.oracle import Judgement, Reader, Totals, judge
from benchmarks.storm.systems import Job, System, environment
from benchmarks.storm.watching import CLOSER, CLOSERS, PARTITIONS, Watcher, wait
from services.demo.process import Process, tail
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev import KafkaServer, PostgresServer, RedisServer
from sqe_chain.ext.dev.server import Server

ZOMBIE_S = 8.0
"""How long a consumer is paused: longer than the session timeouts of all, 6 s."""

AWAKE_S = 1.5
"""How long it then goes on beside the one that took over, before it is killed."""

_PATIENCE_S = 60.0
_AIMING_S = 0.1
"""Between reports that are sent while a process waits for something to publish, and dies."""

_UNCHANGED_S = 5.0
_RESTARTS_AT_MOST = 12
_LINES_OF_LOG = 25


class Stuck(Exception):
    """A system did not get to the end; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One system after one storm.

    Attributes:
        judgement: of its totals.
        reader: what a program outside saw.
        seconds: from the first report until everything was counted.
        calm_s: from the last report until then.
        restarts: how often the supervisor had to restart a process that ended by itself.
    """

    judgement: Judgement
    reader: Reader
    seconds: float
    calm_s: float
    restarts: int


@dataclass(slots=True)
class Role:
    """The consumer, or the republisher, through its lives.

    Attributes:
        name: of its log.
        command: of the next life.
        job: of the run.
        process: the life of now; None while it is stopped.
        restarts: how often it had to be restarted because it ended by itself.
    """

    name: str
    command: Sequence[str]
    job: Job
    process: Process | None = None
    restarts: int = 0

    def start(self) -> Process:
        """Begin a life."""
        log = self.job.directory / f"{self.name}.log"
        self.process = Process(
            self.name, self.command, log, SimpleQueue(), self.job.directory, environment(self.job)
        )
        return self.process

    def supervise(self) -> None:
        """Restart it if it has ended by itself.

        Raises:
            Stuck: it does so again and again.
        """
        if self.process is not None and self.process.ended is not None:
            self.restarts += 1
            if self.restarts > _RESTARTS_AT_MOST:
                raise Stuck(f"{self.name} ended {self.restarts} times:\n{self.tail()}")
            self.process.kill()
            time.sleep(0.5)
            self.start()

    def kill(self) -> None:
        """End this life by SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def stop(self) -> None:
        """End this life as an operator does."""
        if self.process is not None:
            self.process.stop()
            self.process = None

    def tail(self) -> str:
        """The end of its log."""
        return tail(self.job.directory / f"{self.name}.log", _LINES_OF_LOG)


@dataclass(slots=True)
class Storm:
    """One storm over one system.

    Args:
        system: who.
        facts: what happens.
        kafka: the broker.
        databases: the other servers: Redis, and PostgreSQL if a system needs it.
        seconds: how long the producer sends, without the time of faults.
        limit_s: after the last report, until everything has to be counted.
    """

    system: System
    facts: Facts
    kafka: KafkaServer
    databases: Sequence[RedisServer | PostgresServer]
    seconds: float
    limit_s: float = 180.0
    _instance: int = 0
    _sent: int = 0
    _ready: list[tuple[bytes, bytes]] = field(default_factory=list)
    _totals: Totals | None = None
    _before: int = 0
    _watcher: Watcher = field(init=False)
    _job: Job = field(init=False)
    _consumer: Role = field(init=False)
    _republisher: Role = field(init=False)
    _producer: Producer = field(init=False)

    def run(self) -> Outcome:
        """Run it.

        Raises:
            Stuck: it did not get to the end.
        """
        with ExitStack() as ends:
            where = ends.enter_context(TemporaryDirectory(prefix="storm-", ignore_cleanup_errors=True))
            name = f"storm-{self.system.name}-{self.facts.seed}-{time.monotonic_ns() // 1_000_000}"
            urls = [server.url for server in self.databases]
            self._job = job = Job(name, self.kafka.bootstrap, urls[0], "".join(urls[1:]), Path(where))
            self.system.prepare(job)
            log = KafkaLog(job.kafka)
            for topic in (job.reports, job.items, job.totals):
                log.create_topic(topic, PARTITIONS)
            log.close()
            self._producer = Producer(
                {
                    "bootstrap.servers": job.kafka,
                    "enable.idempotence": True,
                    "max.in.flight.requests.per.connection": 1,
                    "linger.ms": 5,
                    "log_level": 0,  # the broker is killed on purpose
                }
            )
            self._watcher = ends.enter_context(Watcher(job.kafka, job.items, job.totals))
            self._consumer = Role("consumer", self.system.consumer(job, 0), job)
            self._republisher = Role("republisher", self.system.republisher(job), job)
            for role in (self._consumer, self._republisher):
                ends.callback(role.kill)
                role.start()
            return self._run()

    def _run(self) -> Outcome:
        watcher = self._watcher
        began_s = time.monotonic()
        self._ready = list(self.facts.messages())
        for fault in draw(self.facts.seed, self.facts.reports):
            self._send_until(fault.at)
            self._inflict(fault)
        self._send_until(self.facts.reports)
        calm_s = time.monotonic()
        self._settle()
        ended_s = time.monotonic()
        totals = watcher.reader.latest if self._totals is None else self._totals
        judgement = judge(self.facts, totals, watcher.published.times)
        restarts = self._consumer.restarts + self._republisher.restarts
        return Outcome(judgement, watcher.reader, ended_s - began_s, ended_s - calm_s, restarts)

    # --- the producer ------------------------------------------------------------------------------

    def _send_until(self, count: int) -> None:
        """Send reports, at the rate of the storm, until there are as many."""
        while self._sent < count:
            self._send()

    def _send(self) -> None:
        """Send a report, and see to it that both services run."""
        self._produce_next()
        self._supervise()
        time.sleep(self.seconds / self.facts.reports)

    def _produce_next(self) -> None:
        key, value = self._ready[self._sent]
        self._producer.produce(self._job.reports, value, key)
        self._producer.poll(0)
        self._sent += 1

    def _send_for(self, seconds: float) -> None:
        """Time goes by; few reports are left for each fault, so the producer sends slowly meanwhile."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            if self._sent < self.facts.reports * 0.98:
                self._send()
            self._supervise()
            time.sleep(0.1)

    def _supervise(self) -> None:
        self._consumer.supervise()
        self._republisher.supervise()

    # --- faults ------------------------------------------------------------------------------------

    def _inflict(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.CONSUMER:
                self._until_it_works()
                self._kill(self._consumer, aims=self.system.aims)
                self._before = self._progress()
            case Kind.REPUBLISHER:
                self._kill(self._republisher, aims=not self.system.own_republisher)
            case Kind.BROKER:
                _restart(self.kafka)
            case Kind.STORE:
                for server in self.databases:
                    _restart(server)
            case Kind.ZOMBIE:
                self._until_it_works()
                self._pause()
                self._before = self._progress()
            case Kind.REWIND:
                # One that has published nothing since it was started would repeat nothing.
                self._producer.flush()
                self._until(self._republished, self._republisher)
                self._republisher.stop()
                self.system.rewind(self._job, fault.back)
                self._republisher.start()

    def _until_it_works(self) -> None:
        """Send slowly until this life of the consumer has counted something: a kill before would prove nothing."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while self._progress() <= self._before and time.monotonic() < deadline_s:
            self._send_for(_AIMING_S)

    def _progress(self) -> int:
        """How far the consumer is: totals that it has published, or facts in its database."""
        if self.system.topic:
            return self._watcher.reader.seen
        return sum(events for events, _ in (self.system.stored(self._job) or {}).values())

    def _kill(self, role: Role, *, aims: bool) -> None:
        """Kill it; between its publication and its commit, where it lets one aim."""
        process = role.process
        if aims and process is not None:
            process.tell("die")
            deadline_s = time.monotonic() + _PATIENCE_S
            while process.ended is None and time.monotonic() < deadline_s:
                if self._sent < self.facts.reports:
                    self._produce_next()
                time.sleep(_AIMING_S)
        role.kill()
        role.start()

    def _pause(self) -> None:
        """Pause the consumer, as a long garbage collection or a frozen machine does; it wakes up beside the next one."""
        old = self._consumer.process
        assert old is not None
        old.hold()
        try:
            if self.system.beside:
                self._instance += 1
                self._consumer.command = self.system.consumer(self._job, self._instance)
                self._consumer.start()
            self._send_for(ZOMBIE_S)
            old.let_go()
            self._send_for(AWAKE_S)
        finally:
            if old is not self._consumer.process:
                old.kill()

    # --- the end -----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait until all that was published is counted: a few closing facts come behind everything else."""
        self._producer.flush()
        self._until(
            lambda: self._watcher.published.complete(self.facts) and self._republished(), self._republisher
        )
        items = [f'{{"robot": "{CLOSER}{number}", "amount": 1}}' for number in range(CLOSERS)]
        self._producer.produce(self._job.reports, f'{{"report": -1, "items": [{", ".join(items)}]}}', b"end")
        self._producer.flush()
        self._until(lambda: len(self._watcher.passed) == CLOSERS, self._republisher)
        self._until(self._counted, self._consumer)

    def _counted(self) -> bool:
        """Whether the closing facts are counted, hence all others, and stored."""
        if self.system.topic and len(self._watcher.closed) < CLOSERS:
            return False
        totals = self.system.stored(self._job)
        if totals is None:
            return True
        if (
            not self.system.ordered and totals != self._totals
        ):  # others may still be in work: until nothing changes
            self._totals = totals
            time.sleep(_UNCHANGED_S)
            return False
        self._totals = totals
        return sum(robot.startswith(CLOSER) for robot in totals) == CLOSERS

    def _republished(self) -> bool:
        """Whether the republisher has committed all that was sent."""
        return self._job.positions() == self._ends()

    def _ends(self) -> dict[int, int]:
        log = KafkaLog(self._job.kafka)
        bounds = log.bounds([(self._job.reports, partition) for partition in range(PARTITIONS)])
        log.close()
        return {partition: bound.stable_end for (_, partition), bound in bounds.items()}

    def _until(self, condition: Callable[[], bool], role: Role) -> None:
        def holds() -> bool:
            self._supervise()
            return condition()

        if not wait(holds, self.limit_s, every_s=0.2):
            raise Stuck(f"{role.name} has not done all after {self.limit_s:.0f} s:\n{role.tail()}")


def _restart(server: Server) -> None:
    server.kill()
    server.start()
