"""How long a record takes through two services, from the producer's call to the reader of the last topic.

Everything runs as users run it: two commands `sqe-chain run`, a producer and a broker, each in a process of its own. The
time of the call is in the record; all processes share the machine's monotonic clock.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import msgspec
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks.flows import PARTITIONS
from benchmarks.hops import Latest, Sent
from services.demo.process import Process, tail
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.envelope.message import EnvelopeHead
from sqe_chain.ext.dev import KafkaServer, RedisServer

ROOT = Path(__file__).resolve().parent.parent

RATE = 10_000
"""Records a second."""

KEYS = 10_000
"""More than the records of a batch, so that the changes of an aggregate are nearly all records."""

START_S = 120.0
WARM_UP_S = 10.0
END_S = 60.0

SPARK = ("--engine", "spark", "--master", "local[1]")
IN_PROCESS = ("--engine", "inprocess")


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Attributes:
        name: in the table.
        second: function of `benchmarks.hops` that makes the second service.
        options: of both services.
    """

    name: str
    second: str
    options: tuple[str, ...]


CASES = tuple(
    Case(f"{engine}, {what}", second, (*options, "--interval", interval))
    for engine, options in (("in process", IN_PROCESS), ("Spark local[1]", SPARK))
    for what, second, interval in (
        ("republish twice", "republish", "100ms"),
        ("republish, aggregate each 100 ms", "aggregate", "100ms"),
        ("republish, aggregate with interval 0", "aggregate", "0ms"),
    )
)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of some figures."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Percentiles:
        """Those of at least two figures."""
        cuts = quantiles(figures, n=100, method="inclusive")
        return cls(median(figures), cuts[94], cuts[98])


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a case, in milliseconds.

    Attributes:
        latency: from the call to the reader.
        batches: duration of a batch of each service, by its own statistics.
        inputs: records of such a batch.
    """

    latency: Percentiles
    batches: tuple[Percentiles, ...]
    inputs: tuple[float, ...]

    @property
    def waited(self) -> float:
        """What is left of the median: waiting for batches to begin, the producer, the broker, the reader."""
        return self.latency.p50 - sum(batch.p50 for batch in self.batches)


class Reader:
    """Reads a topic from its beginning, in a thread; keeps each value and when it came."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.received: list[tuple[int, bytes]] = []
        self._ended = threading.Event()
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "bench-reader", "isolation.level": "read_committed"}
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        poll, append = self._consumer.poll, self.received.append
        while not self._ended.is_set():
            message = poll(0.1)
            if message is not None and message.error() is None:
                append((time.monotonic_ns(), message.value() or b""))

    def close(self) -> None:
        """Stop reading."""
        self._ended.set()
        self._thread.join()
        self._consumer.close()


@dataclass(slots=True)
class Place:
    """Where services run.

    Attributes:
        kafka: the broker.
        redis: the store.
        directory: for logs and modules.
    """

    kafka: KafkaServer
    redis: RedisServer
    directory: Path
    numbers: Iterator[int] = field(default_factory=count)

    @contextmanager
    def service(self, name: str, function: str, *options: str) -> Iterator[Service]:
        """Run `sqe-chain run` on a flow of `benchmarks.hops`; kill it at the end."""
        module = f"measured_{name.replace('-', '_')}"
        (self.directory / f"{module}.py").write_text(
            f"from benchmarks import hops\n\nflow = hops.{function}\n"
        )
        program = str(Path(sys.executable).with_name("sqe-chain"))
        where = ("--kafka", self.kafka.bootstrap, "--store", self.redis.url, "--log-json")
        environment = {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "SPARK_LOCAL_DIRS": str(self.directory),
        }
        heard: SimpleQueue[tuple[str, float, str]] = SimpleQueue()
        command = (program, "run", f"{module}:flow", *where, *options)
        process = Process(name, command, self.directory / f"{name}.log", heard, self.directory, environment)
        try:
            yield Service(process, heard)
        finally:
            process.kill()

    def topic(self, name: str) -> None:
        """Create a topic."""
        KafkaLog(self.kafka.bootstrap).create_topic(name, PARTITIONS)


