"""Compaction: few large files of the latest rows, instead of one small file for each batch."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from sqe_chain.errors import Unavailable
from sqe_chain.ext.tables.contents import chunks_of
from sqe_chain.ext.tables.memtable import Flushed, latest_of
from sqe_chain.ext.tables.schema import TableSchema
from sqe_chain.ext.tables.storage import (
    Snapshot,
    Storage,
    StoredFile,
    TableChange,
    Wanted,
    named_if_foreign,
    retried,
)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction.

    Attributes:
        files_before: files of the table before it.
        files_after: files after it.
        rows_left_out: rows that a later one has replaced.
    """

    files_before: int
    files_after: int
    rows_left_out: int


def compact(storage: Storage, schema: TableSchema, least_files: int) -> Compaction:
    """Compact each state partition by a commit of its own; arguments and errors as `Table.compact`."""
    before, left_out = _files(storage), 0
    for part in sorted({file.part for file in before}):
        left_out += retried(storage, partial(_compact_part, storage, schema, part, least_files))
    return Compaction(len(before), len(_files(storage)), left_out)


def _files(storage: Storage) -> list[StoredFile]:
    snapshot = storage.snapshot()
    return [] if snapshot is None else snapshot.files()


def _compact_part(storage: Storage, schema: TableSchema, part: int, least_files: int) -> int:
    """Compact one state partition. Returns the number of replaced rows that were skipped."""
    snapshot = storage.snapshot()
    files = [] if snapshot is None else snapshot.files(part)
    if snapshot is None or len(files) < max(2, least_files):
        return 0
    with named_if_foreign(storage, snapshot):
        merged = merged_rows(storage, snapshot, schema, files)
        added = put_merged(storage, snapshot, merged, files, schema, part)
        storage.commit(snapshot, TableChange(f"compaction of {part}", added=added, removed=files))
    return merged.replaced


def merged_rows(
    storage: Storage, snapshot: Snapshot, schema: TableSchema, files: Sequence[StoredFile]
) -> Flushed:
    """The latest rows of files, sorted, with the sequence numbers that they have."""
    wanted = schema.in_files
    pieces = [aligned(piece, wanted) for piece in storage.read(snapshot, files, Wanted(schema.names)).tables]
    rows = pa.concat_tables(pieces).combine_chunks()
    latest = latest_of(rows, schema)
    return Flushed(latest, [], rows.num_rows - latest.num_rows)


def aligned(piece: Any, wanted: Any) -> Any:  # noqa: ANN401 - Arrow tables
    """Rows with the columns of a schema; one that they do not have is null."""
    columns = [
        piece[column.name].cast(column.type)
        if column.name in piece.column_names
        else pa.nulls(piece.num_rows, column.type)
        for column in wanted
    ]
    return pa.table(columns, schema=wanted)


def put_merged(
    storage: Storage,
    snapshot: Snapshot,
    merged: Flushed,
    files: Sequence[StoredFile],
    schema: TableSchema,
    part: int,
) -> list[StoredFile]:
    """Write merged rows. Readers see them after the commit."""
    old = storage.chunks(snapshot, files)
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
    # The name has a digest of what was merged: no other compaction gets the same name for other rows.
    source = hashlib.blake2b("".join(file.path for file in files).encode(), digest_size=4).hexdigest()
    added = []
    for file in storage.files_of(Flushed(merged.data, chunks, 0)):
        path = storage.merged_path(snapshot, part, source + file.digest[:8])
        storage.put(path, file, file.chunks)
        written = storage.written(path, file)
        if written is None:
            raise Unavailable(f"{storage}: {path} was written, and cannot be read")
        added.append(StoredFile(path, written.size, part, file.statistics))
    return added
