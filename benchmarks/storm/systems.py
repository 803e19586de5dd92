"""Who takes part: one entry for each system in `SYSTEMS`, set up as its documentation recommends for exact results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import confluent_kafka.admin
import psycopg
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from redis import Redis

from benchmarks.peers.installing import HERE as PEERS
from benchmarks.peers.installing import (
    NEWEST_KAFKA,
    flink_connector,
    kafka_streams,
    pinned,
    python_of,
    retrieved,
)
from benchmarks.storm.oracle import Totals
from benchmarks.storm.watching import PARTITIONS, wait
from sqe_chain.engines.java import java
from sqe_chain.ext.dev.jars import Jars, Report
from sqe_chain.ext.dev.server import free_port

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one system.

    Attributes:
        name: of the run; no other has it.
        kafka: bootstrap servers.
        redis: URL of a durable Redis.
        postgres: URL of a durable PostgreSQL; empty if no system of the storm needs one.
        directory: for states and programs, empty at the beginning.
    """

    name: str
    kafka: str
    redis: str
    postgres: str
    directory: Path

    @property
    def reports(self) -> str:
        """Topic of the producer."""
        return f"{self.name}.reports"

    @property
    def items(self) -> str:
        """Topic of the republisher."""
        return f"{self.name}.items"

    @property
    def totals(self) -> str:
        """Topic of the consumer."""
        return f"{self.name}.totals"

    @property
    def republisher(self) -> str:
        """Group of the republisher."""
        return f"{self.name}.republisher"

    @property
    def consumer(self) -> str:
        """Group of the consumer."""
        return f"{self.name}.consumer"

    def positions(self) -> dict[int, int]:
        """Up to where the republisher has committed, by partition; empty while the broker does not answer."""
        asking = Consumer({"bootstrap.servers": self.kafka, "group.id": self.republisher, "log_level": 0})
        places = [TopicPartition(self.reports, partition) for partition in range(PARTITIONS)]
        try:
            return {place.partition: max(0, place.offset) for place in asking.committed(places, timeout=5)}
        except KafkaException:
            return {}
        finally:
            asking.close()


class Stuck(Exception):
    """A storm did not get to its end, or a fault could not strike as drawn: there is no verdict. The text names where."""


class System(ABC):
    """A system under storm.

    Attributes:
        name: on the command line.
        title: in the table.
        sentence: why its results are what they are, without a judgement.
        setup: how it is set up.
        versions: of what it consists of.
        beside: whether its documentation lets a second one run beside it, as after a failed health check.
        aims: whether it kills itself when it is asked to, between its store and its commit.
        ours: whether it is sqe-chain.
        postgres: whether it needs PostgreSQL.
        topic: whether it publishes totals for readers outside; else its database shows them.
        ordered: whether it processes the messages of a partition in their order.
    """

    name: str
    title: str
    sentence: str
    setup: str
    versions: str = ""
    beside: bool = True
    aims: bool = False
    ours: bool = False
    postgres: bool = False
    topic: bool = True
    ordered: bool = True

    def install(self, report: Report) -> None:
        """Get what it needs; by default nothing.

        Raises:
            Missing: that is not possible here.
        """
        del report

    def prepare(self, job: Job) -> None:
        """Make what a run needs before its first start; by default nothing."""
        del job

    @abstractmethod
    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """The command of the consumer; `instance` counts machines: a new one has an empty disk."""

    def republisher(self, job: Job) -> Sequence[str]:
        """The command of the republisher: by default the one that is the same for all."""
        program = str(HERE / "republisher.py")
        return [sys.executable, program, job.kafka, job.republisher, job.reports, job.items]

    @property
    def own_republisher(self) -> bool:
        """Whether the republisher is this system, too."""
        return type(self).republisher is not System.republisher

    def rewind(self, job: Job, back: int) -> None:
        """Put the republisher, which has been stopped, back: by default the offsets of its group."""
        move_group(job, {partition: max(0, at - back) for partition, at in positions_of(job).items()})

    def stored(self, job: Job) -> Totals | None:
        """The totals in its database; None if its store is inside, and its topic shows what it has."""
        del job
        return None


def positions_of(job: Job) -> dict[int, int]:
    """Where the republisher is; waits while the broker does not answer.

    Raises:
        Stuck: it did not answer in time.
    """
    found: dict[int, int] = {}

    def ask() -> bool:
        found.update(job.positions())
        return bool(found)

    if not wait(ask, _PATIENCE_S):
        raise Stuck(f"the broker did not report the offsets of {job.republisher}")
    return found


