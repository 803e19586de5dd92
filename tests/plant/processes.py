"""Real services on real servers: start a run, hear its events, kill, pause and wake it, look at what it left.

Nothing here waits without a bound, and every wait is for a condition. Totals are read by `services.stored`,
which knows the stores' documented layout and nothing of the package; what they should be is added up here.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from chaos_flows import LINES, ROBOTS, split
from confluent_kafka import Producer

from services._proto.fastening_pb2 import Fastening, LineDelta, LineTotal, RobotTotal
from services.demo.process import members_of_session
from services.stored import StoredState, stored_states
from sqe_chain import ReplayFilter, read, wrap
from sqe_chain.dev.process import ProcessIdentity, spawn, wait_until
from sqe_chain.logs.kafka import KafkaLog
from sqe_chain.partitioner import partition_of
from sqe_chain.plan import Plan, PlannedRange
from sqe_chain.ports import Message, Range, StateStore, TopicPartition
from sqe_chain.stores import open_store

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).with_name("sqe-chain")
TIMEOUT_S = 180
STAGES = ("per-robot", "per-line")
TOPICS = {"raw": 2, "mid": 3, "deltas": 2, "lines": 1}
KILLED, STOPPED_INEXACT, SUPERSEDED = -signal.SIGKILL, 3, 4

Line = dict[str, Any]
Sums = tuple[int, int, int]
"""Events, screws fastened, torque."""


class Run:
    """One `sqe-chain run`, with the processes that it starts."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self._log = log
        self._popen = spawn([str(COMMAND), *arguments], log=log, detached=False, environment=environment)
        found = ProcessIdentity.of(self._popen.pid)
        assert found is not None
        self.identity = found

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def lines(self) -> list[Line]:
        whole = (line for line in self.text.splitlines(keepends=True) if line.endswith("\n"))
        return [json.loads(line) for line in whole if line.startswith("{")]

    def names(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def all(self, event: str, **fields: object) -> list[Line]:
        return [line for line in self.lines() if {**line, "event": event, **fields} == line]

    def wait_for(self, event: str, *, after: int = 0, **fields: object) -> Line:
        """The first line of an event with these fields, behind the first `after` lines."""

        def found() -> list[Line]:
            return [line for line in self.lines()[after:] if {**line, "event": event, **fields} == line]

        assert wait_until(lambda: bool(found()) or self.status() is not None, TIMEOUT_S), self.text
        assert found(), f"no {event} {fields}: status {self.status()}\n{self.text}"
        return found()[0]

    def status(self) -> int | None:
        return self._popen.poll()

    def ended(self) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        ended = wait_until(lambda: self.status() is not None, TIMEOUT_S)
        assert ended, f"it goes on after {TIMEOUT_S} s\n{self.text}"
        self._bury()
        return self._popen.wait()

    def stopped_by(self, error: str, status: int = STOPPED_INEXACT) -> str:
        """Wait until it stops with this error's name; the error's text."""
        found, last = self.ended(), self.lines()[-1]
        assert (found, last["event"], last.get("error")) == (status, "stopped", error), self.text
        return str(last["text"])

    def terminate(self) -> int:
        self._popen.terminate()
        return self.ended()

    def kill(self) -> None:
        """SIGKILL to all of it, wherever it is."""
        self.identity.send(signal.SIGKILL)
        self.ended()

    def pause(self) -> None:
        """SIGSTOP to all of it."""
        self.identity.pause()

    def wait_until_paused(self) -> None:
        assert wait_until(self._paused, TIMEOUT_S), self.text

    def resume(self) -> None:
        """SIGCONT to all of it."""
        self.identity.send(signal.SIGCONT)

    def _paused(self) -> bool:
        assert self.status() is None, self.text
        stat = Path(f"/proc/{self.identity.pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat[stat.rindex(")") + 2 :].startswith("T")

    def _bury(self) -> None:
        for pid in members_of_session(self.identity.pid):  # Spark's workers make a group of their own
            with contextlib.suppress(ProcessLookupError):  # it may end by itself meanwhile
                os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not members_of_session(self.identity.pid), TIMEOUT_S)

    def close(self) -> None:
        if self.status() is None:
            self.identity.send(signal.SIGKILL)
        self.ended()


