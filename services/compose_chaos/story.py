"""Chaos in docker compose from beginning to end: images, stack, load, faults, audit."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from services.compose_chaos.docker import Compose, Docker, DockerFailed, now
from services.compose_chaos.faults import SERVERS, SERVICES, SIMULATOR, ChaosFault, plan
from services.compose_chaos.stack import Stack
from services.compose_chaos.strikes import SUPERSEDED, NoEvidence, strike
from services.simulate import MESSAGES_AT_MOST

AWAY = 5
"""Exit status of a service that was asked to end while a broker or store was down."""


class ChaosOptions(argparse.Namespace):
    """The user's options; `__main__` explains them."""

    faults: int
    first: int
    seed: int
    rate: int
    store: str
    engine: str
    timeout: float
    directory: Path
    images: bool


@dataclass(frozen=True, slots=True)
class Struck:
    """The result of a fault.

    Attributes:
        evidence: what shows that it took hold; empty when nothing does.
        recovered_s: seconds until all servers were healthy and both services had committed again.
    """

    fault: ChaosFault
    evidence: str
    recovered_s: float


@dataclass(slots=True)
class ChaosOutcome:
    """The outcome of the run."""

    struck: list[Struck] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    audit: str = ""

    @property
    def last_line(self) -> str:
        """The result in one line."""
        told = self.audit.splitlines()[-1] if self.audit else "not exact: the audit did not pass"
        if self.failures and told.startswith("exact"):
            told = f"not proved: {told}"
        return f"{told}; {sum(bool(struck.evidence) for struck in self.struck)} faults took hold"


class ChaosStory:
    """One run."""

    def __init__(self, docker: Docker, options: ChaosOptions, note: Callable[[str], None]) -> None:
        self._docker = docker
        self._options = options
        self._note = note
        environment = {
            "STORE": options.store,
            "ENGINE": options.engine,
            "SEED": str(options.seed),
            "RATE": str(options.rate),
            "MESSAGES": str(MESSAGES_AT_MOST),
        }
        self._compose = Compose(docker, f"sqe-chaos-{os.getpid()}", environment)

    def tell(self) -> ChaosOutcome:
        """Run everything; nothing of the project is left afterwards.

        Raises:
            DockerFailed: the stack did not get well again, or Docker fails.
        """
        try:
            return self._tell()
        except DockerFailed:
            self._save_logs()
            raise
        finally:
            with suppress(DockerFailed):
                self._compose.run("down", "--volumes", "--timeout", "5", "--remove-orphans")

    def _tell(self) -> ChaosOutcome:
        outcome = ChaosOutcome()
        began = now()
        self._note(f"docker compose {self._compose.version}, store {self._options.store}")
        self._compose.run("up", "--detach", "--no-build", *SERVERS, *SERVICES, SIMULATOR)
        self._stack = Stack(self._docker, self._compose)
        self._stack.wait_until_well(began)
        self._note("the stack is up, reports pour in")
        faults = plan(self._options.seed, self._options.faults, self._options.first)
        for number, fault in enumerate(faults, 1):
            time.sleep(fault.wait_s)
            struck = self._strike(fault)
            outcome.struck.append(struck)
            told = struck.evidence or "NO EVIDENCE"
            self._note(
                f"{number}/{self._options.faults} {fault}: {told}; well again after {struck.recovered_s:.1f} s"
            )
        self._audit(outcome)
        self._end_services(outcome)
        if outcome.failures:
            self._save_logs()
        return outcome

    def _strike(self, fault: ChaosFault) -> Struck:
        try:
            evidence = strike(self._stack, fault)
        except NoEvidence as error:
            self._note(f"{fault}: {error}")
            evidence = ""
        undone, undone_s = now(), time.monotonic()
        self._stack.wait_until_well(undone)
        return Struck(fault, evidence, time.monotonic() - undone_s)

    def _audit(self, outcome: ChaosOutcome) -> None:
        """Stop the load, produce the rest up to a known number, wait until there is no lag, compare."""
        self._docker.run("stop", self._stack.container(SIMULATOR))
        simulate = f"python -m services.simulate --kafka kafka:9092 --resume --seed {self._options.seed} --messages 0"
        told = self._compose.once(SIMULATOR, *simulate.split(), timeout_s=120).split()
        self._note(f"no more faults; {int(told[-1]):,} reports are produced, and now all must be counted")
        try:
            outcome.audit = self._compose.once(
                "audit", timeout_s=self._options.timeout, environment={"MESSAGES": told[-1]}
            )
        except DockerFailed as error:
            outcome.failures.append(f"the audit found something, or could not be made: {error}")

    def _end_services(self, outcome: ChaosOutcome) -> None:
        """Send SIGTERM; each must end with status 0, and none may have stopped by itself before."""
        for name in SERVICES:
            container = self._stack.container(name)
            self._docker.run("stop", "--time", "60", container)
            if status := self._stack.state(name).exit_code:
                outcome.failures.append(f"{name} ended with status {status} after SIGTERM")
            statuses = {event.exit_status for event in self._docker.events(container)}
            if bad := statuses - {None, SUPERSEDED, AWAY}:
                outcome.failures.append(f"{name} has stopped by itself, with status {bad}: see its log")
        outcome.failures += [
            f"{struck.fault}: no evidence" for struck in outcome.struck if not struck.evidence
        ]

    def _save_logs(self) -> None:
        self._options.directory.mkdir(parents=True, exist_ok=True)
        for name in (*SERVERS, *SERVICES, SIMULATOR):
            with suppress(DockerFailed):
                lines = self._docker.lines(self._compose.container(name))
                text = "\n".join(lines)
                (self._options.directory / f"{name}.log").write_text(f"{text}\n", encoding="utf-8")
        self._note(f"logs are in {self._options.directory}")
