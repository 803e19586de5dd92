"""The service that fills tables, and whether each holds each fastening once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from services.demo.scene import Ended, Scene, start_cassandra
from services.demo.verdict import DemoOutcome
from services.demo_ingest.spark_query import Sums, sums_of_lines
from services.expected import FIELDS, Expected, expected
from services.reports import reports
from services.rows import TABLES, rows, table_name
from services.table_audit import TableAudit, audit_table, expected_rows
from sqe_chain.ext.dev import RedisServer
from sqe_chain.ext.tables.addresses import in_cassandra, in_place


@dataclass(frozen=True, kw_only=True)
class TablesOutcome(DemoOutcome):
    """The outcome of the demo of tables.

    Attributes:
        tables: the audit of each table, by DuckDB.
        spark: what Spark has found in each table, line by line; empty: it was not asked.
    """

    service = "rows"
    tables: Sequence[TableAudit]
    spark: Mapping[str, Mapping[str, Sums]]

    @property
    def wrong(self) -> list[str]:
        by_duckdb = [
            f"{table.table}: {table.missing} rows missing, {table.doubled} doubled, {table.wrong} with a wrong cell, "
            f"{len(table.findings)} findings"
            for table in self.tables
            if table.findings
        ]
        return by_duckdb + [
            f"{table}: Spark finds {sums.get(line)} for {line}, instead of {wanted}"
            for table, sums in self.spark.items()
            for line, wanted in wanted_sums(self.truth).items()
            if sums.get(line) != wanted
        ]

    @property
    def lines(self) -> list[str]:
        """The result of each table in one line."""
        return [
            f"{kind_of(table.table)}: {table.rows} rows, {table.chunks} chunks, {table.missing} missing, {table.doubled} doubled"
            for table in self.tables
        ]

    @property
    def last_line(self) -> str:
        word = "not exact" if self.failures else "exact"
        return (
            f"{word}: {sum(table.rows for table in self.tables)} rows, {sum(table.chunks for table in self.tables)} chunks, "
            f"{sum(kills.counted for kills in self.kills)} kills, {sum(table.missing for table in self.tables)} missing, "
            f"{sum(table.doubled for table in self.tables)} doubled"
        )


def kind_of(address: str) -> str:
    """In what a table lives."""
    return "Cassandra" if in_cassandra(address) else "Delta Lake"


def wanted_sums(truth: Expected) -> dict[str, Sums]:
    """What Spark must find for each line."""
    return {
        line: (*(getattr(total, name) for name in FIELDS), total.events)
        for line, total in truth.lines.items()
    }


class TablesDemo(Scene[TablesOutcome]):
    """The service that fills tables."""

    name, levels = "rows", 1
    flow = rows  # its name and inputs do not depend on where the tables are

    def __init__(
        self, directory: Path, seed: int, *, ask_spark: bool, target: str = "services.rows:rows"
    ) -> None:
        self.target = target
        self._directory, self._seed, self._ask_spark = directory, seed, ask_spark
        self._places: list[str] = []

    def start(self, directory: Path, ends: ExitStack) -> Mapping[str, str]:
        redis = ends.enter_context(RedisServer(directory / "redis"))
        self._places = [str(self._directory), start_cassandra(directory, ends)]
        self.environment = {TABLES: " ".join(self._places)}
        return {"": redis.url}

    def judge(self, ended: Ended) -> TablesOutcome:
        truth = expected(reports(self._seed, ended.produced))
        wanted = expected_rows(reports(self._seed, ended.produced))
        addresses = [in_place(place, table_name(place)) for place in self._places]
        return TablesOutcome(
            tables=[audit_table(address, wanted) for address in addresses],
            spark=sums_of_lines(addresses, ended.scratch) if self._ask_spark else {},
            **ended.seen(truth),
        )
