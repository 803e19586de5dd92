"""`sqe-chain doctor`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import typer
from rich.text import Text

from sqe_chain.adapters import Address
from sqe_chain.cli.console import ERR, OUT, print_json
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import EngineOptions, FlowArgument, JsonOption, KafkaIfNeeded, Stores, command
from sqe_chain.errors import ChainError, ConfigurationError
from sqe_chain.errors.safe_text import one_line
from sqe_chain.ext.doctor.checks import CHECKS, examine
from sqe_chain.ext.doctor.diagnostic import UNTRIED, Diagnostic, Severity, report
from sqe_chain.ext.doctor.dry import refused_start
from sqe_chain.ext.doctor.facts import Gathering
from sqe_chain.runtime.connecting import (
    Deployment,
    check_engine,
    follow_failover,
    open_inputs,
    open_log,
    open_stores,
)

MOST_ALIKE: Final = 5
"""Findings of one check that are printed: a lost broker is one fact, though a thousand partitions show it."""

_STYLES: Final[dict[Severity, str]] = {"error": "bold red", "warning": "yellow", "note": "dim"}


def directories_of_files(urls: Iterable[str]) -> list[Path]:
    """Where stores that are files have theirs."""
    addresses = [Address.parse(url, {}) for url in urls]
    return [Path(address.path).parent for address in addresses if address.scheme == "sqlite"]


def diagnose(gathering: Gathering) -> list[Diagnostic]:
    """All findings, errors first. If there is no error among them, also what a start ends with that is made on copies."""
    facts = gathering.gather()
    findings = examine(facts)
    if any(finding.severity == "error" for finding in findings):
        return findings
    inputs = gathering.inputs or gathering.log
    return refused_start(facts, inputs, gathering.stores, gathering.clock, gathering.wait) + findings


def some_of_each(findings: Iterable[Diagnostic]) -> Iterator[tuple[Diagnostic, int]]:
    """The findings that are printed, each once, and with the last one of its check how many more there are."""
    alike: dict[str, list[Diagnostic]] = {}
    for finding in dict.fromkeys(findings):
        alike.setdefault(finding.check, []).append(finding)
    for own in alike.values():
        *first, last = own[:MOST_ALIKE]
        yield from ((finding, 0) for finding in first)
        yield last, len(own) - len(first) - 1


def print_findings(findings: Sequence[Diagnostic]) -> None:
    """Print the findings for people, and how many there are of each severity."""
    for finding, more in some_of_each(findings):
        OUT.print(
            Text.assemble(
                (f"{finding.severity:8}", _STYLES[finding.severity]),
                f"{finding.check}: {one_line(finding.subject)}: {one_line(finding.text)}",
            )
        )
        if finding.command:
            OUT.print(f"         {finding.command}")
        if more:
            OUT.print(f"         {more:,} more {finding.check}; --json lists all")
    severities = Counter(finding.severity for finding in findings)
    counts = ", ".join(f"{severities[level]} {level}{'s' * (severities[level] != 1)}" for level in _STYLES)
    ERR.print(
        f"{len(CHECKS)} groups of checks: {counts}. States are not compared with the records: `sqe-chain audit` does that"
    )


def status_of(findings: Iterable[Diagnostic]) -> int:
    """The exit status: 1 for an error; 3 if there is none, and something could not be tried; else 0."""
    kinds = {finding.severity for finding in findings}
    untried = any(finding.check in UNTRIED for finding in findings)
    return 1 if "error" in kinds else 3 if untried else 0


@command
def doctor(
    target: FlowArgument,
    *,
    kafka: KafkaIfNeeded,
    servers: Stores,
    engine: EngineOptions,
    json: JsonOption = False,
) -> None:
    """Check everything that the guarantees of a flow rest on: topics, offsets, stores, claims, plans, engine, this machine.

    The command changes nothing, and the flow's service may run meanwhile: what it writes to try the login's rights undoes itself.
    The flow's module is imported, and functions of the flow are called where a start finishes a batch that was killed.

    Each finding has a severity, the evidence and a command. An error means that the service cannot run or is not exact. A warning
    means that it is exact until something happens.

    Give the engine that a start is given. The exit status is 0 if such a start comes to its first batch, and 1 if there is an error. It is 3 if there is none, and something
    could not be tried (`not-tried`, `unknown-rights`).
    """
    flow = load_flow(target)
    if kafka.kafka is None and flow.input_topics:
        raise ConfigurationError("give the brokers: --kafka HOST:PORT")
    log = None if kafka.kafka is None else open_log(kafka.kafka, kafka.kafka_config)
    inputs = None
    if flow.file_sources:
        inputs = open_inputs(flow, Deployment(kafka=kafka.kafka, kafka_config=kafka.kafka_config))
    urls, choice = servers.urls(), engine.choice()
    findings: list[Diagnostic] = []
    try:
        check_engine(choice)
    except ConfigurationError as error:
        findings.append(report("no-engine", f"engine {choice.name}", why=error))
    try:
        with open_stores(flow, urls) as stores:
            findings += diagnose(
                Gathering(
                    flow,
                    None if log is None else follow_failover(log, stores, flow),
                    stores,
                    lambda: time.time_ns() // 1_000_000,
                    lambda ms: time.sleep(ms / 1_000),
                    directories_of_files(urls.values()),
                    inputs,
                )
            )
    except ChainError as error:
        findings.append(Diagnostic("unreachable", "error", "store", str(error), "check --store"))
    if json:
        for finding in findings:
            print_json(asdict(finding))
    else:
        print_findings(findings)
    status = status_of(findings)
    if status:
        raise typer.Exit(status)
