"""Goal: any two crashes, and a crash around any single write, cost repeated work and nothing else.

Method: as in tests/protocol/test_crash_at_every_step.py, for all pairs of points, the second crash coming
while the first is being recovered from, and for every write that a run makes, with the reply lost or not.
"""

from __future__ import annotations

import itertools

import pytest

from tests.support.memory_pipeline import (
    CRASH_POINTS,
    LAYOUTS,
    crash_once,
    feed_with_replays,
    totals_pipeline,
)
from tests.support.suites import points, some


@pytest.mark.few(28)
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize(("step", "when"), CRASH_POINTS)
@pytest.mark.parametrize(("stages", "in_place"), LAYOUTS)
def test_a_crash_in_a_later_batch(stages: int, in_place: bool, step: int, when: str, passes: int) -> None:
    crash_once(stages, in_place, step, when, passes)


@pytest.mark.parametrize(("stages", "in_place"), LAYOUTS)
def test_all_pairs_of_crashes(stages: int, in_place: bool) -> None:
    pairs = [*itertools.product(CRASH_POINTS, CRASH_POINTS)]
    for first, second in some(f"pairs, {stages} {in_place}", pairs):
        found = totals_pipeline(stages, in_place)
        feed_with_replays(found)
        found.totals.run_until_caught_up()
        feed_with_replays(found)
        for step, when in (first, second):
            found.totals.crash(step=step, when=when)  # type: ignore[arg-type]
        found.totals.service = None
        found.totals.run_until_caught_up()
        feed_with_replays(found)
        found.totals.run_until_caught_up()
        assert found.totals.crashes == 2, (first, second)
        found.check()


@pytest.mark.few(4)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("stages", "in_place"), LAYOUTS)
def test_a_crash_around_every_single_write(stages: int, in_place: bool, when: str) -> None:
    for number in points(f"every write, {stages} {in_place} {when}"):
        found = totals_pipeline(stages, in_place)
        feed_with_replays(found)
        found.totals.crash_at_write(number, when)  # type: ignore[arg-type]
        found.totals.run_until_caught_up()
        feed_with_replays(found)
        found.totals.run_until_caught_up()
        found.check()
        if found.totals.crashes == 0:
            assert number > 20
            return
