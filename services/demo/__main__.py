"""Entry point of the demo: `python -m services.demo`."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from services import audit, naive
from services.demo import __doc__ as description
from services.demo.commands import add_arguments, options_of
from services.demo.running import report_kills, report_replays, run_demo
from services.demo.totals import Totals
from services.demo.verdict import Outcome


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit status: 0 only if the totals were exact and the run proves it."""
    parser = argparse.ArgumentParser(
        prog="python -m services.demo", description=(description or "").partition("\n")[0]
    )
    add_arguments(parser, messages=300_000, rate=3_000)
    parser.add_argument(
        "--store",
        choices=["redis", "cassandra", "mixed"],
        default="redis",
        help="where states are kept; mixed: those of robots in Cassandra, those of lines in Redis",
    )
    chosen = parser.parse_args(arguments)
    return run_demo(options_of(chosen), Totals(chosen.store, chosen.seed), report)


def report(outcome: Outcome, console: Console) -> None:
    """Print the results, except what is off, and the last line."""
    for table in (*audit.tables(outcome.stages, outcome.truth), naive.table(outcome.naive, outcome.truth)):
        console.print(table)
    report_kills(outcome.kills, console)
    report_replays("totals", outcome.replays, outcome.records, outcome.reported_replays, console)


if __name__ == "__main__":
    sys.exit(main())
