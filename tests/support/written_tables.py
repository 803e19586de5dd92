"""Tables that are filled flush by flush, without a flow, and what they must hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.ext.tables import TableSchema
from sqe_chain.ext.tables.arrow import ROWS_OF_A_PLAN
from sqe_chain.ext.tables.memtable import Memtable
from sqe_chain.ext.tables.overwriting import OverwritingSink
from sqe_chain.ext.tables.reading import Table
from sqe_chain.ext.tables.storage import Storage
from sqe_chain.ports import Flush, SinkClaim

PARTS = 2


class Row(msgspec.Struct):
    robot: str
    at: int
    bar: float = 0.0


class Wider(Row):
    note: str | None = None


class Narrower(msgspec.Struct):
    robot: str
    at: int


def claim_of(epoch: int, **other: Any) -> SinkClaim:
    given: dict[str, Any] = {
        "flow": "f",
        "stage": "t",
        "plans": {},
        "known": dict.fromkeys(range(PARTS)),
    } | other
    return SinkClaim(epoch=epoch, run_id=given.pop("run_id", f"run-{epoch}"), **given)


class WrittenTable:
    """A table of two state partitions, and what it must hold.

    Args:
        storage: where it lives.
        row: type of its rows.
    """

    def __init__(self, storage: Storage, row: type = Row) -> None:
        self.storage, self.row = storage, row
        schema = TableSchema.of(row, partition_key="robot", row_key="at")
        self.sink = OverwritingSink(storage, schema, "t")
        self.epoch = 0
        self.known: dict[int, bytes | None] = dict.fromkeys(range(PARTS))
        self.expected: dict[tuple[str, int], float] = {}
        self.number = 0

    def claim(self, epoch: int = 1, **other: Any) -> WrittenTable:
        self.sink.claim(claim_of(epoch, **({"known": self.known} | other)))
        self.epoch = epoch
        return self

    def flushes(self, rows: Iterable[Any], number: int, **other: Any) -> list[Flush]:
        """The flushes of a plan."""
        memtables = [Memtable(self.sink.schema, table="t") for _ in range(PARTS)]
        for row in rows:
            memtables[partition_of(row.robot.encode(), PARTS)].ingest(row)
        found = []
        for part, memtable in enumerate(memtables):
            files = self.storage.files_of(memtable.flush(number * ROWS_OF_A_PLAN))
            content = [(bytes([index]), file.packed()) for index, file in enumerate(files)]
            given: dict[str, Any] = {
                "plan_id": f"{number:032x}",
                "epoch": self.epoch,
                "run_id": f"run-{self.epoch}",
                "known": self.known[part],
            } | other
            if content:
                found.append(Flush("f", "t", part, number=number, rows=content, **given))
        return found

    def flush(self, *rows: Any) -> int:
        """Flush a plan; returns how many rows were added."""
        self.number += 1
        added = 0
        for one in self.flushes(rows, self.number):
            count, self.known[one.part] = self.sink.flush(one)
            added += count
        self.expected |= {(row.robot, row.at): row.bar for row in rows}
        return added

    @property
    def table(self) -> Table:
        return Table(self.storage)

    def rows(self) -> dict[tuple[str, int], float]:
        return as_dict(self.table.read())

    def check(self) -> None:
        assert self.rows() == self.expected


def as_dict(rows: Any) -> dict[tuple[str, int], float]:
    found = {(row["robot"], row["at"]): row["bar"] for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found
