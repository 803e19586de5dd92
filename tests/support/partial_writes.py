"""Partial writes of a stage's batch: a crash between any two of its writes must not show in the final rows.

A batch's changes are written in the order of the row names, in several atomic steps. After a crash the batch runs
again over the mixture of old and new rows, and writes only rows after the last name written (`sqe_chain.flow.table`).
Also checked: a filter reads only rows that it asked for in advance, and writes nothing before its batch ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqe_chain.flow.table import RowTable
from sqe_chain.stages.record import Record, Verdict
from sqe_chain.stages.table import MemoryTable

Rows = dict[bytes, bytes]


class RecordingTable:
    """A table that records changes apart from the rows that it started with."""

    def __init__(self, rows: Mapping[bytes, bytes], cursor: bytes | None = None) -> None:
        self.rows = dict(rows)
        self.changes: dict[bytes, bytes | None] = {}
        self._cursor = cursor

    def settled(self, row: bytes) -> bool:
        return self._cursor is not None and row <= self._cursor

    def get(self, row: bytes) -> bytes | None:
        return self.changes[row] if row in self.changes else self.rows.get(row)

    def put(self, row: bytes, content: bytes) -> None:
        self.changes[row] = content

    def delete(self, row: bytes) -> None:
        self.changes[row] = None

    def load(self, rows: Iterable[bytes]) -> None:
        for row in rows:
            assert isinstance(row, bytes)


def apply_changes(rows: Mapping[bytes, bytes], changes: Iterable[tuple[bytes, bytes | None]]) -> Rows:
    """The rows after these changes."""
    result = dict(rows)
    for row, content in changes:
        if content is None:
            result.pop(row, None)
        else:
            result[row] = content
    return result


def check_partial_writes(
    rows: Mapping[bytes, bytes],
    changes: Mapping[bytes, bytes | None],
    run: Callable[[Rows, bytes | None], Mapping[bytes, bytes | None]],
) -> Rows:
    """Run a batch again for each point at which its writes can be cut off; the result must be the same.

    Args:
        rows: the table before the batch.
        changes: what it writes when nothing fails.
        run: returns what it writes over other rows; those up to a name are settled.

    Returns:
        The table after the batch.
    """
    names, complete = sorted(changes), apply_changes(rows, changes.items())
    for written in range(len(names) + 1):
        mixed = apply_changes(rows, [(name, changes[name]) for name in names[:written]])
        cursor = names[written - 1] if written else None
        again = run(mixed, cursor)
        rest = [(name, again[name]) for name in again if cursor is None or name > cursor]
        assert apply_changes(mixed, rest) == complete, f"cut off after {written} of {len(names)} rows"
    return complete


def run_with_partial_writes(rows: Mapping[bytes, bytes], batch: Callable[[RecordingTable], object]) -> Rows:
    """Run a batch without a failure, and once for each point at which its writes can be cut off.

    Args:
        rows: the table before the batch.
        batch: runs the whole batch with a new stage on the given table; must be deterministic.

    Returns:
        The table after the batch.
    """

    def run(before: Mapping[bytes, bytes], cursor: bytes | None) -> dict[bytes, bytes | None]:
        table = RecordingTable(before, cursor)
        batch(table)
        return table.changes

    return check_partial_writes(rows, run(rows, None), run)


class Filter(Protocol):
    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]: ...

    def accept(self, record: Record) -> Verdict: ...

    def finish(self, now_ms: int) -> None: ...


MakeFilter = Callable[[RowTable], Filter]


class StrictTable(MemoryTable):
    """A table that refuses to read rows that the filter did not ask for in advance, and records changes."""

    def __init__(self, rows: Mapping[bytes, bytes], cursor: bytes | None = None) -> None:
        super().__init__(rows)
        self._cursor = cursor
        self.announced: set[bytes] = set()
        self.changes: dict[bytes, bytes | None] = {}

    def load(self, rows: Iterable[bytes]) -> None:
        self.announced.update(rows)

    def settled(self, row: bytes) -> bool:
        return self._cursor is not None and row <= self._cursor

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
    """Verdicts of a batch, the rows after it, and its changes."""

    verdicts: list[Verdict]
    rows: Rows
    changes: dict[bytes, bytes | None]

    @property
    def forwarded(self) -> list[bool]:
        return [verdict.forward for verdict in self.verdicts]


def run_batch(
    make: MakeFilter,
    rows: Mapping[bytes, bytes],
    records: Sequence[Record],
    now_ms: int = 0,
    cursor: bytes | None = None,
) -> Batch:
    """Run one batch with a new filter over a copy of the rows; rows up to the cursor are settled."""
    table = StrictTable(rows, cursor)
    filtering = make(table)
    table.load(filtering.rows_for(records))
    verdicts = [filtering.accept(record) for record in records]
    assert not table.changes, "something was written before the batch ended"
    filtering.finish(now_ms)
    return Batch(verdicts, table.rows(), table.changes)


def run_batches(make: MakeFilter, batches: Sequence[tuple[Sequence[Record], int]]) -> tuple[list[bool], Rows]:
    """Run batches (records, clock) with a single filter: what it forwarded, and the final rows."""
    table = StrictTable({})
    filtering = make(table)
    forwarded = []
    for records, now_ms in batches:
        table.load(filtering.rows_for(records))
        forwarded += [filtering.accept(record).forward for record in records]
        filtering.finish(now_ms)
    return forwarded, table.rows()


def check_redo(make: MakeFilter, batches: Sequence[tuple[Sequence[Record], int]]) -> None:
    """Whatever of a batch was written, its redo completes it; and one object for all batches gives the same as one for each."""
    rows: Rows = {}
    forwarded: list[bool] = []
    for records, now_ms in batches:
        batch = run_batch_with_partial_writes(make, rows, records, now_ms)
        rows = batch.rows
        forwarded += batch.forwarded
    assert run_batches(make, batches) == (forwarded, rows)


def check_prefix(make: MakeFilter, records: Sequence[Record], length: int) -> None:
    """The first records of a batch, fed again, pass nowhere and change nothing."""
    before = run_batch(make, {}, records).rows
    again = run_batch_with_partial_writes(make, before, records[:length], now_ms=1)
    assert not any(again.forwarded)
    assert (again.changes, again.rows) == ({}, before)


def run_batch_with_partial_writes(
    make: MakeFilter, rows: Mapping[bytes, bytes], records: Sequence[Record], now_ms: int = 0
) -> Batch:
    """Like `run_batch`; also check that the batch recovers wherever its writes are cut off."""
    whole = run_batch(make, rows, records, now_ms)

    def again(mixed: Rows, cursor: bytes | None) -> dict[bytes, bytes | None]:
        return run_batch(make, mixed, records, now_ms, cursor).changes

    assert check_partial_writes(rows, whole.changes, again) == whole.rows
    return whole
