"""How long a flush takes where brokers are far away: in round trips, beside the plain client.

Three brokers, reached by connections that delay what they carry. Each partition gets the same few records; then a flush waits for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks.cluster import Cluster
from sqe_chain.adapters.kafka import KafkaLog

ROUND_TRIPS_S: Final = (0.0, 0.005, 0.02)
PARTITIONS: Final = (1, 8, 64)
RECORDS: Final = 20
"""Of each partition: they fit into one request."""

_WARM_UP: Final = 3
_VALUE: Final = b"x" * 100


class Ours:
    """The writer of a `KafkaLog`."""

    called = "ours"

    def __init__(self, bootstrap: str) -> None:
        self._log = KafkaLog(bootstrap)
        self._writer = self._log.writer()

    def flush_s(self, topic: str, partitions: int) -> float:
        """Write, and return how long the flush takes."""
        self._writer.write(
            [(topic, number % partitions, None, _VALUE, None, 0) for number in range(RECORDS * partitions)]
        )
        began = time.perf_counter()
        self._writer.flush()
        return time.perf_counter() - began

    def close(self) -> None:
        """Close it."""
        self._writer.close()
        self._log.close()


FIVE: Final[dict[str, object]] = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 5}
"""The driver's defaults for an idempotent producer."""

ONE: Final[dict[str, object]] = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 1}


class Plain:
    """The driver's producer.

    Args:
        bootstrap: the brokers.
        settings: `FIVE` or `ONE`.
    """

    def __init__(self, bootstrap: str, settings: dict[str, object]) -> None:
        self.called = f"plain, {settings['max.in.flight.requests.per.connection']} in flight"
        self._producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", **settings})

    def flush_s(self, topic: str, partitions: int) -> float:
        """As `Ours.flush_s`."""
        for number in range(RECORDS * partitions):
            self._producer.produce(topic, _VALUE, partition=number % partitions)
        began = time.perf_counter()
        assert self._producer.flush(60) == 0
        return time.perf_counter() - began

    def close(self) -> None:
        """Nothing is left to do after a flush."""


def flushing(out: Console, rounds: int) -> None:
    """Measure flushes of all three, in turn, and print a table.

    Args:
        out: takes the table.
        rounds: for each, ten flushes.
    """
    table = Table(
        "round trip", "partitions", title="time of a flush: median, and in round trips that and the fastest"
    )
    makers: tuple[Callable[[str], Ours | Plain], ...] = (
        Ours,
        lambda bootstrap: Plain(bootstrap, FIVE),
        lambda bootstrap: Plain(bootstrap, ONE),
    )
    with Cluster() as cluster:
        for number in PARTITIONS:
            cluster.create_topic(f"flush-{number}", number)
        writers = [make(cluster.bootstrap) for make in makers]
        for one in writers:
            table.add_column(one.called, justify="right")
        for round_trip_s in ROUND_TRIPS_S:
            cluster.wire.delay(round_trip_s / 2)
            for number in PARTITIONS:
                taken = _in_turn(writers, f"flush-{number}", number, 10 * rounds)
                cells = [_shown(times, round_trip_s) for times in taken]
                table.add_row(f"{round_trip_s * 1e3:g} ms", f"{number}", *cells)
        for one in writers:
            one.close()
    out.print(table)


def _in_turn(writers: list[Ours | Plain], topic: str, partitions: int, flushes: int) -> list[list[float]]:
    taken = [list[float]() for _ in writers]
    for _ in range(_WARM_UP + flushes):
        for one, times in zip(writers, taken, strict=True):
            times.append(one.flush_s(topic, partitions))
    return [times[_WARM_UP:] for times in taken]


def _shown(times: list[float], round_trip_s: float) -> str:
    milliseconds = f"{median(times) * 1e3:.1f} ms"
    if not round_trip_s:
        return milliseconds
    return f"{milliseconds}: {median(times) / round_trip_s:.1f}, {min(times) / round_trip_s:.1f}"
