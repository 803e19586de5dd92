"""What differs between demos: the service after the republisher, what it needs, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from services.demo.kills import Kills
from sqe_chain.flow import Flow
from sqe_chain.ports import Log

Outcome_co = TypeVar("Outcome_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is there when everything is counted and both services have ended; servers are still running.

    Attributes:
        log: of the broker.
        produced: number of reports.
        replays: those that the judged service has reported; killed lives report only a part.
        kills: all kills, service by service.
        scratch: directory for temporary files.
    """

    log: Log
    produced: int
    replays: int
    kills: Sequence[Kills]
    scratch: str


class Scene(Protocol[Outcome_co]):
    """One demo."""

    @property
    def name(self) -> str:
        """Name of the judged service, in the demo."""

    @property
    def target(self) -> str:
        """Module and attribute of its flow, as `sqe-chain run` takes them."""

    @property
    def flow(self) -> Flow:
        """Its flow."""

    @property
    def levels(self) -> int:
        """How many times it persists in a batch: once for each level of stages."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Additions to the environment of every process."""

    def start(self, directory: Path, ends: ExitStack) -> Mapping[str, str]:
        """Start its servers.

        Args:
            directory: for their data.
            ends: ends them.

        Returns:
            Name of a store in the flow -> its address; "" for every other stage.
        """

    def judge(self, ended: Ended) -> Outcome_co:
        """Compare what the service has stored with what it should be."""
