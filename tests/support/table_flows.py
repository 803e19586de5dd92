"""Flows that end in a table, and what the table must hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import msgspec

from sqe_chain.ext.tables.opening import storage_at
from sqe_chain.ext.tables.reading import Table, open_table
from sqe_chain.ext.tables.storage import StoredFile, Wanted
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal


class Reading(msgspec.Struct):
    """What a robot has measured."""

    robot: str | None
    at_ms: int
    bar: float = 0.0


def table_flow(at: str | Path, *, state_partitions: int = 2, poison: Any = "stop", **settings: Any) -> Flow:
    """A flow from one raw topic into the table `readings`."""
    flow = Flow("readings-to-table", state_partitions=state_partitions, poison=poison)
    source = flow.source("readings.raw", Reading, codec="json", raw=True)
    settings = {"partition_key": "robot", "row_key": "at_ms"} | settings
    source.ingest("readings", at=str(at), **settings)
    return flow


class TablePipeline:
    """One such flow as a rehearsal, and what was fed to it.

    Attributes:
        place: a directory of a test -> where tables are: there, or elsewhere.
    """

    place: ClassVar[Callable[[Path], str]] = str

    def __init__(
        self, at: Path, *, partitions: int = 2, flow: Callable[..., Flow] = table_flow, **settings: Any
    ) -> None:
        self.at = at
        self.address = f"{TablePipeline.place(at)}/readings"
        self.service = Rehearsal(
            flow(TablePipeline.place(at), **settings), partitions={"readings.raw": partitions}
        )
        self.expected: dict[tuple[str, int], float] = {}
        self.fed = 0
        self._random = Random(17)

    @property
    def table(self) -> Table:
        return open_table(self.address)

    def files(self) -> list[StoredFile]:
        """What makes up the table."""
        found: list[StoredFile] = storage_at(self.address).snapshot().files()
        return found

    def table_writes(self) -> list[str]:
        """The writes to the table up to now."""
        return [one for one in self.service.script.written if one.startswith("table ")]

    def feed(self, count: int = 12, robots: int = 5, times: int = 6) -> None:
        """Feed readings; rows of one robot come in one order, for one robot's messages have one key."""
        for _ in range(count):
            robot = f"r{self._random.randrange(robots)}"
            one = Reading(robot, self._random.randrange(times), float(self.fed))
            self.service.feed("readings.raw", one, key=robot)
            self.expected[robot, one.at_ms] = one.bar
            self.fed += 1

    def rows(self) -> dict[tuple[str, int], float]:
        found = self.table.read().to_pylist()
        rows = {(row["robot"], row["at_ms"]): row["bar"] for row in found}
        assert len(rows) == len(found)
        return rows

    def check(self) -> None:
        """The table holds the latest row of each key, and each flushed row is there once."""
        assert self.rows() == self.expected
        self.check_once()

    def check_once(self) -> None:
        """No row was added twice: sequence numbers are different."""
        storage = storage_at(self.address)
        snapshot = storage.snapshot()
        for part in {file.part for file in snapshot.files()}:
            pieces = storage.read(snapshot, snapshot.files(part), Wanted(["robot"]))
            numbers = [number for table in pieces.tables for number in table["_sqe_sequence"].to_pylist()]
            assert len(numbers) == len(set(numbers))


def begun_table(at: Path, state_partitions: int) -> TablePipeline:
    """A table that has rows, and new input."""
    pipeline = TablePipeline(at, state_partitions=state_partitions)
    pipeline.feed()
    pipeline.service.run_until_caught_up()
    pipeline.feed()
    return pipeline
