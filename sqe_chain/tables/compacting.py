"""Compaction: few large files of the latest rows, instead of one small file for each batch."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sqe_chain.errors import Unavailable
from sqe_chain.tables.arrow import PARTITION, SEQUENCE, file_schema
from sqe_chain.tables.chunk import ChunkInfo
from sqe_chain.tables.contents import chunks_of
from sqe_chain.tables.engine import Conflict, Directory, StoredFile
from sqe_chain.tables.files import chunk_id_in, chunks_in, compacted_name, files_of
from sqe_chain.tables.memtable import Flushed, newest
from sqe_chain.tables.schema import TableSchema

_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction has done.

    Attributes:
        files_before: files of the table before it.
        files_after: files after it.
        rows_left_out: rows that a later one has replaced.
    """

    files_before: int
    files_after: int
    rows_left_out: int


def compact(directory: Directory, schema: TableSchema, least_files: int) -> Compaction:
    """Compact each state partition by a commit of its own; arguments and errors as `Table.compact`."""
    before, left_out = _files(directory), 0
    for part in sorted({one.part for one in before}):
        left_out += _compact_part(directory, schema, part, least_files)
    return Compaction(len(before), len(_files(directory)), left_out)


def _files(directory: Directory) -> list[StoredFile]:
    snapshot = directory.snapshot()
    return [] if snapshot is None else snapshot.files()


def _compact_part(directory: Directory, schema: TableSchema, part: int, least_files: int) -> int:
    """Compact one state partition; returns how many rows were left out."""
    for _ in range(_ROUNDS):
        snapshot = directory.snapshot()
        if snapshot is None:
            return 0
        files = [one for one in snapshot.files() if one.part == part]
        if len(files) < max(2, least_files):
            return 0
        merged = _merged(directory, schema, files)
        added = _put(directory, merged, files, schema, part)
        # A marker of its own: of two compactions of the same files the second fails, instead of bringing them back.
        marker = f"sqe-chain/compaction/{part}"
        try:
            directory.commit(
                snapshot,
                {marker: (snapshot.marker(marker) or 0) + 1},
                added,
                files,
                what=f"compaction of {part}",
            )
        except Conflict:
            continue
        return merged.replaced
    raise Unavailable(f"{directory}: other compactions are at work all the time")


def _merged(directory: Directory, schema: TableSchema, files: Sequence[StoredFile]) -> Flushed:
    """The latest rows of files, sorted, with the sequence numbers that they have."""
    wanted = file_schema(schema)
    pieces = []
    for file in files:
        with directory.open_file(file.path) as opened:
            piece = pq.read_table(opened)
        pieces.append(aligned(piece, wanted))
    rows = pa.concat_tables(pieces).combine_chunks()
    keys = [(name, "ascending") for name in schema.keys]
    order = pc.sort_indices(rows, sort_keys=[*keys, (SEQUENCE, "ascending")])
    latest = newest(rows.take(order).combine_chunks(), schema)
    return Flushed(latest, [], rows.num_rows - latest.num_rows)


def aligned(piece: Any, wanted: Any) -> Any:  # noqa: ANN401 - Arrow tables
    """Rows with the columns of a schema; one that they do not have is null.

    Args:
        piece: an Arrow table.
        wanted: an Arrow schema.
    """
    columns = [
        piece[one.name].cast(one.type)
        if one.name in piece.column_names
        else pa.nulls(piece.num_rows, one.type)
        for one in wanted
    ]
    return pa.table(columns, schema=wanted)


def _put(
    directory: Directory, merged: Flushed, files: Sequence[StoredFile], schema: TableSchema, part: int
) -> list[StoredFile]:
    """Write the merged rows; nobody sees them before the commit."""
    old = [one for file in files for one in _chunks(directory, file)]
    ids: dict[bytes, list[str]] = defaultdict(list)
    for chunk in old:
        ids[chunk.name.partition_key] += chunk.compacted or (chunk.name.chunk_id,)
    name = old[0].name
    chunks = [
        replace(
            chunk.with_id(max(ids[chunk.name.partition_key])),
            compacted=(min(ids[chunk.name.partition_key]), max(ids[chunk.name.partition_key])),
        )
        for chunk in chunks_of(merged.data, schema, name.table, name.version)
    ]
    # The name says what was merged: another compaction never finds its own name taken by other rows.
    source = hashlib.blake2b("".join(one.path for one in files).encode(), digest_size=4).hexdigest()
    added = []
    for file in files_of(Flushed(merged.data, chunks, 0)):
        path = f"{PARTITION}={part}/{compacted_name(part, source + file.digest[:8])}"
        directory.put(path, file.data)
        stored = directory.chunks(path)
        if stored is None:
            raise Unavailable(f"{directory}: {path} was written, and cannot be read")
        added.append(StoredFile(path, stored[1], part, file.statistics))
    return added


def _chunks(directory: Directory, file: StoredFile) -> list[ChunkInfo]:
    with directory.open_file(file.path) as opened:
        found = chunks_in(pq.read_metadata(opened))
    own = chunk_id_in(file.path)
    return [one if own is None else one.with_id(own) for one in found]
