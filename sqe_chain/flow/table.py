"""What stages keep between records: rows of bytes in a table, one table for each state partition.

A stage loads rows, changes them, and at the end of a batch its changes are written in the order of the rows'
names, in several atomic steps if there are many. After a crash between two of these steps the batch runs
again over a table whose first rows are new and whose others are old, and only rows behind the last one
written are written. So a stage keeps one rule: **what a row becomes depends, beside the batch's records, on
its own old content and on rows whose names are not smaller**, for those are old as well; or on rows that the
batch leaves as they are. A row that is settled already is never made again from its new content by code of the
user: that might fail on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Table(Protocol):
    """Rows of one stage in one state partition."""

    def get(self, row: bytes) -> bytes | None:
        """The content of a row; None when there is none."""

    def put(self, row: bytes, content: bytes) -> None:
        """Set the content of a row."""

    def delete(self, row: bytes) -> None:
        """Remove a row, if it is there."""

    def load(self, rows: Iterable[bytes]) -> None:
        """Say which rows will be asked for soon, so that they are read together."""

    def settled(self, row: bytes) -> bool:
        """Whether an earlier attempt at this batch has written the row: what is put there now is not written."""
