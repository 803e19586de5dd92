"""Takes turns between the rows of a table, and sums up the rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from confluent_kafka.admin import AdminClient
from redis import Redis
from rich.table import Table

from benchmarks.growth.cases import Case, Comparison, Growth, comparisons
from benchmarks.growth.child import SMALL_BATCHES, Arguments, Figures
from benchmarks.growth.records import FEW
from sqe_chain.ext.dev import KafkaServer, RedisServer

ROOT = Path(__file__).resolve().parents[2]

Show = Callable[[object], None]

_MIB = 1 << 20


@dataclass(slots=True)
class Row:
    """The rounds of one case.

    Attributes:
        case: the case.
        name: of its flow and topic.
        rounds: what each has cost.
        key_bytes: what Redis holds for each key before the first round; 0 unknown.
    """

    case: Case
    name: str
    rounds: list[Figures] = field(default_factory=list)
    key_bytes: float = 0.0

    @property
    def written(self) -> int:
        """Records that its topic holds."""
        return len(self.rounds) * (self.case.records + SMALL_BATCHES * FEW)

    @property
    def rate(self) -> float:
        """Records a second."""
        return median(one.records / one.seconds for one in self.rounds)

    def cells(self, first: Row) -> list[str]:
        """The row of the table.

        Args:
            first: the row that ratios compare with.
        """

        def middle(value: Callable[[Figures], float], unit: float = 1.0, digits: int = 0) -> str:
            found = median(value(one) for one in self.rounds)
            return f"{found / unit:,.{digits}f}" if found >= 0 else ""

        return [
            self.case.label,
            f"{self.rate / 1e3:,.1f}",
            middle(lambda one: one.cpu_s / one.records * 1e6, digits=2),
            f"{self.rate / first.rate:.2f}",
            middle(lambda one: one.rows_read / one.batches) if self.case.stages else "",
            middle(lambda one: one.rows_written / one.batches) if self.case.stages else "",
            middle(lambda one: one.plan_bytes, 1e3, digits=1) if self.case.stages else "",
            middle(lambda one: one.small_ms, digits=1),
            middle(lambda one: one.restart_ms),
            middle(lambda one: one.peak_rss, _MIB),
            f"{self.key_bytes:,.0f}" if self.key_bytes else "",
        ]


@dataclass(slots=True)
class Measuring:
    """Runs cases on servers.

    Args:
        kafka: the broker.
        redis: the store of most cases.
        directory: for the other stores.
        show: prints a line or a table.
    """

    kafka: KafkaServer
    redis: RedisServer
    directory: Path
    show: Show

    def compare(self, comparison: Comparison, rounds: int) -> None:
        """Measure the rows of a table, round by round, print it, and delete their topics."""
        rows = [
            Row(case, f"growth-{comparison.growth}-{index}") for index, case in enumerate(comparison.cases)
        ]
        for row in rows:
            before = self._redis_bytes()
            self._child(row, prepare=True)
            if row.case.store == "redis" and row.case.keys > _FEW_KEYS:
                row.key_bytes = (self._redis_bytes() - before) / row.case.keys
        for number in range(1, rounds + 1):
            for row in rows:
                figures = Figures(**json.loads(self._child(row)))
                row.rounds.append(figures)
                spent = figures.cpu_s / figures.records * 1e6
                shown = f"{figures.records / figures.seconds / 1e3:,.0f} k/s, {spent:.2f} µs"
                self.show(f"  {comparison.growth}, round {number}, {row.case.label}: {shown}")
        self.show(_table(comparison, rows))
        self._drop(rows)

    def _child(self, row: Row, *, prepare: bool = False) -> str:
        in_redis = row.case.store == "redis"
        arguments = Arguments(
            asdict(row.case),
            row.name,
            self.kafka.bootstrap,
            self.redis.url if in_redis else f"sqlite://{self.directory}/{row.name}.db",
            self.redis.identity.pid if in_redis else 0,
            row.written,
            prepare,
        )
        command = [sys.executable, "-m", "benchmarks.growth.child", json.dumps(asdict(arguments))]
        return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout

    def _redis_bytes(self) -> int:
        with Redis.from_url(self.redis.url) as client:
            return int(client.info("memory")["used_memory"])

    def _drop(self, rows: Sequence[Row]) -> None:
        """Delete what the rows have written, to save room."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        topics = [row.name for row in rows] + [f"{row.name}.out" for row in rows if not row.case.stages]
        for deleted in admin.delete_topics(topics).values():
            deleted.result()
        with Redis.from_url(self.redis.url) as client:
            client.flushall(asynchronous=True)  # ten million keys take longer than an answer may
        for row in rows:
            for file in self.directory.glob(f"{row.name}.db*"):
                file.unlink()


_FEW_KEYS = 10_000
"""With fewer of them, what Redis holds beside them would count for too much."""


def _table(comparison: Comparison, rows: Sequence[Row]) -> Table:
    table = Table(title=comparison.title)
    table.add_column(comparison.growth)
    for name in (
        "k/s",
        "µs a record",
        "ratio of k/s",
        "rows read a batch",
        "written",
        "plan, kB",
        f"batch of {FEW}, ms",
        "restart, ms",
        "memory, MiB",
        "Redis, bytes a key",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row.cells(rows[0]))
    return table


def measure(chosen: Sequence[Growth], rounds: int, *, quick: bool, show: Show) -> None:
    """Measure tables on servers that are started for it.

    Args:
        chosen: which.
        rounds: of each row; medians are shown.
        quick: see `comparisons`.
        show: prints a line or a table.
    """
    with (
        KafkaServer(heap_mb=1024) as kafka,
        RedisServer() as redis,
        TemporaryDirectory(prefix="growth-") as directory,
    ):
        measuring = Measuring(kafka, redis, Path(directory), show)
        for comparison in comparisons(quick=quick):
            if comparison.growth in chosen:
                measuring.compare(comparison, rounds)
