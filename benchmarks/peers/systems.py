"""Who takes part: one entry for each system, or variant of ours, in `SYSTEMS`.

A variant of ours is one line: `SqeChain(name, source, options, flows)`. It takes part in the workloads for which it names
a function of `benchmarks.peers.flows`.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from benchmarks.peers.installing import HERE, kafka_streams, pinned, python_of
from benchmarks.peers.workloads import Workload
from sqe_chain.engines.java import java
from sqe_chain.envelope.message import EnvelopeHead
from sqe_chain.ext.dev.jars import KAFKA_VERSION, Report

ROOT = HERE.parents[1]

JSON = "peers.json"
"""Topic of the records as they are."""

ENVELOPES = "peers.envelopes"
"""Topic of the same records in envelopes."""

KAFKA_STREAMS = "kafka-streams"
"""The system that ratios compare with."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one system.

    Attributes:
        name: of the run: its consumer group; topics that the system creates itself contain it.
        workload: what is computed.
        kafka: bootstrap servers.
        redis: URL of a durable Redis.
        target: topic of the output, which exists.
        directory: for states and temporary files, empty.
    """

    name: str
    workload: Workload
    kafka: str
    redis: str
    target: str
    directory: Path


class System(ABC):
    """A system that computes the workloads.

    Attributes:
        name: in tables and rows.
        guarantee: what it promises of results after a crash, and how it is set up.
        versions: of what it consists of.
        source: its input topic.
        tree: where its Python is from: our files, or those of another version.
        workloads: those that it can compute.
    """

    name: str
    guarantee: str
    versions: str = ""
    tree: Path = ROOT
    source: str = JSON
    workloads: frozenset[Workload] = frozenset(Workload)

    def install(self, report: Report) -> None:
        """Get what it needs; by default nothing.

        Raises:
            Missing: that is not possible here.
        """
        del report

    @abstractmethod
    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        """One command for each of its processes. They are run in the job's directory, and killed at the end."""

    def begins(self, line: str) -> bool:
        """Whether a line of its output shows that it now processes its first record."""
        return line.strip() == "first"

    def batch(self, line: str) -> int | None:
        """The number of records of the batch that this line of output ends; None if it ends none."""
        del line
        return None

    def payload(self, value: bytes) -> bytes:
        """The JSON in a record of its output."""
        return value


class KafkaStreams(System):
    """Kafka Streams, see `kafka_streams/`."""

    name = KAFKA_STREAMS
    guarantee = "exactly once (exactly_once_v2), 2 threads, RocksDB, commit 1 s"
    versions = f"Kafka Streams {KAFKA_VERSION}"

    def install(self, report: Report) -> None:
        """Download its jars and compile our program."""
        self._class_path = kafka_streams(report)

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        """One process with two threads."""
        options = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Djava.io.tmpdir={job.directory}")
        names = (job.workload, job.kafka, job.name, self.source, job.target, str(job.directory))
        return [[java(), *options, "-cp", self._class_path, "peers.Main", *names]]


class Quix(System):
    """Quix Streams, see `quix_streams/`."""

    name = "quix"
    guarantee = "exactly once (processing_guarantee), 2 processes, RocksDB, commit 1 s"
    versions = pinned(HERE / "quix_streams")
    processes = 2

    def install(self, report: Report) -> None:
        """Install it from PyPI."""
        self._python = str(python_of(HERE / "quix_streams", report))

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        """As many processes as cores, in one group."""
        program, names = str(HERE / "quix_streams" / "app.py"), (self.source, job.target)
        states = [str(job.directory / f"state-{number}") for number in range(self.processes)]
        return [[self._python, program, job.workload, job.kafka, job.name, *names, state] for state in states]


class Plain(System):
    """A plain loop, see `plain_loop/`."""

    name = "plain"
    guarantee = "at least once; one process, orjson, states in Redis, commit 1 s"
    versions = pinned(HERE / "plain_loop")

    def install(self, report: Report) -> None:
        """Install its packages."""
        self._python = str(python_of(HERE / "plain_loop", report))

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        """One process."""
        program, names = str(HERE / "plain_loop" / "loop.py"), (self.source, job.target)
        return [[self._python, program, job.workload, job.kafka, job.name, *names, job.redis]]


