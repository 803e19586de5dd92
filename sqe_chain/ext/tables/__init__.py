"""Tables: rows in which streams end, as Delta Lake tables that any program can read. See docs/tables.md.

`open_table` reads a table; `Column` declares one of its columns. What is inside is usable alone, as plain objects without engine
or store: `TableSchema`, `Memtable`, `ChunkIndex`, `ReaderOffsets`.
"""

from __future__ import annotations

from sqe_chain.ext.tables.chunk import ChunkIndex, ChunkInfo, ChunkName, chunk_id
from sqe_chain.ext.tables.columns import Column
from sqe_chain.ext.tables.compacting import Compaction
from sqe_chain.ext.tables.describing import Description, StatePartition
from sqe_chain.ext.tables.memtable import Flushed, Memtable
from sqe_chain.ext.tables.reader_offsets import ReaderOffsets
from sqe_chain.ext.tables.reading import Scan, Table, open_table
from sqe_chain.ext.tables.schema import TableSchema

__all__ = [
    "ChunkIndex",
    "ChunkInfo",
    "ChunkName",
    "Column",
    "Compaction",
    "Description",
    "Flushed",
    "Memtable",
    "ReaderOffsets",
    "Scan",
    "StatePartition",
    "Table",
    "TableSchema",
    "chunk_id",
    "open_table",
]
