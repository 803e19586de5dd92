"""Rows are written in one way; and a table of them in memory. For the rule of rows see `sqe_chain.flow.table`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sqe_chain.flow.table import RowTable


def write_row(table: RowTable, row: bytes, content: bytes | None) -> None:
    """Set the content of a row, or remove it with None, unless it is as it is to be."""
    stored = table.get(row)
    if content is None and stored is not None:
        table.delete(row)
    elif content is not None and content != stored:
        table.put(row, content)


class MemoryTable(RowTable):
    """A table in memory: for tests, notebooks, and filters outside of any flow.

    Args:
        rows: what it holds at first; see `rows`.
    """

    def __init__(self, rows: Mapping[bytes, bytes] | None = None) -> None:
        self._rows = dict(rows or {})

    def get(self, row: bytes) -> bytes | None:
        return self._rows.get(row)

    def put(self, row: bytes, content: bytes) -> None:
        self._rows[row] = content

    def delete(self, row: bytes) -> None:
        self._rows.pop(row, None)

    def load(self, rows: Iterable[bytes]) -> None:
        # Nothing to do, everything is in memory
        ...

    def settled(self, row: bytes) -> bool:
        # A table in memory is never written in part
        del row
        return False

    def rows(self) -> dict[bytes, bytes]:
        """A copy of everything, to keep and to load again."""
        return dict(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[bytes]:
        return iter(sorted(self._rows))
