"""A kind of stage: of each key, the first `count` records go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.stages import Reason, Record, RecordFunctions, RecordKind, RowTable, Verdict


class First:
    """The work on one state partition: a row for each key, with how many of its records went on."""

    def __init__(self, table: RowTable, count: int) -> None:
        self._table = table
        self._count = count

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """One for each key."""
        return {record.key for record in records if record.key is not None}

    def accept(self, record: Record) -> Verdict:
        """Whether it is one of the first."""
        if record.key is None:
            raise PoisonError("keep-first needs keys")
        seen = int.from_bytes(self._table.get(record.key) or b"", "big")
        if seen == self._count:
            return Verdict(forward=False, reason=Reason.DUPLICATE, detail=f"{self._count} went on")
        self._table.put(record.key, (seen + 1).to_bytes(4, "big"))
        return Verdict(forward=True)

    def finish(self, now_ms: int) -> None:
        """Rows are written already."""


@dataclass(frozen=True)
class KeepFirst(RecordKind[First]):
    """How a stream declares it: ``stream.stage("a name", "keep-first", count=3)``."""

    name = "keep-first"

    count: int

    def check(self, where: str, *, dead_letters: bool) -> None:
        """At least one record has to go on."""
        if self.count < 1:
            raise FlowError(f"{where}: count={self.count}; at least 1")

    def stage(self, table: RowTable, functions: RecordFunctions, clock_ms: int | None) -> First:
        """For one state partition and batch."""
        return First(table, self.count)
