"""The files of a table: Parquet with their chunks in the footer, and names that a redo finds."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sqe_chain.ext.tables.chunk import ChunkInfo
from sqe_chain.ext.tables.memtable import Flushed

ROW_GROUP: Final = 128 * 1024
"""Rows that readers can skip together."""
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
"""Longer texts are cut in a file's statistics."""
_SURROGATES: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file, before it has a name."""

    data: memoryview  # its bytes, without a copy
    rows: int  # how many rows it has
    chunks: list[ChunkInfo]  # its chunks, without chunk id
    statistics: str  # of its columns, as Delta's log has them

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
                "chunks": [chunk.to_plain() for chunk in self.chunks],
            }
        ).encode()
        return b"".join((len(head).to_bytes(4, "big"), head, self.data))

    @classmethod
    def unpacked(cls, packed: bytes) -> Self:
        """What `packed` gave."""
        size = int.from_bytes(packed[:4], "big")
        head = json.loads(packed[4 : 4 + size])
        chunks = [ChunkInfo.from_plain(chunk) for chunk in head["chunks"]]
        return cls(memoryview(packed)[4 + size :], head["rows"], chunks, head["statistics"])


def digest_of(chunks: Iterable[ChunkInfo]) -> str:
    """A digest over the contents of chunks: 16 digits."""
    text = "".join(f"{chunk.name.partition_key.hex()}:{chunk.rows}:{chunk.content_hash};" for chunk in chunks)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def files_of(flushed: Flushed, rows_of_a_file: int = ROWS_OF_A_FILE) -> list[TableFile]:
    """The files of a flush: chunks one after the other; a new file where the next chunk would make one too large."""
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
    footer = {_CHUNKS: json.dumps([chunk.to_plain() for chunk in chunks], separators=(",", ":"))}
    pq.write_table(
        rows.replace_schema_metadata(footer),
        out,
        row_group_size=ROW_GROUP,
        compression="zstd",
        use_dictionary=_repeating(rows),
        write_statistics=_without_nan(rows),
    )
    return TableFile(memoryview(out.getvalue()).cast("B"), rows.num_rows, list(chunks), statistics_of(rows))


def _repeating(rows: Any) -> list[str]:  # noqa: ANN401 - an Arrow table
    """The columns for which a dictionary is worthwhile, as Parquet names them: values repeat in a sample of the rows.

    A dictionary of values that are all different is built, found too large, and thrown away: for each row group.
    """
    step = max(1, rows.num_rows // _SAMPLE)
    sample = rows.take(pa.arange(0, rows.num_rows, step))
    return [
        _path(field)
        for field in rows.schema
        if pa.types.is_list(field.type)
        or _REPEATED * pc.count_distinct(sample[field.name], mode="all").as_py() <= sample.num_rows
    ]


def _without_nan(rows: Any) -> list[str]:  # noqa: ANN401 - an Arrow table
    """The columns whose bounds the footer has: those of Parquet pass over NaN, so that a filter for NaN would find nothing."""
    floats = [name for name in rows.column_names if pa.types.is_floating(rows[name].type)]
    nan = {name for name in floats if pc.any(pc.is_nan(rows[name])).as_py()}
    return [_path(field) for field in rows.schema if field.name not in nan]


def _path(field: Any) -> str:  # noqa: ANN401 - an Arrow field
    """A column as Parquet names it."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)


def statistics_of(rows: Any, **more: int) -> str:  # noqa: ANN401 - an Arrow table
    """The statistics of a file, as Delta's log has them: readers skip files by them.

    Either each column has bounds or none has. Otherwise delta-rs takes missing bounds for null, and a filter finds nothing.
    Infinity and NaN have no bounds: JSON has no form for them, and readers order NaN differently.
    """
    bounds = {name: _bounds(rows[name]) for name in rows.column_names if _is_bounded(rows[name])}
    told = {"numRecords": str(rows.num_rows)}
    if None not in bounds.values():
        for end, which in enumerate(("minValues", "maxValues")):
            told[which] = _object({name: ends[end] for name, ends in bounds.items() if ends is not None})
    told["nullCount"] = _object({name: str(rows[name].null_count) for name in rows.column_names})
    return _object(told | {name: str(number) for name, number in more.items()})


def _object(members: Mapping[str, str]) -> str:
    """An object of JSON, of texts of JSON: `json` writes no decimals."""
    return "{" + ", ".join(f"{_text(name)}: {text}" for name, text in members.items()) + "}"


def _text(cell: object) -> str:
    """A value as JSON in UTF-8. delta-rs reads an escape of two surrogates wrongly: U+20BB7 as U+10BB7."""
    return json.dumps(cell, allow_nan=False, ensure_ascii=False)


def _is_bounded(column: Any) -> bool:  # noqa: ANN401 - an Arrow array
    """Whether readers expect bounds: Delta has none for bytes and lists, and where all is null there are none."""
    kind = column.type
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or column.null_count == len(column))


def _bounds(column: Any) -> tuple[str, str] | None:  # noqa: ANN401 - an Arrow array
    """Values between which all of a column lie, as JSON; None: it has none."""
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
        return None
    ends = pc.min_max(column)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    if isinstance(most, str):
        cut = most[:_STATISTIC_LENGTH]
        least, most = least[:_STATISTIC_LENGTH], most if cut == most else _next_text(cut)
    return None if most is None else (_told(least), _told(most))


def _next_text(text: str) -> str | None:
    """A text that comes after all that begin with this one; None: there is none."""
    kept = text.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_AFTER_SURROGATES if following == _SURROGATES else following)


def _told(cell: object) -> str:
    """A cell as JSON, as Delta's log has it."""
    if isinstance(cell, Decimal):
        return format(cell, "f")
    if isinstance(cell, dt.datetime):
        cell = cell.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    return _text(cell.isoformat() if isinstance(cell, dt.date) else cell)


def chunks_in(parquet: Any) -> list[ChunkInfo]:  # noqa: ANN401 - Parquet metadata
    """The chunks in a file, without chunk id, from its footer. Raises KeyError: it is not a file of ours."""
    return [ChunkInfo.from_plain(plain) for plain in json.loads(parquet.metadata[_CHUNKS])]


def name_of(chunk_id: str, number: int, digest: str) -> str:
    """The name of a file of a flush."""
    return f"{chunk_id}-{number:04d}-{digest}.parquet"


def compacted_name(part: int, digest: str) -> str:
    """The name of a file that a compaction has written."""
    return f"compacted-{part:05d}-{digest}.parquet"


def foreign_in(paths: Iterable[str]) -> str | None:
    """The first path of a file of another program; None: there is none."""
    return next((path for path in paths if not _NAME.fullmatch(path.rpartition("/")[2])), None)


def chunk_id_in(path: str) -> str | None:
    """The chunk id in the name of a file of a flush; None: a compaction has written it. Raises ValueError: a file of another program."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    if match is None:
        raise ValueError(path)
    return match[1][: -len("-0000")] if match[1] else None
