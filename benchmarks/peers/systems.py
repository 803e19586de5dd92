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

from benchmarks.peers.installing import (
    HERE,
    NEWEST_KAFKA,
    OLDER_KAFKA,
    flink_connector,
    kafka_streams,
    pinned,
    python_of,
)
from benchmarks.peers.workloads import Workload
from sqe_chain.engines.java import java
from sqe_chain.envelope.message import EnvelopeHead
from sqe_chain.ext.dev.jars import Report

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
        middle: topic between two services, which exists.
    """

    name: str
    workload: Workload
    kafka: str
    redis: str
    target: str
    directory: Path
    middle: str = ""


class System(ABC):
    """A system that computes the workloads.

    Attributes:
        name: in tables and rows.
        guarantee: what it promises of results after a crash, and how it is set up.
        title: in the table for people.
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
    title: str = ""
    workloads: frozenset[Workload] = frozenset(Workload)

    def install(self, report: Report) -> None:
        """Get what it needs; by default nothing.

        Raises:
            Missing: that is not possible here.
        """
        del report

    @abstractmethod
    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        """One command for each of its processes. They are run in the job's directory, and killed at the end.

        A workload with two services has one process of each, the first service first.
        """

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
    """Kafka Streams, see `kafka_streams/`.

    Args:
        name: in tables and rows.
        version: of Kafka Streams.
        settings: beside those of our program, with what they mean for people.
    """

    guarantee = "exactly once (exactly_once_v2), 2 threads, RocksDB, commit 1 s"

    def __init__(self, name: str, version: str, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self.name = name
        self.versions = f"Kafka Streams {version}"
        short = version.rpartition(".")[0]
        self.title = ", ".join((f"Kafka Streams {short}, exactly once", *settings.values()))
        self._version = version
        self._settings = tuple(settings)

    def install(self, report: Report) -> None:
        """Download its jars and compile our program."""
        self._class_path = kafka_streams(report, self._version)

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        """One process with two threads, for each service."""
        if job.workload.services == 1:
            return [self._command(job.workload, job, job.name, self.source, job.target)]
        return [
            self._command(job.workload, job, job.name, self.source, job.middle),
            self._command("w5-second-service", job, second(job.name), job.middle, job.target),
        ]

    def _command(self, workload: str, job: Job, name: str, source: str, target: str) -> Sequence[str]:
        options = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Djava.io.tmpdir={job.directory}")
        names = (workload, job.kafka, name, source, target, str(job.directory), *self._settings)
        return [java(), *options, "-cp", self._class_path, "peers.Main", *names]


def second(name: str) -> str:
    """Name of the second service of a run."""
    return f"{name}.second"


FIRST_THREE = frozenset((Workload.FLAT_MAP, Workload.FOLD, Workload.TWO_STAGES))
"""What Quix Streams and the plain loop compute."""


class Quix(System):
    """Quix Streams, see `quix_streams/`."""

    name = "quix"
    title = "Quix Streams 3, exactly once"
    workloads = FIRST_THREE
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


class Flink(System):
    """Flink, see `flink/`: in one process on this machine, without a cluster."""

    name = "flink"
    guarantee = (
        "exactly once (transactions), SQL and a Python function, parallelism 2, RocksDB, checkpoints 1 s"
    )
    title = "Flink 2.3 (PyFlink), exactly once"
    versions = pinned(HERE / "flink")
    workloads = frozenset((Workload.FLAT_MAP, Workload.FOLD, Workload.WINDOWS))

    def install(self, report: Report) -> None:
        """Install it from PyPI, and its connector from Maven Central."""
        self._connector = str(flink_connector(report))
        self._python = str(python_of(HERE / "flink", report))

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        """One process, which starts the Java of its own."""
        home = f"JAVA_HOME={Path(java()).resolve().parents[1]}"
        names = (job.workload, job.kafka, job.name, self.source, job.target, str(job.directory))
        return [["env", home, self._python, str(HERE / "flink" / "app.py"), *names, self._connector]]


class Plain(System):
    """A plain loop, see `plain_loop/`."""

    name = "plain"
    title = "plain loop, at least once"
    workloads = FIRST_THREE
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
    {
        Workload.FLAT_MAP: "flat_map",
        Workload.FOLD: "fold",
        Workload.TWO_STAGES: "two_stages",
        Workload.WINDOWS: "windows",
        Workload.CHAIN: "flat_map",
        Workload.FILTER: "once",
    }
)
"""Workload -> function of `benchmarks.peers.flows` that makes the flow, or that of the first service."""

SECOND = "fold_screws"
"""The function that makes the flow of the second service."""

