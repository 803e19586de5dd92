"""`python -m benchmarks`: everything, in one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.auditing import auditing
from benchmarks.backlog import WARM_UP, Backlog
from benchmarks.carriers import carriers
from benchmarks.checks import check_count, check_plain_totals, check_republished, check_totals
from benchmarks.event_time import compare_joins, compare_windows, memory
from benchmarks.flows import FILTERS, PARTITIONS, aggregation, filtered, republisher, two_stages
from benchmarks.flushing import flushing
from benchmarks.growth import running as growing
from benchmarks.growth.cases import Growth
from benchmarks.latency import latency
from benchmarks.machine import facts
from benchmarks.page import page
from benchmarks.parts import parts
from benchmarks.persisting import compare_stores
from benchmarks.service import Run, Service, Timed
from benchmarks.small import empty_jobs, small_batches
from benchmarks.starting import starting
from benchmarks.tracing import tracing
from benchmarks.write_ahead_log import write_ahead_log
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.engines.spark import open_session
from sqe_chain.ext.dev import KafkaServer, RedisServer
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
OUT = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 150)


class Kind(StrEnum):
    """What can be measured."""

    AGGREGATE = "aggregate"
    REPUBLISH = "republish"
    SHUFFLE = "shuffle"
    FILTERS = "filters"
    WINDOWS = "windows"
    JOINS = "joins"
    MEMORY = "memory"
    EMPTY = "empty"
    PERSIST = "persist"
    STEADY = "steady"
    PARTS = "parts"
    GROWTH = "growth"
    LATENCY = "latency"
    START = "start"
    WAL = "wal"
    TRACING = "tracing"
    PAGE = "page"
    AUDIT = "audit"
    CARRIERS = "carriers"
    FLUSH = "flush"


MEASURES = {
    Kind.WINDOWS: compare_windows,
    Kind.JOINS: compare_joins,
    Kind.MEMORY: memory,
    Kind.PERSIST: compare_stores,
}
"""What other files measure with a `Bench`; all else are its methods."""
WARM_UP_BATCHES = 10
SMALL = 8
SMALL_ROUNDS = 15
STEADY_MESSAGES, STEADY_KEYS, STEADY_BATCHES = 20_000, 500, 10
GIB = 1 << 30


@dataclass(slots=True)
class Bench:
    """Servers, a session, a backlog, and the table of results.

    Args:
        session: Spark on two cores.
        bootstrap: Kafka.
        redis: URL of a durable Redis.
        backlog: the big one.
        rounds: of each comparison.
        max_records: records of one batch.
    """

    session: SparkSession
    bootstrap: str
    redis: str
    backlog: Backlog
    rounds: int
    max_records: int
    table: Table = field(init=False)
    peak_rss: int = 0

    def __post_init__(self) -> None:
        """An empty table."""
        self.table = Table("what", "ours", "plain", "ratio", "target", "remarks", title="figures")

    def prepare(self) -> None:
        """Write the backlog, and a small one to warm up with."""
        self.topic(self.backlog.topic)
        size = self.backlog.write(self.bootstrap)
        self.topic("bench.warm")
        Backlog("bench.warm", WARM_UP, self.backlog.keys).write(self.bootstrap)
        OUT.print(
            f"backlog: {self.backlog.messages:,} envelopes of {size:.0f} bytes, {PARTITIONS} partitions, "
            f"{self.backlog.keys:,} keys; batches of at most {self.max_records:,}"
        )

    def topic(self, name: str) -> None:
        """Create a topic."""
        KafkaLog(self.bootstrap).create_topic(name, PARTITIONS)

    def drop(self, name: str) -> None:
        """Delete a topic after its check, to save disk space."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([name])[name].result()

    def service(self, flow: Flow) -> Service:
        """A service that has claimed and recovered."""
        return Service(flow, self.session, self.bootstrap, self.redis, self.max_records)

    def warm_up(self, flow: Flow) -> None:
        """Let workers import and Java compile. With small batches, because the number of jobs matters."""
        few = WARM_UP // WARM_UP_BATCHES
        Service(flow, self.session, self.bootstrap, self.redis, few).work_off()

    def ours(self, flow: Flow, max_records: int = 0, inputs: int = 0) -> Run:
        """Work off the backlog, or as many inputs as given."""
        most = max_records or self.max_records
        run = Service(flow, self.session, self.bootstrap, self.redis, most).work_off()
        assert sum(run.notes.inputs) == (inputs or self.backlog.messages)
        self.peak_rss = max(self.peak_rss, run.spent.peak_rss)
        return run

    def plain(self, kind: str, *arguments: str) -> Timed:
        """Run the plain loop in a separate process."""
        command = [sys.executable, "-m", "benchmarks.plain", kind, self.bootstrap, self.backlog.topic]
        command += [str(self.backlog.messages), *arguments]
        ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        result = json.loads(ended.stdout)
        return Timed(result["seconds"], result["cpu_s"], result["cpu_s"])

    def aggregate(self) -> None:
        """One stage without a shuffle, Redis with fsync always."""
        self.warm_up(aggregation("bench-warm-aggregate", "bench.warm"))

        def ours(number: int) -> Run:
            name = f"bench-aggregate-{number}"
            run = self.ours(aggregation(name, self.backlog.topic))
            check_totals(self.redis, name, self.backlog)
            return run

        def plain(number: int) -> Timed:
            key = f"plain-{number}"
            timed = self.plain("aggregate", self.redis, key)
            check_plain_totals(self.redis, key, self.backlog)
            return timed

        self.compare("aggregate into keys, Redis", ours, plain, 1.0)

    def republish(self) -> None:
        """Two envelopes for one."""
        self.warm_up(republisher("bench-warm-republish", "bench.warm", "bench.warm-out"))

        def ours(number: int) -> Run:
            target = f"bench.republished-{number}"
            run = self.ours(republisher(f"bench-republish-{number}", self.backlog.topic, target))
            check_count(self.bootstrap, target, 2 * self.backlog.messages)
            if number == 0:
                check_republished(self.bootstrap, target, self.backlog)
            self.drop(target)
            return run

        def plain(number: int) -> Timed:
            target = f"bench.plain-{number}"
            self.topic(target)
            timed = self.plain("republish", target)
            check_count(self.bootstrap, target, 2 * self.backlog.messages)
            self.drop(target)
            return timed

        self.compare("republish, 2 for 1", ours, plain, 0.6)

    def compare(
        self, what: str, ours: Callable[[int], Run], plain: Callable[[int], Timed], target: float
    ) -> None:
        """Compare in alternating runs (A B A B ...), and report medians."""
        mine, theirs, batches = list[Timed](), list[Timed](), list[int]()
        for number in range(self.rounds):
            run = ours(number)
            mine.append(run.timed)
            batches = run.notes.inputs
            theirs.append(plain(number))
            OUT.print(
                f"  {what}, round {number + 1}: {self.shown(mine[-1])} against {self.shown(theirs[-1])}",
                style="dim",
            )
        messages = self.backlog.messages
        seconds = [median(one.seconds for one in side) for side in (mine, theirs)]
        cpu = [median(one.cpu_s for one in side) / messages * 1e6 for side in (mine, theirs)]
        java = median(one.all_cpu_s - one.cpu_s for one in mine) / messages * 1e6
        self.table.add_row(
            what,
            f"{messages / seconds[0] / 1e3:,.0f} k/s",
            f"{messages / seconds[1] / 1e3:,.0f} k/s",
            f"{seconds[1] / seconds[0]:.2f}",
            f">= {target}",
            f"batches of {' + '.join(f'{size:,}' for size in batches)}",
        )
        self.table.add_row(
            "  processor time a message",
            f"{cpu[0]:.2f} µs",
            f"{cpu[1]:.2f} µs",
            f"{cpu[1] / cpu[0]:.2f}",
            "",
            f"of Python; Java beside it {java:.2f} µs",
        )

    def shown(self, timed: Timed) -> str:
        """One run in a few words."""
        messages = self.backlog.messages
        return f"{messages / timed.seconds / 1e3:,.0f} k/s ({timed.cpu_s / messages * 1e6:.2f} µs)"

    def shuffle(self) -> None:
        """Two stages with a shuffle to another key between them; changes are published."""
        self.warm_up(two_stages("bench-warm-shuffle", "bench.warm", "bench.warm-lines"))
        run = self.ours(two_stages("bench-shuffle", self.backlog.topic, "bench.lines"))
        check_totals(self.redis, "bench-shuffle", self.backlog)
        rate = self.backlog.messages / run.seconds / 1e3
        cpu = run.spent.python_s / self.backlog.messages * 1e6
        java = run.spent.java_s / self.backlog.messages * 1e6
        remarks = f"{cpu:.2f} µs of Python and {java:.2f} µs of Java a message"
        self.table.add_row("two stages, shuffled between", f"{rate:,.0f} k/s", "", "", "", remarks)

    def filters(self) -> None:
        """The same sums after each filter, compared with sums after a stage that stores only a count."""
        self.warm_up(filtered("bench-warm-filters", "bench.warm", "drop_stale by key"))
        messages, other_s = self.backlog.messages, 0.0
        for number, kind in enumerate(FILTERS):
            name = f"bench-filters-{number}"
            run = self.ours(filtered(name, self.backlog.topic, kind), Settings().max_records)
            check_totals(self.redis, name, self.backlog)
            other_s = other_s or run.seconds
            self.table.add_row(
                f"sums behind {kind}",
                f"{messages / run.seconds / 1e3:,.0f} k/s",
                f"{messages / other_s / 1e3:,.0f} k/s",
                f"{other_s / run.seconds:.2f}",
                "",
                f"plain: behind another stage; {run.spent.python_s / messages * 1e6:.1f} µs of Python a message",
            )

    def empty(self) -> None:
        """A tiny batch, compared with an empty Spark job."""
        few = Backlog("bench.few", SMALL, SMALL)
        self.topic(few.topic)
        service = self.service(aggregation("bench-few", few.topic))
        batches, jobs = small_batches(service, few, self.bootstrap), empty_jobs(self.session)
        for _ in range(3):
            next(batches), next(jobs)
        pairs = list(islice(zip(batches, jobs, strict=False), SMALL_ROUNDS))
        ours, job = (median(side) * 1e3 for side in zip(*pairs, strict=True))
        self.table.add_row(
            f"batch of {SMALL} messages, against an empty job",
            f"{ours:.0f} ms",
            f"{job:.0f} ms",
            f"{ours / job:.2f}",
            "<= 1.5",
            f"mapInArrow, {PARTITIONS} tasks, one job each; {SMALL_ROUNDS} rounds",
        )

    def steady(self) -> None:
        """How often a state is written under a constant load."""
        few = Backlog("bench.steady", STEADY_MESSAGES, STEADY_KEYS)
        self.topic(few.topic)
        service = self.service(aggregation("bench-steady", few.topic))
        for number in range(STEADY_BATCHES):
            few.write(self.bootstrap, number)
            service.protocol.batch()
        messages = sum(service.notes.inputs)
        rows = sum(service.notes.rows)
        assert set(service.notes.rows) == {STEADY_KEYS}, "each key once an interval"
        load = f"{STEADY_MESSAGES:,} messages of {STEADY_KEYS} keys in each of {STEADY_BATCHES} intervals"
        what = "messages for each state written, in steady state"
        self.table.add_row(what, f"{messages / rows:,.0f}", "", "", "", load)

    def parts(self) -> None:
        """Where the time goes."""
        table = Table("piece", "ns a message", title="processor time, one process without Spark")
        for name, nanoseconds in parts(self.bootstrap, self.backlog.topic):
            table.add_row(name, f"{nanoseconds:,.0f}")
        OUT.print(table)

    def show(self) -> None:
        """The table."""
        if self.peak_rss:
            remarks = "resident, at most, while working off the backlog"
            peak = f"{self.peak_rss / GIB:.2f} GiB"
            self.table.add_row("memory of all Python processes", peak, "", "", "<= 1.5 GB", remarks)
        if self.table.row_count:
            OUT.print(self.table)


