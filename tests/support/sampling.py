"""What one commit runs of tests that differ little from case to case; `make test-all` runs everything, and so does pytest by itself.

Two ways to say what may be drawn:

- ``@pytest.mark.sample(2)``: of the cases of a test, two. With ``of="..."``: of all cases of all tests that say so.
- ``for at in points("crashes of an import")`` instead of `itertools.count()`: every sixth point, from one that is drawn;
  ``for at in some("kills", EVENTS)`` instead of ``for at in EVENTS`` does the same.

`make test-fast` runs at most eight cases of each test, and none that is marked as slow.

Which these are depends on the commit and on nothing else: see `tests.support.commit`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TypeVar

import pytest

from tests.support.commit import commit, drawn

OPTION, FAST = "--sample", "--fast"
SERVICES_ON_SPARK = pytest.mark.sample(3, of="services on Spark")
"""Whole services on Spark that are killed or ended: each start of Spark takes as long as many other tests."""
Case = TypeVar("Case")
CASES_WHEN_FAST = 8
_EVERY = 6
_sampling = False


def sample_from_now_on(*, sampling: bool) -> None:
    """Say whether this process runs samples."""
    global _sampling  # noqa: PLW0603 - an option of pytest's, which loops in tests cannot see
    _sampling = sampling


def points(what: str, every: int = _EVERY) -> Iterator[int]:
    """0, 1, 2 and so on; in a sample, every sixth of them, from one of the first six on.

    Args:
        what: the loop, so that others begin elsewhere.
        every: one of so many runs.
    """
    if _sampling:
        return itertools.count(drawn(what, every), every)
    return itertools.count()


def some(what: str, cases: Sequence[Case], every: int = _EVERY) -> list[Case]:
    """The same of a sequence, in its order."""
    return [cases[at] for at in itertools.takewhile(lambda at: at < len(cases), points(what, every))]


def chosen(groups: Mapping[str, tuple[int, list[str]]], by: str | None = None) -> set[str]:
    """The cases that run.

    Args:
        groups: name -> how many of its cases run, and the cases.
        by: the commit; None: that which is checked out.
    """
    found: set[str] = set()
    for count, cases in groups.values():
        ordered = sorted(cases, key=lambda case: blake2b(f"{by or commit()} {case}".encode()).digest())
        found.update(ordered[:count])
    return found


def left_out(items: list[pytest.Item], *, fast: bool = False) -> list[pytest.Item]:
    """Those of the collected tests that a sample leaves out.

    Args:
        items: the tests.
        fast: for `make test-fast`.
    """
    groups: dict[str, tuple[int, list[str]]] = {}
    members: dict[str, list[str]] = defaultdict(list)
    for item in items:
        mark, test = item.get_closest_marker("sample"), item.nodeid.partition("[")[0]
        if mark is not None:
            name, most = mark.kwargs.get("of") or test, mark.args[0]
        elif fast:
            name, most = test, CASES_WHEN_FAST
        else:
            continue
        members[name].append(item.nodeid)
        groups[name] = (min(most, CASES_WHEN_FAST) if fast else most, members[name])
    run = chosen(groups)
    drawn_from = {case for cases in members.values() for case in cases}
    without = drawn_from - run
    return [item for item in items if item.nodeid in without or (fast and item.get_closest_marker("slow"))]
