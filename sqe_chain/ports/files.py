"""Which files a source reads, and how: format, compression, and how CSV is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

from sqe_chain.errors import ChangedFile, ConfigurationError

Format = Literal["parquet", "csv", "jsonl"]
Compression = Literal["gzip", "zstd"]

FORMATS: Final[dict[str, Format]] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
"""Suffix of a file's name -> its format."""
_COMPRESSIONS: Final[dict[str, Compression]] = {".gz": "gzip", ".zst": "zstd"}
"""Further suffix -> how the whole file is compressed."""
HASH_DIGITS: Final = 32
"""Hexadecimal digits of a content's hash, and of a topic id."""


_ASCII: Final = bytes(range(128))
"""These bytes stay as they are in an encoding of CSV. In others one of them may begin a sequence, such as + in UTF-7."""


@dataclass(frozen=True, slots=True)
class Csv:
    """How CSV files are written.

    Attributes:
        delimiter: one character between fields.
        quote: the character around fields that hold delimiters or line ends; twice inside a field for itself. Empty: there
            are no quotes.
        escape: the character before one that has no meaning of its own; empty: there is none.
        columns: names of the columns, for files without a header. Empty: the first row of each file names them.
        encoding: of the text: one in which the bytes of ASCII are those characters, such as utf-8, latin-1, cp1252.

    Raises:
        ConfigurationError: a character is none, a name is there twice, or the encoding is unknown or of another kind.
    """

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    columns: tuple[str, ...] = ()
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for name, char, least in (
            ("delimiter", self.delimiter, 1),
            ("quote", self.quote, 0),
            ("escape", self.escape, 0),
        ):
            if not isinstance(char, str) or not least <= len(char) <= 1 or char in ("\r", "\n"):
                raise ConfigurationError(
                    f"Csv({name}={char!r}); must be one character{'' if least else ', or empty'}"
                )
        object.__setattr__(self, "columns", tuple(self.columns))
        if len(set(self.columns)) != len(self.columns) or {*map(type, self.columns)} - {str}:
            raise ConfigurationError(f"Csv(columns={self.columns!r}); must be names, each of them once")
        try:
            plain = _ASCII.decode().encode(self.encoding) == _ASCII == _ASCII.decode(self.encoding).encode()
        except (LookupError, TypeError, UnicodeError) as error:
            raise ConfigurationError(f"Csv(encoding={self.encoding!r}): {error}") from None
        if not plain:
            raise ConfigurationError(
                f"Csv(encoding={self.encoding!r}); must be one in which ASCII stays as it is (utf-8, latin-1, cp1252): write the files so"
            )


@dataclass(frozen=True, slots=True)
class FileSource:
    """The files of one source.

    Attributes:
        name: of the source; the topic of a file is this name, a dot, and its content's hash.
        patterns: paths, or patterns of them with ``*``, ``?``, ``[...]`` and ``**`` for folders of any depth; relative ones
            begin where the process runs.
        format: of all files.
        csv: how CSV files are written.
    """

    name: str
    patterns: tuple[str, ...]
    format: Format
    csv: Csv = Csv()

    def topic(self, topic_id: bytes) -> str:
        """The topic of the file with this content."""
        return f"{self.name}.{topic_id.hex()}"

    def has(self, topic: str) -> bool:
        """Whether this is the topic of a file of this source."""
        name, dot, digits = topic.rpartition(".")
        return bool(dot) and name == self.name and is_hash(digits)


def is_hash(text: str) -> bool:
    """Whether a text is a content's hash: 32 hexadecimal digits."""
    return len(text) == HASH_DIGITS and set(text) <= set("0123456789abcdef")


def format_of(path: str, wanted: Format | None = None) -> tuple[Format, Compression | None]:
    """Format and compression of a file.

    Args:
        path: of the file.
        wanted: its format, if it is known; the suffix names the compression even so.

    Raises:
        ConfigurationError: its suffix names no format.
    """
    suffixes: Sequence[str] = [suffix.lower() for suffix in PurePath(path).suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    rest = suffixes[:-1] if compression else suffixes
    file_format = wanted or (FORMATS.get(rest[-1]) if rest else None)
    if file_format is None:
        known = ", ".join([*FORMATS, *(f".csv{suffix}" for suffix in _COMPRESSIONS)])
        raise ConfigurationError(
            f"{path}: its name has no suffix of a format (known are {known}); declare file_format='csv', 'jsonl' or 'parquet'"
        )
    if file_format == "parquet" and compression:
        raise ConfigurationError(
            f"{path}: Parquet is compressed inside; a compressed Parquet file cannot be read from its middle: unpack it"
        )
    return file_format, compression


def is_other_format(path: str, file_format: Format) -> bool:
    """Whether a file's name has the suffix of another format than this one."""
    try:
        return format_of(path)[0] != file_format
    except ConfigurationError:
        return False


def changed(path: str, what: str) -> ChangedFile:
    """The error for a file whose content is not the one that was fixed.

    Args:
        path: of the file.
        what: what was found, as the end of a sentence.
    """
    return ChangedFile(
        f"{path}: {what}: its content is no longer what it was when it was first looked at, and a row number means "
        "nothing in another content. Files that are read must not be changed: write under another name and rename. What was read of "
        "it stays counted; restore its content and start again, or leave the rest of it with --abandon (see docs/files.md)"
    )


def gone(topic: str, path: str = "") -> ChangedFile:
    """The error for a file that is not there any more with the content that is to be read.

    Args:
        topic: of the content.
        path: where it was; empty: not known here.
    """
    digits = topic.rpartition(".")[2]
    return changed(
        path or topic,
        f"no file of this source has the content {digits} (the first half of its SHA-256) any more",
    )
