"""What `make test` and `make test-fast` run of all tests: the same for every commit. pytest by itself, and `make test-all`, run everything.

- Of the cases of a test without servers, `make test` runs as many as fit into `BUDGET_S` by tests/durations.json, at least `AT_LEAST`. They are chosen so
  that as many values as possible occur, and then as many pairs of values: see `cases_that_differ`.
- ``@pytest.mark.few(3)``: the same, but three; with ``of="..."`` three of all cases of all tests with this text.
- ``@pytest.mark.release``: `make test` skips it; `make test-all`, before a release, does not.
- ``for at in points("crashes of an import")`` instead of `itertools.count()`: `make test` takes one in six, at changing distances;
  ``for at in some("kills", EVENTS)`` instead of ``for at in EVENTS`` does the same.

`make test-fast` runs `AT_MOST_WHEN_FAST` cases of each test without servers, but for tests of the test tools. It skips a test if one of its
cases took `SLOW_S` or longer when `make durations` measured it last. A test that has not been measured yet is fast.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import pytest

OPTION: Final = "--suite"
EVERYTHING, COMMIT, FAST = "everything", "commit", "fast"
DURATIONS: Final = Path(__file__).resolve().parents[1] / "durations.json"
SLOW_S: Final = 0.02
"""A case that takes this time of a processor is not fast."""
BUDGET_S: Final = 1.0
"""The time of a processor that the cases of one test may take together in `make test`."""
AT_LEAST: Final = 2
CASE_S: Final = 0.01
"""What each case takes at least, with what pytest does for it."""
AT_MOST_WHEN_FAST: Final = 3
WITHOUT_SERVERS: Final = ("tests/unit/", "tests/protocol/")
TOOLS: Final = ("tests/unit/testing/", "tests/unit/lab/")
"""Tests of the test tools."""
Case = TypeVar("Case")
_EVERY: Final = 6
_suite = EVERYTHING


def run_suite(suite: str) -> None:
    """Set what this process runs, for loops in tests, which do not see the options of pytest."""
    global _suite  # noqa: PLW0603 - one process runs one suite
    _suite = suite


def points(what: str, every: int = _EVERY) -> Iterator[int]:
    """0, 1, 2 and so on; in `make test` one in `every` of them.

    Distances change, because what a run does at its points comes again and again, and one distance could miss the same thing each time.

    Args:
        what: the loop, so that others take other points.
        every: one of this number runs.
    """
    if _suite == EVERYTHING:
        yield from itertools.count()
    draw = Random(what)
    at = draw.randrange(every)
    while True:
        yield at
        at += draw.randint(1, 2 * every - 1)


def some(what: str, cases: Sequence[Case], every: int = _EVERY) -> list[Case]:
    """The same of a sequence, in its order; at least one."""
    chosen = [cases[at] for at in itertools.takewhile(lambda at: at < len(cases), points(what, every))]
    return chosen or [*cases[:1]]


def deselected(items: list[pytest.Item]) -> set[pytest.Item]:
    """Those of the collected tests that the suite does not run."""
    if _suite == EVERYTHING:
        return set()
    without = {item for item in items if item.get_closest_marker("release")}
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    counts: dict[str, int] = {}
    for item in items:
        if item in without:
            continue
        mark = item.get_closest_marker("few")
        if mark is not None:
            family = mark.kwargs.get("of") or function_of(item.nodeid)
            counts[family] = mark.args[0]
        elif item.nodeid.startswith(WITHOUT_SERVERS):
            family = function_of(item.nodeid)
            counts[family] = max(AT_LEAST, int(BUDGET_S / max(CASE_S, seconds_of(item.nodeid))))
        else:
            continue
        families[family].append(item)
    most = AT_MOST_WHEN_FAST if _suite == FAST else len(items)
    for family, members in families.items():
        kept = cases_that_differ([item.nodeid for item in members], min(most, counts[family]))
        without.update(item for item in members if item.nodeid not in kept)
    if _suite == FAST:
        without.update(item for item in items if not is_fast(item.nodeid))
    return without


def cases_that_differ(cases: Sequence[str], count: int) -> set[str]:
    """Choose `count` cases: each has most values, then most pairs of values, that those before it have not; the first such in order.

    Args:
        cases: as pytest names them: ``file.py::test[value-value]``.
        count: how many.
    """
    kinds = {case: _kinds(case) for case in cases}
    left, found, seen = [*cases], set[str](), set[object]()
    for _ in range(min(count, len(left))):
        best = max(left, key=lambda case: [len(of_size - seen) for of_size in kinds[case]])
        left.remove(best)
        found.add(best)
        seen.update(*kinds[best])
    return found


def _kinds(case: str) -> tuple[set[object], set[object]]:
    """The values of a case, each with its place, and their pairs."""
    function, _, values = case.removesuffix("]").partition("[")
    placed = [*enumerate([function, *values.split("-")])]
    return {*placed}, {*itertools.combinations(placed, 2)}


def ordered(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Fast tests that need no servers first, so that mistakes show soon; then the files with the longest tests, one by one."""
    longest: dict[Path, float] = defaultdict(float)
    for item in items:
        longest[item.path] = max(longest[item.path], seconds_of(item.nodeid))

    def place(item: pytest.Item) -> tuple[bool, float]:
        first = item.nodeid.startswith(WITHOUT_SERVERS) and is_fast(item.nodeid)
        return not first, -longest[item.path]

    return sorted(items, key=place)


def is_fast(nodeid: str) -> bool:
    """Whether a test is one of `make test-fast`."""
    return not nodeid.startswith(TOOLS) and seconds_of(nodeid) < SLOW_S


def seconds_of(nodeid: str) -> float:
    """How long the longest case of a test took when it was measured last; 0: not worth noting, or not known."""
    return _durations().get(function_of(nodeid), 0.0)


def function_of(nodeid: str) -> str:
    """A test without the values of its case."""
    return nodeid.partition("[")[0]


@cache
def _durations() -> dict[str, float]:
    found: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return found
