"""What differs between demos: the service after the republisher, what it needs, and how it is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from services import naive
from services.demo.kills import Kills
from services.demo.positions import topic_end
from services.demo.verdict import DemoOutcome
from services.expected import Expected
from sqe_chain.adapters import open_store
from sqe_chain.ext.dev import CassandraServer, PostgresServer
from sqe_chain.flow import Flow
from sqe_chain.ports import Log, WithSchema

Result = TypeVar("Result", bound=DemoOutcome)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is there when everything is counted and both services have ended; servers are still running.

    Attributes:
        replays: those that the judged service has reported; killed lives report only a part.
        kills: all kills, service by service.
        scratch: directory for temporary files.
    """

    log: Log
    produced: int
    replays: int
    kills: Sequence[Kills]
    scratch: str

    def seen(self, truth: Expected) -> dict[str, Any]:
        """What each outcome holds, by the names of its fields."""
        return {
            "truth": truth,
            "records": topic_end(self.log, naive.TOPIC),
            "reported_replays": self.replays,
            "naive": naive.count(naive.values(self.log, naive.TOPIC), truth),
            "kills": self.kills,
        }


class Scene(ABC, Generic[Result]):
    """One demo.

    Attributes:
        target: module and attribute of its flow, as `sqe-chain run` takes them.
        levels: how many times it persists in a batch: once for each level of stages.
        environment: additions to the environment of every process.
    """

    name: str
    target: str
    flow: Flow
    levels: int
    environment: Mapping[str, str]

    @abstractmethod
    def start(self, directory: Path, ends: ExitStack) -> Mapping[str, str]:
        """Start its servers.

        Returns:
            Name of a store in the flow -> its address; "" for every other stage.
        """

    @abstractmethod
    def judge(self, ended: Ended) -> Result:
        """Compare what the service has stored with what it should be."""


def start_cassandra(directory: Path, ends: ExitStack) -> str:
    """Start Cassandra, with the tables of a store; returns its address."""
    return _with_tables(ends.enter_context(CassandraServer(directory / "cassandra")).url)


def start_postgres(directory: Path, ends: ExitStack) -> str:
    """The same with PostgreSQL."""
    return _with_tables(ends.enter_context(PostgresServer(directory / "postgres")).url)


def _with_tables(url: str) -> str:
    with closing(open_store(url)) as store:
        if isinstance(store, WithSchema):
            store.make_schema({"": 1})
    return url
