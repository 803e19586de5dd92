"""The stack under test: its containers, their health, their log events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from services.compose_chaos.docker import Compose, Docker, DockerFailed, State
from services.compose_chaos.faults import SERVERS, SERVICES, SIMULATOR

WELL_WITHIN_S = 240.0
PORTS = {"kafka": 9092, "redis": 6379, "cassandra": 9042, "postgres": 5432}

_LOOK_S = 0.3
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


class Stack:
    """The running containers of one project."""

    def __init__(self, docker: Docker, compose: Compose) -> None:
        self.docker = docker
        self.compose = compose
        self._containers = {name: compose.container(name) for name in (*SERVERS, *SERVICES, SIMULATOR)}

    def container(self, service: str) -> str:
        """Id of the container of a service; it stays the same over restarts."""
        return self._containers[service]

    def containers(self, services: Sequence[str]) -> list[str]:
        """Ids of the containers of several services."""
        return [self._containers[service] for service in services]

    def state(self, service: str) -> State:
        """The state of the container of a service."""
        return self.docker.state(self._containers[service])

    def refusal(self, server: str, asked_from: str = SIMULATOR) -> str:
        """Why a connection to a server inside the network fails; empty if it works."""
        asked = self._containers[asked_from]
        try:
            self.docker.run("exec", asked, "python", "-c", _CONNECT, server, str(PORTS[server]))
        except DockerFailed as error:
            return str(error).splitlines()[-1]
        return ""

    def wait_until_well(self, since: str) -> None:
        """Return when all servers are healthy and both services have committed a batch.

        Raises:
            DockerFailed: it took too long, or a service has found that it would not be exact.
        """

        def unwell() -> str:
            sick = [
                f"{name} is {state.health}" for name in SERVERS if not _is_well(state := self.state(name))
            ]
            sick += [
                f"{name} has committed nothing"
                for name in SERVICES
                if not any(
                    event.event == "committed" for event in self.docker.events(self._containers[name], since)
                )
            ]
            return ", ".join(sick)

        wait_until_nothing(unwell, WELL_WITHIN_S)


def _is_well(state: State) -> bool:
    return state.running and state.health == "healthy"


def wait_until_nothing(missing: Callable[[], str], timeout_s: float) -> None:
    """Return when nothing is missing.

    Raises:
        DockerFailed: it took longer.
    """
    deadline = time.monotonic() + timeout_s
    while text := missing():
        if time.monotonic() > deadline:
            raise DockerFailed(f"after {timeout_s:.0f} s: {text}")
        time.sleep(_LOOK_S)
