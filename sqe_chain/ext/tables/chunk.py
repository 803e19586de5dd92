"""Chunks: the rows of one partition key that one flush has written; their names, what is known of each, and which can be skipped.

Source: FiloDB's chunk sets and its rule for chunks written already (Exactly Once Ingestion and Error Recovery, "Shortcut 1").
FiloDB compared keys and numbers of rows, which is wrong where inner rows differ; here a hash of the content is compared too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

Plain = str | int | float | bool | None
"""A cell as JSON holds it: times as microseconds since 1970, dates and decimals as texts, bytes in hexadecimal."""


def chunk_id(number: int, plan_id: str, part: int) -> str:
    """The id of the chunks of one flush: a repeated flush gives the same one. Ids rise from flush to flush.

        >>> chunk_id(7, "9c1185a5c5e9fc54612808977ee8f548", 3)
        '000000000007-9c1185a5c5e9fc54-00003'

    Args:
        number: of the plan, from 0.
        plan_id: its id.
        part: the state partition.
    """
    return f"{number:012d}-{plan_id[:16]}-{part:05d}"


@dataclass(frozen=True, slots=True)
class ChunkName:
    """What names a chunk.

    Attributes:
        table: name of the table.
        version: of the table, from 0.
        partition_key: as bytes.
        chunk_id: see `chunk_id`; empty: not known yet.
    """

    table: str
    version: int
    partition_key: bytes
    chunk_id: str = ""


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """A description of a chunk, without its rows.

    Attributes:
        name: of the chunk.
        start_key: its first row key.
        end_key: its last one.
        rows: how many rows it has.
        crc32: of its content.
        content_hash: of its content: BLAKE2b, 16 bytes, in hexadecimal.
        minimum: column -> smallest value; columns without a known one, or with nulls only, are missing.
        maximum: column -> largest value.
        compacted: first and last id of the chunks that a compaction has merged into it; None: a flush has written it.
    """

    name: ChunkName
    start_key: tuple[Plain, ...]
    end_key: tuple[Plain, ...]
    rows: int
    crc32: int
    content_hash: str
    minimum: Mapping[str, Plain] = field(default_factory=dict)
    maximum: Mapping[str, Plain] = field(default_factory=dict)
    compacted: tuple[str, str] | None = None

    def with_id(self, own_id: str) -> ChunkInfo:
        """The same under a chunk id."""
        return replace(self, name=replace(self.name, chunk_id=own_id))

    def says_the_same(self, other: ChunkInfo) -> bool:
        """Whether both are the same chunk: id, keys, number of rows, and content."""
        return (
            (self.name, self.start_key, self.end_key, self.rows)
            == (other.name, other.start_key, other.end_key, other.rows)
        ) and (self.crc32, self.content_hash) == (other.crc32, other.content_hash)

    def to_plain(self) -> dict[str, object]:
        """As JSON holds it."""
        name = _fields_of(self.name) | {"partition_key": self.name.partition_key.hex()}
        return _fields_of(self) | {"name": name}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """What `to_plain` gave."""
        name = plain["name"] | {"partition_key": bytes.fromhex(plain["name"]["partition_key"])}
        compacted = plain["compacted"]
        return cls(
            **{
                **plain,
                "name": ChunkName(**name),
                "start_key": tuple(plain["start_key"]),
                "end_key": tuple(plain["end_key"]),
                "compacted": compacted and (compacted[0], compacted[1]),
            }
        )


def _fields_of(record: ChunkName | ChunkInfo) -> dict[str, object]:
    """The fields of a record, in their order. Not by `asdict`, which copies each cell."""
    return {name: getattr(record, name) for name in record.__slots__}


class ChunkIndex:
    """The chunks that are known to be written, by partition key.

    >>> index = ChunkIndex()
    >>> chunk = ChunkInfo(ChunkName("readings", 0, b"r1", chunk_id(7, "9c11", 0)), (1,), (9,), 5, 77, "ab")
    >>> index.add(chunk)
    >>> index.has(chunk, minimum=chunk_id(7, "", 0))
    True
    >>> index.has(replace(chunk, content_hash="cd"), minimum=chunk_id(7, "", 0))  # an inner row differs
    False

    Args:
        chunks: those known.
    """

    def __init__(self, chunks: Iterable[ChunkInfo] = ()) -> None:
        self._chunks: dict[tuple[str, int, bytes], dict[str, ChunkInfo]] = {}
        self._compacted: dict[tuple[str, int, bytes], list[tuple[str, str]]] = {}
        for chunk in chunks:
            self.add(chunk)

    def add(self, chunk: ChunkInfo) -> None:
        """A chunk was written."""
        at = chunk.name.table, chunk.name.version, chunk.name.partition_key
        self._chunks.setdefault(at, {})[chunk.name.chunk_id] = chunk
        if chunk.compacted is not None:
            self._compacted.setdefault(at, []).append(chunk.compacted)

    def since(self, name: ChunkName, minimum: str) -> list[ChunkInfo]:
        """The chunks of a partition key from a chunk id on, in the order of ids."""
        chunks = self._chunks.get((name.table, name.version, name.partition_key), {})
        return [chunks[own_id] for own_id in sorted(chunks) if own_id >= minimum]

    def has(self, chunk: ChunkInfo, minimum: str, *, replaces: bool = False) -> bool:
        """Whether a chunk is written already, so that it can be skipped.

        Args:
            chunk: what is to be written.
            minimum: the smallest chunk id of the flush, noted when it began: older chunks are not looked at.
            replaces: the rows are meant to replace what is there: nothing is skipped.

        Returns:
            Whether one of the same id, keys, number of rows and content is there. An id that a
            compaction has merged is not known any more.
        """
        at = chunk.name.table, chunk.name.version, chunk.name.partition_key
        ranges: Sequence[tuple[str, str]] = self._compacted.get(at, ())
        own = chunk.name.chunk_id
        if replaces or own < minimum or any(first <= own <= last for first, last in ranges):
            return False
        return any(known.says_the_same(chunk) for known in self.since(chunk.name, minimum))

    def to_plain(self) -> list[dict[str, object]]:
        """All chunks, as JSON holds them."""
        return [chunk.to_plain() for at in sorted(self._chunks) for chunk in self._chunks[at].values()]

    @classmethod
    def from_plain(cls, plain: Iterable[Mapping[str, Any]]) -> ChunkIndex:
        """What `to_plain` gave."""
        return cls(map(ChunkInfo.from_plain, plain))
