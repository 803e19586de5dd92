"""Which files there are, and what their contents are. Looked at once for each file, as long as it stays as it is."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from errno import ELOOP
from fnmatch import filter as matching_names
from pathlib import Path
from stat import S_ISREG
from typing import Final

from sqe_chain.errors import ChangedFile, ConfigurationError, UnreadableFile
from sqe_chain.ext.files._content import Stamp, stamp_of
from sqe_chain.ext.files.rows import FileRows
from sqe_chain.ports.files import FileSource

MAGIC: Final = frozenset("*?[")


def matching(pattern: str) -> Iterator[str]:
    """The paths that match a pattern; of a part without ``*``, ``?`` and ``[`` also such as are not there.

    Args:
        pattern: a path with ``*``, ``?``, ``[...]`` and, for folders of any depth, ``**``. Names that begin with a dot are matched by
            parts that do.

    Raises:
        UnreadableFile: a folder cannot be listed. Its files are missing, so they cannot be skipped.
    """
    below = pattern.lstrip("/")
    return _below(pattern[: len(pattern) - len(below)], below.split("/"))


def _below(folder: str, parts: Sequence[str]) -> Iterator[str]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _below(folder, rest or ("*",))
        for name in _names(folder, folders=True):
            if not name.startswith("."):
                yield from _below(os.path.join(folder, name), parts)  # noqa: PTH118 - as the pattern begins
        return
    names = [part]
    if MAGIC & set(part):
        names = matching_names(_names(folder, folders=bool(rest)), part)
    for name in names:
        if name.startswith(".") and not part.startswith("."):
            continue
        path = os.path.join(folder, name)  # noqa: PTH118 - the same
        if rest:
            yield from _below(path, rest)
        else:
            yield path


def _names(folder: str, *, folders: bool) -> list[str]:
    """The names in a folder, or of those of its folders."""
    try:
        with os.scandir(folder or os.curdir) as entries:
            return [entry.name for entry in entries if not folders or _is_folder(entry)]
    except OSError as error:
        _check_nothing(folder or os.curdir, error)
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        _check_nothing(entry.path, error)
        return False


def _check_nothing(folder: str, error: OSError) -> None:
    """Check that there is no folder, or that links lead in a circle: what they lead to was met before."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError) and error.errno != ELOOP:
        raise UnreadableFile(f"{folder}: the folder cannot be listed: {error.strerror}") from error


_WARNINGS = logging.getLogger("sqe_chain.files")


class Catalog:
    """The files of one source, by their contents.

    Args:
        source: which files, and how they are read.
        skip_bad: skip files that cannot be read, with a warning; else they stop the service.
        looked: called with the bytes of each file that was looked at.
    """

    def __init__(self, source: FileSource, *, skip_bad: bool, looked: Callable[[int], object]) -> None:
        self._source, self._skip_bad, self._looked = source, skip_bad, looked
        self._known: dict[str, tuple[Stamp, FileRows | None]] = {}
        self._by_content: dict[bytes, FileRows] = {}
        self._told: dict[str, str] = {}

    def look(self) -> dict[bytes, FileRows]:
        """The files that are there now, in the order of their paths: content -> its rows.

        Of several with the same content it is the first.

        Raises:
            UnreadableFile, ChangedFile: one cannot be read.
            ConfigurationError: the suffix of a name has no known format.
        """
        contents: dict[bytes, FileRows] = {}
        paths = list(self.paths())
        for path in paths:
            rows = self._rows_of(path)
            if rows is not None:
                contents.setdefault(rows.topic_id, rows)
        for path in self._known.keys() - set(paths):
            del self._known[path]
        for topic_id, rows in self._by_content.items():
            if contents.get(topic_id) is not rows:
                rows.close()
        self._by_content = contents
        return contents

    def find(self, topic_id: bytes) -> FileRows | None:
        """The file with this content; looks again if it is not known."""
        return self._by_content.get(topic_id) or self.look().get(topic_id)

    def paths(self) -> Iterator[str]:
        """The paths of all files, sorted, each once; and of folders that a pattern matches.

        Raises:
            UnreadableFile: a folder cannot be listed.
        """
        matches: set[str] = set()
        for pattern in self._source.patterns:
            if os.path.isfile(pattern) or not MAGIC & set(pattern):  # noqa: PTH113 - unlike Path's it never raises
                self._check_no_folder(pattern)
                matches.add(pattern)
            else:
                matches.update(matching(pattern))
        return iter(sorted(matches))

    def _check_no_folder(self, path: str) -> None:
        if os.path.isdir(path):  # noqa: PTH112 - the same
            raise ConfigurationError(
                f"source {self._source.name!r}: {path} is a folder; name its files, as in {Path(path, '*.csv')}"
            )

    def _rows_of(self, path: str) -> FileRows | None:
        try:
            stat = os.stat(path)  # noqa: PTH116 - thousands of files are looked at for each batch
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._leave_out(path, UnreadableFile(f"{path}: cannot be looked at: {error.strerror}"))
            return None
        if not S_ISREG(stat.st_mode):
            return None
        stamp = stamp_of(stat)
        known = self._known.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        rows: FileRows | None = None
        try:
            rows = FileRows(path, self._source.format, self._source.csv)
            stamp = rows.content.stamp
        except (UnreadableFile, ChangedFile) as error:
            self._leave_out(path, error)
        self._known[path] = stamp, rows
        self._looked(stamp[2])
        return rows

    def _leave_out(self, path: str, error: UnreadableFile | ChangedFile) -> None:
        """Raise the error, or, where files may be skipped, log it once."""
        if not self._skip_bad:
            raise error
        text = str(error)
        if self._told.get(path) != text:
            self._told[path] = text
            _WARNINGS.warning("source %r: left out: %s", self._source.name, text)
