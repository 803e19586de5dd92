"""This machine: disks, open files, memory, programs, and its clock beside those of servers."""

from __future__ import annotations

import importlib.util
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from sqe_chain.engines.java import java
from sqe_chain.errors import ConfigurationError


@runtime_checkable
class Clocked(Protocol):
    """A store whose servers have clocks."""

    def clocks(self) -> Mapping[str, int]:
        """Server -> its time, in milliseconds since 1970; without the servers that do not give theirs.

        Raises:
            Unavailable: no answer.
        """


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of a directory, in bytes."""

    directory: Path
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine.

    Attributes:
        disks: where the process writes.
        open_files: how many files a process may open; -1: any number.
        memory_free: bytes of memory that are available; -1: unknown.
        java: path of Java; empty: there is none.
        java_version: first number of its version; 0: unknown.
        temporary: whether there is a directory for temporary files that this user may write.
    """

    disks: tuple[Disk, ...]
    open_files: int
    memory_free: int
    java: str
    java_version: int
    spark: bool
    numpy: bool
    python: tuple[int, int]
    temporary: bool = True

    @classmethod
    def here(cls, directories: Iterable[Path] = ()) -> Machine:
        """This machine, now: the disks of the working and the temporary directory, and of those where stores have their files."""
        try:
            temporary = [Path(tempfile.gettempdir())]
        except FileNotFoundError:
            temporary = []
        written = dict.fromkeys([Path.cwd(), *temporary, *directories])
        try:
            found_java = java()
        except ConfigurationError:
            found_java = ""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(
            tuple(_disk(directory) for directory in written if directory.is_dir()),
            -1 if limit == resource.RLIM_INFINITY else limit,
            _memory_free(),
            found_java,
            _java_version(found_java) if found_java else 0,
            importlib.util.find_spec("pyspark") is not None,
            importlib.util.find_spec("numpy") is not None,
            sys.version_info[:2],
            bool(temporary),
        )


def _disk(directory: Path) -> Disk:
    usage = shutil.disk_usage(directory)
    return Disk(directory, usage.free, usage.total)


def _memory_free() -> int:
    """Bytes of memory that are available, as Linux counts them; -1 elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return -1
    return next((int(line.split()[1]) * 1_024 for line in lines if line.startswith("MemAvailable:")), -1)


def _java_version(program: str) -> int:
    """First number of the version that a `java` program prints: 17; 1 for Java 8 and older. 0: it prints none."""
    try:
        answer = subprocess.run(  # noqa: S603 - the Java that engines start
            [program, "-version"], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    version = re.search(r'version "(\d+)', answer.stderr)
    return int(version[1]) if version else 0


def clock_differences(store: Clocked, now_ms: Callable[[], int]) -> dict[str, int]:
    """By how many milliseconds the clocks of a store's servers are ahead of this machine's, at least; negative: behind.

    An answer takes time. The server read its clock at some moment between question and answer, so only what lies outside
    of that time is a difference.

    Raises:
        Unavailable: no answer.
    """
    asked_ms = now_ms()
    times = store.clocks()
    answered_ms = now_ms()
    return {
        server: max(0, time_ms - answered_ms) + min(0, time_ms - asked_ms)
        for server, time_ms in times.items()
    }
