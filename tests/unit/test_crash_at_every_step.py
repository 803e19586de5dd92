"""Goal: any crash, before or after any step, costs repeated work and nothing else.

Method: real segment and protocol code on a broker and a store in memory; the republisher in front dies
before its commits, so its outputs come again at new offsets; the service under test crashes where it is
told to, starts again, goes on. Then all totals and all outputs must be exact.
"""

from __future__ import annotations

import itertools

import pytest
from plant import Plant, totals

LAYOUTS = [
    pytest.param(stages, in_place, id=f"{stages}-stage-{'in-place' if in_place else 'shuffled'}")
    for stages in (1, 2)
    for in_place in (True, False)
]
POINTS = [(step, when) for step in range(1, 8) for when in ("before", "after")]


def plant(stages: int, in_place: bool) -> Plant:
    state_partitions = 3 if in_place else 2
    return Plant(totals(stages, state_partitions), mid=3)


def load(found: Plant) -> None:
    """Three batches' worth of inputs, two of them with replays."""
    found.feed(12)
    found.republish(2)


@pytest.mark.parametrize(("stages", "in_place"), LAYOUTS)
def test_without_a_crash_totals_are_exact_through_replays(stages: int, in_place: bool) -> None:
    found = plant(stages, in_place)
    for _ in range(3):
        load(found)
        found.totals.run_until_caught_up()
    found.check()
    assert sum(int(event["replays"]) for event in found.totals.events("committed")) > 0


@pytest.mark.parametrize("passes", [0, 1, 2])
@pytest.mark.parametrize(("step", "when"), POINTS)
@pytest.mark.parametrize(("stages", "in_place"), LAYOUTS)
def test_one_crash(stages: int, in_place: bool, step: int, when: str, passes: int) -> None:
    found = plant(stages, in_place)
    if step > 2:
        found.totals.crash(step=step, when=when, after_passes=passes)  # type: ignore[arg-type]
    load(found)
    found.totals.run_until_caught_up()
    if step <= 2:
        found.totals.crash(step=step, when=when)  # type: ignore[arg-type]
        found.totals.service = None
    for _ in range(2):
        load(found)
        found.totals.run_until_caught_up()
    assert found.totals.crashes == 1
    found.check()


@pytest.mark.parametrize(("stages", "in_place"), LAYOUTS)
def test_all_pairs_of_crashes(stages: int, in_place: bool) -> None:
    for first, second in itertools.product(POINTS, POINTS):
        found = plant(stages, in_place)
        load(found)
        found.totals.run_until_caught_up()
        load(found)
        for step, when in (first, second):
            found.totals.crash(step=step, when=when)  # type: ignore[arg-type]
        found.totals.service = None
        found.totals.run_until_caught_up()
        load(found)
        found.totals.run_until_caught_up()
        assert found.totals.crashes == 2, (first, second)
        found.check()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("stages", "in_place"), LAYOUTS)
def test_a_crash_around_every_single_write(stages: int, in_place: bool, when: str) -> None:
    for number in itertools.count():
        found = plant(stages, in_place)
        load(found)
        found.totals.crash_at_write(number, when)  # type: ignore[arg-type]
        found.totals.run_until_caught_up()
        load(found)
        found.totals.run_until_caught_up()
        found.check()
        if found.totals.crashes == 0:
            assert number > 20
            return
