"""How long a service takes from its start to its first commit, and how its first batch compares with the next one of that size.

The command `sqe-chain run` is started as users start it, on a flow that has states already, with records waiting for it. When its
first batch is committed, as many records are written again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks.flows import PARTITIONS
from benchmarks.latency import IN_PROCESS, SPARK, Place, Service
from sqe_chain.envelope.partitioner import Partitioner
from sqe_chain.ext.dev import KafkaServer, RedisServer

CASES = ((1_000, 10_000), (1_000, 200_000), (1_000_000, 10_000))
"""Keys that have a state, and records of a batch."""

ENGINES = (("in process", IN_PROCESS), ("Spark local[1]", SPARK))

INTERVAL = "20s"
"""Time to write what the second batch reads."""

_CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class Started:
    """What a start took.

    Attributes:
        recovered_s: from the start of the process until it had claimed and recovered, in seconds.
        committed_s: until its first batch was committed.
        first_ms: duration of that batch, by its own statistics.
        next_ms: of the next one, as large.
    """

    recovered_s: float
    committed_s: float
    first_ms: float
    next_ms: float


def write(bootstrap: str, topic: str, keys: int, records: int, first: int) -> None:
    """Write records, of as many of the keys as there are records."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 20,
        }
    )
    partition_of = Partitioner(PARTITIONS)
    for number in range(first, first + records):
        name = b"key-%d" % (number % keys)
        producer.produce(
            topic, b'{"key":"%s","number":%d,"sent_ns":0}' % (name, number), name, partition_of(name)
        )
        if number % _CHUNK == 0:
            producer.flush()
    producer.flush()


def measure(place: Place, options: Sequence[str], keys: int, records: int) -> Started:
    """Run a case.

    Raises:
        RuntimeError: a service ended, or did not do it in time.
        AssertionError: a batch had another size.
    """
    number = next(place.numbers)
    source, target = f"starts.{number}.in", f"starts.{number}.out"
    for topic in (source, target):
        place.topic(topic)
    bootstrap = place.kafka.bootstrap
    flow = f"aggregate('starts-{number}', {source!r}, {target!r}, raw=True)"
    write(bootstrap, source, keys, keys, 0)
    with place.service(f"before-{number}", flow, *IN_PROCESS, "--once") as before:
        before.process.wait(600)
    write(bootstrap, source, keys, records, keys)
    began_s = time.monotonic()
    with place.service(f"start-{number}", flow, *options, "--interval", INTERVAL) as service:
        recovered_s = service.wait_for("recovered") - began_s
        committed_s = service.wait_for("committed") - began_s
        write(bootstrap, source, keys, records, keys + records)
        batches = _two_batches(service)
    assert [inputs for _, inputs in batches] == [records, records], batches
    return Started(recovered_s, committed_s, batches[0][0], batches[1][0])


def _two_batches(service: Service) -> list[tuple[float, float]]:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        found = service.batches(0, float("inf"))
        if len(found) > 1:
            return found[:2]
        time.sleep(0.02)
    raise RuntimeError(f"{service.process.name}: no second batch")


def starting(out: Console, kafka: KafkaServer, redis: RedisServer, only: str) -> None:
    """Measure all cases of the engines whose names contain a text, and print a table."""
    table = Table(
        "engine",
        "keys",
        "recovered",
        "committed",
        "records",
        "first batch",
        "next batch",
        "ratio",
        title="starts",
    )
    with TemporaryDirectory(prefix="bench-starts-", ignore_cleanup_errors=True) as directory:
        place = Place(kafka, redis, Path(directory))
        for keys, records in CASES:
            for name, options in ENGINES:
                if only not in name:
                    continue
                found = measure(place, options, keys, records)
                row = (
                    name,
                    f"{keys:,}",
                    f"{found.recovered_s:.1f} s",
                    f"{found.committed_s:.1f} s",
                    f"{records:,}",
                    f"{found.first_ms:.0f} ms",
                    f"{found.next_ms:.0f} ms",
                    f"{found.first_ms / found.next_ms:.2f}",
                )
                out.print("  ".join(row), style="dim")
                table.add_row(*row)
    out.print(table)
