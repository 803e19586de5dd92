"""Reads a table of chunks: only the chunks, and their blocks, that may hold wanted rows."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from sqe_chain.errors import FlowError, TableAltered, Unavailable
from sqe_chain.ext.tables.arrow import OWN_FIELDS, SEQUENCE, plain
from sqe_chain.ext.tables.chunk import ChunkInfo, Plain
from sqe_chain.ext.tables.chunk_rows import (
    ChunkRows,
    ChunkSet,
    Definition,
    IndexRow,
    PartHead,
    Piece,
    WantedBlobs,
)
from sqe_chain.ext.tables.chunk_sets import decoded
from sqe_chain.ext.tables.columns import Column
from sqe_chain.ext.tables.pruning import Bounds, may_hold, overlap
from sqe_chain.ext.tables.storage import (
    Head,
    Outdated,
    Pieces,
    Snapshot,
    StoredFile,
    TableDeclaration,
    Wanted,
)

_NAME: Final = re.compile(
    r"(\d{12}-[0-9a-f]{1,16}-\d{5})-\d{4}-[0-9a-f]{16}|\d{12}-merged-\d{8}-[0-9a-f]{16}"
)
_ROUNDS: Final = 20

Loaded = tuple[PartHead, list[ChunkSet]]
"""A head and the chunk sets that it was seen with."""


def name_in(path: str) -> tuple[int, str]:
    """State partition and name of a chunk set, of its path."""
    part, _, name = path.partition("/")
    return int(part), name


def chunk_id_in(name: str) -> str | None:
    """The chunk id in the name of a flush's chunk set; None: a compaction has written it. Raises ValueError: another program has."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return match[1]


@dataclass(frozen=True, slots=True)
class ChunkSnapshot(Snapshot):
    """A `Snapshot`. What it has read of a state partition stays as it is; the heads are always the newest."""

    rows: ChunkRows  # the rows of the table
    definition: Definition  # of the table
    _loaded: dict[int, Loaded] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return 0

    @property
    def table_id(self) -> str:
        return self.definition.table_id

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        try:
            columns = [(name, Column(name, of).arrow) for name, of in self.definition.columns]
        except FlowError as error:
            raise TableAltered(
                f"table {self.rows.address}: another program has changed its row in sqe_tables: {error}; restore it"
            ) from error
        return pa.schema([*columns, *OWN_FIELDS])

    @property
    def parts(self) -> int:
        """How many state partitions the flow has."""
        return TableDeclaration.of(self).state_partitions

    def heads(self, flow: str, stage: str, parts: Sequence[int]) -> dict[int, Head]:
        del flow, stage  # the description names the owner of the table
        stored = zip(parts, self.rows.heads(parts), strict=True)
        return {part: Head(head.number, head.plan, head.epoch or 0, head.run) for part, head in stored}

    def loaded(self, part: int) -> Loaded:
        """The chunk sets of a state partition, and the head that they belong to."""
        self._load([part])
        return self._loaded[part]

    def files(self, part: int | None = None) -> list[StoredFile]:
        parts = range(self.parts) if part is None else [part]
        self._load(parts)
        return [
            StoredFile(f"{number}/{chunk_set.name}", chunk_set.size, number, chunk_set.statistics)
            for number in parts
            for chunk_set in self._loaded[number][1]
        ]

    def foreign_file(self) -> str | None:
        for file in self.files():
            try:
                chunk_id_in(name_in(file.path)[1])
            except ValueError:
                return f"chunk set {file.path}"
        return None

    def _load(self, parts: Sequence[int]) -> None:
        """Read chunk sets until they belong to the newest head."""
        for _ in range(_ROUNDS):
            missing = [part for part in parts if part not in self._loaded]
            if not missing:
                return
            sets = self.rows.sets(missing)
            heads = self.rows.heads(missing)
            for part, loaded, head in zip(missing, sets, heads, strict=True):
                if _state(loaded[0]) == _state(head):
                    self._loaded[part] = loaded
        raise Unavailable(f"table {self.rows.address}: it changes faster than it can be read")


