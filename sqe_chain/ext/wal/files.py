"""The directory of a write-ahead log: the calls that its durability rests on, one by one.

They are a port, so that tests can stop the world before and after each call, and refuse any of them.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from sqe_chain.errors import LogLocked, LogUnwritable

_LOCK = "lock"
TEMPORARY: Final = ".new"
"""End of the names of files that are not complete yet; they are removed when a log is opened."""


class Files(Protocol):
    """Files of one directory, by name. What the operating system refuses is raised as `OSError`.

    Nothing is durable before it is synced: contents by `sync`, names (new, renamed, removed) by `sync_directory`.
    """

    @property
    def where(self) -> str:
        """The directory, for error texts."""

    def lock(self) -> None:
        """Make the directory if it is missing, and lock it for this object.

        Raises:
            LogLocked: another object has it, in this process or another one.
        """

    def names(self) -> list[str]:
        """Names of the files, except that of the lock."""

    def size(self, name: str) -> int:
        """Bytes of a file."""

    def read(self, name: str, at: int, size: int) -> bytes:
        """Bytes of a file from a place on; fewer where the file ends."""

    def create(self, name: str) -> None:
        """Make a new, empty file; an error if it is there."""

    def write(self, name: str, at: int, data: bytes, zeros: int = 0) -> None:
        """Write into a file, which grows if it has to. When it raises, a part may have been written.

        Args:
            name: of the file.
            at: where; at most its size.
            data: what.
            zeros: number of zero bytes after that, if the disk has room. Later writes into them sync in half the time, because the
                file does not grow.
        """

    def overwrite(self, name: str, at: int, data: bytes) -> None:
        """Write over existing bytes of a file; it needs no new space on the disk."""

    def truncate(self, name: str, size: int) -> None:
        """Cut off the end of a file."""

    def sync(self, name: str) -> None:
        """Return when the contents of a file are durable. After an error nothing is known of what was not synced before."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; a file that has it is replaced."""

    def remove(self, name: str) -> None:
        """Delete a file."""

    def sync_directory(self) -> None:
        """Return when names are durable."""

    def unlock(self) -> None:
        """Close all files and release the lock."""


class LocalFiles(Files):
    """A directory of this machine.

    On network file systems locks and syncs may mean less; use a local disk.

    Args:
        directory: made when it is missing.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._open: dict[str, int] = {}
        self._lock: int | None = None

    @property
    def where(self) -> str:
        return str(self._directory)

    def lock(self) -> None:
        missing = [path for path in (self._directory, *self._directory.parents) if not path.exists()]
        self._directory.mkdir(parents=True, exist_ok=True)
        for made in missing:
            _sync_directory(made.parent)
        lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise LogLocked(
                f"The write-ahead log in {self.where} is open already (process {holder}): one process at a time writes a "
                "log. Stop that process, or give this one a directory of its own"
            ) from None
        except OSError:
            os.close(lock)
            raise
        self._lock = lock
        with suppress(OSError):  # only for the text above; a full disk skips it
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)

    def names(self) -> list[str]:
        return [path.name for path in self._directory.iterdir() if path.name != _LOCK]

    def size(self, name: str) -> int:
        return (self._directory / name).stat().st_size

    def read(self, name: str, at: int, size: int) -> bytes:
        # A descriptor of its own: another thread may close the one that writes.
        descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, at)
        finally:
            os.close(descriptor)

    def create(self, name: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._open[name] = os.open(self._directory / name, flags, 0o644)

    def write(self, name: str, at: int, data: bytes, zeros: int = 0) -> None:
        descriptor = self._descriptor(name)
        if not zeros:
            self._write(descriptor, at, data)
            return
        try:
            written = os.pwritev(descriptor, (data, bytes(zeros)), at)
        except OSError:  # no room for the zeros, perhaps
            written = 0
        if written < len(data):
            self._write(descriptor, at + written, memoryview(data)[written:])

    def overwrite(self, name: str, at: int, data: bytes) -> None:
        self._write(self._descriptor(name), at, data)

    def truncate(self, name: str, size: int) -> None:
        os.ftruncate(self._descriptor(name), size)

    def sync(self, name: str) -> None:
        # The size is synced, too; times are not
        os.fdatasync(self._descriptor(name))

    def rename(self, old: str, new: str) -> None:
        (self._directory / old).rename(self._directory / new)
        self._close(new)
        if old in self._open:
            self._open[new] = self._open.pop(old)

    def remove(self, name: str) -> None:
        self._close(name)
        (self._directory / name).unlink()

    def sync_directory(self) -> None:
        _sync_directory(self._directory)

    def unlock(self) -> None:
        for name in list(self._open):
            self._close(name)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _descriptor(self, name: str) -> int:
        descriptor = self._open.get(name)
        if descriptor is None:
            descriptor = self._open[name] = os.open(self._directory / name, os.O_RDWR | os.O_CLOEXEC)
        return descriptor

    def _close(self, name: str) -> None:
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    @staticmethod
    def _write(descriptor: int, at: int, data: bytes | memoryview) -> None:
        written = os.pwrite(descriptor, data, at)
        while written < len(data):  # a signal, or a disk that is nearly full: then the next call raises
            written += os.pwrite(descriptor, memoryview(data)[written:], at + written)


def write_whole(files: Files, name: str, content: bytes) -> None:
    """Write a file that is there as a whole, or not at all (or as before), whatever happens. Raises OSError: the disk is full or fails."""
    temporary = name + TEMPORARY
    if temporary in files.names():  # of an attempt that failed
        files.remove(temporary)
    files.create(temporary)
    files.write(temporary, 0, content)
    files.sync(temporary)
    files.rename(temporary, name)
    files.sync_directory()


def unwritable(files: Files, doing: str, error: OSError) -> LogUnwritable:
    """The error for what the operating system refused, such as to be "opened"."""
    return LogUnwritable(
        f"The write-ahead log in {files.where} cannot be {doing}: {error.strerror or error} ({type(error).__name__}, errno "
        f"{error.errno}). Is the disk full or failing, and may this process write there? What was acknowledged before is safe; "
        "try again when it is repaired"
    )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
