"""Entry point of the demo: `python -m services.demo`."""

from __future__ import annotations

import sys

from rich.console import Console

from services import audit, naive
from services.demo import __doc__ as description
from services.demo.commands import demo_parser, parse_options
from services.demo.running import report_kills_and_replays, run_demo
from services.demo.totals import TotalsDemo
from services.demo.verdict import TotalsOutcome


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit status: 0 only if the totals were exact and the run proves it."""
    parser = demo_parser("services.demo", description, messages=300_000, rate=3_000)
    parser.add_argument(
        "--store",
        choices=["redis", "cassandra", "postgres", "mixed"],
        default="redis",
        help="where states are kept; mixed: those of robots in Cassandra, those of lines in Redis",
    )
    options = parse_options(parser, arguments)
    return run_demo(options, TotalsDemo(options.store, options.seed), report)


def report(outcome: TotalsOutcome, console: Console) -> None:
    """Print the results, except what is off, and the last line."""
    for table in (*audit.tables(outcome.stages, outcome.truth), naive.table(outcome.naive, outcome.truth)):
        console.print(table)
    report_kills_and_replays(outcome, console)


if __name__ == "__main__":
    sys.exit(main())
