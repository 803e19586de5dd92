"""`python -m benchmarks.storm`: all systems through the same storms, seed by seed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.choosing import chosen, installed
from benchmarks.machine import facts as machine_facts
from benchmarks.peers.installing import NEWEST_KAFKA
from benchmarks.storm.facts import Facts
from benchmarks.storm.faults import draw
from benchmarks.storm.oracle import Verdict
from benchmarks.storm.results import Results, write_between
from benchmarks.storm.running import Outcome, Storm, Stuck
from benchmarks.storm.systems import ROOT, SYSTEMS, System
from sqe_chain.ext.dev import KafkaServer, PostgresServer, RedisServer

OUT = Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else 150)


def main(
    seeds: Annotated[str, typer.Option(help="Each draws the facts and the faults of one storm.")] = "1,2,3",
    robots: Annotated[int, typer.Option(min=100, help="Each has 15 facts.")] = 240,
    seconds: Annotated[float, typer.Option(min=1, help="How long reports are sent, without faults.")] = 8,
    systems: Annotated[
        str, typer.Option(help=f"Some of {','.join(system.name for system in SYSTEMS)}. Default: all.")
    ] = "",
    page: Annotated[
        Path | None,
        typer.Option(exists=True, help="Write the result into this page, and images/storm.svg beside it."),
    ] = None,
) -> None:
    """Put every system through the same storms; fails where a system's verdict depends on the seed, or ours is not exact."""
    asked = chosen(systems, {system.name: system for system in SYSTEMS}, "--systems")
    results = Results(Facts(0, robots).count)
    for name, text in machine_facts().items():
        OUT.print(f"{name}: {text}")
    able = list(installed(asked, results.skipped, OUT.print))
    began_s = time.monotonic()
    with ExitStack() as servers:
        kafka = servers.enter_context(KafkaServer(heap_mb=768, version=NEWEST_KAFKA))
        databases: list[RedisServer | PostgresServer] = [servers.enter_context(RedisServer())]
        if any(system.postgres for system in able):
            databases.append(servers.enter_context(PostgresServer()))
        for seed in map(int, seeds.split(",")):
            for fault in draw(seed, Facts(seed, robots).reports):
                OUT.print(f"seed {seed}, after {fault.at:,} reports: {fault.kind}", style="dim")
            for system in able:
                try:
                    outcome = Storm(system, Facts(seed, robots), kafka, databases, seconds).run()
                except Stuck as error:
                    results.skipped[system.name] = f"seed {seed}: {error}"
                    OUT.print(f"  {system.name}: {error}")
                else:
                    results.add(system, seed, outcome)
                    OUT.print(f"  seed {seed}, {system.name}: {_shown(outcome, results.facts)}")
    OUT.print(f"all storms took {(time.monotonic() - began_s) / 60:.1f} min")
    text = "\n\n".join(_report(results, asked, seeds))
    OUT.print(text)
    if page:
        write_between(page, text)
        picture = page.parent / "images" / "storm.svg"
        picture.write_text(results.picture(asked), encoding="utf-8")
    _check(results, asked)


def _shown(outcome: Outcome, facts: int) -> str:
    judgement, reader = outcome.judgement, outcome.reader
    return (
        f"{judgement.verdict}; {judgement.wrong:,} of {judgement.robots:,} totals wrong, {judgement.lost:,} lost, "
        f"{judgement.doubled:,} doubled by itself, {judgement.repeated:,} of {judgement.again:,} counted again, {judgement.torn:,} torn; "
        f"outside: {reader.seen:,} seen, {reader.too_high:,} too high, {reader.went_back:,} back; {outcome.seconds:.0f} s, "
        f"{facts / outcome.seconds / 1e3:.2f} k/s, all counted {outcome.calm_s:.1f} s after the last report; {outcome.restarts} restarts"
    )


def _report(results: Results, systems: Sequence[System], seeds: str) -> Iterator[str]:
    """What the page shows."""
    named = subprocess.run(
        [shutil.which("git") or "git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    yield (
        f"Seeds {seeds}, {results.facts:,} facts each, commit {named.stdout.strip() or 'unknown'}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. Broker: Kafka {NEWEST_KAFKA}."
    )
    yield results.table(systems)
    shown = [system for system in systems if system.name in results.outcomes]
    yield "\n".join(
        f"- **{system.title}** ({system.versions}; {system.setup}). {system.sentence}" for system in shown
    )
    if results.skipped:
        yield "\n".join(
            f"- Not shown: {name}. {reason.splitlines()[0]}" for name, reason in results.skipped.items()
        )


def _check(results: Results, systems: Iterable[System]) -> None:
    """End with an error where the result is not what the page promises.

    Raises:
        typer.Exit: a verdict depends on the seed, or one of ours is not exact.
    """
    wrong = [f"{name}: its verdict depends on the seed" for name in results.differing()]
    for system in systems:
        if system.ours and not results.verdicts(system.name) <= {Verdict.EXACT}:
            wrong.append(f"{system.name} is not exact")
        if system.ours and system.name in results.skipped:
            wrong.append(f"{system.name}: {results.skipped[system.name]}")
    for text in wrong:
        OUT.print(text)
    if wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    os.chdir(ROOT)
    command = typer.Typer(pretty_exceptions_enable=False)
    command.command()(main)
    command()
