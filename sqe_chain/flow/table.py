"""The rows in which stages keep their state: one table of bytes for each state partition.

A stage loads rows and changes them. At the end of a batch its changes are written in the order of the rows'
names, in several chunks if there are many. After a crash between two chunks the batch runs again over a table
whose first rows are new and whose others are old. Only rows after the last one written are written then. So a
stage keeps one rule: **a row depends only on its old content and on rows with names that are not smaller.** Those
are still old. It may also depend on the batch's records, and on rows that the batch does not change. User code is
never run on the new content of a row that is already settled: it might fail on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class RowTable(Protocol):
    """Rows of one stage in one state partition."""

    def get(self, row: bytes) -> bytes | None:
        """The content of a row; None when there is none."""

    def put(self, row: bytes, content: bytes) -> None:
        """Set the content of a row."""

    def delete(self, row: bytes) -> None:
        """Remove a row, if it is there."""

    def load(self, rows: Iterable[bytes]) -> None:
        """Load rows that will be needed soon, so that they are read together."""

    def settled(self, row: bytes) -> bool:
        """Whether an earlier attempt at this batch has written the row: what this attempt puts there is not written."""
