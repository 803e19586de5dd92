"""The changes of a table's rows, each once, with the row before: what `Flow.changes_of` does with change events.

    >>> from sqe_chain.codecs import codec_for
    >>> from sqe_chain.codecs.debezium import ChangeEvent, fill_row, lacking_columns, may_lack
    >>> from sqe_chain.stages.record import Record
    >>> from sqe_chain.stages.table import MemoryTable
    >>> rows = ChangedRows(MemoryTable(), rows=codec_for(dict))
    >>> first = ChangeEvent("insert", "7", '{"n": 1}', (10, 20), 1)
    >>> second = ChangeEvent("update", "7", '{"n": 2}', (10, 30), 1)
    >>> for event in (first, second, first, second):  # a connector that was killed emits again what it had emitted
    ...     print(rows.accept(Record(key=b"7", value=event)).reason, [(change.before, change.after) for _, change in rows.take_changes()])
    None [(None, {'n': 1})]
    None [({'n': 1}, {'n': 2})]
    stale []
    duplicate []

**What is exact.** Debezium emits each change at least once. After a crash it goes back to its last stored offset, and emits
all from there again, in the same order, with the same positions. All changes of a row are in one partition of the topic. So a change
that is not beyond the last position of its key was seen before. Positions are kept by key, since rows of one COPY share an LSN.

**A snapshot begins again.** Its rows are positioned where it was taken. What follows was committed after it, though its own
position may lie before: transactions that ran at that time. So whatever follows a row that was read is accepted. What is
accepted although it was in the snapshot does no harm: `before` is what was seen last, so additions and subtractions cancel out.
An incremental snapshot is another thing: its rows lie between two changes, with a position as long as theirs. What a connector emits
again after it, from before it, is dropped.

**The row before** is the one seen last, which is stored with the position. So it is there without REPLICA IDENTITY FULL, and through
a second snapshot. It also fills in large columns (TOAST) that an update has not changed, and the event therefore lacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

from sqe_chain._proto.filters_pb2 import ChangedRow
from sqe_chain.codecs import Codec
from sqe_chain.codecs.change import Change, Op, change_of
from sqe_chain.codecs.debezium import ChangeEvent, fill_row, lacking_columns, may_lack
from sqe_chain.errors import PoisonError, text_of
from sqe_chain.errors.outage import raise_outage
from sqe_chain.flow.stage_kind import StageTraits
from sqe_chain.flow.stored import unreadable
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.identity import rows_of
from sqe_chain.stages.live_rows import LiveRows
from sqe_chain.stages.record import FORWARD, Reason, Record, Verdict, dropped
from sqe_chain.stages.record_work import Given, RecordFunctions, RecordKind

CHANGED: Final = b"key/"
"""Begins the rows of keys."""


@dataclass(slots=True)
class _KnownRow:
    """A key while a batch runs.

    Attributes:
        position: of the last change; None: nothing was seen yet.
        read: whether a snapshot has read it.
        time_ms: the latest time of a change.
        row: the row after it, by the codec of rows; None: deleted.
    """

    position: tuple[int, ...] | None = None
    read: bool = False
    time_ms: int = 0
    row: bytes | None = None


class ChangedRows:
    """The changes of the rows of one state partition.

    State: a row for each key ever seen, also of those that were deleted: the position, and the table's row as JSON.

    Args:
        table: where they are kept.
        rows: the codec of the table's rows.
    """

    def __init__(self, table: RowTable, *, rows: Codec[Any]) -> None:
        self._table = table
        self._codec = rows
        self._change = change_of(rows.python_type)
        self._seen: LiveRows[_KnownRow] = LiveRows(table, _seen_in, _written)
        self._changes: list[tuple[bytes, Change[Any]]] = []

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """The rows that `accept` will ask for: one for each key."""
        return rows_of(_row_of, records)

    def accept(self, record: Record) -> Verdict:
        """Take a change; see `take_changes`.

        Returns:
            DUPLICATE and STALE: dropped, it was seen before; or a snapshot has read a row that is as it was. GAP: it is forwarded, and
            changes of this key before it were not seen.

        Raises:
            PoisonError: its row has another type, or lacks a column that nobody has seen. Or the database has gone back: the position
                was passed, but the commit is later than all that was seen of this key.
        """
        row = _row_of(record)
        if self._table.settled(row):  # an earlier attempt has written it, and what it gave
            return FORWARD
        event, seen = cast("ChangeEvent", record.value), self._seen[row]
        if seen.position is not None and (passed := _passed(event, seen, seen.position)):
            if event.time_ms > seen.time_ms:
                raise PoisonError(
                    f"{record}: the change has the position {event.position}, which key {event.key!r} has passed, but its commit is later "
                    "than all that was seen of that key. So the database has gone back, or is another one: a backup or a replica. "
                    "Expected positions that rise. Give the connector a new topic.prefix, and fold its topics from their snapshot"
                )
            return dropped(passed, f"position {event.position}, the last is {seen.position}")
        before = self._decoded(seen.row)
        after, content = (None, None) if event.after is None else self._after(event, seen.row)
        gap = _gap(event.op, seen, content)
        same = event.op == "read" and content == seen.row
        if not same:
            change = self._change(event.op, before, after, event.position, event.time_ms)
            self._changes.append((row[len(CHANGED) :], change))
        latest = max(seen.time_ms, event.time_ms)
        self._seen[row] = _KnownRow(event.position, event.op == "read", latest, content)
        if same:
            return dropped(Reason.DUPLICATE, "a snapshot has read the row again, and it is as it was")
        return Verdict(forward=True, reason=Reason.GAP, detail=gap) if gap else FORWARD

    def take_changes(self) -> list[tuple[bytes, Change[Any]]]:
        """Key and change of what was accepted since the last call."""
        taken, self._changes = self._changes, []
        return taken

    def finish(self, now_ms: int) -> None:  # noqa: ARG002 - nothing expires
        """Write the rows of the keys that have changed."""
        self._seen.write()

    def _decoded(self, content: bytes | None) -> Any:  # noqa: ANN401 - of the user's type
        if content is None:
            return None
        try:
            return self._codec.decode_own(content)
        except Exception as error:
            raise unreadable(f"a row of {self._codec.type_name}", error) from error

    def _after(self, event: ChangeEvent, known: bytes | None) -> tuple[Any, bytes]:
        """The row after a change, and its bytes."""
        text = (event.after or "").encode()
        lacking = may_lack(text)
        try:
            value = self._codec.decode(fill_row(text, known) if lacking else text)
            content = self._codec.encode(value)
        except Exception as error:
            raise_outage(error, f"key {event.key!r}")
            raise PoisonError(
                f"the row of key {event.key!r} after the change is no {self._codec.python_type.__qualname__}: {text_of(error)}. Expected the "
                "columns that its class declares. Change the class, or the connector's converters"
            ) from error
        if lacking and (unknown := lacking_columns(content)):
            raise PoisonError(
                f"a change of key {event.key!r} lacks the column {', '.join(unknown)}: it is large (TOAST), was not changed, and has never "
                "been seen by this flow. Expected the whole row. Set REPLICA IDENTITY FULL for the table, and change the row again"
            )
        return value, content


def _passed(event: ChangeEvent, seen: _KnownRow, last: tuple[int, ...]) -> Reason | None:
    """Why a change was certainly seen before; None: it may be new."""
    both = min(len(event.position), len(last))
    if event.op == "read":
        # Of rows at one place the later one was read later: a snapshot by a signal has the place of the last change before it.
        return Reason.STALE if event.position[:both] < last[:both] else None
    if seen.read and (both < len(event.position) or event.position == last):
        return None  # what follows a snapshot; see the head of this module
    if event.position == last:
        return Reason.DUPLICATE
    return Reason.STALE if event.position < last else None


def _gap(op: Op, seen: _KnownRow, content: bytes | None) -> str:
    """What shows that changes of the key before this one were not seen; empty if nothing does."""
    if op in {"update", "delete"} and seen.row is None:
        return "the row is changed, and was not seen before: its insert is missing"
    if op == "insert" and seen.row is not None and not seen.read:
        return "the row is inserted, and was there: its deletion is missing"
    if op == "read" and seen.row is not None and content != seen.row:
        return "a second snapshot has read another row: what was changed in between is missing"
    return ""


def _row_of(record: Record) -> bytes:
    return CHANGED + (record.key or b"")


def _seen_in(content: bytes | None) -> _KnownRow:
    if content is None:
        return _KnownRow()
    stored = ChangedRow.FromString(content)
    row = stored.row if stored.HasField("row") else None
    return _KnownRow(tuple(stored.position), stored.read, stored.time_ms, row)


def _written(seen: _KnownRow) -> bytes:
    stored = ChangedRow(position=seen.position, read=seen.read, time_ms=seen.time_ms, row=seen.row)
    return stored.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class ChangesKind(RecordKind[ChangedRows]):
    """The kind of `changes_of`."""

    name = "changes"
    # By "units": each partition keeps the order of its records, and times of commits need not rise with their positions.
    traits = StageTraits(
        method="changes_of",
        called="changes",
        needs_key=True,
        gives_outputs=True,
        gives_later=False,
        sides=("dropped",),
    )

    rows: Codec[Any]

    def stage(self, table: RowTable, functions: RecordFunctions, clock_ms: int | None) -> ChangedRows:
        del functions, clock_ms
        return ChangedRows(table, rows=self.rows)

    def outputs(self, stage: ChangedRows) -> Iterable[Given]:
        return [Given(key, change) for key, change in stage.take_changes()]
