"""What tracing costs: the spans of a batch, and the `traceparent` of its records, against the same without.

Both sides take turns in one process, in an order that changes with each turn. What counts is processor time, that of the
exporter's thread included. A ratio compares two turns that follow each other. Turns are repeated until the error of the median
is smaller than a third of the effect.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from math import sqrt
from statistics import median
from typing import Any, Final

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from rich.console import Console
from rich.table import Table

from benchmarks.backlog import Backlog
from benchmarks.flows import PARTITIONS, aggregation, traced
from benchmarks.parts import NoStates
from benchmarks.service import Notes, Service
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.ext.dev import KafkaServer, RedisServer
from sqe_chain.ext.telemetry.exporting import provider_of
from sqe_chain.ext.telemetry.tracing import Tracing
from sqe_chain.flow import Flow
from sqe_chain.plans.events import Event, When
from sqe_chain.ports import Range
from sqe_chain.task.event_times import EventTimes
from sqe_chain.task.reading import Reading
from sqe_chain.task.results import Job, Portion
from sqe_chain.task.states import Claim, Transition

LEAST_TURNS: Final = 20
MOST_TURNS: Final = 60
MESSAGES: Final = 40_000
KEYS: Final = 1_000
BATCHES: Final = 10
"""Batches of a turn; the exporter sends the spans of all of them at its end."""
SIZES: Final = (10, 2_000)
"""Records of a batch."""
SHARES: Final = {0: "no record has a traceparent", 100: "one in 100 has one", 1: "each has one"}

Side = Callable[[], float]


@dataclass(slots=True)
class Figure:
    """Turns of two sides.

    Attributes:
        without: costs without tracing.
        with_it: costs with it.
    """

    without: list[float] = field(default_factory=list)
    with_it: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Costs with tracing for each without, by turns."""
        return [ours / plain for ours, plain in zip(self.with_it, self.without, strict=True)]

    @property
    def error(self) -> float:
        """The standard error of the median of ratios, from their absolute deviations."""
        middle = median(self.ratios)
        return 1.253 * 1.483 * median(abs(ratio - middle) for ratio in self.ratios) / sqrt(len(self.ratios))

    @property
    def settled(self) -> bool:
        """Whether the error is smaller than a third of the effect."""
        return len(self.ratios) >= LEAST_TURNS and self.error < abs(median(self.ratios) - 1) / 3


def compared(without: Side, with_it: Side, prepare: Callable[[], object] = lambda: None) -> Figure:
    """Let both sides take turns until the figure has settled; the first turns warm up.

    Args:
        without: does one turn without tracing; returns what it cost.
        with_it: the same with tracing.
        prepare: called before each two turns.
    """
    figure = Figure()
    for turn in range(MOST_TURNS):
        prepare()
        if turn % 2:
            plain, ours = without(), with_it()
        else:
            ours, plain = with_it(), without()
        if turn > 1:
            figure.without.append(plain)
            figure.with_it.append(ours)
        if figure.settled:
            break
    return figure


def tracing(out: Console, kafka: KafkaServer, redis: RedisServer) -> None:
    """Measure, and print a table."""
    table = Table(
        "what",
        "without",
        "with",
        "ratio",
        "error",
        "turns",
        title="processor time without tracing, and with it",
    )
    with sink() as endpoint:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        for size in SIZES:
            figure = spans_of_batches(kafka.bootstrap, redis.url, size)
            _add(table, f"--telemetry, batches of {size:,} records", figure, 1e3, "ms a batch")
    for each, text in SHARES.items():
        figure = links_of_records(kafka.bootstrap, each)
        _add(table, f"traces=True, {text}", figure, 1e6, "µs a record")
    out.print(table)


def _add(table: Table, what: str, figure: Figure, scale: float, unit: str) -> None:
    table.add_row(
        what,
        f"{median(figure.without) * scale:.2f} {unit}",
        f"{median(figure.with_it) * scale:.2f} {unit}",
        f"{median(figure.ratios):.3f}",
        f"{figure.error:.3f}",
        f"{len(figure.ratios)}{'' if figure.settled else ', not settled'}",
    )


