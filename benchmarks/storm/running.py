"""Runs one system through one storm: the producer, the faults, and what is right at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer

from benchmarks.storm.facts import Facts
from benchmarks.storm.faults import Fault, Kind, Strike, draw
from benchmarks.storm.oracle import Totals, at_stake, judge
from benchmarks.storm.outcome import Outcome
from benchmarks.storm.roles import PATIENCE_S, Role
from benchmarks.storm.system import Job, Stuck, System
from benchmarks.storm.watching import CLOSER, CLOSERS, PARTITIONS, Watcher, wait
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.errors import ChainError
from sqe_chain.ext.dev import KafkaServer, PostgresServer, RedisServer
from sqe_chain.ext.dev.server import Server

ZOMBIE_S = 8.0
"""How long a consumer is paused: longer than the session timeouts of all, 6 s."""

AWAKE_S = 1.5
"""How long it then goes on beside the one that took over, before it is killed."""

_SLOWLY_S = 0.3
_BUSY_S = 0.02
"""Between two reports: while a program is waited for, so that enough are left; and while a fault may strike what is in work."""

_ENOUGH = 30
"""Facts at stake with which a consumer has something to do."""

LATE_S = 60.0
"""How long a fact may be missing after all work seems done: some systems wait before they try again what failed."""

_KEPT_SHARE = 0.98
_UNCHANGED_S = 5.0


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
    limit_s: float = PATIENCE_S
    _instance: int = 0
    _sent: int = 0
    _ready: list[tuple[bytes, bytes]] = field(default_factory=list)
    _totals: Totals | None = None
    _before: int = 0
    _strikes: list[Strike] = field(default_factory=list)
    _watcher: Watcher = field(init=False)
    _job: Job = field(init=False)
    _consumer: Role = field(init=False)
    _republisher: Role = field(init=False)
    _producer: Producer = field(init=False)

    def run(self) -> Outcome:
        """Run it.

        Raises:
            Stuck: it did not get to the end, or a fault could not strike.
        """
        try:
            return self._run_there()
        except (TimeoutError, ChainError) as error:  # a process or a server did not do what was asked in time
            raise Stuck(str(error)) from error

    def _run_there(self) -> Outcome:
        with ExitStack() as ends:
            where = ends.enter_context(TemporaryDirectory(prefix="storm-", ignore_cleanup_errors=True))
            name = f"storm-{self.system.name}-{self.facts.seed}-{time.monotonic_ns() // 1_000_000}"
            urls = [server.url for server in self.databases]
            self._job = job = Job(name, self.kafka.bootstrap, urls[0], "".join(urls[1:]), Path(where))
            self.system.prepare(job)
            with closing(KafkaLog(job.kafka)) as log:
                for topic in (job.reports, job.items, job.totals):
                    log.create_topic(topic, PARTITIONS)
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
        reader, published = self._watcher.reader, self._watcher.published
        began_s = time.monotonic()
        self._ready = list(self.facts.messages())
        for fault in draw(self.facts.seed, self.facts.reports):
            self._send_until(fault.at)
            self._inflict(fault)
        self._send_until(self.facts.reports)
        calm_s = time.monotonic()
        self._settle()
        ended_s = time.monotonic()
        return Outcome(
            judge(self.facts, reader.latest if self._totals is None else self._totals, published.times),
            tuple(self._strikes),
            reader.seen,
            reader.too_high,
            reader.went_back,
            ended_s - began_s,
            ended_s - calm_s,
            self._consumer.restarts + self._republisher.restarts,
        )

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
        if self._sent < self.facts.reports:
            key, value = self._ready[self._sent]
            self._producer.produce(self._job.reports, value, key)
            self._sent += 1
        self._producer.poll(0)

    def _send_for(self, seconds: float, every_s: float) -> None:
        """Send a report now and then for a time, and keep some for the end."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            if self._sent < self.facts.reports * _KEPT_SHARE:
                self._produce_next()
            self._supervise()
            time.sleep(every_s)

    def _supervise(self) -> None:
        self._consumer.supervise()
        self._republisher.supervise()

    # --- faults ------------------------------------------------------------------------------------

    def _inflict(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.CONSUMER:
                for moment_s in fault.moments_s:
                    self._strikes.append(Strike(fault.kind, self._kill_at_work(moment_s)))
            case Kind.REPUBLISHER:
                self._kill_republisher()
            case Kind.BROKER:
                _restart(self.kafka)
            case Kind.STORE:
                for server in self.databases:
                    _restart(server)
            case Kind.ZOMBIE:
                self._until_it_counts()
                self._pause()
            case Kind.REWIND:
                # One that has published nothing since it was started would repeat nothing.
                self._producer.flush()
                self._until(self._republished, self._republisher)
                self._republisher.stop()
                self.system.rewind(self._job, fault.back)
                self._republisher.start()
        if fault.kind is not Kind.CONSUMER:
            self._strikes.append(Strike(fault.kind))
        self._before = self._progress()

    def _kill_at_work(self, moment_s: float) -> int:
        """Kill the consumer some time behind its first publication; returns how many facts were at stake."""
        self._until_it_counts()
        self._send_for(moment_s, _BUSY_S)
        if not wait(self._sent_at_stake, PATIENCE_S, every_s=_BUSY_S):
            raise Stuck(f"nothing was left to count for {PATIENCE_S:.0f} s:\n{self._consumer.tail()}")
        facts = self._at_stake()
        if self.system.aims:
            self._consumer.die_where_it_aims(self._produce_next)
        self._consumer.kill()
        self._before = self._progress()
        self._consumer.start()
        return facts

    def _kill_republisher(self) -> None:
        """Kill it between its publication and its commit; one that does not let us aim is killed at any moment."""
        if not self.system.own_republisher:
            self._republisher.die_where_it_aims(self._produce_next)
        self._republisher.kill()
        self._republisher.start()

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
            self._send_for(ZOMBIE_S, _SLOWLY_S)
            if self.system.beside:
                self._until_it_counts()  # else nobody has taken over, and nobody is a zombie
            old.let_go()
            self._send_for(AWAKE_S, _BUSY_S)
        finally:
            if old is not self._consumer.process:
                old.kill()

    def _until_it_counts(self) -> None:
        """Send slowly until the consumer has counted something since the last fault: a fault before would prove nothing."""
        self._meanwhile(lambda: self._progress() > self._before, "the consumer counted nothing")

    def _meanwhile(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Wait until a condition holds; send a report now and then, unless the consumer has enough to count.

        Else a slow start would use up the reports that later faults need.

        Raises:
            Stuck: it does not hold in time.
        """

        def holds() -> bool:
            if self._at_stake() < _ENOUGH:
                self._produce_next()
            self._supervise()
            time.sleep(_SLOWLY_S)
            return condition()

        if not wait(holds, PATIENCE_S, every_s=0):
            raise Stuck(f"{otherwise} for {PATIENCE_S:.0f} s:\n{self._consumer.tail()}")

    def _progress(self) -> int:
        """How far the consumer is: totals that it has published, or facts in its database."""
        return self._watcher.reader.seen if self.system.topic else sum(n for n, _ in self._visible().values())

    def _sent_at_stake(self) -> bool:
        """Send a report; whether facts are at stake. A fast consumer counts each within milliseconds, so this is asked often."""
        if self._sent < self.facts.reports * _KEPT_SHARE:
            self._produce_next()
        self._supervise()
        return self._at_stake() > 0

    def _at_stake(self) -> int:
        """Facts that the republisher has published, and no reader sees in a total."""
        return at_stake(list(self._watcher.published.times), self._visible())

    def _visible(self) -> Totals:
        """The totals that a reader sees now."""
        return self._watcher.reader.latest if self.system.topic else self.system.stored(self._job) or {}

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
        wait(lambda: self._at_stake() == 0, LATE_S)
        self._until(self._counted, self._consumer)  # also what came late

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
        positions = self._job.positions()
        return bool(positions) and positions == self._ends()

    def _ends(self) -> dict[int, int]:
        with closing(KafkaLog(self._job.kafka)) as log:
            bounds = log.bounds([(self._job.reports, partition) for partition in range(PARTITIONS)])
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
