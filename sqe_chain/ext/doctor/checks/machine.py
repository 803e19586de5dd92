"""Checks of this machine, and of the clocks of servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqe_chain.ext.doctor.diagnostic import Diagnostic, report
from sqe_chain.ext.doctor.facts import Facts

_LEAST_DISK: Final = 0.05
_LEAST_DISK_BYTES: Final = 1 << 30
_LEAST_FILES: Final = 1_024
_LEAST_MEMORY: Final = 512 << 20
_LEAST_JAVA: Final = 17
_CLOCK_MS: Final = 1_000
"""Machines whose clocks are kept by NTP differ by a few milliseconds."""
_HERE: Final = "this machine"


def clocks(facts: Facts) -> Iterator[Diagnostic]:
    """Clocks of stores that differ from this machine's."""
    for server, ahead_ms in facts.ahead_ms.items():
        if abs(ahead_ms) >= _CLOCK_MS:
            where = "ahead of" if ahead_ms > 0 else "behind"
            yield report("clocks-differ", server, seconds=abs(ahead_ms) / 1_000, where=where)


def resources(facts: Facts) -> Iterator[Diagnostic]:
    """Disks, open files, memory."""
    machine = facts.machine
    for disk in machine.disks:
        if disk.free < max(_LEAST_DISK_BYTES, int(_LEAST_DISK * disk.total)):
            yield report("disk-full", str(disk.directory), free=disk.free >> 20, total=disk.total >> 20)
    if not machine.temporary:
        yield report("no-temporary-directory", _HERE)
    if 0 <= machine.open_files < _LEAST_FILES:
        yield report("open-files", _HERE, files=machine.open_files)
    if 0 <= machine.memory_free < _LEAST_MEMORY:
        yield report("memory", _HERE, free=machine.memory_free >> 20)


def programs(facts: Facts) -> Iterator[Diagnostic]:
    """Java, Python and packages."""
    machine = facts.machine
    if machine.spark and not machine.java:
        yield report("no-java", _HERE)
    elif machine.spark and machine.java_version < _LEAST_JAVA:
        yield report("old-java", _HERE, java=machine.java, version=machine.java_version or "unknown")
    if not machine.numpy:
        yield report("no-numpy", _HERE)
    if machine.python < (3, 11):
        yield report("old-python", _HERE, version=".".join(map(str, machine.python)))
