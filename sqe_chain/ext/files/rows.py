"""One file as rows with offsets, its content fixed: a plain object that reads as sources of files do."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from sqe_chain.errors import UnreadableFile
from sqe_chain.ext.files._content import Content, FirstLook, FixedFile
from sqe_chain.ext.files._text import CsvRows, JsonLines
from sqe_chain.ports.files import Compression, Csv, Format, format_of
from sqe_chain.wings import needing

if TYPE_CHECKING:
    from sqe_chain.ext.files._parquet import ParquetRows

One = TypeVar("One")

_INDEX_ROWS: Final = 4_096
"""So far apart are the rows of text files whose places are remembered."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file.

    Attributes:
        offset: its number, from 0; the row with the names of CSV columns does not count, nor do empty lines.
        value: the row as JSON: an object of its columns, or the line of JSON itself. A row without a JSON form is unchanged, so decoding fails
            for this row alone.
    """

    offset: int
    value: bytes

    def decode(self) -> Any:  # noqa: ANN401 - any JSON
        """The value of the JSON.

        Raises:
            ValueError: it is no JSON: the row is damaged.
        """
        return msgspec.json.decode(self.value)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the first look at a file has found out about its rows.

    Attributes:
        index: for every `_INDEX_ROWS`th row of a text file that is not compressed, where it begins.
    """

    count: int  # rows
    columns: tuple[str, ...] = ()  # names of CSV columns
    index: tuple[int, ...] = ()


class FileRows:
    r"""The rows of one file. Its content is fixed when this is made: all that is given later was there then.

    Args:
        path: of the file: Parquet, CSV or lines of JSON; text may be compressed by gzip or zstd.
        file_format: its format; None: by its suffix.
        csv: how CSV is written.

    Attributes:
        path: of the file.
        topic_id: its content's hash, 16 bytes: the first half of its SHA-256.
        count: how many rows it has.
        size: bytes.

    Raises:
        UnreadableFile: it is missing, cut off, damaged, or of another format.
        ChangedFile: it was written to meanwhile.
        ConfigurationError: its suffix has no known format, or a package is missing.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "screws.csv")
    >>> _ = path.write_text("robot,screws\nr1,3\nr2,4\n")
    >>> rows = FileRows(path)
    >>> rows.count, [row.decode() for row in rows.read(1)]
    (2, [{'robot': 'r2', 'screws': '4'}])
    """

    def __init__(
        self, path: str | PathLike[str], file_format: Format | None = None, csv: Csv | None = None
    ) -> None:
        self.path = fspath(path)
        self._format, self._compression = format_of(self.path, file_format)
        self._csv = csv or Csv()
        self.content, self._layout = self._look()
        self._cursor: tuple[int, Iterator[bytes], FixedFile] | None = None

    @property
    def topic_id(self) -> bytes:
        """The SHA-256 of the content, cut to 16 bytes."""
        return self.content.topic_id

    @property
    def count(self) -> int:
        """The number of rows."""
        return self._layout.count

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.content.size

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        """The rows from one offset to before another.

        A call that begins where the last one ended reads on from there, also in a compressed file.

        Args:
            start: first offset.
            stop: one past the last offset; None: the end.

        Raises:
            ChangedFile: the file is no longer what it was; also at the end, when all rows were given.
            UnreadableFile: a part of it is damaged.
        """
        for offset, value in enumerate(self.values(start, stop), start):
            yield Row(offset, value)

    def values(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The rows alone, see `read`: their offsets have no gaps."""
        end = self.count if stop is None else min(stop, self.count)
        if start >= end:
            return
        rows, file = self._rows_at(start)
        try:
            count = 0
            for value in islice(rows, end - start):
                count += 1
                yield value
            file.check()
            self._check_end(start + count, end)
        except BaseException:
            file.close()
            raise
        if end < self.count:
            self._cursor = (end, rows, file)
        else:
            file.close()

    def close(self) -> None:
        """Close what the last `read` left open to go on; it can be read again."""
        if self._cursor is not None:
            self._cursor[2].close()
            self._cursor = None

    def __enter__(self) -> Self:
        """Nothing to do: a context closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_end(self, offset: int, end: int) -> None:
        if offset < end:
            raise UnreadableFile(
                f"{self.path}: {offset:,} rows were read, it had {self.count:,} before: what unpacks or parses it gives something else now"
            )

    def _rows_at(self, start: int) -> tuple[Iterator[bytes], FixedFile]:
        """The rows from one on, and the file that they come from."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            begin, rows, file = cursor
            if begin == start:
                file.check()
                return rows, file
            file.close()
        file = FixedFile(self.content)
        try:
            return self._open(file, start), file
        except BaseException:
            file.close()
            raise

    def _open(self, file: FixedFile, start: int) -> Iterator[bytes]:
        if self._format == "parquet":
            return self._parquet(file).rows_from(start)
        begin, skip = 0, start
        if self._layout.index:
            number = start // _INDEX_ROWS
            begin, skip = self._layout.index[number], start - number * _INDEX_ROWS
            file.seek(begin)
        with self._named(file):
            rows = self._text(io.BufferedReader(file), begin)
        for _ in islice(self._guarded(rows.walk(), file), skip):
            pass
        return self._guarded(iter(rows), file)

    def _look(self) -> tuple[Content, _Layout]:
        """The first look: content and rows in one go."""
        look = FirstLook(self.path)
        with closing(look):
            if self._format == "parquet":
                content = look.finish()
                with closing(FixedFile(content)) as file:
                    return content, _Layout(self._parquet(file).count)
            with self._named():
                rows = self._text(io.BufferedReader(look), 0)
            count, index = 0, list[int]()
            begin = rows.position
            for _ in self._guarded(rows.walk()):
                if not count % _INDEX_ROWS:
                    index.append(begin)
                count += 1
                begin = rows.position
            columns = rows.columns if isinstance(rows, CsvRows) else ()
            return look.finish(), _Layout(count, columns, () if self._compression else tuple(index))

    def _parquet(self, file: FixedFile) -> ParquetRows:
        with needing(f"{self.path}: Parquet", "files"):
            from sqe_chain.ext.files._parquet import ParquetRows  # noqa: PLC0415 - it needs pyarrow
        return ParquetRows(self.path, file)

    def _text(self, stream: io.BufferedReader, position: int) -> JsonLines | CsvRows:
        opened = _unpacked(self.path, stream, self._compression)
        if self._format == "jsonl":
            return JsonLines(self.path, opened, position)
        columns = self._csv.columns or (self._layout.columns if position else ())
        return CsvRows(self.path, opened, self._csv, columns, position)

    def _guarded(self, rows: Iterator[One], file: FixedFile | None = None) -> Iterator[One]:
        with self._named(file):
            yield from rows

    @contextmanager
    def _named(self, file: FixedFile | None = None) -> Iterator[None]:
        """Errors of the decompressor with the name of the file."""
        try:
            yield
        except (EOFError, zlib.error, OSError) as error:
            if file is not None and file.failure is not None:
                raise file.failure from error
            raise UnreadableFile(
                f"{self.path}: cut off or damaged: {type(error).__name__}: {str(error).rstrip('.')}. Write it again, under another name, and rename"
            ) from error


def _unpacked(path: str, stream: io.BufferedReader, compression: Compression | None) -> io.BufferedIOBase:
    if compression is None:
        return stream
    if compression == "gzip":
        return gzip.GzipFile(fileobj=stream, mode="rb")
    with needing(f"{path}: zstd", "files"):
        import pyarrow as pa  # noqa: PLC0415 - only who reads zstd needs it
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))