@dataclass
class Expected:
    """What was fed, each message once."""

    robots: dict[str, list[Fastening]] = field(default_factory=lambda: defaultdict(list))

    def per_robot(self) -> dict[str, Sums]:
        return {robot: _sums(events) for robot, events in self.robots.items()}

    def per_line(self) -> dict[str, Sums]:
        lines: dict[str, list[Fastening]] = defaultdict(list)
        for events in self.robots.values():
            for event in events:
                lines[event.line].append(event)
        return {line: _sums(events) for line, events in lines.items()}


def gateway_of(fastening: Fastening) -> int:
    return int(fastening.robot.split("-")[1])


def _sums(events: Iterable[Fastening]) -> Sums:
    known = list(events)
    return len(known), sum(e.fastened for e in known), sum(e.torque_mnm for e in known)


class Plant:
    """Topics, messages, runs and a store of one test.

    Args:
        kafka: broker.
        store: URL of the store.
        directory: for logs.
        options: flow -> options of its `Flow`.
        topics: topic -> partitions; created here.
    """

    def __init__(
        self,
        kafka: str,
        store: str,
        directory: Path,
        *,
        options: dict[str, dict[str, object]] | None = None,
        topics: dict[str, int] | None = None,
    ) -> None:
        self.name = f"chaos-{uuid4().hex[:8]}"
        self.kafka, self.store, self.directory = kafka, store, directory
        self.options = options or {}
        self.log = KafkaLog(kafka)
        self.expected = Expected()
        self.runs: list[Run] = []
        self._random = random.Random(self.name)
        self._reports = 0
        for topic, partitions in (TOPICS if topics is None else topics).items():
            self.log.create_topic(self.topic(topic), partitions)

    # ------------------------------------------------------------------ runs

    def topic(self, name: str) -> str:
        return f"{self.name}.{name}"

    def start(self, flow: str, *more: str, trap: str = "", engine: str = "inprocess") -> Run:
        """Start a run of a flow; a trap is ``event,...:SIGNAL``."""
        environment = {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'plant'}",
            "CHAOS_PLANT": self.name,
            "CHAOS_OPTIONS": json.dumps(self.options),
        }
        if trap:
            environment["CHAOS_TRAP"] = trap
        where = ("--kafka", self.kafka, "--store", self.store, "--engine", engine, "--log-json")
        arguments = ("run", f"chaos_flows:{flow}", *where, "--interval", "100ms", *more)
        log = self.directory / f"{len(self.runs):02}-{flow}-{uuid4().hex[:6]}.log"
        self.runs.append(Run(arguments, log, environment))
        return self.runs[-1]

    def once(self, flow: str, *more: str, engine: str = "inprocess") -> Run:
        """A run that ends by itself when all is done."""
        run = self.start(flow, "--once", *more, engine=engine)
        assert run.ended() == 0, run.text
        return run

    def dies(self, flow: str, *more: str, at: str, engine: str = "inprocess") -> Run:
        """A run that is killed by SIGKILL at an event; what it leaves is looked at."""
        run = self.start(flow, *more, trap=f"{at}:SIGKILL", engine=engine)
        status = run.ended()
        event = at.rpartition(",")[2]
        assert (status, run.names()[-1]) == (KILLED, event), f"status {status} instead of a kill\n{run.text}"
        self.look()
        return run

    def republish_and_die(self) -> None:
        """The republisher publishes and is killed before its commit: all of that will come again."""
        run = self.dies("standard", at="published")
        assert run.all("published")[-1]["outputs"] > 0, run.text

    def close(self) -> None:
        for run in self.runs:
            run.close()

    # ------------------------------------------------------------------ messages

    def fastening(self, gateway: int, failed: int = -1) -> Fastening:
        """The next report."""
        self._reports += 1
        robot = self._random.randrange(ROBOTS)
        return Fastening(
            robot=f"robot-{gateway}-{robot}",
            line=f"line-{robot % LINES}",
            report=self._reports,
            fastened=self._random.randrange(5),
            failed=self._random.randrange(3) if failed < 0 else failed,
            torque_mnm=self._random.getrandbits(32),
        )

    def feed(self, count: int = 40, gateways: Sequence[int] = (0, 1, 2, 3), partitions: int = 2) -> None:
        """Gateways report into raw."""
        fastenings = [self.fastening(self._random.choice(gateways)) for _ in range(count)]
        self.expect(one for fastening in fastenings for one in split(fastening))
        self.produce("raw", [(gateway_of(f) % partitions, self.wrapped(f)) for f in fastenings])

    def expect(self, fastenings: Iterable[Fastening]) -> None:
        """These must be counted."""
        for fastening in fastenings:
            self.expected.robots[fastening.robot].append(fastening)

    def settle(self, standard: Run, totals: Run) -> None:
        """Wait until both have done all that is there."""
        self.wait_for_no_lag(standard, "standard", "raw")
        self.wait_for_no_lag(totals)

    def wrapped(self, fastening: Fastening) -> bytes:
        return wrap(fastening, key=fastening.robot, timestamp_ms=fastening.report)

    def produce(self, topic: str, records: Iterable[tuple[int, bytes]]) -> None:
        producer = Producer({"bootstrap.servers": self.kafka, "enable.idempotence": True})
        for partition, value in records:
            producer.produce(self.topic(topic), value, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0

    def records(self, topic: str) -> list[Message]:
        """Everything that stands in a topic, transactions that were aborted left out."""
        name = topic if topic.startswith(self.name) else self.topic(topic)
        info = self.log.describe([name])[name]
        places = [(name, partition) for partition in range(info.partitions)]
        return [
            message
            for (_, partition), bound in self.log.bounds(places).items()
            for block in self.log.read(Range(name, info.topic_id, partition, bound.begin, bound.stable_end))
            for message in block
        ]

    # ------------------------------------------------------------------ what must hold

    @staticmethod
    def _ends(store: StateStore, flow: str, number: int) -> dict[tuple[str, int], PlannedRange]:
        data = store.plan(flow, number)
        assert data is not None, f"plan {number} is not kept"
        return Plan.from_bytes(data).ends()

    def look(self, flow: str = "totals") -> None:
        """What holds at every moment.

        Commits reach no further than the last plan, and no stage is beyond the one behind it.
        """
        name, store = f"{self.name}-{flow}", open_store(self.store)
        before, _ = store.home(name)
        if before is None or before.number < 0:
            return
        commits = self.log.committed(name, self._ends(store, name, before.number))
        reached = []
        for stage in STAGES:  # upstream first: a run that is alive goes on while this looks
            headers = store.headers(name, stage, range(3))
            reached.append([header.number for header in headers if header is not None])
        after, _ = store.home(name)
        assert after is not None
        ends = self._ends(store, name, after.number)
        for place, commit in commits.items():
            assert commit.offset <= ends[place].stop, f"{place} is committed beyond plan {after.number}"
        if all(reached):
            upstream, downstream = reached
            assert before.number - 1 <= min(downstream), reached
            assert max(upstream) <= min(downstream), reached
            assert max(downstream) <= after.number, reached

    def check(self, *, ordered: bool = True) -> None:
        """What holds at rest.

        Totals of both stages and what receivers count are exact; there is no lag, plans, headers and commits
        agree, and nobody holds the claim.
        """
        self.check_totals(ordered=ordered)
        self.check_receivers()
        self.check_at_rest()

    def check_totals(self, *, ordered: bool = True) -> None:
        robots, lines = self.states("per-robot"), self.states("per-line")
        totals = {key: RobotTotal.FromString(value) for key, value in robots.items()}
        assert {
            k: (t.events, t.fastened, t.torque_mnm) for k, t in totals.items()
        } == self.expected.per_robot()
        if ordered:
            assert sum(total.out_of_order for total in totals.values()) == 0
        sums = {key: LineTotal.FromString(value) for key, value in lines.items()}
        assert {k: (t.events, t.fastened, t.torque_mnm) for k, t in sums.items()} == self.expected.per_line()
        assert sum(total.robots for total in sums.values()) == len(totals)

    def states(self, stage: str) -> dict[str, bytes]:
        """Key -> state, each key in the one state partition where it belongs."""
        found: dict[str, bytes] = {}
        for row in self._rows(stage):
            assert row.key.decode() not in found, f"{row.key!r} stands twice"
            assert row.part == partition_of(row.key, 3)
            found[row.key.decode()] = row.state
        return found

    def everything(self) -> list[tuple[object, ...]]:
        """All that the store holds of states and headers, to be compared with a later moment."""
        store, name = open_store(self.store), f"{self.name}-totals"
        rows = [(s, r.part, r.key, r.state) for s in STAGES for r in self._rows(s)]
        headers = [(s, *store.headers(name, s, range(3))) for s in STAGES]
        return [store.home(name)[0], *headers, *sorted(rows)]  # type: ignore[list-item]

    def _rows(self, stage: str) -> Iterable[StoredState]:
        return stored_states(self.store, f"{self.name}-totals", stage)

    def check_receivers(self) -> None:
        """Who ignores replays gets each event once from what the first stage emits."""
        name = self.topic("deltas")
        accepts = ReplayFilter({name: self.log.topic_ids([name])[name]})
        received: dict[str, Sums] = {}
        for message in self.records("deltas"):
            if accepts.accept(message):  # type: ignore[arg-type]
                for delta in read(message.value() or b"", strict=True).payloads_as(LineDelta):
                    events, fastened, torque = received.get(delta.line, (0, 0, 0))
                    received[delta.line] = (
                        events + 1, fastened + delta.fastened, torque + delta.torque_mnm,
                    )  # fmt: skip
        assert received == self.expected.per_line()

    def check_at_rest(self, flows: Sequence[str] = ("totals",)) -> None:
        """Plans, headers and commits have all come to the end of the log; nobody holds the claim."""
        self.look()
        name, store = f"{self.name}-totals", open_store(self.store)
        home, _ = store.home(name)
        assert home is not None
        assert home.run_id == ""
        for stage in STAGES:
            for header in store.headers(name, stage, range(3)):
                assert header is not None
                assert (header.number, header.plan_id, header.begun_id) == (home.number, home.plan_id, "")
        data = store.plan(name, home.number)
        assert data is not None
        ends = {place: planned.stop for place, planned in Plan.from_bytes(data).ends().items()}
        assert ends == {place: bound.stable_end for place, bound in self.log.bounds(ends).items()}
        for flow in flows:
            self.check_no_lag(flow, "mid")

    def wait_for_no_lag(self, run: Run, flow: str = "totals", topic: str = "mid") -> None:
        """Wait until a run has committed all that is there."""
        done = wait_until(lambda: self.lags(flow, topic) == {} or run.status() is not None, TIMEOUT_S)
        assert done, f"{self.lags(flow, topic)}\n{run.text}"
        self.check_no_lag(flow, topic)

    def check_no_lag(self, flow: str, topic: str) -> None:
        """The group's commits stand at the end of all partitions."""
        assert self.lags(flow, topic) == {}

    def lags(self, flow: str, topic: str) -> dict[TopicPartition, tuple[int, int]]:
        """Partitions whose commit (-1: none) does not stand at the end, with both."""
        info = self.log.describe([self.topic(topic)])[self.topic(topic)]
        places = [(info.name, partition) for partition in range(info.partitions)]
        ends = {place: bound.stable_end for place, bound in self.log.bounds(places).items()}
        commits = self.log.committed(f"{self.name}-{flow}", places)
        found = {place: commits[place].offset if place in commits else -1 for place in places}
        return {place: (found[place], end) for place, end in ends.items() if found[place] != end}
