"""The rows of a stage in a state partition, as the stage sees them while a batch runs."""

from __future__ import annotations

from collections.abc import Iterable

from sqe_chain.flow.stage_kind import StageTable
from sqe_chain.task.states import PartitionStates

Rows = list[tuple[bytes, bytes | None]]


class PartitionTable(StageTable):
    """A `StageTable` over the cells of one state partition.

    Rows up to a cell's cursor were written by an earlier attempt at this batch; they are read as they are, and not written
    again. The rule of tables (`sqe_chain.flow.table`) makes that right.
    """

    def __init__(self, states: PartitionStates) -> None:
        self._states = states
        self._known: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, None] = {}

    @property
    def untouched(self) -> bool:
        return self._states.untouched

    def get(self, row: bytes) -> bytes | None:
        if row not in self._known:
            self.load((row,))
        return self._known[row]

    def take(self, row: bytes) -> bytes | None:
        content = self.get(row)
        del self._known[row]
        return content

    def put(self, row: bytes, content: bytes) -> None:
        self._known[row] = content
        self._changed[row] = None

    def delete(self, row: bytes) -> None:
        self._known[row] = None
        self._changed[row] = None

    def load(self, rows: Iterable[bytes]) -> None:
        # One read for all of them in a cell
        missing = sorted(set(rows).difference(self._known))
        if missing:
            self._known.update(self._states.rows(missing))

    def settled(self, row: bytes) -> bool:
        return self._states.settled(row)

    def changes(self) -> dict[int, Rows]:
        """Cell -> what has to be written there, in the order of names."""
        states, known = self._states, self._known
        rows: dict[int, Rows] = {}
        for row in sorted(self._changed):
            if states.untouched or not states.settled(row):
                rows.setdefault(states.cell(row), []).append((row, known[row]))
        return rows
