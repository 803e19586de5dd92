"""The service that fills tables, and whether each holds each fastening once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from services import naive
from services.demo.kills import Kills
from services.demo.positions import topic_end
from services.demo.scene import Ended
from services.demo.verdict import kills_off, naive_off, replays_off
from services.demo_ingest.spark_query import Sums, sums_of_lines
from services.expected import FIELDS, Expected, expected
from services.naive import Naive
from services.reports import reports
from services.rows import TABLES, rows, table_name
from services.table_audit import TableAudit, audit_table, expected_rows
from sqe_chain.adapters import WithSchema, open_store
from sqe_chain.ext.dev import CassandraServer, RedisServer
from sqe_chain.ext.tables.addresses import in_cassandra, in_place
from sqe_chain.flow import Flow


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the demo of tables.

    Attributes:
        truth: what the seed gives.
        tables: the audit of each table, by DuckDB.
        spark: what Spark has found in each table, line by line; empty: it was not asked.
        records: messages in the input of the service, all of them read and committed.
        reported_replays: replays that it has reported; killed lives report only a part.
        naive: what a plain consumer of the same messages would write.
        kills: all kills, service by service.
    """

    truth: Expected
    tables: Sequence[TableAudit]
    spark: Mapping[str, Mapping[str, Sums]]
    records: int
    reported_replays: int
    naive: Naive
    kills: Sequence[Kills]

    @property
    def replays(self) -> int:
        """Messages in excess of one for each report and robot: each of them was published before."""
        return self.records - self.truth.messages

    @property
    def failures(self) -> list[str]:
        """Everything that is wrong, one sentence each."""
        found = [
            f"{one.table}: {one.missing} rows missing, {one.doubled} doubled, {one.wrong} with a wrong cell, "
            f"{len(one.findings)} findings"
            for one in self.tables
            if one.findings
        ]
        found += self._spark_off()
        found += kills_off(self.kills)
        found += replays_off("rows", self.replays, self.reported_replays, self.records)
        found += naive_off(self.naive)
        return found

    @property
    def lines(self) -> list[str]:
        """The result of each table in one line."""
        return [
            f"{kind_of(one.table)}: {one.rows} rows, {one.chunks} chunks, {one.missing} missing, {one.doubled} doubled"
            for one in self.tables
        ]

    @property
    def last_line(self) -> str:
        """The result of all tables in one line."""
        word = "not exact" if self.failures else "exact"
        return (
            f"{word}: {sum(one.rows for one in self.tables)} rows, {sum(one.chunks for one in self.tables)} chunks, "
            f"{sum(kills.counted for kills in self.kills)} kills, {sum(one.missing for one in self.tables)} missing, "
            f"{sum(one.doubled for one in self.tables)} doubled"
        )

    def _spark_off(self) -> list[str]:
        return [
            f"{table}: Spark finds {found.get(line)} for {line}, instead of {wanted}"
            for table, found in self.spark.items()
            for line, wanted in wanted_sums(self.truth).items()
            if found.get(line) != wanted
        ]


def kind_of(address: str) -> str:
    """In what a table lives."""
    return "Cassandra" if in_cassandra(address) else "Delta Lake"


def wanted_sums(truth: Expected) -> dict[str, Sums]:
    """What Spark must find for each line."""
    return {
        line: (*(getattr(total, name) for name in FIELDS), total.events)
        for line, total in truth.lines.items()
    }


@dataclass(slots=True)
class Tables:
    """The service that fills tables.

    Attributes:
        directory: of the tables of Delta Lake.
        seed: of the reports.
        ask_spark: whether Spark reads the tables in the end.
        target: module and attribute of the flow.
    """

    directory: Path
    seed: int
    ask_spark: bool
    target: str = "services.rows:rows"
    environment: dict[str, str] = field(default_factory=dict)
    _places: list[str] = field(default_factory=list)

    name = "rows"
    levels = 1

    @property
    def flow(self) -> Flow:
        """See `Scene`. Its name and inputs do not depend on where the tables are."""
        return rows

    def start(self, directory: Path, ends: ExitStack) -> Mapping[str, str]:
        """See `Scene`."""
        redis = ends.enter_context(RedisServer(directory / "redis"))
        cassandra = ends.enter_context(CassandraServer(directory / "cassandra"))
        store = open_store(cassandra.url)
        assert isinstance(store, WithSchema)  # noqa: S101 - for the type checker
        store.make_schema({"": 1})
        store.close()
        self._places = [str(self.directory), cassandra.url]
        self.environment[TABLES] = " ".join(self._places)
        return {"": redis.url}

    def judge(self, ended: Ended) -> Outcome:
        """See `Scene`."""
        truth = expected(reports(self.seed, ended.produced))
        wanted = expected_rows(reports(self.seed, ended.produced))
        found = [in_place(place, table_name(place)) for place in self._places]
        return Outcome(
            truth=truth,
            tables=[audit_table(address, wanted) for address in found],
            spark=sums_of_lines(found, ended.scratch) if self.ask_spark else {},
            records=topic_end(ended.log, naive.TOPIC),
            reported_replays=ended.replays,
            naive=naive.count(naive.values(ended.log, naive.TOPIC), truth),
            kills=ended.kills,
        )