STANDARD: Mapping[Workload, str] = MappingProxyType(
    {Workload.FLAT_MAP: "flat_map", Workload.FOLD: "fold", Workload.TWO_STAGES: "two_stages"}
)
"""Workload -> function of `benchmarks.peers.flows` that makes the flow."""

DECLARED: Mapping[Workload, str] = MappingProxyType({Workload.FOLD: "declared_fold"})
"""The same, with aggregates that are declared instead of folded."""


BATCHES: Mapping[Workload, str] = MappingProxyType({Workload.FLAT_MAP: "batches"})
"""The same, with a function over columns (`map_batches`)."""


@dataclass(frozen=True)
class SqeChain(System):
    """A variant of ours: `sqe-chain run` with the default settings.

    Attributes:
        name: in tables and rows.
        source: JSON or ENVELOPES.
        options: further options of the command.
        flows: workload -> function of `benchmarks.peers.flows` that makes the flow.
        tree: our files, or those of another version.
    """

    name: str
    source: str
    options: tuple[str, ...] = ()
    flows: Mapping[Workload, str] = field(default_factory=lambda: STANDARD)
    guarantee: str = "exactly once, through replays from upstream as well; Redis with appendfsync always"
    versions: str = f"sqe-chain {version('sqe-chain')}"
    tree: Path = ROOT

    @property
    def workloads(self) -> frozenset[Workload]:  # type: ignore[override]
        """Those for which there is a flow."""
        return frozenset(self.flows)

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        """The command that users run, on a module that users would write."""
        function, names = self.flows[job.workload], (job.name, self.source, job.target)
        (job.directory / "measured.py").write_text(
            f"from benchmarks.peers.flows import {function}\n\n"
            f"flow = {function}({', '.join(map(repr, names))}, raw={self.source == JSON})\n",
            encoding="utf-8",
        )
        program = str(Path(sys.executable).with_name("sqe-chain"))
        where = ("--kafka", job.kafka, "--store", job.redis, "--log-json")
        return [[program, "run", "measured:flow", *where, *self.options]]

    def begins(self, line: str) -> bool:
        """Its first batch begins; what that costs before its first record counts."""
        return _event(line).get("event") == "ready"

    def batch(self, line: str) -> int | None:
        """The records of a batch that is committed."""
        event = _event(line)
        return int(str(event["inputs"])) if event.get("event") == "committed" else None

    def payload(self, value: bytes) -> bytes:
        """The payload of an envelope."""
        return EnvelopeHead.FromString(value).payload


def _event(line: str) -> Mapping[str, object]:
    """The fields of a line of ours; nothing if it is no event."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


IN_PROCESS = ("--engine", "inprocess")
TWO_WORKERS = (*IN_PROCESS, "--workers", "2")

SYSTEMS: tuple[System, ...] = (
    KafkaStreams(),
    Quix(),
    Plain(),
    SqeChain("sqe-json", JSON),
    SqeChain("sqe-envelopes", ENVELOPES),
    SqeChain("sqe-declared", JSON, (), DECLARED),
    SqeChain("sqe-batches", JSON, (), BATCHES),
    SqeChain("sqe-json-inprocess", JSON, IN_PROCESS),
    SqeChain("sqe-envelopes-inprocess", ENVELOPES, IN_PROCESS),
    SqeChain("sqe-declared-inprocess", JSON, IN_PROCESS, DECLARED),
    SqeChain("sqe-json-workers2", JSON, TWO_WORKERS),
    SqeChain("sqe-envelopes-workers2", ENVELOPES, TWO_WORKERS),
    SqeChain("sqe-declared-workers2", JSON, TWO_WORKERS, DECLARED),
    SqeChain("sqe-batches-workers2", JSON, TWO_WORKERS, BATCHES),
)
"""Everyone, in the order of each round."""
