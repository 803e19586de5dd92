"""Entry point of the demo of tables: `python -m services.demo_ingest`."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from services import naive
from services.demo.commands import demo_parser, parse_options
from services.demo.running import report_kills_and_replays, run_demo
from services.demo_ingest import __doc__ as description
from services.demo_ingest.tables import TablesDemo, TablesOutcome, kind_of
from services.expected import FIELDS
from services.table_audit import tables_of


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit status: 0 only if each row was there once and the run proves it."""
    parser = demo_parser("services.demo_ingest", description, messages=60_000, rate=800)
    parser.add_argument(
        "--flow", default="services.rows:rows", help="the flow that fills the tables, as MODULE:ATTRIBUTE"
    )
    options = parse_options(parser, arguments)
    options.republisher_engine = "inprocess"  # it is there for its replays
    tables, ask_spark = options.directory / "tables", options.engine == "spark"
    scene = TablesDemo(tables, options.seed, ask_spark=ask_spark, target=options.flow)
    return run_demo(options, scene, report)


def report(outcome: TablesOutcome, console: Console) -> None:
    """Print the results, except what is off, and the last line."""
    for table in (
        *tables_of(outcome.tables, outcome.truth.events),
        *spark_tables(outcome),
        naive.table(outcome.naive, outcome.truth),
    ):
        console.print(table)
    report_kills_and_replays(outcome, console)
    for line in outcome.lines:
        console.print(line, highlight=False, soft_wrap=True)


def spark_tables(outcome: TablesOutcome) -> list[Table]:
    """What Spark has found."""
    tables = []
    for address, lines in outcome.spark.items():
        result = Table(title=f"the table in {kind_of(address)}, by Spark")
        for column in ("line", *FIELDS, "different fastenings"):
            result.add_column(column, justify="left" if column == "line" else "right")
        for line, sums in sorted(lines.items()):
            result.add_row(line, *(f"{number:,}" for number in sums))
        tables.append(result)
    return tables


if __name__ == "__main__":
    sys.exit(main())
