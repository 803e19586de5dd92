"""Runs a demo for people: progress, the outcome, the exit status."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

from services.demo.commands import DemoOptions
from services.demo.progress import DemoProgress
from services.demo.scene import Scene
from services.demo.story import DemoStory
from services.demo.verdict import DemoOutcome
from services.demo.victim import DemoFailed, summary
from sqe_chain.errors import ChainError

Outcome = TypeVar("Outcome", bound=DemoOutcome)


def run_demo(options: DemoOptions, scene: Scene[Outcome], report: Callable[[Outcome, Console], None]) -> int:
    """Run a demo; returns the exit status: 0 only if everything was exact and the run proves it.

    `report` prints the results, except what is off, and the last line.
    """
    console = Console()
    try:
        with DemoProgress(console) as progress:
            outcome = DemoStory(options, scene, progress).tell()
        report(outcome, console)
        for failure in outcome.failures:
            console.print(f"OFF: {failure}", highlight=False, markup=False, soft_wrap=True)
        progress.note("done")
    except (DemoFailed, ChainError, TimeoutError, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        text = "interrupted" if interrupted else f"{error}\nthe demo failed"
        where = f"; data and logs are in {options.directory}"
        console.print(text + where, highlight=False, markup=False, soft_wrap=True)
        return 130 if interrupted else 1
    console.print(outcome.last_line, highlight=False, soft_wrap=True)
    if outcome.failures:
        return 1
    shutil.rmtree(options.directory, ignore_errors=True)
    return 0


def report_kills_and_replays(outcome: DemoOutcome, console: Console) -> None:
    """Print what was killed, service by service, and how many messages were replays."""
    for kills in outcome.kills:
        console.print(f"{kills.service}: {summary(kills.all)}", highlight=False, soft_wrap=True)
    console.print(
        f"replays that reached {outcome.service} and were ignored: {outcome.replays:,} of {outcome.records:,} messages "
        f"({outcome.replays / max(1, outcome.records):.1%}); {outcome.reported_replays:,} reported by lives that could still speak",
        highlight=False,
        soft_wrap=True,
    )
