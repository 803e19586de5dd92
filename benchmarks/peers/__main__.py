"""`python -m benchmarks.peers`: all systems on all workloads, round by round."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.choosing import chosen, installed
from benchmarks.flows import PARTITIONS
from benchmarks.machine import facts
from benchmarks.peers.installing import NEWEST_KAFKA
from benchmarks.peers.records import Records
from benchmarks.peers.results import Results
from benchmarks.peers.running import Place, Wrong
from benchmarks.peers.systems import ENVELOPES, JSON, ROOT, SYSTEMS, System
from benchmarks.peers.workloads import Workload
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev import KafkaServer, RedisServer

OUT = Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else 150)


def main(
    records: Annotated[int, typer.Option(min=1, help="Records of the input.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each system on each workload.")] = 3,
    broker: Annotated[str, typer.Option(help="Version of the Kafka broker.")] = NEWEST_KAFKA,
    limit: Annotated[
        float, typer.Option(min=1, help="Seconds after which a run is ended, without figures.")
    ] = 120,
    systems: Annotated[
        str, typer.Option(help=f"Some of {','.join(system.name for system in SYSTEMS)}. Default: all.")
    ] = "",
    workloads: Annotated[str, typer.Option(help=f"Some of {','.join(Workload)}. Default: all.")] = "",
    rows: Annotated[Path | None, typer.Option("--json", help="Write the rows to this file.")] = None,
) -> None:
    """Measure sqe-chain and others in the same minutes, on servers that are started for it."""
    asked = chosen(systems, {system.name: system for system in SYSTEMS}, "--systems")
    wanted = chosen(workloads, {workload.value: workload for workload in Workload}, "--workloads")
    for name, text in facts().items():
        OUT.print(f"{name}: {text}")
    results = Results()
    able = list(installed(asked, results.skipped, OUT.print))
    # Kafka's own default: members that start together get their partitions together.
    properties = {"group.initial.rebalance.delay.ms": "3000"}
    runs = sum(workload in system.workloads for workload in wanted for system in able)
    OUT.print(f"broker: Kafka {broker}")
    OUT.print(
        f"{runs} runs a round, each ended after {limit:.0f} s: a round takes {runs * limit / 60:.0f} min at most"
    )
    with (
        KafkaServer(heap_mb=1024, properties=properties, version=broker) as kafka,
        RedisServer() as redis,
    ):
        place = Place(kafka, redis, records, limit_s=limit)
        write_input(place)
        began_s = time.monotonic()
        measure(place, able, wanted, rounds, results)
        took_s = time.monotonic() - began_s
    OUT.print(f"{rounds} rounds took {took_s / 60:.1f} min")
    OUT.print(results.markdown(able, wanted))
    for system in able:
        OUT.print(f"{system.name} ({system.versions}): {system.guarantee}")
    for name, reason in results.skipped.items():
        OUT.print(f"skipped: {name}: {reason}")
    for (name, workload), text in results.wrong.items():
        OUT.print(f"wrong: {name}, {workload}: {text}")
    if rows:
        results.write(rows, able)
    if results.wrong:
        raise typer.Exit(1)


def measure(
    place: Place, systems: Sequence[System], workloads: Sequence[Workload], rounds: int, results: Results
) -> None:
    """Run every system on every workload, round by round; one that was wrong once is not run again there."""
    expected = {workload: workload.expected(Records(place.records)) for workload in workloads}
    for number in range(1, rounds + 1):
        for workload in workloads:
            for system in systems:
                if workload not in system.workloads or (system.name, workload) in results.wrong:
                    continue
                name = f"peers-{system.name}-{workload}-{number}"
                try:
                    run = place.run(system, workload, name, expected[workload])
                except Wrong as error:
                    results.wrong[system.name, workload] = str(error)
                    shown = "wrong"
                else:
                    results.add(system.name, workload, run)
                    rate, cpu_us = run.whole.records_per_s, run.whole.cpu_us_per_record
                    shown = f"{rate / 1e3:,.0f} k/s, {cpu_us:.2f} µs"
                OUT.print(f"  round {number}, {workload}, {system.name}: {shown}", style="dim")


def write_input(place: Place) -> None:
    """Write the records into the topics that systems read."""
    log = KafkaLog(place.kafka.bootstrap)
    for topic in (JSON, ENVELOPES):
        log.create_topic(topic, PARTITIONS)
    log.close()
    plain, enveloped = Records(place.records).write(place.kafka.bootstrap, JSON, ENVELOPES)
    OUT.print(
        f"input: {place.records:,} records of {plain:.0f} bytes, in envelopes {enveloped:.0f}; {PARTITIONS} partitions"
    )


if __name__ == "__main__":
    os.chdir(ROOT)
    command = typer.Typer(pretty_exceptions_enable=False)
    command.command()(main)
    command()
