"""Entry point: `python -m services.compose_chaos`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from services.compose_chaos import __doc__ as description
from services.compose_chaos.daemon import NoDocker, daemon
from services.compose_chaos.docker import DockerFailed, provide_images
from services.compose_chaos.story import ChaosOptions, ChaosOutcome, ChaosStory
from services.entry import parser_of
from sqe_chain.errors import ChainError

NO_DOCKER = 77
"""Exit status without Docker: the one that automake uses for a skipped test."""


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit status: 0 only if the totals are exact and every fault had an effect."""
    options = _parser().parse_args(arguments, namespace=ChaosOptions())
    console = Console(highlight=False, markup=False, soft_wrap=True)
    began = time.monotonic()

    def note(text: str) -> None:
        console.print(f"{time.monotonic() - began:6.1f} s  {text}")

    try:
        with daemon() as docker:
            provide_images(docker, note)
            if options.images:
                return 0
            outcome = ChaosStory(docker, options, note).tell()
    except NoDocker as error:
        console.print(f"NOT RUN: {error}")
        return NO_DOCKER
    except (DockerFailed, ChainError) as error:
        console.print(f"{error}")
        console.print("not exact: chaos in docker compose failed")
        return 1
    report(outcome, console)
    return 1 if outcome.failures else 0


def report(outcome: ChaosOutcome, console: Console) -> None:
    """Print the results."""
    table = Table(title=f"{len(outcome.struck)} faults")
    for column in ("fault", "evidence", "well again after"):
        table.add_column(column, justify="right" if column.startswith("well") else "left", overflow="fold")
    for struck in outcome.struck:
        table.add_row(str(struck.fault), struck.evidence or "NONE", f"{struck.recovered_s:.1f} s")
    console.print(table, soft_wrap=False)
    console.print(outcome.audit)
    for failure in outcome.failures:
        console.print(f"OFF: {failure}")
    console.print(outcome.last_line)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("services.compose_chaos", description)
    parser.add_argument(
        "--faults", type=int, default=31, help="how many; 29 have each victim of every kind among them"
    )
    parser.add_argument("--first", type=int, default=1, help="number of the first; earlier ones are skipped")
    parser.add_argument("--seed", type=int, default=7, help="of the simulator and of the faults")
    parser.add_argument("--rate", type=int, default=1000, help="reports a second, all the time")
    parser.add_argument("--store", default="redis://redis:6379", help="address of the store in the network")
    parser.add_argument(
        "--engine", choices=["spark", "inprocess"], default="spark", help="what runs the tasks"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds within which all must be counted in the end"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(tempfile.gettempdir(), "sqe-chain-compose-chaos"),
        help="for logs when it fails; by default a temporary one",
    )
    parser.add_argument("--images", action="store_true", help="provide the images, and do nothing else")
    return parser


if __name__ == "__main__":
    sys.exit(main())
