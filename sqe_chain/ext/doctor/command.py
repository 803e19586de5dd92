"""`sqe-chain doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import typer
from rich.text import Text

from sqe_chain.adapters import Address
from sqe_chain.cli.console import ERR, OUT, print_json
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import FlowArgument, JsonOption, KafkaIfNeeded, Stores, command
from sqe_chain.errors import ChainError, ConfigurationError
from sqe_chain.errors.safe_text import one_line
from sqe_chain.ext.doctor.checks import CHECKS, examine
from sqe_chain.ext.doctor.diagnostic import Diagnostic
from sqe_chain.ext.doctor.dry import refused_start
from sqe_chain.ext.doctor.facts import Gathering
from sqe_chain.runtime.connecting import open_log, open_stores

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


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
    return refused_start(facts, gathering.log, gathering.stores, gathering.clock) + findings


@command
def doctor(target: FlowArgument, *, kafka: KafkaIfNeeded, servers: Stores, json: JsonOption = False) -> None:
    """Check everything that the guarantees of a flow rest on: topics, offsets, stores, claims, plans, this machine.

    The command changes nothing, and the flow's service may run meanwhile: what it writes to try the login's rights undoes itself.
    Each finding has a severity, the evidence and a command. An error means that the service cannot run or is not exact. A warning
    means that it is exact until something happens.

    The exit status is 1 if there is an error, else 0: then a start comes to its first batch.
    """
    flow = load_flow(target)
    if kafka.kafka is None and flow.input_topics:
        raise ConfigurationError("give the brokers: --kafka HOST:PORT")
    log = None if kafka.kafka is None else open_log(kafka.kafka, kafka.kafka_config)
    urls = servers.urls()
    findings: list[Diagnostic] = []
    try:
        with open_stores(flow, urls) as stores:
            findings += diagnose(
                Gathering(
                    flow,
                    log,
                    stores,
                    lambda: time.time_ns() // 1_000_000,
                    lambda ms: time.sleep(ms / 1_000),
                    directories_of_files(urls.values()),
                )
            )
    except ChainError as error:
        findings.append(Diagnostic("unreachable", "error", "store", str(error), "check --store"))
    for finding in findings:
        if json:
            print_json(asdict(finding))
            continue
        OUT.print(
            Text.assemble(
                (f"{finding.severity:8}", _STYLES[finding.severity]),
                f"{finding.check}: {one_line(finding.subject)}: {one_line(finding.text)}",
            )
        )
        if finding.command:
            OUT.print(f"         {finding.command}")
    if not json:
        counts = ", ".join(
            f"{sum(finding.severity == level for finding in findings)} {level}s" for level in _STYLES
        )
        ERR.print(f"{len(CHECKS)} groups of checks: {counts}")
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)
