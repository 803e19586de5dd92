"""Rows of a table while a batch changes them in memory; and those whose items expire by stream time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from sqe_chain.flow.stored import unreadable
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.table import write_row
from sqe_chain.stages.timetable import Timetable

Content = TypeVar("Content")


class LiveRows(Generic[Content]):
    """Reads a row at first use, and writes changed rows only when `write` is called.

    Holds every row that was used since the last `write`, so as many as a batch uses.

    Args:
        table: where rows come from and go to.
        read: makes a live object from a row's content; gets None where there is no row.
        written: the content of a live object; None for one that needs no row.
    """

    def __init__(
        self,
        table: RowTable,
        read: Callable[[bytes | None], Content],
        written: Callable[[Content], bytes | None],
    ) -> None:
        self._table = table
        self._read = read
        self._written = written
        self._live: dict[bytes, Content] = {}
        self._changed: set[bytes] = set()

    def __getitem__(self, row: bytes) -> Content:
        """The live object of a row."""
        live = self._live.get(row)
        if live is None:
            stored = self._table.get(row)
            try:
                live = self._live[row] = self._read(stored)
            except Exception as error:
                raise unreadable(f"row {row!r}", error) from error
        return live

    def __setitem__(self, row: bytes, content: Content) -> None:
        """Replace the live object of a row."""
        self._live[row] = content
        self._changed.add(row)

    def changed(self, row: bytes) -> None:
        """Mark the live object of a row as changed."""
        self._changed.add(row)

    def all_changed(self) -> frozenset[bytes]:
        """The rows that were changed since the last `write`."""
        return frozenset(self._changed)

    def write(self) -> None:
        """Write changed rows, in the order of their names, and forget all live objects."""
        for row in sorted(self._changed):
            write_row(self._table, row, self._written(self._live[row]))
        self._changed.clear()
        self._live.clear()


class Expiring(Protocol):
    """An item of a row.

    Attributes:
        listed_ms: the moment at which the timetable lists it; None: not yet listed.
    """

    listed_ms: int | None


Item = TypeVar("Item", bound=Expiring)


class ExpiringRows(Generic[Item]):
    """Decoded rows of one stage in one state partition, while a batch runs.

    What a row becomes depends on its own old content, the records, and stream time at the end of the batch.
    Each item is listed in the timetable once. If it has been extended when that listing is due, it is listed again.

    Args:
        table: the stage's rows.
        timetable: their timetable.
        decode: content of a row -> its items.
        encode: items -> content.
        end_of: an item -> the first stream time at which the item has expired.
    """

    def __init__(
        self,
        table: RowTable,
        timetable: Timetable,
        *,
        decode: Callable[[bytes], list[Item]],
        encode: Callable[[list[Item]], bytes],
        end_of: Callable[[Item], int],
    ) -> None:
        self._table = table
        self._timetable = timetable
        self._end_of = end_of
        self._rows: LiveRows[list[Item]] = LiveRows(
            table,
            lambda content: [] if content is None else decode(content),
            lambda items: encode(items) if items else None,
        )

    def all_at(self, row: bytes) -> list[Item]:
        """All live items of a row, including those that have expired but are not purged yet."""
        return self._rows[row]

    def at(self, row: bytes) -> list[Item]:
        """The live items of a row that have not expired."""
        now_ms = self._timetable.time.now_ms
        items = self._rows[row]
        return items if now_ms is None else [item for item in items if self._end_of(item) > now_ms]

    def replace(self, row: bytes, items: list[Item]) -> None:
        """Replace the items of a row, or mark those it has as changed."""
        self._rows[row] = items

    def finish(self, due: Iterable[bytes]) -> None:
        """Purge and write rows that changed and rows that are due; list what is new.

        Args:
            due: names of rows that became due in this batch.
        """
        now_ms = self._timetable.time.now_ms
        rows = self._rows.all_changed().union(due)
        if now_ms is not None:
            self._table.load(rows)  # rows that are only due may not have been read in this batch
            for row in rows:
                self._purge(row, now_ms)
        self._rows.write()

    def _purge(self, row: bytes, now_ms: int) -> None:
        kept = self.at(row)
        for item in kept:
            if item.listed_ms is None or item.listed_ms <= now_ms:
                item.listed_ms = self._end_of(item)
                self._timetable.file(row, item.listed_ms)
        self._rows[row] = kept
