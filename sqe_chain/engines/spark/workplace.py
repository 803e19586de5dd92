"""Temporary directories that are removed when their process ends, or else by the next process that makes one.

A process holds a lock in its directory; the system releases it when the process ends, however it ends. So a
directory of this user whose lock is free belongs to no process. Process ids are not compared: those of another
container mean nothing here.
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
"""Prefix of the directories' names, in the system's directory for temporary files."""

_LOCK = "lock"


def make_temporary_directory() -> Path:
    """Make a directory for the lifetime of this process; remove those left by killed processes of this user."""
    sweep()
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    partial = directory / f"{_LOCK}.partial"
    lock = partial.open("w", encoding="ascii")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    partial.rename(directory / _LOCK)  # only now can others see the lock, and it is held already
    atexit.register(_remove, directory, lock, os.getpid())
    return directory


def sweep() -> None:
    """Remove the directories of this user whose process has ended."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # the lock is held or not there yet, or another process removed the directory
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            with (directory / _LOCK).open("r", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)


def _remove(directory: Path, lock: IO[str], pid: int) -> None:
    with lock:
        if os.getpid() == pid:  # a forked child inherits this handler, but not the directory
            shutil.rmtree(directory, ignore_errors=True)
