"""Entry point of the demo: `python -m services.demo`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from services import audit, naive
from services.demo import __doc__ as description
from services.demo.commands import Options
from services.demo.progress import Progress
from services.demo.story import Story
from services.demo.verdict import Outcome
from services.demo.victim import DemoFailed, summary
from sqe_chain.errors import ChainError


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit status: 0 only if the totals were exact and the run proves it."""
    options = _options(arguments)
    console = Console()
    try:
        with Progress(console) as progress:
            outcome = Story(options, progress).tell()
        report(outcome, console)
        progress.note("done")
    except (DemoFailed, ChainError, TimeoutError) as error:
        console.print(f"{error}", highlight=False, markup=False, soft_wrap=True)
        console.print(
            f"the demo failed; data and logs are in {options.directory}", highlight=False, soft_wrap=True
        )
        return 1
    except KeyboardInterrupt:
        console.print(
            f"interrupted; data and logs are in {options.directory}", highlight=False, soft_wrap=True
        )
        return 130
    console.print(outcome.last_line, highlight=False, soft_wrap=True)
    if outcome.failures:
        return 1
    shutil.rmtree(options.directory, ignore_errors=True)
    return 0


def report(outcome: Outcome, console: Console) -> None:
    """Print the results, except the last line."""
    for table in (*audit.tables(outcome.stages, outcome.truth), naive.table(outcome.naive, outcome.truth)):
        console.print(table)
    for kills in outcome.kills:
        console.print(f"{kills.service}: {summary(kills.all)}", highlight=False, soft_wrap=True)
    console.print(
        f"replays that reached totals and were ignored: {outcome.replays:,} of {outcome.records:,} messages "
        f"({outcome.replays / max(1, outcome.records):.1%}); {outcome.reported_replays:,} reported by lives "
        "that could still speak",
        highlight=False,
        soft_wrap=True,
    )
    for failure in outcome.failures:
        console.print(f"OFF: {failure}", highlight=False, markup=False, soft_wrap=True)


def _options(arguments: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m services.demo", description=(description or "").partition("\n")[0]
    )
    parser.add_argument("--messages", type=int, default=300_000, help="reports to produce at least")
    parser.add_argument("--seed", type=int, default=7, help="of the simulator and of the kills")
    parser.add_argument("--kills", type=int, default=5, help="kills of each service that must count")
    parser.add_argument(
        "--rate", type=float, default=3_000, help="reports a second while the killing goes on"
    )
    parser.add_argument("--interval", default="1s", help="interval of the totals service")
    parser.add_argument(
        "--engine", choices=["spark", "inprocess"], default="spark", help="what runs the tasks"
    )
    parser.add_argument(
        "--store",
        choices=["redis", "cassandra", "mixed"],
        default="redis",
        help="where states are kept; mixed: those of robots in Cassandra, those of lines in Redis",
    )
    parser.add_argument("--timeout", type=float, default=900, help="seconds after which the demo fails")
    parser.add_argument(
        "--directory", type=Path, help="data and logs; by default a temporary one, removed if all went well"
    )
    chosen = parser.parse_args(arguments)
    return Options(
        messages=chosen.messages,
        seed=chosen.seed,
        kills=chosen.kills,
        rate=chosen.rate,
        interval=chosen.interval,
        engine=chosen.engine,
        store=chosen.store,
        timeout_s=chosen.timeout,
        directory=chosen.directory or Path(tempfile.mkdtemp(prefix="sqe-chain-demo-")),
    )


if __name__ == "__main__":
    sys.exit(main())
