"""Chunk sets: what one flush adds to a state partition in a database, as bytes.

Each column of a chunk is a blob, so that readers fetch only the columns that they want. A long chunk has several blocks of
rows, so that they fetch only the rows that they may want. A blob is an Arrow IPC stream. It needs no footer, which would be
larger than most blobs, and is written four times as fast as Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from sqe_chain.ext.tables.chunk import ChunkInfo, Plain
from sqe_chain.ext.tables.contents import bounds_of
from sqe_chain.ext.tables.files import ROWS_OF_A_FILE, TableFile, split, statistics_of
from sqe_chain.ext.tables.memtable import Flushed

BLOCK_ROWS: Final = 65_536
"""Rows that readers can skip together."""
_COMPRESSED_FROM: Final = 4_096
"""Bytes of a column from which compression pays."""
_LONGEST: Final = 200
"""Longer texts are no bounds in the index."""

Blocks = list[tuple[int, dict[str, tuple[Plain, Plain]]]]
"""The blocks of a chunk: number of rows, and smallest and largest value of each column; a single block has no bounds."""


class _Blob(NamedTuple):
    """A column of a block."""

    column: str  # its name
    block: int  # number of the block in the chunk
    data: bytes  # an Arrow IPC stream of one record batch of one column


class PackedChunk(NamedTuple):
    """A chunk as it is written."""

    info: ChunkInfo  # what is known of it, without what is too long to be known
    blocks: Blocks  # its blocks
    blobs: list[_Blob]  # all columns of all blocks


def files_of(flushed: Flushed, rows_of_a_file: int = ROWS_OF_A_FILE) -> list[TableFile]:
    """The chunk sets of a flush; a new one where the next chunk would make one too large."""
    return [_packed(rows, chunks) for rows, chunks in split(flushed, rows_of_a_file)]


def _packed(rows: Any, chunks: Sequence[ChunkInfo]) -> TableFile:  # noqa: ANN401 - an Arrow table
    start, head, data, count = 0, [], list[bytes](), 0
    for chunk in chunks:
        blocks, blobs = _cut(rows.slice(start, chunk.rows))
        start += chunk.rows
        count += len(blocks)
        head.append([blocks, [[blob.column, blob.block, len(blob.data)] for blob in blobs]])
        data += [blob.data for blob in blobs]
    text = json.dumps(head, separators=(",", ":")).encode()
    statistics = statistics_of(rows, chunks=len(chunks), blocks=count)
    whole = b"".join([len(text).to_bytes(8, "big"), text, *data])
    return TableFile(memoryview(whole), rows.num_rows, list(chunks), statistics)


def unpacked(file: TableFile) -> Iterator[PackedChunk]:
    """The chunks of a set that `files_of` gave."""
    at = 8 + int.from_bytes(file.data[:8], "big")
    for chunk, (blocks, blobs) in zip(file.chunks, json.loads(bytes(file.data[8:at])), strict=True):
        unpacked_blobs = []
        for column, block, length in blobs:
            unpacked_blobs.append(_Blob(column, block, bytes(file.data[at : at + length])))
            at += length
        yield PackedChunk(_shortened(chunk), blocks, unpacked_blobs)


def _cut(rows: Any) -> tuple[Blocks, list[_Blob]]:  # noqa: ANN401 - an Arrow table
    """The rows of a chunk as blocks and blobs."""
    (whole,) = rows.combine_chunks().to_batches()
    ends = [*range(0, whole.num_rows, BLOCK_ROWS), whole.num_rows]
    several = len(ends) > 2  # noqa: PLR2004 - one block begins and ends
    blocks, blobs = Blocks(), list[_Blob]()
    for number, (start, stop) in enumerate(pairwise(ends)):
        block = whole.slice(start, stop - start)
        bounds = {}
        for name, cells in zip(block.schema.names, block.columns, strict=True):
            known = bounds_of(cells) if several else None
            if known is not None and _short(*known):
                bounds[name] = known
            blobs.append(_Blob(name, number, encoded(name, cells)))
        blocks.append((stop - start, bounds))
    return blocks, blobs


def encoded(name: str, cells: Any) -> bytes:  # noqa: ANN401 - an Arrow array
    """A column of a block as bytes."""
    batch = pa.RecordBatch.from_arrays([cells], names=[name])
    compression = "zstd" if cells.nbytes > _COMPRESSED_FROM else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decoded(data: bytes) -> Any:  # noqa: ANN401 - an Arrow array
    """The cells of a blob; raises what pyarrow raises."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch().column(0)


def _shortened(info: ChunkInfo) -> ChunkInfo:
    """The same without bounds that are too long to be kept in an index."""
    kept = [name for name in info.minimum if _short(info.minimum[name], info.maximum[name])]
    if len(kept) == len(info.minimum):
        return info
    return replace(
        info,
        minimum={name: info.minimum[name] for name in kept},
        maximum={name: info.maximum[name] for name in kept},
    )


def _short(*bounds: Plain) -> bool:
    return all(len(bound) <= _LONGEST for bound in bounds if isinstance(bound, str))
