"""Tables: rows in which streams end, as Delta Lake tables that any program can read. See docs/tables.md.

`open_table` reads a table; `Column` declares one of its columns. What is inside is usable alone, as plain objects without engine
or store: `TableSchema`, `Memtable`, `ChunkIndex`, `ReaderOffsets`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sqe_chain.ext.tables.chunk import ChunkIndex, ChunkInfo, ChunkName, chunk_id
from sqe_chain.ext.tables.columns import Column
from sqe_chain.ext.tables.reader_offsets import ReaderOffsets
from sqe_chain.ext.tables.schema import TableSchema

if TYPE_CHECKING:
    from sqe_chain.ext.tables.compacting import Compaction
    from sqe_chain.ext.tables.describing import Description, StatePartition
    from sqe_chain.ext.tables.memtable import Flushed, Memtable
    from sqe_chain.ext.tables.reading import Scan, Table, open_table

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

_LOADED = {
    "Compaction": "compacting",
    "Description": "describing",
    "StatePartition": "describing",
    "Flushed": "memtable",
    "Memtable": "memtable",
    "Scan": "reading",
    "Table": "reading",
    "open_table": "reading",
}
"""Names whose modules need pyarrow or delta-rs, so that a flow can be declared without them."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module has
    if name not in _LOADED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LOADED[name]}"), name)
