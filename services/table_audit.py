"""Checks that a table holds exactly the rows that the seed gives: each once, cell by cell.

    python -m services.table_audit --table tables/fastenings --seed 7 --messages 300000

It uses no flow: the rows are computed from the reports, DuckDB reads the table as any other program would (one in Cassandra as
Arrow: `stored_rows`), and SQL compares both. Exit status 1 if anything is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from services._proto.fastening_pb2 import RawReport
from services.entry import add_truth, parser_of, with_exit_status
from services.reports import reports
from services.rows import COLUMNS
from services.stored_rows import stored_rows
from sqe_chain.ext.tables import open_table

SHOWN_FINDINGS: Final = 20
_VIEWS: Final = """
CREATE TABLE found AS SELECT robot, report, joint, line, fastened, failed, torque_mnm FROM given;
CREATE TABLE counted AS SELECT robot, report, joint, count(*) AS times FROM found GROUP BY ALL;
CREATE VIEW missing AS
    SELECT robot, report, joint, 1 AS times FROM truth ANTI JOIN counted USING (robot, report, joint);
CREATE VIEW never_reported AS
    SELECT robot, report, joint, times FROM counted ANTI JOIN truth USING (robot, report, joint);
CREATE VIEW more_than_once AS
    SELECT robot, report, joint, times - 1 AS times FROM counted SEMI JOIN truth USING (robot, report, joint) WHERE times > 1;
CREATE VIEW wrong_cell AS
    SELECT robot, report, joint, 1 AS times FROM found JOIN truth USING (robot, report, joint)
    WHERE (found.line, found.fastened, found.failed, found.torque_mnm)
        IS DISTINCT FROM (truth.line, truth.fastened, truth.failed, truth.torque_mnm);
"""


@dataclass(slots=True)
class TableAudit:
    """The result of comparing one table.

    Attributes:
        rows: rows found, the same one twice counted twice.
        missing: fastenings that were reported and have no row.
        doubled: rows in excess of one for each fastening reported.
        wrong: rows with a wrong cell.
        findings: what is wrong, one sentence for each row, at most 20 of each kind.
    """

    table: str
    rows: int = 0
    chunks: int = 0
    missing: int = 0
    doubled: int = 0
    wrong: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def off(self) -> int:
        """How many rows are wrong."""
        return self.missing + self.doubled + self.wrong


def expected_rows(plant: Iterable[RawReport]) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The rows of reports, as an Arrow table."""
    rows = [
        (robot.robot, robot.line, joint.joint, report.number, joint.fastened, joint.failed, joint.torque_mnm)
        for report in plant
        for robot in report.robots
        for joint in robot.joints
    ]
    columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
    return pa.table(dict(zip(COLUMNS, map(pa.array, columns), strict=True)))


def audit_table(address: str, truth: Any) -> TableAudit:  # noqa: ANN401 - pyarrow has no types
    """Compare a table with the rows that it should hold.

    Raises:
        ConfigurationError: there is no such table.
        Unavailable: no answer.
    """
    chunks = open_table(address).chunks()
    result = compare(address, stored_rows(address, COLUMNS), truth)
    result.chunks = len(chunks)
    told = sum(chunk.rows for chunk in chunks)
    if told != result.rows:
        result.findings.append(f"chunks say that there are {told} rows, but there are {result.rows}")
    return result


def compare(table: str, found: Any, truth: Any) -> TableAudit:  # noqa: ANN401 - pyarrow has no types
    """Compare rows with what they should be."""
    result = TableAudit(table)
    with closing(duckdb.connect()) as database:
        database.register("given", found)
        database.register("truth", truth)
        database.execute(_VIEWS)

        def told(view: str) -> int:
            rows = database.table(view)
            shown = rows.order("robot, report, joint").limit(SHOWN_FINDINGS).fetchall()
            result.findings.extend(f"{view.replace('_', ' ')}: {key[:-1]}" for key in shown)
            ((times,),) = rows.aggregate("coalesce(sum(times), 0)").fetchall()
            return int(times)

        ((result.rows,),) = database.table("found").aggregate("count(*)").fetchall()
        result.missing = told("missing")
        result.doubled = told("never_reported") + told("more_than_once")
        result.wrong = told("wrong_cell")
    return result


def tables_of(audits: Sequence[TableAudit], fastenings: int) -> list[Table]:
    """The result for people: one row for each table, then findings."""
    summary = Table(title=f"audit of {fastenings:,} fastenings")
    for column in ("table", "rows", "chunks", "missing", "doubled", "wrong"):
        left = column == "table"
        summary.add_column(
            column, justify="left" if left else "right", overflow="fold" if left else "ellipsis"
        )
    details = Table(title=f"the first {SHOWN_FINDINGS} findings of each table")
    details.add_column("table", overflow="fold")
    details.add_column("finding", overflow="fold")
    for one in audits:
        numbers = (one.rows, one.chunks, one.missing, one.doubled, one.wrong)
        summary.add_row(one.table, *(f"{number:,}" for number in numbers))
        for finding in one.findings[:SHOWN_FINDINGS]:
            details.add_row(one.table, finding)
    return [summary, details] if details.row_count else [summary]


@with_exit_status
def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = parser_of("services.table_audit", __doc__)
    parser.add_argument("--table", required=True, action="append", help="address of a table; may be repeated")
    add_truth(parser)
    options = parser.parse_args(arguments)
    truth = expected_rows(reports(options.seed, options.messages))
    audits = [audit_table(address, truth) for address in options.table]
    console = Console()
    for table in tables_of(audits, truth.num_rows):
        console.print(table)
    return 1 if any(one.findings for one in audits) else 0


if __name__ == "__main__":
    sys.exit(main())
