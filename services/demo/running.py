"""Runs a demo for people: progress, the outcome, the exit status."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from rich.console import Console

from services.demo.commands import Options
from services.demo.kills import Kills
from services.demo.progress import Progress
from services.demo.scene import Scene
from services.demo.story import Story
from services.demo.victim import DemoFailed, summary
from sqe_chain.errors import ChainError


class Judged(Protocol):
    """The outcome of a demo."""

    @property
    def failures(self) -> list[str]:
        """Everything that is wrong, one sentence each."""

    @property
    def last_line(self) -> str:
        """The result in one line."""


Outcome = TypeVar("Outcome", bound=Judged)


def run_demo(options: Options, scene: Scene[Outcome], report: Callable[[Outcome, Console], None]) -> int:
    """Run a demo; returns the exit status: 0 only if everything was exact and the run proves it.

    Args:
        options: what the user chose.
        scene: what is killed and judged.
        report: prints the results, except what is off, and the last line.
    """
    console = Console()
    try:
        with Progress(console) as progress:
            outcome = Story(options, scene, progress).tell()
        report(outcome, console)
        for failure in outcome.failures:
            console.print(f"OFF: {failure}", highlight=False, markup=False, soft_wrap=True)
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


def report_kills(services: Sequence[Kills], console: Console) -> None:
    """Print what was killed, service by service."""
    for kills in services:
        console.print(f"{kills.service}: {summary(kills.all)}", highlight=False, soft_wrap=True)


def report_replays(service: str, replays: int, records: int, reported: int, console: Console) -> None:
    """Print how many messages were replays.

    Args:
        service: the one that ignores them.
        replays: messages in its input that had been published before.
        records: messages in its input.
        reported: replays that it has reported.
        console: where to print.
    """
    console.print(
        f"replays that reached {service} and were ignored: {replays:,} of {records:,} messages "
        f"({replays / max(1, records):.1%}); {reported:,} reported by lives that could still speak",
        highlight=False,
        soft_wrap=True,
    )
