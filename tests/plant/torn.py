"""A batch whose changes were written in part and that is run again must end as if nothing had happened.

Also watched: a filter reads only rows that were announced, and writes nothing before its batch ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqe_chain.stages.record import Record, Verdict
from sqe_chain.stages.table import MemoryTable, Table

Rows = dict[bytes, bytes]
Changes = dict[bytes, bytes | None]


class Filter(Protocol):
    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]: ...

    def accept(self, record: Record) -> Verdict: ...

    def finish(self, now_ms: int) -> None: ...


MakeFilter = Callable[[Table], Filter]


class WatchedTable(MemoryTable):
    """Knows what was announced and what was changed."""

    def __init__(self, rows: Mapping[bytes, bytes]) -> None:
        super().__init__(rows)
        self.announced: set[bytes] = set()
        self.changes: Changes = {}

    def load(self, rows: Iterable[bytes]) -> None:
        self.announced.update(rows)

    def get(self, row: bytes) -> bytes | None:
        assert row in self.announced, f"row {row!r} was not announced"
        return super().get(row)

    def put(self, row: bytes, content: bytes) -> None:
        self.changes[row] = content
        super().put(row, content)

    def delete(self, row: bytes) -> None:
        self.changes[row] = None
        super().delete(row)


@dataclass(frozen=True)
class Batch:
    """What a batch said and left behind."""

    verdicts: list[Verdict]
    rows: Rows
    changes: Changes

    @property
    def forwarded(self) -> list[bool]:
        return [verdict.forward for verdict in self.verdicts]


def run_batch(
    make: MakeFilter, rows: Mapping[bytes, bytes], records: Sequence[Record], now_ms: int = 0
) -> Batch:
    """One batch by a new filter over a copy of the rows."""
    table = WatchedTable(rows)
    filtering = make(table)
    table.load(filtering.rows_for(records))
    verdicts = [filtering.accept(record) for record in records]
    assert not table.changes, "something was written before the batch ended"
    filtering.finish(now_ms)
    return Batch(verdicts, table.rows(), table.changes)


def run_batches(make: MakeFilter, batches: Sequence[tuple[Sequence[Record], int]]) -> tuple[list[bool], Rows]:
    """Batches (records, clock) by one and the same filter: what went on, and what is left."""
    table = WatchedTable({})
    filtering = make(table)
    forwarded = []
    for records, now_ms in batches:
        table.load(filtering.rows_for(records))
        forwarded += [filtering.accept(record).forward for record in records]
        filtering.finish(now_ms)
    return forwarded, table.rows()


def run_torn_batch(
    make: MakeFilter, rows: Mapping[bytes, bytes], records: Sequence[Record], now_ms: int = 0
) -> Batch:
    """The same, and it mends itself wherever its writing is cut off."""
    whole = run_batch(make, rows, records, now_ms)
    names = sorted(whole.changes)
    for written in range(len(names) + 1):
        mixed = dict(rows)
        for name in names[:written]:
            _change(mixed, name, whole.changes[name])
        again = run_batch(make, mixed, records, now_ms)
        for name, content in again.changes.items():
            if not written or name > names[written - 1]:
                _change(mixed, name, content)
        assert mixed == whole.rows, f"cut off after {written} of {len(names)} rows"
    return whole


def _change(rows: Rows, name: bytes, content: bytes | None) -> None:
    if content is None:
        rows.pop(name, None)
    else:
        rows[name] = content