KEEPING_UP = frozenset((Workload.WINDOWS, Workload.CHAIN, Workload.FILTER))
"""Workloads whose last results come when nothing more is to be read: after an interval, which is then as others have it."""

DECLARED: Mapping[Workload, str] = MappingProxyType(
    {Workload.FOLD: "declared_fold", Workload.WINDOWS: "declared_windows"}
)
"""The same, with aggregates that are declared instead of folded."""


BATCHES: Mapping[Workload, str] = MappingProxyType({Workload.FLAT_MAP: "batches"})
"""The same, with a function over columns (`map_batches`)."""


IN_TRANSACTIONS: Mapping[Workload, str] = MappingProxyType(
    {Workload.FLAT_MAP: "flat_map_in_transactions", Workload.FOLD: "fold_in_transactions"}
)
"""The same, each batch in one Kafka transaction."""
MARKERS = ("--create-topics", "0")


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
    title: str = ""
    tree: Path = ROOT

    @property
    def workloads(self) -> frozenset[Workload]:  # type: ignore[override]
        """Those for which there is a flow."""
        return frozenset(self.flows)

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        """The command that users run, on a module that users would write, for each service."""
        function = self.flows[job.workload]
        # The others commit once a second, too. A service that keeps up gives results once an interval.
        interval = ("--interval", "1s") if job.workload in KEEPING_UP else ()
        if job.workload.services == 1:
            return [[*self._command("measured", function, job, job.name, self.source, job.target), *interval]]
        return [
            self._command("measured", function, job, job.name, self.source, job.middle),
            [*self._command("behind", SECOND, job, second(job.name), job.middle, job.target), *interval],
        ]

    def _command(
        self, module: str, function: str, job: Job, name: str, source: str, target: str
    ) -> Sequence[str]:
        names = ", ".join(map(repr, (name, source, target)))
        (job.directory / f"{module}.py").write_text(
            f"from benchmarks.peers.flows import {function}\n\n"
            f"flow = {function}({names}, raw={source == JSON})\n",
            encoding="utf-8",
        )
        program = str(Path(sys.executable).with_name("sqe-chain"))
        where = ("--kafka", job.kafka, "--store", job.redis, "--log-json")
        return [program, "run", f"{module}:flow", *where, *self.options]

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

TRANSACTIONAL = MappingProxyType({"enable.transactional.statestores=true": "transactional stores"})

SYSTEMS: tuple[System, ...] = (
    KafkaStreams(KAFKA_STREAMS, OLDER_KAFKA),
    KafkaStreams("kafka-streams-4.4", NEWEST_KAFKA),
    KafkaStreams("kafka-streams-4.4-transactional", NEWEST_KAFKA, TRANSACTIONAL),
    Flink(),
    Quix(),
    Plain(),
    SqeChain("sqe-json", JSON, title="sqe-chain, Spark"),
    SqeChain("sqe-envelopes", ENVELOPES, title="from envelopes, Spark"),
    SqeChain("sqe-declared", JSON, (), DECLARED, title="declared, Spark"),
    SqeChain("sqe-batches", JSON, (), BATCHES, title="by columns, Spark"),
    SqeChain("sqe-json-inprocess", JSON, IN_PROCESS, title="sqe-chain, one process"),
    SqeChain("sqe-envelopes-inprocess", ENVELOPES, IN_PROCESS, title="from envelopes, one process"),
    SqeChain("sqe-declared-inprocess", JSON, IN_PROCESS, DECLARED, title="declared, one process"),
    SqeChain("sqe-json-workers2", JSON, TWO_WORKERS, title="sqe-chain, `--workers 2`"),
    SqeChain("sqe-envelopes-workers2", ENVELOPES, TWO_WORKERS, title="from envelopes, `--workers 2`"),
    SqeChain("sqe-declared-workers2", JSON, TWO_WORKERS, DECLARED, title="declared, `--workers 2`"),
    SqeChain("sqe-transactions", JSON, MARKERS, IN_TRANSACTIONS, title="in transactions, Spark"),
    SqeChain(
        "sqe-transactions-inprocess",
        JSON,
        (*IN_PROCESS, *MARKERS),
        IN_TRANSACTIONS,
        title="in transactions, one process",
    ),
    SqeChain(
        "sqe-transactions-workers2",
        JSON,
        (*TWO_WORKERS, *MARKERS),
        IN_TRANSACTIONS,
        title="in transactions, `--workers 2`",
    ),
    SqeChain("sqe-batches-workers2", JSON, TWO_WORKERS, BATCHES, title="by columns, `--workers 2`"),
)
"""Everyone, in the order of each round."""