def move_group(job: Job, offsets: Mapping[int, int]) -> None:
    """What `kafka-consumer-groups --reset-offsets` does: it works once no member is left.

    Raises:
        Stuck: members stayed.
    """
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": job.kafka, "log_level": 0})
    places = [TopicPartition(job.reports, partition, offset) for partition, offset in offsets.items()]

    def alter() -> bool:
        with suppress(KafkaException):
            asked = admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(job.republisher, places)]
            )
            moved = [place for future in asked.values() for place in future.result().topic_partitions]
            return not any(place.error for place in moved)
        return False

    if not wait(alter, _PATIENCE_S, every_s=0.5):
        raise Stuck(f"the offsets of {job.republisher} could not be moved")


class Plain(System):
    """A plain loop, see `plain_loop/`."""

    name = "plain"
    title = "plain loop"
    setup = "manual commits behind each block, totals in Redis (MULTI/EXEC, appendfsync always)"
    sentence = "Store and offsets are two systems: a crash between them counts a block again, and so does a republication."
    aims = True

    def install(self, report: Report) -> None:
        """Install its packages."""
        self.versions = pinned(PEERS / "plain_loop")
        self._python = str(python_of(PEERS / "plain_loop", report))

    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """One process."""
        del instance
        program = str(HERE / "plain_loop" / "app.py")
        return [self._python, program, job.kafka, job.consumer, job.items, job.totals, job.redis]

    def stored(self, job: Job) -> Totals:
        """What is in Redis."""
        with Redis.from_url(job.redis, decode_responses=True) as redis:
            events, sums = (redis.hgetall(f"{job.consumer}/{name}") for name in ("events", "sum"))
        return {robot: (int(events.get(robot, 0)), int(total)) for robot, total in sums.items()}


