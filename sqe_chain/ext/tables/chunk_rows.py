"""What a database must do so that a table can live in it as chunks: rows of four kinds, and one comparison.

The only atomic step is `compare_and_set`, on one state partition. All other rows are written before it, and have no name until
then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

HEAD_COLUMNS: Final = ("epoch", "run", "number", "plan", "compactions", "removed", "vacuumed")
"""Columns of a head, in the order of `PartHead`."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A table."""

    table_id: str  # another one for each table that was ever created
    description: str  # what was given at its creation
    columns: tuple[tuple[str, str], ...]  # name and type (see `Column`) of each column


@dataclass(frozen=True, slots=True)
class PartHead:
    """The head of a state partition as it is stored; None: no value.

    Attributes:
        removed: JSON, [name, milliseconds since 1970] of each compaction: chunk sets with smaller names were replaced then.
    """

    epoch: int | None = None  # of the run that has claimed it
    run: int | None = None  # its id, as `word`
    number: int | None = None  # of the last plan whose rows are there
    plan: int | None = None  # its id, as `word`
    compactions: int | None = None  # how many there were
    removed: str | None = None
    vacuumed: str | None = None  # chunk sets with smaller names were deleted, or are being deleted


@dataclass(frozen=True, slots=True)
class ChunkSet:
    """Chunks that a commit has named. Of a state partition, later ones have larger names."""

    name: str  # see `chunk_table`
    size: int  # bytes of the blobs
    statistics: str  # as a `StoredFile` has them; and how many `chunks` and `blocks` it has


@dataclass(frozen=True, slots=True)
class IndexRow:
    """What is known of a chunk without reading it."""

    partition_key: bytes  # as bytes
    chunk_set: str  # name of the set that it belongs to
    info: str  # JSON of its `ChunkInfo`
    blocks: str  # JSON, [rows, bounds of columns] of each block
    size: int  # bytes of its blobs
    pieces: int  # how many rows they take


@dataclass(frozen=True, slots=True)
class Piece:
    """A blob, or a part of a large one."""

    partition_key: bytes  # of the chunk
    chunk_set: str  # of the chunk
    column: str  # name of the column
    block: int  # number of the block
    piece: int  # number of the part in the blob
    data: bytes  # bytes


@dataclass(frozen=True, slots=True)
class WantedBlobs:
    """Blobs of a chunk that are to be read."""

    partition_key: bytes  # of the chunk
    chunk_set: str  # of the chunk
    columns: tuple[str, ...]  # names
    blocks: tuple[int, ...]  # numbers
    average: int  # bytes of a piece, on an average
    rows: int = 0  # of these blocks


class ChunkRows(Protocol):
    """The rows of one table. Settings only; every call raises `Unavailable` where there is no answer, and may be repeated."""

    @property
    def address(self) -> str:
        """Where, without secrets."""

    def check(self) -> list[str]:
        """Weaknesses of the durability of the database; see `Sink.check`."""

    def remarks(self) -> list[str]:
        """Remarks about the durability; see `Sink.remarks`."""

    def definition(self) -> Definition | None:
        """The table; None: there is none. Sees every `define` that was acknowledged."""

    def define(self, before: Definition | None, after: Definition) -> bool:
        """Replace the definition by another one; False: it is not `before`."""

    def heads(self, parts: Sequence[int]) -> list[PartHead]:
        """The heads of state partitions. Sees every `compare_and_set` that was acknowledged or seen by others."""

    def sets(self, parts: Sequence[int]) -> list[tuple[PartHead, list[ChunkSet]]]:
        """Heads and chunk sets of state partitions, in the order of names. They may be older than what `heads` gives."""

    def compare_and_set(
        self,
        part: int,
        expected: Mapping[str, object],
        changes: Mapping[str, object],
        added: Sequence[ChunkSet] = (),
        removed_to: str | None = None,
    ) -> bool:
        """In one step: if columns of the head have these values, change some, add chunk sets and remove some.

        Args:
            part: the state partition.
            expected: column of the head -> value.
            changes: column of the head -> value.
            added: chunk sets, with larger names than those that are removed.
            removed_to: remove those with smaller names, and this one.

        Returns:
            Whether it was done. After `Unavailable` that is not known.
        """

    def index(self, part: int, partition_key: bytes | None = None) -> Iterator[IndexRow]:
        """The index of a state partition, or of one partition key in it; also of chunks without a name."""

    def index_of(self, part: int, chunk_set: str, partition_keys: Sequence[bytes]) -> list[IndexRow]:
        """The index of the chunks of a set."""

    def write_pieces(self, chunks: Iterable[Sequence[Piece]]) -> None:
        """Write pieces, those of each chunk together. They are durable when this returns."""

    def write_index(self, part: int, rows: Sequence[IndexRow]) -> None:
        """Write rows of the index. They are durable when this returns."""

    def pieces(self, asked: Sequence[WantedBlobs]) -> list[list[Piece]]:
        """The pieces of chunks, in the order of column, block and piece; missing ones are skipped."""

    def drop(self, part: int, partition_keys: Sequence[bytes], below: str) -> None:
        """Delete chunks of sets with smaller names: first their pieces, then the index."""
