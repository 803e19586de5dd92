"""A table of chunks in a database: rows of four kinds (`chunk_rows`). The head of a state partition decides which count.

A state partition has a head, the names of its *chunk sets*, an index of its chunks, and the chunks. A flush or a compaction adds
chunk sets. A commit moves the head and names chunk sets in one comparison. So:

* The chunks are written before the commit, then the index. A crash in between leaves rows without a name, which nobody reads.
* A repeated flush makes the same names, and skips the chunks that the index has.
* Names rise with each commit of a state partition. Those of flushes begin with the number of the plan, those of a compaction
  with the number of its last plan. So a set without a name that is smaller than the first set after a compaction is garbage.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final
from uuid import uuid4

from sqe_chain.errors import ConfigurationError, TableAltered
from sqe_chain.ext.tables import chunk_reading, chunk_sets
from sqe_chain.ext.tables.arrow import OWN
from sqe_chain.ext.tables.chunk import ChunkInfo
from sqe_chain.ext.tables.chunk_reading import ChunkSnapshot, chunk_id_in, name_in
from sqe_chain.ext.tables.chunk_rows import ChunkRows, ChunkSet, Definition, IndexRow, PartHead, Piece
from sqe_chain.ext.tables.chunk_sets import PackedChunk
from sqe_chain.ext.tables.columns import type_name
from sqe_chain.ext.tables.files import TableFile
from sqe_chain.ext.tables.storage import (
    Conflict,
    Head,
    Pieces,
    Storage,
    StoredFile,
    TableChange,
    Wanted,
    Written,
    retried,
)

PIECE_BYTES: Final = 512 * 1024
"""Of one row: large ones are slow in a database."""
_REMEMBERED: Final = 100
"""Compactions whose times are kept, for `vacuum`."""
_MS: Final = 1_000
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class ChunkTable(Storage):
    """A `Storage` of chunks."""

    rows: ChunkRows  # the rows of the table

    def wrapped(self, wrap: Callable[[Any], Any]) -> ChunkTable:
        # A crash between any two rows is one of its own.
        return replace(self, rows=wrap(self.rows))

    def __repr__(self) -> str:
        return f"table {self.rows.address}"

    @property
    def address(self) -> str:
        return self.rows.address

    def check(self) -> list[str]:
        # The settings of the database
        return self.rows.check()

    def remarks(self) -> list[str]:
        # The settings of the database
        return self.rows.remarks()

    def snapshot(self) -> ChunkSnapshot | None:
        definition = self.rows.definition()
        return None if definition is None else ChunkSnapshot(self.rows, definition)

    def create(self, schema: Any, name: str, description: str) -> None:  # noqa: ANN401 - an Arrow schema
        del name  # the rows know it
        self.rows.define(None, Definition(uuid4().hex, description, _columns(schema)))

    def add_columns(self, snapshot: ChunkSnapshot, columns: Sequence[Any]) -> None:
        before = snapshot.definition
        if not self.rows.define(before, replace(before, columns=(*before.columns, *_columns(columns)))):
            raise Conflict(f"{self}: its columns were changed")

    def path(self, part: int, chunk_id: str, number: int, digest: str) -> str:
        return f"{part}/{chunk_id}-{number:04d}-{digest}"

    def merged_path(self, snapshot: ChunkSnapshot, part: int, digest: str) -> str:
        # Larger than what is merged, smaller than what is flushed later
        head, sets = snapshot.loaded(part)
        return f"{part}/{sets[-1].name[:12]}-merged-{_next(head):08d}-{digest}"

    def written(self, path: str, file: TableFile) -> Written | None:
        # A chunk is in the index only after it was written
        part, name = name_in(path)
        index = self.rows.index_of(part, name, [chunk.name.partition_key for chunk in file.chunks])
        chunks = [ChunkInfo.from_plain(json.loads(row.info)) for row in index]
        return Written(chunks, sum(row.size for row in index)) if index else None

    def put(self, path: str, file: TableFile, missing: Sequence[ChunkInfo]) -> None:
        # The chunks, then the index
        part, name = name_in(path)
        keys = {chunk.name.partition_key for chunk in missing}
        index: list[IndexRow] = []

        def written() -> Iterator[list[Piece]]:
            for chunk in chunk_sets.unpacked(file):
                if chunk.info.name.partition_key in keys:
                    pieces = _pieces(chunk, name)
                    index.append(_index_row(chunk, name, len(pieces)))
                    yield pieces

        self.rows.write_pieces(written())
        self.rows.write_index(part, index)

    def commit(self, snapshot: ChunkSnapshot, change: TableChange) -> None:
        # One step for each state partition. The description names the owner of the table.
        if change.removed:
            self._replace(snapshot, change)
        for part, head in change.after.items():
            own = [_chunk_set(file) for file in change.added if file.part == part]
            if not self.rows.compare_and_set(part, _markers(change.before[part]), _markers(head), own):
                raise Conflict(f"{self}: the head of state partition {part} has moved")

    def _replace(self, snapshot: ChunkSnapshot, change: TableChange) -> None:
        part = change.removed[0].part
        head, old = snapshot.loaded(part)
        new = [_chunk_set(file) for file in change.added]
        removed = self._removed(head)
        removed.append([min(chunk_set.name for chunk_set in new), int(time.time() * _MS)])
        if not self.rows.compare_and_set(
            part,
            {"compactions": head.compactions},
            {"compactions": _next(head), "removed": json.dumps(removed[-_REMEMBERED:])},
            new,
            old[-1].name,
        ):
            raise Conflict(f"{self}: another compaction of state partition {part}")

    def read(self, snapshot: ChunkSnapshot, files: Sequence[StoredFile], wanted: Wanted) -> Pieces:
        # Chunks by the index, blocks by their bounds
        return chunk_reading.read(snapshot, files, wanted)

    def chunks(
        self, snapshot: ChunkSnapshot, files: Sequence[StoredFile], partition_key: bytes | None = None
    ) -> list[ChunkInfo]:
        rows = chunk_reading.indexed(snapshot, files, partition_key)
        infos = ((row.chunk_set, chunk_reading.info_in(snapshot, row)) for row in rows)
        return [
            info if info.name.chunk_id else info.with_id(chunk_id_in(chunk_set) or "")
            for chunk_set, info in infos
        ]

    def uri(self, path: str) -> str:
        del path
        raise ConfigurationError(
            f"{self}: lies in Cassandra, where there are no files: read() and scan() give Arrow tables"
        )

    def vacuum(self, retain_hours: int) -> list[str]:
        # What a compaction has replaced, and what was never named before it
        snapshot = self.snapshot()
        if snapshot is None:
            return []
        before_ms = int(time.time() * _MS) - retain_hours * _HOUR_MS
        parts = range(snapshot.parts)
        return [path for part in parts for path in retried(self, partial(self._vacuum, part, before_ms))]

    def _vacuum(self, part: int, before_ms: int) -> list[str]:
        (head,) = self.rows.heads([part])
        removed = self._removed(head)
        below = max((name for name, at_ms in removed if at_ms <= before_ms), default=None)
        if below is None:
            return []
        if head.vacuumed is None or head.vacuumed < below:
            # First the mark: a reader that misses a chunk looks there, and takes a newer snapshot.
            expected = {"compactions": head.compactions, "vacuumed": head.vacuumed}
            kept = json.dumps([pair for pair in removed if pair[0] >= below])
            if not self.rows.compare_and_set(part, expected, {"vacuumed": below, "removed": kept}):
                raise Conflict(f"{self}: a compaction of state partition {part}")
        old = [row for row in self.rows.index(part) if row.chunk_set < below]
        self.rows.drop(part, sorted({row.partition_key for row in old}), below)
        return [f"{part}/{name}" for name in sorted({row.chunk_set for row in old})]

    def _removed(self, head: PartHead) -> list[Any]:
        """Chunk sets that compactions have replaced, each with its time."""
        try:
            return list(json.loads(head.removed or "[]"))
        except (ValueError, TypeError) as error:
            raise TableAltered(
                f"{self}: another program has changed the column removed of its row in sqe_table_heads: restore it, or set it to null"
            ) from error


def _columns(columns: Any) -> tuple[tuple[str, str], ...]:  # noqa: ANN401 - Arrow fields
    return tuple((column.name, type_name(column.type)) for column in columns if column.name not in OWN)


def _markers(head: Head) -> dict[str, object]:
    return asdict(head) | {"epoch": head.epoch or None}


def _next(head: PartHead) -> int:
    return (head.compactions or 0) + 1


def _chunk_set(file: StoredFile) -> ChunkSet:
    return ChunkSet(name_in(file.path)[1], file.size, file.statistics)


def _pieces(chunk: PackedChunk, name: str) -> list[Piece]:
    key = chunk.info.name.partition_key
    return [
        Piece(key, name, blob.column, blob.block, number, blob.data[start : start + PIECE_BYTES])
        for blob in chunk.blobs
        for number, start in enumerate(range(0, len(blob.data), PIECE_BYTES))
    ]


def _index_row(chunk: PackedChunk, name: str, pieces: int) -> IndexRow:
    return IndexRow(
        chunk.info.name.partition_key,
        name,
        json.dumps(chunk.info.to_plain(), separators=(",", ":")),
        json.dumps(chunk.blocks, separators=(",", ":")),
        sum(len(blob.data) for blob in chunk.blobs),
        pieces,
    )
