"""Checks of this machine, and of the clocks of servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.ext.doctor.finding import Finding

_LEAST_DISK: Final = 0.05
_LEAST_DISK_BYTES: Final = 1 << 30
_LEAST_FILES: Final = 1_024
_LEAST_MEMORY: Final = 512 << 20
_LEAST_JAVA: Final = 17
_CLOCK_MS: Final = 1_000
"""Machines whose clocks are kept by NTP differ by a few milliseconds."""
_HERE: Final = "this machine"


def clocks(facts: Facts) -> Iterator[Finding]:
    """Clocks of stores that differ from this machine's."""
    for server, ahead_ms in facts.ahead_ms.items():
        if abs(ahead_ms) >= _CLOCK_MS:
            yield Finding(
                "clocks-differ",
                "warning",
                server,
                f"its clock is {abs(ahead_ms) / 1_000:,.1f} s {'ahead of' if ahead_ms > 0 else 'behind'} this machine's: "
                "timers, retention and the times in logs follow a wrong clock",
                "chronyc tracking",
            )


def resources(facts: Facts) -> Iterator[Finding]:
    """Disks, open files, memory."""
    machine = facts.machine
    for disk in machine.disks:
        if disk.free < max(_LEAST_DISK_BYTES, int(_LEAST_DISK * disk.total)):
            yield Finding(
                "disk-full",
                "warning",
                str(disk.directory),
                f"{disk.free >> 20:,} of {disk.total >> 20:,} MiB are free",
                f"df -h {disk.directory}",
            )
    if 0 <= machine.open_files < _LEAST_FILES:
        yield Finding(
            "open-files",
            "warning",
            _HERE,
            f"a process may open {machine.open_files} files",
            "ulimit -n 65536",
        )
    if 0 <= machine.memory_free < _LEAST_MEMORY:
        yield Finding(
            "memory",
            "warning",
            _HERE,
            f"{machine.memory_free >> 20:,} MiB of memory are available",
            "free -m",
        )


def programs(facts: Facts) -> Iterator[Finding]:
    """Java, Python and packages."""
    machine = facts.machine
    install = "apt-get install openjdk-17-jre-headless"
    if machine.spark and not machine.java:
        yield Finding(
            "no-java",
            "warning",
            _HERE,
            "PySpark is installed, and there is no Java 17: --engine spark cannot start",
            install,
        )
    elif machine.spark and machine.java_version < _LEAST_JAVA:
        version = machine.java_version or "unknown"
        yield Finding(
            "old-java",
            "warning",
            _HERE,
            f"the version of {machine.java} is {version}: --engine spark needs 17 or later",
            install,
        )
    if not machine.numpy:
        yield Finding(
            "no-numpy",
            "note",
            _HERE,
            "numpy is not installed: blocks of records are decoded one by one, which is slower",
            "pip install numpy",
        )
    if machine.python < (3, 11):
        yield Finding(
            "old-python",
            "error",
            _HERE,
            f"Python {machine.python[0]}.{machine.python[1]}: expected 3.11 or later",
            "",
        )