def _state(head: PartHead) -> tuple[int | None, int | None]:
    """The part of a head that changes with the chunk sets."""
    return head.number, head.compactions


_ROUND_BYTES: Final = 32 << 20
"""Blobs that are read together."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that may be read."""

    row: IndexRow  # of the index
    info: ChunkInfo  # what is known of it
    blocks: list[tuple[int, dict[str, tuple[Plain, Plain]]]]  # rows and bounds of each block


def read(snapshot: ChunkSnapshot, files: Sequence[StoredFile], wanted: Wanted) -> Pieces:
    """Read cells, as `Storage.read`."""
    keys, others = (_as_plain(snapshot, bounds) for bounds in (wanted.keys, wanted.others))
    total = sum(_told(file)["blocks"] for file in files)
    candidates = _candidates(snapshot, indexed(snapshot, files, wanted.partition_key))
    columns = (*wanted.columns, SEQUENCE)
    asked = []
    for candidate in may_matter(candidates, keys, others):
        blocks = [number for number, (_, bounds) in enumerate(candidate.blocks) if may_hold(bounds, keys)]
        if blocks:
            row = candidate.row
            average = row.size // max(row.pieces, 1) + 1
            rows = sum(candidate.blocks[number][0] for number in blocks)
            asked.append(WantedBlobs(row.partition_key, row.chunk_set, columns, tuple(blocks), average, rows))
    groups = sum(len(blobs.blocks) for blobs in asked)
    batches: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    broken = None
    for blobs, pieces in _fetched(snapshot, asked):
        batch = _batch(pieces)
        if batch is None or batch.num_rows != blobs.rows:
            broken = f"a chunk of {blobs.partition_key!r} in {blobs.chunk_set}"
            break
        batches[tuple(batch.schema.names)].append(batch)
    _check_there(snapshot, files, broken)
    return Pieces([pa.Table.from_batches(same) for same in batches.values()], groups, total - groups)


def indexed(
    snapshot: ChunkSnapshot, files: Sequence[StoredFile], partition_key: bytes | None
) -> list[IndexRow]:
    """The index of the chunks in chunk sets of a snapshot.

    Raises:
        Outdated: they are not all there any more.
        TableAltered: they are not all there, and no vacuum has deleted them.
    """
    named: dict[int, set[str]] = defaultdict(set)
    for file in files:
        part, name = name_in(file.path)
        named[part].add(name)
    index = [
        row
        for part, names in named.items()
        for row in snapshot.rows.index(part, partition_key)
        if row.chunk_set in names
    ]
    wanted = sum(_told(file)["chunks"] for file in files)
    broken = f"{wanted - len(index)} chunks" if partition_key is None and len(index) != wanted else None
    _check_there(snapshot, files, broken)
    return index


