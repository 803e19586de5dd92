"""`python -m benchmarks.storm`: all systems through the same storms, seed by seed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.choosing import chosen, installed
from benchmarks.machine import facts as machine_facts
from benchmarks.peers.installing import NEWEST_KAFKA
from benchmarks.storm.facts import PER_ROBOT, Facts
from benchmarks.storm.ledger import Entry, append, commit, read
from benchmarks.storm.outcome import Outcome
from benchmarks.storm.results import Results, report, write_between
from benchmarks.storm.running import Storm
from benchmarks.storm.system import ROOT, Stuck, System
from benchmarks.storm.systems import SYSTEMS
from sqe_chain.ext.dev import KafkaServer, PostgresServer, RedisServer

Run = Callable[[System, int], Outcome]
"""Runs the storm of a seed over a system."""

OUT = Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else 150)


def main(
    seeds: Annotated[
        str,
        typer.Option(help="Each draws the facts and the faults of one storm. None: only show the ledger."),
    ] = "1,2,3",
    robots: Annotated[int, typer.Option(min=100, help="Each has 15 facts.")] = 240,
    seconds: Annotated[float, typer.Option(min=1, help="How long reports are sent, without faults.")] = 8,
    systems: Annotated[
        str, typer.Option(help=f"Some of {','.join(system.name for system in SYSTEMS)}. Default: all.")
    ] = "",
    ledger: Annotated[
        Path | None,
        typer.Option(help="Add each result to this file, and skip what it has of the same commit already."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(exists=True, help="Write the result into this page, and images/storm.svg beside it."),
    ] = None,
) -> None:
    """Put every system through the same storms; fails where a system's verdict depends on the seed, or ours is not exact."""
    asked = chosen(systems, {system.name: system for system in SYSTEMS}, "--systems")
    running = commit()
    if ledger and seeds and running.endswith("-dirty"):
        raise typer.BadParameter(
            "its entries name a commit, and the code has changes; commit first", param_hint="--ledger"
        )
    for name, text in machine_facts().items():
        OUT.print(f"{name}: {text}")
    began_s = time.monotonic()
    facts = robots * PER_ROBOT
    entries = [entry for entry in (read(ledger) if ledger else []) if entry.facts == facts]
    done = Results(entry for entry in entries if entry.commit == running)
    pairs = [(int(seed), system) for seed in seeds.split(",") if seed for system in asked]
    todo = [(seed, system) for seed, system in pairs if not done.has(system.name, seed)]
    skipped: dict[str, str] = {}
    able = list(installed(dict.fromkeys(system for _, system in todo), skipped, OUT.print))
    with ExitStack() as servers:
        run = _runner(servers, able, robots, seconds)
        for seed, system in todo:
            if system in able:
                entry = _entry(running, system, seed, facts, run)
                OUT.print(f"  seed {seed}, {system.name}: {_shown(entry)}")
                entries.append(entry)
                if ledger:
                    append(ledger, entry)
    OUT.print(f"all storms took {(time.monotonic() - began_s) / 60:.1f} min")
    if not entries:
        raise typer.Exit(1)
    _finish(entries, skipped, page)


def _finish(entries: Sequence[Entry], skipped: Mapping[str, str], page: Path | None) -> None:
    """Show the result, and write it into the page.

    Raises:
        typer.Exit: it is not as the page promises.
    """
    text = report(entries, SYSTEMS, skipped)
    OUT.print(text)
    results = Results(entries, skipped=dict(skipped))
    if page:
        write_between(page, text)
        picture = page.parent / "images" / "storm.svg"
        picture.write_text(results.picture(SYSTEMS, entries[-1].facts), encoding="utf-8")
    faults = list(results.faults(SYSTEMS))
    for fault in faults:
        OUT.print(fault)
    if faults:
        raise typer.Exit(1)


def _runner(servers: ExitStack, systems: Sequence[System], robots: int, seconds: float) -> Run:
    """Start the servers that these systems need, none for no systems; returns what runs a storm on them."""
    kafka, redis = KafkaServer(heap_mb=768, version=NEWEST_KAFKA), RedisServer()
    databases: list[RedisServer | PostgresServer] = [redis]
    if any(system.postgres for system in systems):
        databases.append(PostgresServer())
    for server in (kafka, *databases) if systems else ():
        servers.enter_context(server)
    return lambda system, seed: Storm(system, Facts(seed, robots), kafka, databases, seconds).run()


def _entry(running: str, system: System, seed: int, facts: int, run: Run) -> Entry:
    """Run a storm; an entry of the ledger, whatever came of it."""
    outcome, stuck = None, ""
    try:
        outcome = run(system, seed)
    except Stuck as error:
        OUT.print(str(error))  # with the end of a log, which is no business of the ledger
        stuck = str(error).splitlines()[0].rstrip(":")
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return Entry(running, date, NEWEST_KAFKA, system.name, system.versions, seed, facts, outcome, stuck)


def _shown(entry: Entry) -> str:
    if entry.outcome is None:
        return entry.stuck
    outcome = entry.outcome
    judgement = outcome.judgement
    at_stake = ", ".join(str(strike.at_stake) for strike in outcome.strikes if strike.at_stake)
    return (
        f"{outcome.verdict}{''.join(f' ({lack})' for lack in outcome.lacks)}; "
        f"{judgement.wrong:,} of {judgement.robots:,} totals wrong, {judgement.lost:,} lost, "
        f"{judgement.doubled:,} doubled by itself, {judgement.repeated:,} of {judgement.again:,} counted again, {judgement.torn:,} torn; "
        f"outside: {outcome.seen:,} seen, {outcome.too_high:,} too high, {outcome.went_back:,} back; {outcome.seconds:.0f} s, "
        f"{entry.facts / outcome.seconds / 1e3:.2f} k/s, all counted {outcome.calm_s:.1f} s after the last report; "
        f"{outcome.restarts} restarts; {at_stake} facts at stake when it was killed"
    )


if __name__ == "__main__":
    os.chdir(ROOT)
    command = typer.Typer(pretty_exceptions_enable=False)
    command.command()(main)
    command()
