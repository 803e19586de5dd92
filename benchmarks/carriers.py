"""W1 to W3 from both carriers, JSON and envelopes, on each engine; with a base, that version and this one in turn.

The services are processes that run `sqe-chain run`, as in `benchmarks.peers`, which has the workloads and checks the results.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.flows import PARTITIONS
from benchmarks.peers.records import Records
from benchmarks.peers.running import Measured, Place
from benchmarks.peers.systems import ENVELOPES, IN_PROCESS, JSON, ROOT, TWO_WORKERS, SqeChain
from benchmarks.peers.workloads import Workload
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev import KafkaServer, RedisServer

CARRIERS = {"JSON": JSON, "envelopes": ENVELOPES}
"""Carrier -> the topic of the records in it."""

ENGINES = {"in process": IN_PROCESS, "two workers": TWO_WORKERS, "Spark": ()}
"""Engine -> options of the command."""


WORKLOADS = (Workload.FLAT_MAP, Workload.FOLD, Workload.TWO_STAGES)
"""Those that earlier versions have, too."""


@dataclass(slots=True)
class Row:
    """One workload on one engine, with what each version took for each carrier.

    Attributes:
        workload: what is computed.
        engine: one of `ENGINES`.
        runs: carrier and version ("" is this one) -> what each round took.
    """

    workload: Workload
    engine: str
    runs: dict[tuple[str, str], list[Measured]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.workload.called.partition(':')[0]}, {self.engine}"

    def cpu_us(self, carrier: str, version: str = "") -> float:
        """Median processor time of a record."""
        return median(run.cpu_us_per_record for run in self.runs[carrier, version])

    def rate(self, carrier: str, version: str = "") -> float:
        """Median rate."""
        return median(run.records_per_s for run in self.runs[carrier, version])

    def cells(self, base: str) -> list[str]:
        """Of each carrier rate, processor time, and with a base the ratio of the latter; last the rate from envelopes to that from JSON."""
        cells = [self.title]
        for carrier in CARRIERS:
            cells += [f"{self.rate(carrier) / 1e3:,.0f}", f"{self.cpu_us(carrier):.2f}"]
            if base:
                cells.append(f"{self.cpu_us(carrier) / self.cpu_us(carrier, base):.2f}")
        return [*cells, f"{self.rate('envelopes') / self.rate('JSON'):.2f}"]


@contextmanager
def sources_of(base: str, repository: Path = ROOT) -> Iterator[Path]:
    """A directory with the files of a commit, a tag or a version, as git has them.

    Raises:
        ConfigurationError: git knows no such commit.
    """
    command = ["git", "archive", "--format=tar"]
    for name in (base, f"v{base}"):
        archive = subprocess.run([*command, name], cwd=repository, check=False, capture_output=True)
        if not archive.returncode:
            break
    else:
        raise ConfigurationError(
            f"no version to compare with: {base!r}. Expected a commit or a tag that git has here. Name one, or fetch it"
        )
    with TemporaryDirectory(prefix="bench-base-") as directory:
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            # Debian's Python 3.11 knows no filters yet; the files are made by git from this repository.
            safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            files.extractall(directory, **safe)  # noqa: S202
        yield Path(directory)


def carriers(
    out: Console, kafka: KafkaServer, redis: RedisServer, case: str, records: int, rounds: int, base: str
) -> None:
    """Measure the rows whose titles contain a text, and print a table.

    Args:
        out: takes the table.
        kafka: the broker.
        redis: the store.
        case: part of the titles.
        records: of each input.
        rounds: runs of each version on each carrier.
        base: the version to compare with; "": none.

    Raises:
        Wrong: results of a run are wrong.
        ConfigurationError: there is no such version.
    """
    rows = [row for row in (Row(*place) for place in product(WORKLOADS, ENGINES)) if case in row.title]
    log = KafkaLog(kafka.bootstrap)
    for topic in CARRIERS.values():
        log.create_topic(topic, PARTITIONS)
    log.close()
    Records(records).write(kafka.bootstrap, JSON, ENVELOPES)
    place = Place(kafka, redis, records)
    if base:
        with sources_of(base) as sources:
            _measure(out, place, rows, rounds, {base: sources, "": ROOT})
    else:
        _measure(out, place, rows, rounds, {"": ROOT})
    out.print(table_of(rows, base))


def _measure(out: Console, place: Place, rows: Sequence[Row], rounds: int, versions: dict[str, Path]) -> None:
    """Run all versions on all rows in turn; in every second round the other one begins."""
    for number, row in product(range(rounds), rows):
        expected = row.workload.expected(Records(place.records))
        order = list(versions) if number % 2 else list(reversed(versions))
        for (carrier, topic), version in product(CARRIERS.items(), order):
            system = SqeChain(
                f"{version or 'now'}-{topic}", topic, ENGINES[row.engine], tree=versions[version]
            )
            name = f"carriers-{rows.index(row)}-{number}-{carrier}-{version}"
            run = place.run(system, row.workload, name, expected).whole
            row.runs.setdefault((carrier, version), []).append(run)
            shown = f"{run.records_per_s / 1e3:,.0f} k/s, {run.cpu_us_per_record:.2f} µs"
            out.print(
                f"  round {number + 1}, {row.title}, {carrier}, {version or 'now'}: {shown}", style="dim"
            )


def table_of(rows: Sequence[Row], base: str) -> Table:
    """One line for each row."""
    title = "thousands of records a second, processor time of a record"
    table = Table("workload", title=f"{title}, and that to {base}'s" if base else title)
    for carrier in CARRIERS:
        units = (f"{carrier} k/s", "µs", f"to {base}") if base else (f"{carrier} k/s", "µs")
        for unit in units:
            table.add_column(unit, justify="right")
    table.add_column("envelopes to JSON", justify="right")
    for row in rows:
        table.add_row(*row.cells(base))
    return table
