"""Entry point of the demo of tables: `python -m services.demo_ingest`."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from services import naive
from services.demo.commands import add_arguments, options_of
from services.demo.running import report_kills, report_replays, run_demo
from services.demo_ingest import __doc__ as description
from services.demo_ingest.tables import Outcome, Tables, kind_of
from services.expected import FIELDS
from services.table_audit import printed


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit status: 0 only if each row was there once and the run proves it."""
    parser = argparse.ArgumentParser(
        prog="python -m services.demo_ingest", description=(description or "").partition("\n")[0]
    )
    add_arguments(parser, messages=60_000, rate=800)
    parser.add_argument(
        "--flow", default="services.rows:rows", help="the flow that fills the tables, as MODULE:ATTRIBUTE"
    )
    chosen = parser.parse_args(arguments)
    options = options_of(chosen, republisher_engine="inprocess")  # it is there for its replays
    tables = Tables(options.directory / "tables", chosen.seed, options.engine == "spark", chosen.flow)
    return run_demo(options, tables, report)


def report(outcome: Outcome, console: Console) -> None:
    """Print the results, except what is off, and the last line."""
    for table in (
        *printed(outcome.tables, outcome.truth.events),
        *spark_tables(outcome),
        naive.table(outcome.naive, outcome.truth),
    ):
        console.print(table)
    report_kills(outcome.kills, console)
    report_replays("rows", outcome.replays, outcome.records, outcome.reported_replays, console)
    for line in outcome.lines:
        console.print(line, highlight=False, soft_wrap=True)


def spark_tables(outcome: Outcome) -> list[Table]:
    """What Spark has found."""
    found = []
    for address, lines in outcome.spark.items():
        result = Table(title=f"the table in {kind_of(address)}, by Spark")
        for column in ("line", *FIELDS, "different fastenings"):
            result.add_column(column, justify="left" if column == "line" else "right")
        for line, sums in sorted(lines.items()):
            result.add_row(line, *(f"{number:,}" for number in sums))
        found.append(result)
    return found


if __name__ == "__main__":
    sys.exit(main())
