"""Rows of text files: lines of JSON, and CSV. A row is the bytes of a JSON value; one that cannot be made so stays as it is.

Both formats are read as lines of bytes. So the place of each row in the file is known, and a damaged row harms no other one.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from sqe_chain.errors import UnreadableFile

if TYPE_CHECKING:
    from sqe_chain.ports.files import Csv

MAX_ROW_BYTES: Final = 64 << 20
"""A longer row is taken for a file without line ends, or for a quote that is never closed."""

_BOM: Final = b"\xef\xbb\xbf"
"""The mark with which some programs begin UTF-8; it belongs to no row."""
_encode: Final = msgspec.json.Encoder().encode

csv.field_size_limit(
    min(sys.maxsize, 2 * MAX_ROW_BYTES)
)  # of the process: its default refuses fields above 128 KiB


@dataclass(slots=True)
class JsonLines:
    """One JSON value on each line. Empty lines are no rows."""

    path: str  # of the file, for errors
    stream: io.BufferedIOBase  # its bytes, uncompressed, at the beginning of a row
    position: int = 0  # where in the uncompressed bytes that is

    def __iter__(self) -> Iterator[bytes]:
        """The rows: lines without their ends."""
        read, mark = self.stream.readline, b"" if self.position else _BOM
        while line := read(MAX_ROW_BYTES + 1):
            if len(line) > MAX_ROW_BYTES:
                raise _too_long(self.path, self.position)
            self.position += len(line)
            if mark:
                line, mark = line.removeprefix(mark), b""
            if line and not line.isspace():
                yield line.rstrip(b"\r\n")

    def walk(self) -> Iterator[object]:
        """Go over the rows, for `position`."""
        return iter(self)


class CsvRows:
    """CSV. Empty lines are no rows.

    A row is a JSON object of texts. With another number of fields than columns it is a list of texts. A row that cannot be
    decoded stays bytes.

    Args:
        path: of the file, for errors.
        stream: its bytes, uncompressed, at the beginning of a row.
        how: how it is written.
        columns: names of the columns; empty: the first row has them.
        position: position of the stream in the uncompressed bytes.

    Attributes:
        columns: names of the columns.

    Raises:
        UnreadableFile: the first row does not name columns.
    """

    def __init__(
        self, path: str, stream: io.BufferedIOBase, how: Csv, columns: tuple[str, ...] = (), position: int = 0
    ) -> None:
        self._path, self._stream, self._how = path, stream, how
        self._row_begin = self._end = self.position = position
        self._ended = False
        escape = how.escape or None
        self._reader = csv.reader(
            self._lines(),
            delimiter=how.delimiter,
            quotechar=how.quote or None,
            quoting=csv.QUOTE_MINIMAL if how.quote else csv.QUOTE_NONE,
            escapechar=escape,
            doublequote=True,
        )
        self.columns = columns or self._header()

    def __iter__(self) -> Iterator[bytes]:
        columns, count, encode = self.columns, len(self.columns), _encode
        while (fields := self._next()) is not None:
            try:
                row = encode(dict(zip(columns, fields, strict=True)) if len(fields) == count else fields)
            except UnicodeEncodeError:  # bytes that the encoding does not have
                row = self._as_it_is(fields)
            yield row

    def walk(self) -> Iterator[object]:
        """Go over the rows, for `position`; nothing is made of them."""
        return iter(self._next, None)

    def _next(self) -> list[str] | None:
        """The fields of the next row that is not empty; None: there is none."""
        while True:  # bounded by the rows
            self._row_begin = self._end
            try:
                fields = next(self._reader, None)
            except csv.Error as error:
                raise UnreadableFile(
                    f"{self._path}: no CSV from byte {self._row_begin:,} on: {error}; correct the file, or declare how it is written with "
                    "Csv(...)"
                ) from error
            self.position = self._end
            if fields and self._ended:  # a row that is whole is given before its reader looks for more
                raise UnreadableFile(
                    f"{self._path}: the quote in the row at byte {self._row_begin:,} is never closed, so all that follows would be in one field. "
                    "Was the file cut off? Write it again, under another name, and rename; or declare how it is written with Csv(quote=...)"
                )
            if fields is None or fields:
                return fields

    def _header(self) -> tuple[str, ...]:
        names = tuple(self._next() or ())
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UnreadableFile(
                f"{self._path}: its first row names {', '.join(map(repr, twice))} several times; correct it, or give "
                "Csv(columns=...) for files without names"
            )
        if any("\udc80" <= letter <= "\udcff" for name in names for letter in name):
            raise UnreadableFile(
                f"{self._path}: the names in its first row are not {self._how.encoding}; declare Csv(encoding=...)"
            )
        return names

    def _lines(self) -> Iterator[str]:
        read, encoding, mark = self._stream.readline, self._how.encoding, b"" if self._end else _BOM
        while line := read(MAX_ROW_BYTES + 1):
            self._end += len(line)
            if self._end - self._row_begin > MAX_ROW_BYTES:
                raise _too_long(self._path, self._row_begin)
            try:
                text = line.removeprefix(mark).decode(encoding, "surrogateescape")
            except UnicodeError as error:  # a sequence of several bytes that is cut off
                raise UnreadableFile(
                    f"{self._path}: the row at byte {self._row_begin:,} is not {encoding}: {error}. Correct the file, or declare "
                    "Csv(encoding=...)"
                ) from error
            yield text
            mark = b""
        self._ended = True

    def _as_it_is(self, fields: list[str]) -> bytes:
        text = self._how.delimiter.join(fields)
        try:
            return text.encode(self._how.encoding, "surrogateescape")
        except UnicodeError:  # it does not write all that it reads
            return text.encode("utf-8", "surrogatepass")


def _too_long(path: str, position: int) -> UnreadableFile:
    return UnreadableFile(
        f"{path}: the row at byte {position:,} is longer than {MAX_ROW_BYTES >> 20} MiB: is it text at all, and is each quote closed?"
    )
