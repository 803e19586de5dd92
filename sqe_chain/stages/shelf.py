"""The shelf: rows that are lists of things with an end, purged when stream time has come to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from sqe_chain.flow.table import Table
from sqe_chain.stages.live_rows import LiveRows
from sqe_chain.stages.timetable import Timetable


class Dated(Protocol):
    """Something with an end.

    Attributes:
        listed_ms: where the timetable has it; None: not yet.
    """

    listed_ms: int | None


Item = TypeVar("Item", bound=Dated)


class Shelf(Generic[Item]):
    """Rows of one stage in one state partition, decoded, while a batch runs.

    A row becomes what its own old content, the records, and stream time at the end of the batch make of it.
    Each item is listed in the timetable once; when it turns out to end later, it is listed anew then.

    Args:
        table: the stage's rows.
        timetable: their timetable.
        decode: content of a row -> its items.
        encode: items -> content.
        end_of: an item and stream time -> first stream time at which the item is over.
    """

    def __init__(
        self,
        table: Table,
        timetable: Timetable,
        *,
        decode: Callable[[bytes], list[Item]],
        encode: Callable[[list[Item]], bytes],
        end_of: Callable[[Item, int], int],
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
        """Every item of a row, live: also those that are over and not purged yet."""
        return self._rows[row]

    def at(self, row: bytes) -> list[Item]:
        """The items of a row that are not over."""
        now_ms = self._timetable.time.now_ms
        items = self._rows[row]
        return items if now_ms is None else [item for item in items if self._end_of(item, now_ms) > now_ms]

    def replace(self, row: bytes, items: list[Item]) -> None:
        """Give a row other items, or say that those it had were changed."""
        self._rows[row] = items

    def finish(self, due: Iterable[bytes]) -> None:
        """Purge and write rows that changed and rows that are due; list what is new.

        Args:
            due: names of rows that became due in this batch.
        """
        now_ms = self._timetable.time.now_ms
        rows = self._rows.all_changed().union(due)
        if now_ms is not None:
            self._table.load(rows)
            for row in rows:
                self._purge(row, now_ms)
        self._rows.write()

    def _purge(self, row: bytes, now_ms: int) -> None:
        kept = self.at(row)
        for item in kept:
            if item.listed_ms is None or item.listed_ms <= now_ms:
                item.listed_ms = self._end_of(item, now_ms)
                self._timetable.file(row, item.listed_ms)
        self._rows[row] = kept
