"""A plugin that measures how much time of processors each test takes, and writes tests/durations.json: `make durations`.

It counts the test's process and all that descend from it, so what a server did meanwhile counts, too. Of each test the
longest case is noted, where it is worth noting. What was not run keeps its number as long as there is such a test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.suites import DURATIONS, SLOW_S, function_of

NAME: Final = "processor_seconds"
TICKS: Final = os.sysconf("SC_CLK_TCK")
_measured: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note it before and after; what is shared is started by the first test that asks for it."""
    item.user_properties.append((NAME, processor_seconds()))
    return (yield)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Put the difference in its place, before the last report is made."""
    (before,) = [float(str(value)) for name, value in item.user_properties if name == NAME]
    item.user_properties[:] = [(NAME, processor_seconds() - before)]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect them, in the process that has the reports of all."""
    if report.when == "teardown":
        test = function_of(report.nodeid)
        took = [float(str(value)) for name, value in report.user_properties if name == NAME]
        _measured[test] = max([_measured.get(test, 0.0), *took])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was measured."""
    if hasattr(session.config, "workerinput"):
        return
    known = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}
    known = {test: took for test, took in known.items() if _exists(test)}
    known |= {test: round(took, 2) for test, took in _measured.items()}
    slow = {test: took for test, took in sorted(known.items()) if took >= SLOW_S}
    DURATIONS.write_text(json.dumps(slow, indent=0) + "\n", encoding="utf-8")


def processor_seconds() -> float:
    """What this process and all that descend from it have used, as far as they live or were waited for."""
    stats = [stat for path in Path("/proc").glob("[0-9]*/stat") if (stat := _stat(path)) is not None]
    children: dict[int, list[tuple[int, float]]] = {}
    for pid, parent, seconds in stats:
        children.setdefault(parent, []).append((pid, seconds))
    own = os.times()
    total, left = sum(own[:4]), [os.getpid()]
    while left:
        for pid, seconds in children.get(left.pop(), []):
            total += seconds
            left.append(pid)
    return total


def _stat(path: Path) -> tuple[int, int, float] | None:
    """Number, parent and seconds of a process; None: it is gone."""
    try:
        fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(path.parent.name), int(fields[1]), sum(map(int, fields[11:15])) / TICKS


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    path = DURATIONS.parents[1] / file
    return path.exists() and f"def {name.rpartition('::')[2]}(" in path.read_text(encoding="utf-8")
