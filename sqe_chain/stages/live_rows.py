"""Rows of a table while a batch changes them in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from sqe_chain.flow.stored import unreadable
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.table import write_row

Content = TypeVar("Content")


class LiveRows(Generic[Content]):
    """Reads a row at first use, and writes changed rows only when `write` is called.

    Holds every row that was used since the last `write`, so as many as a batch uses.

    Args:
        table: where rows come from and go to.
        read: makes a live object from a row's content; gets None where there is no row.
        written: the content of a live object; None for one that needs no row.
        on_read: called with each row that is read, and its live object, once until the next `write`; None: nobody is.
    """

    def __init__(
        self,
        table: RowTable,
        read: Callable[[bytes | None], Content],
        written: Callable[[Content], bytes | None],
        on_read: Callable[[bytes, Content], None] | None = None,
    ) -> None:
        self._table = table
        self._read = read
        self._written = written
        self._on_read = on_read
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
            if self._on_read is not None:
                self._on_read(row, live)
        return live

    def __setitem__(self, row: bytes, content: Content) -> None:
        """Replace the live object of a row."""
        self._live[row] = content
        self._changed.add(row)

    def changed(self, *rows: bytes) -> None:
        """Mark the live objects of rows as changed."""
        self._changed.update(rows)

    def opened(self, rows: Iterable[bytes]) -> dict[bytes, Content]:
        """The live objects of rows, those of these among them. A caller that puts another one there marks its row with `changed`."""
        live = self._live
        for row in rows:
            if row not in live:
                self[row]
        return live

    def all_changed(self) -> frozenset[bytes]:
        """The rows that were changed since the last `write`."""
        return frozenset(self._changed)

    def write(self) -> None:
        """Write changed rows, in the order of their names, and forget all live objects."""
        for row in sorted(self._changed):
            write_row(self._table, row, self._written(self._live[row]))
        self._changed.clear()
        self._live.clear()
