"""Explore one configuration, print how far that has come, and report; here, so that worker processes find it."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.lab.explorer.configurations import CONFIGURATIONS
from tests.lab.explorer.exploring import Exploration

_SHOW_S: Final = 10


@dataclass(frozen=True, slots=True)
class Result:
    """What was found in one configuration."""

    name: str
    counts: dict[str, int]
    checked: dict[str, int]
    memory_mib: int
    seconds: float
    whole: bool
    violation: str
    path: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in self.counts.items())
        pace = self.counts["states"] / max(self.seconds, 0.001)
        lines = [
            f"{self.name}: {counts}",
            f"  {self.seconds:,.1f} s, {pace:,.0f} states a second, {self.memory_mib:,} MiB at most; "
            + ("all" if self.whole else "not all"),
        ]
        if not self.violation:
            return "\n".join([*lines, "  no violation"])
        lines += [f"  {name:12}{text}" for name, text in self.path]
        names = " ".join(name for name, _ in self.path)
        return "\n".join(
            [*lines, f"  {self.violation}", f"  again: {self.name} --path '{names}' ({len(self.path)} steps)"]
        )


def explore(name: str, options: argparse.Namespace) -> Result:
    """Explore a configuration by the options of the command."""
    if options.directory is not None:
        return _explore_in(options.directory / name, name, options)
    with tempfile.TemporaryDirectory(prefix="sqe-chain-explorer-") as directory:
        return _explore_in(Path(directory), name, options)


def _explore_in(directory: Path, name: str, options: argparse.Namespace) -> Result:
    exploration = Exploration(CONFIGURATIONS[name], directory)
    shown = time.perf_counter()
    for _ in exploration.run(most=options.states, seconds=options.seconds):
        if time.perf_counter() - shown > _SHOW_S:
            shown = time.perf_counter()
            counts = exploration.counts()
            sys.stderr.write(
                f"{name}: layer {len(exploration.layers):,}, {exploration.layers[-1]:,} states in it, {exploration.found:,} in all, "
                f"{counts['durable_states']:,} durable, {counts['histories']:,} histories, {_memory_mib():,} MiB, "
                f"{exploration.seconds:,.0f} s\n"
            )
    return Result(
        name,
        exploration.counts(),
        dict(exploration.states.checks.checked),
        _memory_mib(),
        exploration.seconds,
        exploration.whole,
        str(exploration.violation or ""),
        tuple(exploration.path),
    )


def _memory_mib() -> int:
    """Of this process, at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
