"""The machine; and the processor time and memory of this process and all its descendants."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PACKAGES = ("sqe-chain", "pyspark", "confluent-kafka", "protobuf", "pyarrow", "redis")
_EVERY_S = 0.5  # each measurement itself takes some milliseconds of processor time


def facts() -> dict[str, str]:
    """The machine and versions, without which a figure means nothing."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = {line.partition(":")[2].strip() for line in cpu.splitlines() if line.startswith("model name")}
    memory = os.sysconf("SC_PHYS_PAGES") * _PAGE / (1 << 30)
    return {
        "machine": f"{len(os.sched_getaffinity(0))} cores, {', '.join(sorted(models)) or platform.machine()}, {memory:.0f} GiB",
        "load": ", ".join(f"{load:.1f}" for load in os.getloadavg()) + " (1, 5, 15 minutes, before the run)",
        "versions": ", ".join(
            [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in _PACKAGES)]
        ),
    }


@dataclass(frozen=True, slots=True)
class Process:
    """The current usage of one process.

    Attributes:
        python: whether it runs Python; else it is Java.
        cpu_s: processor time of it and its children that have ended.
        rss: bytes of memory that it holds.
    """

    python: bool
    cpu_s: float
    rss: int


def family(pid: int) -> dict[int, Process]:
    """A process and its descendants, without Kafka and Redis (which are not part of the service)."""
    found: dict[int, Process] = {}
    pending = [pid]
    while pending:
        one = pending.pop()
        try:
            name, _, rest = Path(f"/proc/{one}/stat").read_text(encoding="utf-8").partition(") ")
            command = Path(f"/proc/{one}/cmdline").read_bytes()
            children = Path(f"/proc/{one}/task").glob("*/children")
            below = [int(child) for file in children for child in file.read_text(encoding="utf-8").split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"kafka.Kafka" in command or b"redis-server" in command:
            continue
        values = rest.split()
        cpu_s = sum(int(value) for value in values[11:15]) / _TICKS
        found[one] = Process("java" not in name, cpu_s, int(values[21]) * _PAGE)
        pending += below
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds so far of processes and all their descendants."""
    return sum(process.cpu_s for pid in pids for process in family(pid).values())


def own_cpu_s(pid: int) -> float:
    """Processor seconds so far of one process, a server for example."""
    rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2]
    return sum(int(value) for value in rest.split()[11:13]) / _TICKS


@dataclass(slots=True)
class Spent:
    """The cost of some work, over this process and all its descendants.

    Attributes:
        python_s: processor seconds of Python.
        java_s: of Java.
        peak_rss: highest memory of all Python processes together, in bytes.
    """

    python_s: float = 0.0
    java_s: float = 0.0
    peak_rss: int = 0
    _before: dict[int, Process] = field(default_factory=dict)
    _left: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start measuring."""
        self._before = family(os.getpid())
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop measuring."""
        self._left.set()
        if self._thread is not None:
            self._thread.join()
        after = family(os.getpid())
        self._look(after)
        for pid, process in after.items():
            before = self._before.get(pid)
            spent_s = process.cpu_s - (before.cpu_s if before else 0.0)
            if process.python:
                self.python_s += spent_s
            else:
                self.java_s += spent_s

    def _watch(self) -> None:
        while not self._left.wait(_EVERY_S):
            self._look(family(os.getpid()))

    def _look(self, processes: dict[int, Process]) -> None:
        self.peak_rss = max(self.peak_rss, sum(one.rss for one in processes.values() if one.python))
