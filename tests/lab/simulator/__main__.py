"""Simulate schedules from the command line: ``make simulate ARGS="--schedules N --seed S"``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tests.lab.simulator.campaign import Campaign


def main(arguments: list[str] | None = None) -> int:
    """Run schedules, print counts and, where an invariant does not hold, the smallest test that shows it.

    Args:
        arguments: of the command line.

    Returns:
        Exit status: 1 on a violation, or when a large campaign has never reached something.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.lab.simulator", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many (default 10,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each next one is greater by one")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0, the default: one for each core")
    parser.add_argument("--seconds", type=float, help="end after so long, however many schedules that were")
    parser.add_argument("--keep-going", action="store_true", help="count violations, do not end at the first")
    parser.add_argument("--whole", action="store_true", help="print a failing schedule as it is, not shrunk")
    parser.add_argument("--coverage", action="store_true", help="print what was reached how often")
    parser.add_argument("--json", type=Path, help="write the figures there, as one JSON object")
    options = parser.parse_args(arguments)
    campaign = Campaign(
        range(options.seed, options.seed + options.schedules), options.jobs or os.cpu_count() or 1
    )
    began = time.perf_counter()
    for _ in campaign.run():
        late = options.seconds is not None and time.perf_counter() - began > options.seconds
        if late or (campaign.violations and not options.keep_going):
            break
    took = time.perf_counter() - began
    sys.stdout.write(campaign.report(took, shrink=not options.whole))
    if options.coverage or campaign.incomplete:
        sys.stdout.write(campaign.coverage())
    if options.json:
        options.json.write_text(json.dumps(campaign.figures(took)) + "\n")
    return 1 if campaign.violations or campaign.incomplete else 0


if __name__ == "__main__":
    raise SystemExit(main())