class TracedNotes(Notes):
    """Notes of a service that is traced."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()

        def provider(name: str, ids: IdGenerator) -> TracerProvider:
            self.provider = provider_of(name, ids)
            return self.provider

        self.tracing = Tracing(flow.compile(), provider)

    def step(self, number: int, when: When) -> None:
        """Begin or end a span."""
        super().step(number, when)
        self.tracing.step(number, when)

    def event(self, event: Event) -> None:
        """Note it on a span."""
        super().event(event)
        self.tracing.event(event)


def spans_of_batches(bootstrap: str, redis: str, size: int) -> Figure:
    """Seconds of processor time of a batch of a service, in this process, on Kafka and Redis.

    Args:
        bootstrap: Kafka.
        redis: URL of the store.
        size: records of a batch.
    """
    backlog = Backlog(f"bench.spans-{size}", BATCHES * size, min(size, KEYS))
    KafkaLog(bootstrap).create_topic(backlog.topic, PARTITIONS)
    written = count()

    def side(flow: Flow, notes: Notes) -> Side:
        service = Service(flow, None, bootstrap, redis, size, notes=notes)

        def turn() -> float:
            notes.inputs.clear()
            began_s = time.process_time()
            while sum(notes.inputs) < backlog.messages:
                assert service.protocol.batch().worked
            if isinstance(notes, TracedNotes):
                assert notes.provider.force_flush()
            return (time.process_time() - began_s) / len(notes.inputs)

        return turn

    plain, ours = (aggregation(f"bench-{name}-{size}", backlog.topic) for name in ("plain", "spans"))
    traced_notes = TracedNotes(ours)
    try:
        return compared(
            side(plain, Notes()),
            side(ours, traced_notes),
            lambda: backlog.write(bootstrap, next(written)),
        )
    finally:
        traced_notes.provider.shutdown()


def links_of_records(bootstrap: str, each: int) -> Figure:
    """Seconds of processor time of a task for a record: it reads nothing and writes nothing, as records are read once and kept.

    Args:
        bootstrap: Kafka.
        each: one record in this number has a `traceparent`; 0: none.
    """
    backlog = Backlog(f"bench.links-{each}", MESSAGES, KEYS, trace_each=each)
    log = KafkaLog(bootstrap)
    log.create_topic(backlog.topic, PARTITIONS)
    backlog.write(bootstrap)
    topic_id = log.describe([backlog.topic])[backlog.topic].topic_id
    end = log.bounds([(backlog.topic, 0)])[backlog.topic, 0].stable_end
    wanted = Range(backlog.topic, topic_id, 0, 0, end)
    blocks = list(log.read(wanted))
    portion = Portion(wanted, PartitionMarks(backlog.topic, topic_id, 0), times=EventTimes(0))
    store: Any = NoStates()

    def side(*, traces: bool) -> Side:
        flow = traced("links", backlog.topic, traces=traces).compile()

        def turn() -> float:
            gc.collect()
            began_s = time.process_time()
            job = Job(Transition(flow.name, Claim(1, "run"), 0, "0"), 1, in_place=True)
            reading = Reading(flow, job, lambda _: store)
            for _ in reading.read(portion, blocks):
                pass
            for _ in reading.finish():
                pass
            spent_s = time.process_time() - began_s
            assert reading.report.outputs == len({message.key() for block in blocks for message in block})
            assert any(report.links for report in reading.report.traces) == (traces and each > 0)
            return spent_s / end

        return turn

    return compared(side(traces=False), side(traces=True))


class _Sink(BaseHTTPRequestHandler):
    """Takes spans, and forgets them."""

    def do_POST(self) -> None:
        """Answer as a collector does."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def sink() -> Iterator[str]:
    """A collector that forgets everything, in a process of its own; gives its address."""
    command = [sys.executable, "-m", "benchmarks.tracing"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


if __name__ == "__main__":
    with HTTPServer(("127.0.0.1", 0), _Sink) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
