"""The files of a table: Parquet, with what is known of their chunks in the footer, and named so that a redo finds them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sqe_chain.tables.chunk import ChunkInfo
from sqe_chain.tables.memtable import Flushed

ROW_GROUP: Final = 128 * 1024
"""Rows that readers can leave out together."""
ROWS_OF_A_FILE: Final = 1_000_000
_SAMPLE: Final = 4_096
"""Rows, spread evenly, by which it is decided how a column is encoded."""
_REPEATED: Final = 2
"""How often a value of the sample occurs on average, at least, where a dictionary is worthwhile."""
_CHUNKS: Final = b"sqe-chain.chunks"
_NAME: Final = re.compile(
    r"(?:(\d{12}-[0-9a-f]{1,16}-(\d{5})-\d{4})|compacted-(\d{5}))-[0-9a-f]{16}\.parquet"
)
_STATISTIC_LENGTH: Final = 200
"""Longer texts are left out of a file's statistics."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file, before it has a name.

    Attributes:
        data: its bytes, without a copy.
        rows: how many rows it has.
        chunks: its chunks, without chunk id.
        statistics: of its columns, as Delta's log has them.
    """

    data: memoryview
    rows: int
    chunks: list[ChunkInfo]
    statistics: str

    @property
    def digest(self) -> str:
        """Of its content: 16 digits."""
        return digest_of(self.chunks)

    def packed(self) -> bytes:
        """All of it as bytes; see `unpacked`."""
        head = json.dumps(
            {
                "rows": self.rows,
                "statistics": self.statistics,
                "chunks": [one.to_plain() for one in self.chunks],
            }
        ).encode()
        return b"".join((len(head).to_bytes(4, "big"), head, self.data))

    @classmethod
    def unpacked(cls, packed: bytes) -> Self:
        """What `packed` gave."""
        size = int.from_bytes(packed[:4], "big")
        head = json.loads(packed[4 : 4 + size])
        chunks = [ChunkInfo.from_plain(one) for one in head["chunks"]]
        return cls(memoryview(packed)[4 + size :], head["rows"], chunks, head["statistics"])


def digest_of(chunks: Iterable[ChunkInfo]) -> str:
    """A digest over the contents of chunks: 16 digits."""
    text = "".join(f"{one.name.partition_key.hex()}:{one.rows}:{one.content_hash};" for one in chunks)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def files_of(flushed: Flushed, rows_of_a_file: int = ROWS_OF_A_FILE) -> list[TableFile]:
    """The files of a flush: chunks one after the other; a new file where the next chunk would make one too large.

    Args:
        flushed: what the memtable gave.
        rows_of_a_file: a file has more only where one chunk has.
    """
    return [file_of(rows, chunks) for rows, chunks in split(flushed, rows_of_a_file)]


def split(flushed: Flushed, rows_of_a_file: int) -> Iterator[tuple[Any, list[ChunkInfo]]]:
    """Rows and chunks of each file; see `files_of`."""
    start = 0
    own: list[ChunkInfo] = []
    rows = 0
    for chunk in flushed.chunks:
        if own and rows + chunk.rows > rows_of_a_file:
            yield flushed.data.slice(start, rows), own
            start, own, rows = start + rows, [], 0
        own.append(chunk)
        rows += chunk.rows
    if own:
        yield flushed.data.slice(start, rows), own


def file_of(rows: Any, chunks: Sequence[ChunkInfo]) -> TableFile:  # noqa: ANN401 - an Arrow table
    """A file of rows; the same bytes for the same rows.

    Args:
        rows: an Arrow table, sorted.
        chunks: the chunks in it.
    """
    out = pa.BufferOutputStream()
    footer = {_CHUNKS: json.dumps([one.to_plain() for one in chunks], separators=(",", ":"))}
    pq.write_table(
        rows.replace_schema_metadata(footer),
        out,
        row_group_size=ROW_GROUP,
        compression="zstd",
        use_dictionary=repeating(rows),
    )
    return TableFile(memoryview(out.getvalue()).cast("B"), rows.num_rows, list(chunks), statistics_of(rows))


def repeating(rows: Any) -> list[str]:  # noqa: ANN401 - an Arrow table
    """The columns for which a dictionary is worthwhile, as Parquet names them: values repeat in a sample of the rows.

    A dictionary of values that are all different is built, found too large, and thrown away: for each row group.
    """
    step = max(1, rows.num_rows // _SAMPLE)
    sample = rows.take(pa.arange(0, rows.num_rows, step))
    found = []
    for field in rows.schema:
        if pa.types.is_list(field.type):
            found.append(f"{field.name}.list.element")
        elif _REPEATED * pc.count_distinct(sample[field.name], mode="all").as_py() <= sample.num_rows:
            found.append(field.name)
    return found


def statistics_of(rows: Any) -> str:  # noqa: ANN401 - an Arrow table
    """The statistics of a file, as Delta's log has them: readers leave out files by them."""
    minimum: dict[str, object] = {}
    maximum: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names:
        column = rows[name]
        nulls[name] = column.null_count
        kind = column.type
        if column.null_count == len(column) or pa.types.is_nested(kind) or pa.types.is_binary(kind):
            continue
        if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
            continue
        if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
            continue  # Delta orders NaN above all numbers
        found = pc.min_max(column)
        least, most = (_told(found[end]) for end in ("min", "max"))
        if isinstance(most, str) and max(len(most), len(str(least))) > _STATISTIC_LENGTH:
            continue
        minimum[name], maximum[name] = least, most
    return json.dumps(
        {"numRecords": rows.num_rows, "minValues": minimum, "maxValues": maximum, "nullCount": nulls}
    )


def _told(scalar: Any) -> object:  # noqa: ANN401 - an Arrow scalar
    found = scalar.as_py()
    if pa.types.is_timestamp(scalar.type):
        return found.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    return found.isoformat() if pa.types.is_date(scalar.type) else found


def chunks_in(parquet: Any) -> list[ChunkInfo]:  # noqa: ANN401 - Parquet metadata
    """The chunks in a file, without chunk id, from its footer.

    Raises:
        KeyError: it is not a file of ours.
    """
    return [ChunkInfo.from_plain(one) for one in json.loads(parquet.metadata[_CHUNKS])]


def name_of(chunk_id: str, number: int, digest: str) -> str:
    """The name of a file of a flush."""
    return f"{chunk_id}-{number:04d}-{digest}.parquet"


def compacted_name(part: int, digest: str) -> str:
    """The name of a file that a compaction has written."""
    return f"compacted-{part:05d}-{digest}.parquet"


def chunk_id_in(path: str) -> str | None:
    """The chunk id in the name of a file of a flush; None: a compaction has written it.

    Raises:
        ValueError: a file of another program.
    """
    found = _NAME.fullmatch(path.rpartition("/")[2])
    if found is None:
        raise ValueError(path)
    return found[1][: -len("-0000")] if found[1] else None
