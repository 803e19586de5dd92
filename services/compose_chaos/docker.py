"""Runs Docker and docker compose by their commands (compose in version 1 or 2), and provides the images of docker-compose.yml."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from services.demo.life import LogLine, parse_line

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "sqe-chain-services"
_PATIENCE_S = 120.0
_PULLED_OR_BUILT_WITHIN_S = 1800.0


class DockerFailed(Exception):
    """A command of Docker failed, or a program it started did; the text names it, and the reason."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a container, from `docker inspect`.

    Attributes:
        pid: of its first process, on the host; 0 when it does not run.
        health: `healthy`, `starting`, `unhealthy`; empty without a health check.
    """

    pid: int
    started_at: str
    running: bool
    exit_code: int
    health: str


class Docker:
    """Runs commands of Docker."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}

    def run(self, *arguments: str, timeout_s: float = _PATIENCE_S) -> str:
        """Run `docker …` and return what it writes.

        Raises:
            DockerFailed: it did not end well, or not in time.
        """
        return self.command(["docker", *arguments], timeout_s)

    def command(
        self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> str:
        """Run any command against this daemon and return what it writes to standard output.

        Raises:
            DockerFailed: it did not end well, or not in time.
        """
        done = self._ended(command, timeout_s, environment or {})
        if done.returncode:
            text = f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}"
            raise DockerFailed(text.rstrip()[-4000:])
        return done.stdout

    def _ended(
        self,
        command: Sequence[str],
        timeout_s: float,
        environment: Mapping[str, str],
        stderr: int = subprocess.PIPE,
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                cwd=ROOT,
                env={**self._environment, **environment},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DockerFailed(f"{' '.join(command)}: not done within {timeout_s:.0f} s") from None
        except OSError as error:
            raise DockerFailed(f"{' '.join(command)}: {error}") from None

    def state(self, container: str) -> State:
        """The state of a container."""
        told = json.loads(self.run("inspect", "--format", "{{json .State}}", container))
        return State(
            pid=told["Pid"],
            started_at=told["StartedAt"],
            running=told["Running"],
            exit_code=told["ExitCode"],
            health=(told.get("Health") or {}).get("Status", ""),
        )

    def lines(self, container: str, since: str = "") -> list[str]:
        """The output of a container, over all its starts. Raises DockerFailed: there is no answer in time."""
        command = ["docker", "logs", *(("--since", since) if since else ()), container]
        return self._ended(command, _PATIENCE_S, {}, subprocess.STDOUT).stdout.splitlines()

    def events(self, container: str, since: str = "") -> list[LogLine]:
        """The events in that output."""
        return [event for line in self.lines(container, since) if (event := parse_line(line))]


def now() -> str:
    """The current time in Docker's format."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Compose:
    """One project: the stack of docker-compose.yml."""

    def __init__(self, docker: Docker, project: str, environment: Mapping[str, str]) -> None:
        self._docker = docker
        self._project = project
        self._environment = environment
        self._program = _program(docker)
        self.version = self._docker.command([*self._program, "version", "--short"], _PATIENCE_S).strip()

    @property
    def network(self) -> str:
        """Name of the network of all its containers."""
        return f"{self._project}_default"

    def run(
        self,
        *arguments: str,
        timeout_s: float = 2 * _PATIENCE_S,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command of compose on the project and return what it writes.

        Raises:
            DockerFailed: it did not end well, or not in time.
        """
        command = [*self._program, "--project-name", self._project, *arguments]
        return self._docker.command(command, timeout_s, {**self._environment, **(environment or {})})

    def once(
        self, service: str, *command: str, timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> str:
        """Run a one-off container of a service, optionally with another command; returns its output."""
        return self.run(
            *("run", "--rm", "--no-deps", "-T", service, *command),
            timeout_s=timeout_s,
            environment=environment,
        )

    def container(self, service: str) -> str:
        """Id of the container of a service.

        Raises:
            DockerFailed: there is none.
        """
        labels = {"project": self._project, "service": service, "oneoff": "False"}
        filters = [
            part
            for name, value in labels.items()
            for part in ("--filter", f"label=com.docker.compose.{name}={value}")
        ]
        found = self._docker.run("ps", "--all", "--quiet", "--no-trunc", *filters).split()
        if not found:
            raise DockerFailed(f"project {self._project} has no container of service {service}")
        return found[0]


def _program(docker: Docker) -> list[str]:
    """The command for compose: the plugin (version 2), else the separate program (version 1)."""
    wanted = os.environ.get("COMPOSE")
    for program in [wanted.split()] if wanted else [["docker", "compose"], ["docker-compose"]]:
        try:
            docker.command([*program, "version", "--short"], _PATIENCE_S)
        except DockerFailed:
            continue
        return program
    raise DockerFailed(
        "no docker compose: install the plugin, or docker-compose (on Debian 12: apt-get install)"
    )


def provide_images(docker: Docker, note: Callable[[str], None]) -> None:
    """Pull or build missing images, and always build the project's own. Notes name the images, public or not.

    Raises:
        DockerFailed: an image can neither be pulled nor built.
    """
    lines = docker.command([str(ROOT / "scripts" / "stand-in-images")], _PULLED_OR_BUILT_WITHIN_S)
    for line in lines.splitlines():
        note(line)
    # The host's network, because our own daemon gives builds none.
    docker.run(
        "build", "--quiet", "--network", "host", "--tag", IMAGE, ".", timeout_s=_PULLED_OR_BUILT_WITHIN_S
    )
    note(f"{IMAGE} is built from Dockerfile")
