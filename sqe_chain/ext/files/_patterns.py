"""Which paths match a pattern. As `glob` does it, which takes a folder that it cannot list for an empty one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from errno import ELOOP
from fnmatch import filter as matching_names
from typing import Final

from sqe_chain.errors import UnreadableFile

MAGIC: Final = frozenset("*?[")


def matching(pattern: str) -> Iterator[str]:
    """The paths that match a pattern; of a part without ``*``, ``?`` and ``[`` also such as are not there.

    Args:
        pattern: a path with ``*``, ``?``, ``[...]`` and, for folders of any depth, ``**``. Names that begin with a dot are matched by
            parts that do.

    Raises:
        UnreadableFile: a folder cannot be listed. What lies there is missing, whatever may be left out: nobody knows what it is.
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
