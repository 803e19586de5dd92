"""Temporary directories that end with the process that made them, or with the next one that makes one.

A process holds a lock in its directory; the system lets go of it when the process ends, however that happens. So
a directory of this user whose lock can be taken belongs to nobody any more. No process ids are compared: those
of another container mean nothing here.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

PREFIX = "sqe-chain-modules-"
"""Beginning of the directories' names, in the system's directory for temporary files."""

_LOCK = "lock"

_held: list[IO[str]] = []


def workplace() -> Path:
    """A new directory, until this process ends. Those that killed processes of this user have left are removed."""
    sweep()
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    partial = directory / f"{_LOCK}.partial"
    lock = partial.open("w", encoding="ascii")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _held.append(lock)
    partial.rename(directory / _LOCK)  # from now on others look at it, and find it taken
    atexit.register(_remove, directory, os.getpid())
    return directory


def sweep() -> None:
    """Remove the directories of this user whose process has ended."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else was faster, or made no lock yet
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            with (directory / _LOCK).open("r", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)


def _remove(directory: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child's end is not the end
        shutil.rmtree(directory, ignore_errors=True)