def main(  # noqa: PLR0913, PLR0917 - options of a command
    messages: Annotated[int, typer.Option(help="Messages of the backlog.")] = 1_000_000,
    keys: Annotated[int, typer.Option(help="Distinct keys.")] = 1_000,
    rounds: Annotated[int, typer.Option(help="Rounds of each comparison.")] = 3,
    max_records: Annotated[int, typer.Option(help="Records of one batch.")] = 1_000_000,
    only: Annotated[
        list[Kind] | None, typer.Option(help="What to measure; may be repeated. Default: all but growth.")
    ] = None,
    growth: Annotated[
        str, typer.Option(help=f"With --only growth: some of {','.join(Growth)}. Default: all.")
    ] = "",
    quick: Annotated[  # noqa: FBT002 - typer's way to declare a flag
        bool,
        typer.Option("--quick", help="With --only growth: few records and one round, to see that it works."),
    ] = False,
    seconds: Annotated[float, typer.Option(help="How long latency is measured, each time.")] = 20.0,
    case: Annotated[
        str, typer.Option(help="Latency, starts and carriers: part of the names of what is measured.")
    ] = "",
    base: Annotated[
        str,
        typer.Option(
            help="A commit or version to compare with: carriers run it and this one in turn, and nothing else is measured without --only."
        ),
    ] = "",
) -> None:
    """Measure, on real servers that are started for it."""
    tables = _tables(growth)
    for name, text in facts().items():
        OUT.print(f"{name}: {text}")
    kinds = list(only or ([Kind.CARRIERS] if base else (kind for kind in Kind if kind is not Kind.GROWTH)))
    if Kind.GROWTH in kinds:
        kinds.remove(Kind.GROWTH)
        growing.measure(tables, 1 if quick else rounds, quick=quick, show=OUT.print)
    if Kind.WAL in kinds:
        kinds.remove(Kind.WAL)
        write_ahead_log(OUT, rounds)
    if Kind.FLUSH in kinds:
        kinds.remove(Kind.FLUSH)
        flushing(OUT, rounds)
    if not kinds:
        return
    with KafkaServer(heap_mb=512) as kafka, RedisServer() as redis:
        outside: dict[Kind, Callable[[], None]] = {  # measured without Spark in this process
            Kind.LATENCY: lambda: latency(OUT, kafka, redis, case, seconds),
            Kind.START: lambda: starting(OUT, kafka, redis, case),
            Kind.TRACING: lambda: tracing(OUT, kafka, redis),
            Kind.PAGE: lambda: page(OUT, kafka, redis, messages, rounds),
            Kind.AUDIT: lambda: auditing(OUT, kafka, redis, messages),
            Kind.CARRIERS: lambda: carriers(OUT, kafka, redis, case, messages, rounds, base),
        }
        for kind in kinds:
            if kind in outside:
                outside[kind]()
        inside = [kind for kind in kinds if kind not in outside]
        if inside:
            backlog = Backlog("bench.backlog", messages, keys)
            _measure_inside(kafka, redis, backlog, rounds, max_records, inside)


def _measure_inside(
    kafka: KafkaServer, redis: RedisServer, backlog: Backlog, rounds: int, max_records: int, kinds: list[Kind]
) -> None:
    """Measure what runs in this process, over a backlog."""
    session = open_session("local[2]", "benchmarks")
    try:
        bench = Bench(session, kafka.bootstrap, redis.url, backlog, rounds, max_records)
        bench.prepare()
        for kind in kinds:
            MEASURES[kind](bench) if kind in MEASURES else getattr(bench, kind.value)()
        bench.show()
    finally:
        session.stop()


def _tables(text: str) -> list[Growth]:
    """What `--growth` names; all if it names nothing."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(Growth))
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; choose from {', '.join(Growth)}")
    return [Growth(name) for name in names] or list(Growth)


if __name__ == "__main__":
    os.chdir(ROOT)
    command = typer.Typer(pretty_exceptions_enable=False)
    command.command()(main)
    command()