class KafkaStreams(System):
    """Kafka Streams, see `kafka_streams/`."""

    name = "kafka-streams"
    title = "Kafka Streams"
    setup = "exactly_once_v2, 2 threads, RocksDB and its changelog; the session and transaction timeouts are shortened"
    sentence = "Its transactions end at its cluster; a republication is new data to it."
    versions = f"Kafka Streams {NEWEST_KAFKA}"

    def install(self, report: Report) -> None:
        """Download its jars and compile our program."""
        self._class_path = kafka_streams(report, NEWEST_KAFKA, HERE / "kafka_streams")

    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """One process."""
        return self._command("totals", job, job.consumer, (job.items, job.totals), f"consumer-{instance}")

    def _command(
        self, which: str, job: Job, group: str, topics: tuple[str, str], directory: str
    ) -> Sequence[str]:
        options = ("-Xmx256m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        where = str(job.directory / directory)
        return [
            java(),
            *options,
            "-cp",
            self._class_path,
            "storm.Storm",
            which,
            job.kafka,
            group,
            *topics,
            where,
        ]


class KafkaStreamsTwice(KafkaStreams):
    """Kafka Streams behind Kafka Streams."""

    name = "kafka-streams-twice"
    title = "Kafka Streams behind Kafka Streams"
    sentence = "A crash of a transactional republisher repeats nothing; what an operator rewinds is new data."

    def republisher(self, job: Job) -> Sequence[str]:
        """The republisher, exactly once as well."""
        return self._command("republisher", job, job.republisher, (job.reports, job.items), "republisher")


class Quix(System):
    """Quix Streams, see `quix_streams/`."""

    name = "quix"
    title = "Quix Streams"
    setup = "processing_guarantee exactly-once, RocksDB and its changelog, commit 1 s"
    sentence = "Its transactions cover offsets, changelog and outputs of one cluster; a republication has new offsets."

    def install(self, report: Report) -> None:
        """Install it from PyPI."""
        self.versions = pinned(PEERS / "quix_streams")
        self._python = str(python_of(PEERS / "quix_streams", report))

    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """One process."""
        program, state = str(HERE / "quix_streams" / "app.py"), str(job.directory / f"consumer-{instance}")
        return [self._python, program, job.kafka, job.consumer, job.items, job.totals, state]


class Flink(System):
    """Flink, see `flink/`: in one process on this machine, without a cluster."""

    name = "flink"
    title = "Flink"
    setup = "SQL, exactly-once checkpoints each second, RocksDB, transactional sink, begins at its newest checkpoint"
    sentence = (
        "A checkpoint holds offsets and states together; a republication is behind the offsets, so it is new."
    )
    beside = False

    def install(self, report: Report) -> None:
        """Install it from PyPI, and its connector from Maven Central."""
        self.versions = pinned(PEERS / "flink")
        self._connector = str(flink_connector(report))
        self._python = str(python_of(PEERS / "flink", report))

    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """One process, which starts the Java of its own."""
        del instance
        names = (job.kafka, job.consumer, job.items, job.totals, str(job.directory / "flink"))
        return [*_with_java(), self._python, str(HERE / "flink" / "app.py"), *names, self._connector]


_SPARK = "4.2.0"
_SPARK_KAFKA = Jars(
    name="Spark-Kafka",
    version=_SPARK,
    dependencies=(("org.apache.spark", "spark-sql-kafka-0-10_2.13", _SPARK),),
    main=f"spark-sql-kafka-0-10_2.13-{_SPARK}.jar",
    megabytes=60,
    steps=24,
)


class Spark(System):
    """Spark Structured Streaming, see `spark/`."""

    name = "spark"
    title = "Spark Structured Streaming"
    setup = "update mode each second, states in its checkpoint (RocksDB), Kafka sink, which is at least once"
    sentence = (
        "Its checkpoint makes states exact for the offsets that it has read; a republication has new offsets."
    )
    beside = False

    def install(self, report: Report) -> None:
        """Install it from PyPI, and its connector from Maven Central."""
        self.versions = pinned(HERE / "spark")
        self._python = str(python_of(HERE / "spark", report))
        directory = retrieved(_SPARK_KAFKA, HERE / "spark" / "jars.sha256", report)
        needed = ("spark-", "kafka-clients", "commons-pool2")
        self._jars = ",".join(
            str(jar) for jar in sorted(directory.glob("*.jar")) if jar.name.startswith(needed)
        )

    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """One driver with two threads."""
        del instance
        program, checkpoint = str(HERE / "spark" / "app.py"), str(job.directory / "checkpoint")
        return [
            *_with_java(),
            self._python,
            program,
            job.kafka,
            job.items,
            job.totals,
            checkpoint,
            self._jars,
        ]


class Faust(System):
    """Faust, see `faust/`."""

    name = "faust"
    title = "Faust"
    setup = "faust-streaming, processing_guarantee exactly_once, RocksDB and its changelog, commit 1 s"
    sentence = (
        "A change is in RocksDB before its transaction commits. A kill in between leaves it there, unless the changelog has a "
        "newer value of its key. A republication has new offsets."
    )

    def install(self, report: Report) -> None:
        """Install it from PyPI."""
        self.versions = pinned(HERE / "faust")
        self._python = str(python_of(HERE / "faust", report))

    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """One worker."""
        program, state = str(HERE / "faust" / "app.py"), str(job.directory / f"consumer-{instance}")
        names = (job.kafka, job.consumer, job.items, job.totals, state, str(free_port()))
        return [self._python, program, *names]


class Bytewax(System):
    """Bytewax, see `bytewax/`."""

    name = "bytewax"
    title = "Bytewax"
    setup = "recovery with a snapshot each second, its Kafka connectors"
    sentence = (
        "A snapshot holds offsets and states together; a republication is behind the offsets, so it is new."
    )
    beside = False

    def install(self, report: Report) -> None:
        """Install it from PyPI."""
        self.versions = pinned(HERE / "bytewax")
        self._python = str(python_of(HERE / "bytewax", report))

    def prepare(self, job: Job) -> None:
        """Make the database of its snapshots."""
        recovery = job.directory / "recovery"
        recovery.mkdir()
        _run_there([self._python, "-m", "bytewax.recovery", str(recovery), "1"], job)

    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """One worker."""
        del instance
        settings = (f"STORM_KAFKA={job.kafka}", f"STORM_SOURCE={job.items}", f"STORM_TARGET={job.totals}")
        recovery = ("-r", str(job.directory / "recovery"), "-s", "1", "-b", "0")
        program = f"{HERE / 'bytewax' / 'app.py'}:flow"
        return ["env", *settings, self._python, "-m", "bytewax.run", program, *recovery]


class Dbos(System):
    """DBOS, see `dbos/`."""

    name = "dbos"
    title = "DBOS"
    setup = "a workflow for each message, its transaction in PostgreSQL"
    sentence = "A workflow's id is topic, partition and offset, so a republication is another workflow."
    postgres = True
    topic = False
    ordered = False

    def install(self, report: Report) -> None:
        """Install it from PyPI."""
        self.versions = pinned(HERE / "dbos")
        self._python = str(python_of(HERE / "dbos", report))

    def prepare(self, job: Job) -> None:
        """Create its table."""
        with psycopg.connect(job.postgres, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS totals (run TEXT, robot TEXT, events BIGINT, sum BIGINT, PRIMARY KEY (run, robot))"
            )

    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """One process."""
        del instance
        url = job.postgres.replace("postgres://", "postgresql+psycopg://")
        return [self._python, str(HERE / "dbos" / "app.py"), job.kafka, job.consumer, job.items, url]

    def stored(self, job: Job) -> Totals:
        """What is in PostgreSQL."""
        query = "SELECT robot, events, sum FROM totals WHERE run = %s"
        with psycopg.connect(job.postgres) as connection:
            rows = connection.execute(query, (job.consumer,)).fetchall()
        return {robot: (events, total) for robot, events, total in rows}


def _with_java() -> Sequence[str]:
    return ["env", f"JAVA_HOME={Path(java()).resolve().parents[1]}"]


class SqeChain(System):
    """sqe-chain on one of its engines, in front of the republisher that all have.

    Args:
        name: on the command line.
        title: in the table.
        options: of the engine.
    """

    setup = "`sqe-chain run --interval 1s`, states in Redis (appendfsync always)"
    sentence = (
        "The chain in each message names its origin, so what comes again is dropped, wherever its offset is."
    )
    versions = f"sqe-chain {version('sqe-chain')}"
    ours = True

    def __init__(self, name: str, title: str, options: Sequence[str]) -> None:
        self.name = name
        self.title = title
        self._options = tuple(options)

    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """The command that users run. Another instance does not wait for the one that seems alive."""
        flow = self._flow(job, "totals", job.consumer, job.items, job.totals)
        takeover = ("--takeover",) if instance else ()
        return self._run(flow, job, "--interval", "1s", *takeover)

    def _run(self, flow: str, job: Job, *options: str) -> Sequence[str]:
        return [*_sqe_chain("run", flow, job), *self._options, *options]

    def _flow(self, job: Job, function: str, name: str, source: str, target: str) -> str:
        """A module as users would write it; returns how commands name its flow."""
        module = f"{function}_module"
        (job.directory / f"{module}.py").write_text(
            f"from benchmarks.storm.flows import {function}\n\n"
            f"flow = {function}({name!r}, {source!r}, {target!r})\n",
            encoding="utf-8",
        )
        return f"{module}:flow"

    def stored(self, job: Job) -> Totals:
        """What its command shows of the store."""
        flow = self._flow(job, "totals", job.consumer, job.items, job.totals)
        program = str(Path(sys.executable).with_name("sqe-chain"))
        command = [program, "state", flow, "per-robot", "--store", job.redis, "--json", "--limit", "1000000"]
        done = _run_there(command, job)
        states = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return {one["state"]["robot"]: (one["state"]["events"], one["state"]["sum"]) for one in states}


class SqeChainTwice(SqeChain):
    """sqe-chain behind sqe-chain."""

    def republisher(self, job: Job) -> Sequence[str]:
        """A flow without states."""
        flow = self._flow(job, "republisher", job.republisher, job.reports, job.items)
        return self._run(flow, job, "--create-topics", "0")

    def rewind(self, job: Job, back: int) -> None:
        """By its own command, which publishes again what is behind the given offsets."""
        flow = self._flow(job, "republisher", job.republisher, job.reports, job.items)
        places = [f"{job.reports}[{part}]={max(0, at - back)}" for part, at in positions_of(job).items()]
        wanted = [word for place in places for word in ("--to", place)]
        _run_there([*_sqe_chain("rewind", flow, job), *self._options, "--republish", *wanted], job)


def _sqe_chain(command: str, flow: str, job: Job) -> list[str]:
    program = str(Path(sys.executable).with_name("sqe-chain"))
    return [program, command, flow, "--kafka", job.kafka, "--store", job.redis, "--log-json"]


def _run_there(command: Sequence[str], job: Job) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=job.directory, env=environment(job), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Stuck(f"{' '.join(command[:4])} ended with {done.returncode}: {done.stderr[-2_000:]}")
    return done


def environment(job: Job) -> dict[str, str]:
    """What all processes of a run have in their environment."""
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{job.directory}",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(job.directory),
        "SPARK_LOCAL_DIRS": str(job.directory),
    }


IN_PROCESS = ("--engine", "inprocess")

SYSTEMS: tuple[System, ...] = (
    Plain(),
    KafkaStreams(),
    Flink(),
    Spark(),
    Quix(),
    Faust(),
    Bytewax(),
    Dbos(),
    SqeChain("sqe-chain", "sqe-chain, one process", IN_PROCESS),
    SqeChain("sqe-chain-workers", "sqe-chain, 2 workers", (*IN_PROCESS, "--workers", "2")),
    SqeChain("sqe-chain-spark", "sqe-chain on Spark", ("--engine", "spark")),
    KafkaStreamsTwice(),
    SqeChainTwice("sqe-chain-twice", "sqe-chain behind sqe-chain", IN_PROCESS),
)
"""Everyone, in the order of the table."""
