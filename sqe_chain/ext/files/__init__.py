"""Files as inputs: a content's hash is its topic id, a row's number its offset.

`FileRows` and `FileLoad` are plain objects: a file as rows with offsets, and the rule which of them are new.
"""

from collections.abc import Callable, Mapping

from sqe_chain.ext.files._log import FilesLog, NoLog
from sqe_chain.ext.files.load import FileLoad
from sqe_chain.ext.files.rows import FileRows, Row
from sqe_chain.ports import Log
from sqe_chain.ports.files import Csv, FileSource


def open_files(
    sources: Mapping[str, FileSource],
    log: Log | None,
    *,
    skip_bad: bool,
    looked: Callable[[int], object] = lambda _size: None,
) -> Log:
    """A log that reads files as topics, and all other topics from another log.

    Args:
        sources: by name.
        log: the other one, or None: the flow has only files.
        skip_bad: see `FilesLog`.
        looked: see `FilesLog`.
    """
    return FilesLog(sources, NoLog() if log is None else log, skip_bad=skip_bad, looked=looked)


__all__ = ["Csv", "FileLoad", "FileRows", "FileSource", "FilesLog", "Row"]
