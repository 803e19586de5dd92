"""Who takes part: one entry for each system in `SYSTEMS`, set up as its documentation recommends for exact results."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psycopg
from redis import Redis

from benchmarks.peers.installing import HERE as PEERS
from benchmarks.peers.installing import (
    NEWEST_KAFKA,
    Missing,
    flink_connector,
    kafka_streams,
    node_modules,
    pinned,
    python_of,
    retrieved,
)
from benchmarks.storm.oracle import Totals
from benchmarks.storm.system import HERE, Job, System, positions_of, run_there
from sqe_chain.engines.java import java
from sqe_chain.ext.dev.jars import Jars, Report
from sqe_chain.ext.dev.server import free_port


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
        "newer value of its key. Why some facts were lost was not looked into. A republication has new offsets."
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
        run_there([self._python, "-m", "bytewax.recovery", str(recovery), "1"], job)

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


class Restate(System):
    """Restate, see `restate/`: one server, and one process that serves the handler."""

    name = "restate"
    title = "Restate"
    setup = "a virtual object for each robot, its own Kafka subscription, states in the server"
    sentence = "It drops an invocation of a topic, partition and offset that it had; a republication has new offsets."
    beside = False
    topic = False
    ordered = False

    def install(self, report: Report) -> None:
        """Install the SDK from PyPI, and the server from npm."""
        packages = json.loads((HERE / "restate" / "package.json").read_text(encoding="utf-8"))["dependencies"]
        server = "@restatedev/restate-server"
        self.versions = f"{pinned(HERE / 'restate')}, restate-server {packages[server]}"
        self._python = str(python_of(HERE / "restate", report))
        programs = node_modules(HERE / "restate", report).glob(f"{server}-*/bin/restate-server")
        self._server = next((str(program) for program in programs), "")
        if not self._server:
            raise Missing(f"{server} has no program for this machine")

    def prepare(self, job: Job) -> None:
        """Choose its ports; a restart has the same."""
        del job
        self._ports = [str(free_port()) for _ in range(4)]

    def consumer(self, job: Job, instance: int) -> Sequence[str]:
        """One process, which starts the server."""
        del instance
        program, directory = str(HERE / "restate" / "app.py"), str(job.directory / "restate")
        names = (self._server, job.kafka, job.consumer, job.items, directory)
        return [self._python, program, *names, *self._ports]

    def stored(self, job: Job) -> Totals:
        """What its administration shows of states; nothing while it does not answer."""
        del job
        query = "SELECT service_key, value_utf8 FROM state WHERE service_name = 'totals'"
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        body = json.dumps({"query": query}).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{self._ports[1]}/query", body, headers)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310 - its own server
                rows = json.load(answer)["rows"]
        except OSError:
            return {}
        return {row["service_key"]: (*json.loads(row["value_utf8"]),) for row in rows}


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
        done = run_there(command, job)
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
        run_there([*_sqe_chain("rewind", flow, job), *self._options, "--republish", *wanted], job)


def _sqe_chain(command: str, flow: str, job: Job) -> list[str]:
    program = str(Path(sys.executable).with_name("sqe-chain"))
    return [program, command, flow, "--kafka", job.kafka, "--store", job.redis, "--log-json"]


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
    Restate(),
    SqeChain("sqe-chain", "sqe-chain, one process", IN_PROCESS),
    SqeChain("sqe-chain-workers", "sqe-chain, 2 workers", (*IN_PROCESS, "--workers", "2")),
    SqeChain("sqe-chain-spark", "sqe-chain on Spark", ("--engine", "spark")),
    KafkaStreamsTwice(),
    SqeChainTwice("sqe-chain-twice", "sqe-chain behind sqe-chain", IN_PROCESS),
)
"""Everyone, in the order of the table."""