def may_matter(
    candidates: Iterable[Candidate], keys: Mapping[str, Bounds], others: Mapping[str, Bounds]
) -> list[Candidate]:
    """The chunks that have to be read, by the index.

    A chunk without a wanted key is skipped. So is one without a wanted value of another column, unless it may have other
    versions of rows of a chunk that is read. Else an older version of a row could match.
    """
    by_key: dict[bytes, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        if may_hold(_bounds_of(candidate.info), keys):
            by_key[candidate.row.partition_key].append(candidate)
    chosen = []
    for same in by_key.values():
        kept = [chunk for chunk in same if may_hold(_bounds_of(chunk.info), others)]
        chosen += [chunk for chunk in same if any(_meet(chunk.info, other.info) for other in kept)]
    return chosen


def _meet(chunk: ChunkInfo, other: ChunkInfo) -> bool:
    """Whether chunks may have rows with the same keys, by the first column of their row keys."""
    return overlap(chunk.start_key[0], chunk.end_key[0], other.start_key[0], other.end_key[0])


def info_in(snapshot: ChunkSnapshot, row: IndexRow) -> ChunkInfo:
    """The `ChunkInfo` in a row of the index. Raises TableAltered: another program has changed it."""
    with _of_the_index(snapshot, row):
        return ChunkInfo.from_plain(json.loads(row.info))


@contextmanager
def _of_the_index(snapshot: ChunkSnapshot, row: IndexRow) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TableAltered(
            f"table {snapshot.rows.address}: the index of a chunk of {row.partition_key!r} in {row.chunk_set} cannot be read: another "
            "program has changed it; restore it"
        ) from error


def _candidates(snapshot: ChunkSnapshot, rows: Iterable[IndexRow]) -> Iterator[Candidate]:
    for row in rows:
        with _of_the_index(snapshot, row):
            blocks = [
                (count, {name: (least, most) for name, (least, most) in bounds.items()})
                for count, bounds in json.loads(row.blocks)
            ]
        yield Candidate(row, info_in(snapshot, row), blocks)


def _bounds_of(info: ChunkInfo) -> dict[str, tuple[Plain, Plain]]:
    return {name: (least, info.maximum[name]) for name, least in info.minimum.items()}


def _as_plain(snapshot: ChunkSnapshot, wanted: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """Bounds as the index has them, without columns whose plain values have another order."""
    types = dict(snapshot.definition.columns)
    plain_bounds = {}
    for name, bounds in wanted.items():
        column = Column(name, types[name])
        if "decimal" in column.type or column.is_list:
            continue
        of = column.arrow
        low, high = (None if bound is None else plain(pa.scalar(bound, of)) for bound in bounds)
        plain_bounds[name] = (low, high)
    return plain_bounds


def _told(file: StoredFile) -> dict[str, Any]:
    statistics: dict[str, Any] = json.loads(file.statistics)
    return statistics


def _fetched(
    snapshot: ChunkSnapshot, asked: Sequence[WantedBlobs]
) -> Iterator[tuple[WantedBlobs, list[Piece]]]:
    """The pieces of chunks, read in rounds of bounded size."""
    waiting: list[WantedBlobs] = []
    size = 0
    for blobs in asked:
        waiting.append(blobs)
        size += blobs.average * len(blobs.columns) * len(blobs.blocks)
        if size > _ROUND_BYTES:
            yield from zip(waiting, snapshot.rows.pieces(waiting), strict=True)
            waiting, size = [], 0
    yield from zip(waiting, snapshot.rows.pieces(waiting), strict=True)


def _batch(pieces: Sequence[Piece]) -> Any:  # noqa: ANN401 - an Arrow record batch, or None
    """The rows of a chunk; None: pieces are missing, or another program has changed them."""
    blobs: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for piece in pieces:
        own = blobs[piece.column, piece.block]
        if piece.piece != len(own):
            return None
        own.append(piece.data)
    columns: dict[str, list[Any]] = defaultdict(list)
    try:
        for (column, _), data in sorted(blobs.items()):
            columns[column].append(decoded(b"".join(data)))
        arrays = [blocks[0] if len(blocks) == 1 else pa.concat_arrays(blocks) for blocks in columns.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns)) if SEQUENCE in columns else None
    except (pa.ArrowException, ValueError):
        return None


def _check_there(snapshot: ChunkSnapshot, files: Sequence[StoredFile], broken: str | None) -> None:
    """Check that a vacuum has deleted nothing that was read."""
    first: dict[int, str] = {}
    for file in files:
        part, name = name_in(file.path)
        first[part] = min(name, first.get(part, name))
    parts = sorted(first)
    for part, head in zip(parts, snapshot.rows.heads(parts), strict=True):
        if head.vacuumed is not None and first[part] < head.vacuumed:
            raise Outdated(f"table {snapshot.rows.address}: {first[part]} was deleted by a vacuum")
    if broken is not None:
        raise TableAltered(
            f"table {snapshot.rows.address}: {broken} cannot be read: another program has deleted or changed rows of it; restore it"
        )
