"""Tables: rows that streams end in, as Delta Lake tables that any program can read. See docs/tables.md.

This package exports what flows and readers need: `Column` to declare a column, `open_table` to read a table. What is inside is
usable alone, as plain objects: `TableSchema`, `Memtable`, `ChunkIndex`.
"""

from sqe_chain.tables.chunk import ChunkIndex, ChunkInfo, ChunkName, chunk_id
from sqe_chain.tables.columns import Column
from sqe_chain.tables.schema import TableSchema

__all__ = ["ChunkIndex", "ChunkInfo", "ChunkName", "Column", "TableSchema", "chunk_id"]
