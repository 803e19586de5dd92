"""Goal: whatever happens at whatever point of a run, the books are right after every single write.

Method: `tests/support/checked_pipeline.py` counts points (each read, write and step) and looks at every invariant
after each write. Here one thing happens at each point in turn: the process dies; broker or store do not
answer, or their reply is lost; the process is paused, another run takes over and finishes, and the
paused one wakes as a zombie. States are written one row at a time, so most points lie within a persist.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from sqe_chain.errors import Superseded, Unavailable
from sqe_chain.testing import Crash
from tests.support.checked_pipeline import CheckedPipeline
from tests.support.fault_points import crash, raise_unavailable
from tests.support.suites import points
from tests.support.unit_id_flows import unit_id_flow

LAYOUTS = [
    pytest.param(2, 3, id="in-place"),
    pytest.param(2, 2, id="shuffled"),
    pytest.param(1, 2, id="one-stage"),
]


def begun(stages: int, state_partitions: int) -> CheckedPipeline:
    """A pipeline with history, and with replays, news and poison still to be read."""
    found = CheckedPipeline(unit_id_flow(stages, state_partitions, poison="dead_letter"), max_rows=1)
    found.feed(3)
    found.republish()
    found.run_until_caught_up()
    found.feed(4, poison=0.4)
    found.feed_garbage()
    found.republish(crash_at_write=3)
    return found


def at_every_point(
    stages: int,
    state_partitions: int,
    act: Callable[[CheckedPipeline, int], None],
    *,
    restart: bool = False,
    numbers: Iterable[int] | None = None,
) -> int:
    """Do it at each point of a batch (after a restart: of claim and recovery too); returns how many."""
    for number in numbers or itertools.count():
        found = begun(stages, state_partitions)
        if restart:
            found.service.service = None
        act(found, number)
        beyond = bool(found.points.actions)
        found.points.actions.clear()
        found.run_until_caught_up()
        found.check_at_rest()
        if beyond:
            return number
    raise AssertionError("there are more points than numbers")


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(("stages", "state_partitions"), LAYOUTS)
def test_a_crash_at_every_point(stages: int, state_partitions: int, restart: bool) -> None:
    def act(found: CheckedPipeline, number: int) -> None:
        found.points.act_at(number, crash)
        found.run_until_caught_up()

    numbers = points(f"crash, {stages} {state_partitions}")
    assert at_every_point(stages, state_partitions, act, restart=restart, numbers=numbers) > 50


@pytest.mark.parametrize(("stages", "state_partitions"), LAYOUTS)
def test_no_answer_or_a_lost_reply_at_every_point(stages: int, state_partitions: int) -> None:
    """The service waits and goes on by itself; where it may not wait, it ends with `Unavailable`."""

    def act(found: CheckedPipeline, number: int) -> None:
        found.points.act_at(number, raise_unavailable)
        try:
            found.service.batch()
        except Unavailable:
            found.service.service = None

    numbers = points(f"no answer, {stages} {state_partitions}")
    assert at_every_point(stages, state_partitions, act, restart=True, numbers=numbers) > 50


@pytest.mark.few(1)
@pytest.mark.parametrize(("stages", "state_partitions"), LAYOUTS)
def test_a_zombie_from_every_point_changes_nothing(stages: int, state_partitions: int) -> None:
    """It is refused by name, unless nothing was left for it to do but to commit."""
    outcomes = set()

    def act(found: CheckedPipeline, number: int) -> None:
        stood = []

        def takeover() -> None:
            found.service.start()
            found.run_until_caught_up()
            found.feed(2)
            found.republish()
            found.run_until_caught_up()
            stood.append(found.store.copy_all())

        found.points.act_at(number, takeover)
        zombie = found.service.service
        try:
            assert zombie is not None
            zombie.batch()
        except Superseded:
            outcomes.add("refused")
        else:
            outcomes.add("done before" if stood else "never paused")
        if stood:
            assert found.store.copy_all() == stood[0], "6: one writer"
            found.feed(1)
            found.republish()

    assert at_every_point(stages, state_partitions, act) > 50
    assert outcomes == {"refused", "done before", "never paused"}


@pytest.mark.few(1)
@pytest.mark.parametrize("within", [1, 4, 11])
@pytest.mark.parametrize(("stages", "state_partitions"), LAYOUTS[:2])
def test_a_zombie_wakes_while_its_successor_is_dead_half_way(
    stages: int, state_partitions: int, within: int
) -> None:
    """The successor dies so many points after its claim, and the zombie has the store to itself."""

    def act(found: CheckedPipeline, number: int) -> None:
        def takeover() -> None:
            found.points.act_at(within * 3, crash)
            try:
                found.service.start()
                found.run_until_caught_up()
            except Crash:
                pass
            found.points.actions.clear()  # the successor may have ended before that

        found.points.act_at(number, takeover)
        zombie = found.service.service
        try:
            assert zombie is not None
            zombie.batch()
        except Superseded:
            pass
        found.service.service = None

    assert at_every_point(stages, state_partitions, act) > 50
