"""Files as inputs: a content's hash is its topic id, a row's number its offset.

`FileRows` and `FileLoad` are plain objects: a file as rows with offsets, and the rule which of them are new.
"""

from sqe_chain.logs.files._log import FileRecord, FilesLog
from sqe_chain.logs.files._no_log import NoLog
from sqe_chain.logs.files.load import FileLoad
from sqe_chain.logs.files.rows import FileRows, Row
from sqe_chain.ports.files import Csv, FileSource, Format

__all__ = [
    "Csv",
    "FileLoad",
    "FileRecord",
    "FileRows",
    "FileSource",
    "FilesLog",
    "Format",
    "NoLog",
    "Row",
]
