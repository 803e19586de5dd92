"""Real services as processes: start them, read their events, kill, pause and resume them.

Every wait is for a condition and has a time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from services.demo.process import members_of_session
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev.process import wait_until
from tests.support.event_log import EventLog, Line
from tests.support.loaded_command import start
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
STACKS_WITHIN_S = 3
KILLED, STOPPED_INEXACT, SUPERSEDED = -signal.SIGKILL, 3, 4


class ServiceProcess(EventLog):
    """One `sqe-chain run`, with its child processes."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        super().__init__(log)
        self._process = start(arguments, output=log, environment=environment)
        self.identity = self._process.identity

    def wait_for(self, event: str, *, after: int = 0, **fields: object) -> Line:
        """Wait for the first log line of an event with these fields, after the first `after` lines."""

        def found() -> list[Line]:
            return self.all(event, after, **fields)

        assert wait_until(lambda: bool(found()) or self.status() is not None, PATIENCE_S), self.text
        assert found(), f"no {event} {fields}: status {self.status()}\n{self.text}"
        return found()[0]

    def status(self) -> int | None:
        return self._process.poll()

    def wait(self) -> int:
        """Wait until it has exited; returns its exit status, negative for a signal."""
        if not wait_until(lambda: self.status() is not None, PATIENCE_S):
            self._show_stacks()
            pytest.fail(f"it still ran after {PATIENCE_S} s\n{self.text}")
        self._kill_children()
        status = self.status()
        assert status is not None
        return status

    def stopped_by(self, error: str, status: int = STOPPED_INEXACT) -> str:
        """Wait until it stops with this error; returns the error's text."""
        found, last = self.wait(), self.lines()[-1]
        assert (found, last["event"], last.get("error")) == (status, "stopped", error), self.text
        return str(last["text"])

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Send SIGKILL to all its processes."""
        self.identity.send(signal.SIGKILL)
        self.wait()

    def kill_after(self, event: str) -> None:
        """Send SIGKILL to all its processes after the first log line of an event, unless it has had nothing left to do and is gone."""
        assert wait_until(lambda: bool(self.all(event)) or self.status() is not None, PATIENCE_S), self.text
        assert self.status() in {None, 0}, self.text
        self.kill()

    def pause(self) -> None:
        """Send SIGSTOP to all its processes."""
        self.identity.pause()

    def wait_until_paused(self) -> None:
        assert wait_until(self._paused, PATIENCE_S), self.text

    def resume(self) -> None:
        """Send SIGCONT to all its processes."""
        self.identity.send(signal.SIGCONT)

    def _paused(self) -> bool:
        assert self.status() is None, self.text
        stat = Path(f"/proc/{self.identity.pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat[stat.rindex(")") + 2 :].startswith("T")

    def _show_stacks(self) -> None:
        """Let each process write into the log where it is: first the JVM, which goes on; Python ends by that."""
        members = members_of_session(self.identity.pid)
        java = {pid for pid in members if _name_of(pid) == "java"}
        for pids, signal_number in ((java, signal.SIGQUIT), (set(members) - java, signal.SIGABRT)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal_number)
            wait_until(lambda: self.status() is not None, STACKS_WITHIN_S)

    def _kill_children(self) -> None:
        for pid in members_of_session(self.identity.pid):  # Spark's workers have a process group of their own
            with contextlib.suppress(ProcessLookupError):  # it may end by itself meanwhile
                os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not members_of_session(self.identity.pid), PATIENCE_S)

    def close(self) -> None:
        if self.status() is None:
            self.identity.send(signal.SIGKILL)
        self.wait()


def _name_of(pid: int) -> str:
    """The name of a process's program; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    return ""


class Deployment:
    """The flows of one module, deployed for one test: their topics, and the processes that run them.

    Args:
        module: of the flows; it takes the prefix of all names from CHAOS_PREFIX.
        kafka: broker.
        store: URL of the store.
        directory: for logs.
        topics: topic -> partitions; created here.
    """

    options: Mapping[str, Mapping[str, object]] = {}
    """Flow -> options of its `Flow`."""
    environment: Mapping[str, str] = {}
    """Further variables of its processes."""

    def __init__(
        self, module: str, kafka: str, store: str, directory: Path, topics: Mapping[str, int]
    ) -> None:
        self.name = f"chaos-{uuid4().hex[:8]}"
        self.kafka, self.store, self.directory = kafka, store, directory
        self.service_store = store  # where its processes find the store: perhaps by a proxy
        self.log = KafkaLog(kafka)
        self.runs: list[ServiceProcess] = []
        self._module = module
        for topic, partitions in topics.items():
            self.log.create_topic(self.topic(topic), partitions)

    def topic(self, name: str) -> str:
        return f"{self.name}.{name}"

    def start(self, flow: str, *more: str, signal_at: str = "", engine: str = "inprocess") -> ServiceProcess:
        """Start a flow; with `signal_at`, ``event,...:SIGNAL``, it sends itself that signal after these events."""
        arguments = ("--engine", engine, "--interval", "100ms", *more)
        return self.start_command(flow, "run", *arguments, signal_at=signal_at)

    def start_command(self, flow: str, name: str, *more: str, signal_at: str = "") -> ServiceProcess:
        """Start a command about a flow, whose name may be of two words; for `signal_at` see `start`."""
        environment = {
            "PYTHONPATH": str(ROOT),
            "CHAOS_PREFIX": self.name,
            "CHAOS_OPTIONS": json.dumps(self.options),
            "PYTHONFAULTHANDLER": "1",  # see _show_stacks
            **self.environment,
        }
        if signal_at:
            environment["CHAOS_SIGNAL"] = signal_at
        where = ("--kafka", self.kafka, "--store", self.service_store, "--log-json")
        arguments = (*name.split(), f"{self._module}:{flow}", *where, *more)
        log = self.directory / f"{len(self.runs):02}-{flow}-{uuid4().hex[:6]}.log"
        self.runs.append(ServiceProcess(arguments, log, environment))
        return self.runs[-1]

    def run_once(self, flow: str, *more: str, engine: str = "inprocess") -> ServiceProcess:
        """Run a flow until it has processed all input."""
        run = self.start(flow, "--once", *more, engine=engine)
        assert run.wait() == 0, run.text
        return run

    def run_until_killed(self, flow: str, *more: str, at: str, engine: str = "inprocess") -> ServiceProcess:
        """Run a flow that kills itself with SIGKILL after these events."""
        run = self.start(flow, *more, signal_at=f"{at}:SIGKILL", engine=engine)
        status = run.wait()
        event = at.rpartition(",")[2].partition("+")[0]
        assert (status, run.names()[-1]) == (KILLED, event), f"status {status} instead of a kill\n{run.text}"
        return run

    def produce(self, topic: str, records: Iterable[tuple[int, bytes]], key: bytes | None = None) -> None:
        """Append records (partition, value) to a topic, all under one key."""
        producer = Producer(
            {
                "bootstrap.servers": self.kafka,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 1,
            }
        )
        for partition, value in records:
            producer.produce(self.topic(topic), value, key=key, partition=partition)
        assert producer.flush(PATIENCE_S) == 0

    def close(self) -> None:
        for run in self.runs:
            run.close()