@dataclass(slots=True)
class Service:
    """A service that runs, and the events that it has emitted."""

    process: Process
    heard: SimpleQueue[tuple[str, float, str]]
    events: list[tuple[float, dict[str, object]]] = field(default_factory=list)

    def listen(self) -> None:
        """Take in the events since the last call."""
        while True:
            try:
                _, at_s, line = self.heard.get_nowait()
            except Empty:
                return
            try:
                found = json.loads(line)
            except ValueError:
                continue
            self.events.append((at_s, found))

    def wait_for(self, event: str, *, after: int = 0, timeout_s: float = START_S) -> float:
        """Wait until it has emitted an event; returns when it did, on the monotonic clock.

        Raises:
            RuntimeError: it ended, or did not emit the event in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and self.process.ended is None:
            self.listen()
            for at_s, found in self.events[after:]:
                if found.get("event") == event:
                    return at_s
            time.sleep(0.02)
        raise RuntimeError(f"{self.process.name}: no {event!r}\n{tail(self.process.log, 30)}")

    def batches(self, since_s: float, until_s: float) -> list[tuple[float, float]]:
        """Duration in milliseconds, and records, of the batches of some time."""
        self.listen()
        return [
            (float(str(found["batch_ms"])), float(str(found["inputs"])))
            for at_s, found in self.events
            if since_s <= at_s <= until_s and found.get("event") == "committed"
        ]


def measure(place: Place, case: Case, seconds: float) -> Found:
    """Run a case.

    Raises:
        RuntimeError: a service ended.
        AssertionError: records are missing in the end.
    """
    number = next(place.numbers)
    topics = tuple(f"hops.{number}.{name}" for name in ("in", "between", "out"))
    with ExitStack() as ends:
        for topic in topics:
            place.topic(topic)
        flows = [
            f"{function}('hops-{number}-{hop}', {source!r}, {target!r}, raw={hop == 1})"
            for hop, function, source, target in (
                (1, "republish", *topics[:2]),
                (2, case.second, *topics[1:]),
            )
        ]
        services = [
            ends.enter_context(place.service(f"hop-{number}-{hop}", flow, *case.options))
            for hop, flow in enumerate(flows, 1)
        ]
        for service in services:
            service.wait_for("recovered")
        reader = Reader(place.kafka.bootstrap, topics[-1])
        ends.callback(reader.close)
        producer = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.producer",
                place.kafka.bootstrap,
                topics[0],
                str(RATE),
                str(KEYS),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        ends.callback(producer.kill)
        time.sleep(WARM_UP_S)
        since_s = time.monotonic()
        time.sleep(seconds)
        until_s = time.monotonic()
        batches = [service.batches(since_s, until_s) for service in services]
        produced = int(producer.communicate()[0])
        kind = Latest if case.second == "aggregate" else Sent
        latencies = _await(reader, produced, kind, since_s * 1e9, until_s * 1e9)
    return Found(
        Percentiles.of(latencies),
        tuple(Percentiles.of([ms for ms, _ in found]) for found in batches),
        tuple(median(inputs for _, inputs in found) for found in batches),
    )


def _await(
    reader: Reader, produced: int, kind: type[Sent | Latest], since_ns: float, until_ns: float
) -> list[float]:
    """Wait for the last record of each key; returns the latencies, in milliseconds, of what was sent in a certain time."""
    last = {number % KEYS: number for number in range(max(0, produced - KEYS), produced)}
    decode = msgspec.json.Decoder(kind).decode
    latencies: list[float] = []
    numbers = set[int]()
    deadline_s, at = time.monotonic() + END_S, 0
    while not numbers.issuperset(last.values()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
        received, at = reader.received[at:], len(reader.received)
        for received_ns, value in received:
            message = decode(EnvelopeHead.FromString(value).payload)
            numbers.add(message.number)
            if since_ns <= message.sent_ns <= until_ns:
                latencies.append((received_ns - message.sent_ns) / 1e6)
    assert numbers.issuperset(last.values()), "the last record of some keys did not come"
    assert kind is Latest or len(numbers) == produced, f"{len(numbers)} of {produced} records came"
    return latencies


def latency(out: Console, kafka: KafkaServer, redis: RedisServer, only: str, seconds: float) -> None:
    """Measure all cases whose names contain a text, and print a table."""
    table = Table("two services", "p50", "p95", "p99", "batches", "records", "waited", title="milliseconds")
    with TemporaryDirectory(prefix="bench-latency-", ignore_cleanup_errors=True) as directory:
        place = Place(kafka, redis, Path(directory))
        for case in CASES:
            if only not in case.name:
                continue
            found = measure(place, case, seconds)
            p = found.latency
            batches = " + ".join(f"{one.p50:.0f}" for one in found.batches)
            inputs = " + ".join(f"{one:.0f}" for one in found.inputs)
            row = (
                case.name,
                f"{p.p50:.0f}",
                f"{p.p95:.0f}",
                f"{p.p99:.0f}",
                batches,
                inputs,
                f"{found.waited:.0f}",
            )
            out.print("  ".join(row), style="dim")
            table.add_row(*row)
    out.print(table)
