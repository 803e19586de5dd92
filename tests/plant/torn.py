"""Tear a stage's batch apart: a crash between any two of its writes must not be seen in its rows.

A batch's changes are written in the order of the rows' names, in several atomic steps. After a crash the batch
runs again over the mixture, and only what lies behind the last name written is written (`sqe_chain.stages.table`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Rows = dict[bytes, bytes]


class Changes:
    """A table that keeps what is written apart from what it was made on."""

    def __init__(self, rows: Mapping[bytes, bytes]) -> None:
        self.rows = dict(rows)
        self.changes: dict[bytes, bytes | None] = {}

    def get(self, row: bytes) -> bytes | None:
        return self.changes[row] if row in self.changes else self.rows.get(row)

    def put(self, row: bytes, content: bytes) -> None:
        self.changes[row] = content

    def delete(self, row: bytes) -> None:
        self.changes[row] = None

    def load(self, rows: Iterable[bytes]) -> None:
        for row in rows:
            assert isinstance(row, bytes)


def applied(rows: Mapping[bytes, bytes], changes: Iterable[tuple[bytes, bytes | None]]) -> Rows:
    """The rows after these changes."""
    result = dict(rows)
    for row, content in changes:
        if content is None:
            result.pop(row, None)
        else:
            result[row] = content
    return result


def torn(rows: Mapping[bytes, bytes], batch: Callable[[Changes], object]) -> Rows:
    """Run a batch in one piece, and once for each place where it can be torn; the end must be the same.

    Args:
        rows: the table before the batch.
        batch: does all of it, with a new object, on the table given: the same each time.

    Returns:
        The table after the batch.
    """
    whole = Changes(rows)
    batch(whole)
    changes = sorted(whole.changes.items())
    complete = applied(rows, changes)
    for count in range(1, len(changes)):
        mixed = applied(rows, changes[:count])
        redo = Changes(mixed)
        batch(redo)
        behind = sorted(change for change in redo.changes.items() if change[0] > changes[count - 1][0])
        assert applied(mixed, behind) == complete, f"torn behind {changes[count - 1][0]!r}"
    return complete
