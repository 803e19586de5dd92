"""A database in memory that implements `ChunkRows`, so that tests of tables of chunks need no server."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from sqe_chain.ext.tables.chunk_rows import ChunkSet, Definition, IndexRow, PartHead, Piece, WantedBlobs
from sqe_chain.ext.tables.chunk_table import ChunkTable


@dataclass(eq=False, repr=False)
class MemoryChunkRows:
    """Rows as dicts; a lock makes each call one step."""

    address: str
    table: Definition | None = None
    head: dict[int, PartHead] = field(default_factory=dict)
    named: dict[int, dict[str, ChunkSet]] = field(default_factory=dict)
    indexed: dict[int, dict[tuple[bytes, str], IndexRow]] = field(default_factory=dict)
    stored: dict[tuple[bytes, str], dict[tuple[str, int, int], Piece]] = field(default_factory=dict)
    asked: list[WantedBlobs] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __repr__(self) -> str:
        return f"table {self.address}"

    def check(self) -> list[str]:
        return []

    def remarks(self) -> list[str]:
        return []

    def definition(self) -> Definition | None:
        return self.table

    def define(self, before: Definition | None, after: Definition) -> bool:
        with self._lock:
            if self.table != before:
                return False
            self.table = after
            return True

    def heads(self, parts: Sequence[int]) -> list[PartHead]:
        return [self.head.get(part, PartHead()) for part in parts]

    def sets(self, parts: Sequence[int]) -> list[tuple[PartHead, list[ChunkSet]]]:
        with self._lock:
            return [
                (
                    self.head.get(part, PartHead()),
                    [one for _, one in sorted(self.named.get(part, {}).items())],
                )
                for part in parts
            ]

    def compare_and_set(
        self,
        part: int,
        expected: Mapping[str, object],
        changes: Mapping[str, object],
        added: Sequence[ChunkSet] = (),
        removed_to: str | None = None,
    ) -> bool:
        with self._lock:
            head = self.head.get(part, PartHead())
            if any(getattr(head, name) != value for name, value in expected.items()):
                return False
            self.head[part] = replace(head, **changes)  # type: ignore[arg-type]
            kept = {name: one for name, one in self.named.get(part, {}).items() if name > (removed_to or "")}
            self.named[part] = kept | {one.name: one for one in added}
            return True

    def index(self, part: int, partition_key: bytes | None = None) -> Iterator[IndexRow]:
        for _, row in sorted(self.indexed.get(part, {}).items()):
            if partition_key is None or row.partition_key == partition_key:
                yield row

    def index_of(self, part: int, chunk_set: str, partition_keys: Sequence[bytes]) -> list[IndexRow]:
        found = self.indexed.get(part, {})
        return [found[key, chunk_set] for key in partition_keys if (key, chunk_set) in found]

    def write_pieces(self, chunks: Iterable[Sequence[Piece]]) -> None:
        for pieces in chunks:
            for one in pieces:
                own = self.stored.setdefault((one.partition_key, one.chunk_set), {})
                own[one.column, one.block, one.piece] = one

    def write_index(self, part: int, rows: Sequence[IndexRow]) -> None:
        self.indexed.setdefault(part, {}).update({(row.partition_key, row.chunk_set): row for row in rows})

    def pieces(self, asked: Sequence[WantedBlobs]) -> list[list[Piece]]:
        self.asked += asked
        return [
            [
                piece
                for _, piece in sorted(self.stored.get((one.partition_key, one.chunk_set), {}).items())
                if piece.column in one.columns and piece.block in one.blocks
            ]
            for one in asked
        ]

    def drop(self, part: int, partition_keys: Sequence[bytes], below: str) -> None:
        for rows in (self.stored, self.indexed.get(part, {})):
            for key, name in list(rows):
                if key in partition_keys and name < below:
                    del rows[key, name]


@dataclass
class MemoryDatabase:
    """All tables of a test, by their addresses."""

    tables: dict[str, MemoryChunkRows] = field(default_factory=dict)

    def table_at(self, address: str, options: Mapping[str, str] | None = None) -> ChunkTable:
        """Instead of `chunk_table_at`."""
        del options
        return ChunkTable(self.tables.setdefault(address, MemoryChunkRows(address)))


def use_memory(monkeypatch: pytest.MonkeyPatch) -> MemoryDatabase:
    """Let tables at ``cassandra://`` live in memory, for one test."""
    found = MemoryDatabase()
    monkeypatch.setattr("sqe_chain.ext.tables.cassandra.chunk_table_at", found.table_at)
    return found
