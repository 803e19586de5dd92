"""What a database must be able to do so that a table can live in it as chunks: rows of four kinds, and one comparison.

The only atomic step is `compare_and_set`, on one state partition. All other rows are written before it, and are not named by
anything until it has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

HEAD_COLUMNS: Final = ("epoch", "run", "number", "plan", "compactions", "removed", "vacuumed")
"""Columns of a head, in the order of `PartHead`."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A table.

    Attributes:
        table_id: another one for each table that was ever created.
        description: what was given at its creation.
        columns: name and type (see `Column`) of each column.
    """

    table_id: str
    description: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PartHead:
    """The head of a state partition as it is stored; None: no value.

    Attributes:
        epoch: of the run that has claimed it.
        run: its id, as `word`.
        number: of the last plan whose rows are there.
        plan: its id, as `word`.
        compactions: how many there were.
        removed: JSON, [name, milliseconds since 1970] of each compaction: chunk sets with smaller names were replaced then.
        vacuumed: chunk sets with smaller names were deleted, or are being deleted.
    """

    epoch: int | None = None
    run: int | None = None
    number: int | None = None
    plan: int | None = None
    compactions: int | None = None
    removed: str | None = None
    vacuumed: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkSet:
    """Chunks that a commit has named. Of a state partition, later ones have larger names.

    Attributes:
        name: see `chunk_table`.
        size: bytes of the blobs.
        statistics: as a `StoredFile` has them; and how many `chunks` and `blocks` it has.
    """

    name: str
    size: int
    statistics: str


@dataclass(frozen=True, slots=True)
class IndexRow:
    """What is known of a chunk without reading it.

    Attributes:
        partition_key: as bytes.
        chunk_set: name of the set that it belongs to.
        info: JSON of its `ChunkInfo`.
        blocks: JSON, [rows, bounds of columns] of each block.
        size: bytes of its blobs.
        pieces: how many rows they take.
    """

    partition_key: bytes
    chunk_set: str
    info: str
    blocks: str
    size: int
    pieces: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A blob, or a part of a large one.

    Attributes:
        partition_key: of the chunk.
        chunk_set: of the chunk.
        column: name of the column.
        block: number of the block.
        piece: number of the part in the blob.
        data: bytes.
    """

    partition_key: bytes
    chunk_set: str
    column: str
    block: int
    piece: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """Blobs of a chunk that are to be read.

    Attributes:
        partition_key: of the chunk.
        chunk_set: of the chunk.
        columns: of which columns.
        blocks: of which blocks.
        average: bytes of a piece, on an average.
    """

    partition_key: bytes
    chunk_set: str
    columns: tuple[str, ...]
    blocks: tuple[int, ...]
    average: int


class ChunkRows(Protocol):
    """The rows of one table. Settings only; every call raises `Unavailable` where there is no answer, and may be repeated."""

    @property
    def address(self) -> str:
        """Where, without secrets."""

    def check(self) -> list[str]:
        """What is weak about the durability of the database; see `Sink.check`."""

    def remarks(self) -> list[str]:
        """What is durable enough but worth knowing; see `Sink.remarks`."""

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
        """What is known of all chunks of a state partition, or of those of one partition key; also of those that nothing names."""

    def index_of(self, part: int, chunk_set: str, partition_keys: Sequence[bytes]) -> list[IndexRow]:
        """What is known of the chunks of a set."""

    def write_pieces(self, chunks: Iterable[Sequence[Piece]]) -> None:
        """Write pieces, those of each chunk together. When it returns all of them stay."""

    def write_index(self, part: int, rows: Sequence[IndexRow]) -> None:
        """Write what is known of chunks. When it returns it stays."""

    def pieces(self, asked: Sequence[Asked]) -> list[list[Piece]]:
        """The pieces of chunks, in the order of column, block and piece; less where some are not there."""

    def drop(self, part: int, partition_keys: Sequence[bytes], below: str) -> None:
        """Delete chunks of sets with smaller names: first their pieces, then what is known of them."""
