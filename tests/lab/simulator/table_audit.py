"""What is in the table of a simulated world: read from its files, not by the code that readers use."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from sqe_chain.ext.tables.arrow import ROWS_OF_A_PLAN, SEQUENCE
from sqe_chain.ext.tables.memory import MemorySnapshot, MemoryStorage, TableCopy
from tests.lab.reference.expected import TableRow
from tests.lab.reference.world import TABLE, TABLES

ADDRESS: Final = f"{TABLES}/{TABLE}"


class TableAudit:
    """Reads the table of a world."""

    def __init__(self) -> None:
        self.table = MemoryStorage(ADDRESS)
        self._decoded: dict[bytes, list[tuple[int, TableRow]]] = {}

    def snapshot(self) -> MemorySnapshot | None:
        """Its newest version."""
        return self.table.snapshot()

    def parts(self, snapshot: MemorySnapshot) -> dict[int, list[tuple[int, TableRow]]]:
        """State partition -> its rows, each with its sequence number."""
        found: dict[int, list[tuple[int, TableRow]]] = defaultdict(list)
        for file in snapshot.files():
            found[file.part] += self._rows(file.path)
        return found

    def lacks(self, other: TableCopy) -> bool:
        """Whether another copy of the table has rows that this one does not have."""
        own, wanted = self.snapshot(), other.newest
        if own is None or wanted is None:
            return wanted is not None and bool(wanted.stored)
        numbers = (name for name in wanted.markers if not name.endswith(("/plan", "/epoch", "/run")))
        return any(own.marker(name) != wanted.marker(name) for name in numbers if "/compaction/" not in name)

    def vacuum(self) -> None:
        """Delete the files that its newest version does not need, as if long ago they had been written."""
        MemoryStorage(ADDRESS, lambda: math.inf).vacuum(1)

    def _rows(self, path: str) -> list[tuple[int, TableRow]]:
        with self.table.open_file(path) as opened:
            data = opened.read()
        if data not in self._decoded:
            columns = pq.read_table(pa.BufferReader(data)).to_pydict()
            cells = zip(*(columns[name] for name in (SEQUENCE, "key", "slot", "id")), strict=True)
            self._decoded[data] = [(at, TableRow(at // ROWS_OF_A_PLAN, *rest)) for at, *rest in cells]
        return self._decoded[data]
