"""Goal: a failover that dies, is paused or gets no answer anywhere leaves the flow in one cluster or in the other, and exact.

Method: as `tests/protocol/test_crash_sweep.py`. What each word counts, and what a reader there gets,
is known from what was published alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sqe_chain.errors import AnotherCluster, ConfigurationError, GapError, ServiceStopped, Superseded
from sqe_chain.flow import Flow
from tests.support.mirrored import (
    Clusters,
    chained_totals,
    changed_totals,
    published_totals,
    read_by_lanes,
    totals_of_words,
)
from tests.support.sweeping import HANGS_S, Operations, Point

FLOWS = [totals_of_words, published_totals]
ALL_FLOWS = [*FLOWS, chained_totals, changed_totals]
KILLED, PAUSED, UNANSWERED = Operations(every=2), Operations(every=3), Operations(every=3)
FINISHED, SEALED, HALF_WRITTEN = -1, 0, 4
"""The writes of a batch after which the service in the first cluster was killed; the first one seals it."""


def begun(declared: Callable[[], Flow], killed_after: int = FINISHED) -> Clusters:
    """Something is counted, and more is mirrored than that, some of it twice."""
    clusters = Clusters(flow=declared())
    clusters.feed("ant bee cow dog elk fox ape")
    clusters.totals.run_until_caught_up()
    copy_outputs(clusters)
    clusters.mirror.copy(2)
    if killed_after != FINISHED:
        clusters.feed("bug cub auk boa ant eel fly")
        die_in_a_batch(clusters, Point(killed_after))
    clusters.feed("bat cat doe")
    clusters.mirror.copy(again=1)
    clusters.mirror.copy(again=3)
    copy_outputs(clusters)
    return clusters


def die_in_a_batch(clusters: Clusters, point: Point) -> None:
    """The service in the first cluster dies after a write, and nobody starts it again."""
    clusters.totals.service or clusters.totals.start()
    with point.killed(clusters.totals):
        clusters.totals.batch()
    clusters.totals.service = None


def copy_outputs(clusters: Clusters) -> None:
    """The mirror copies what the flow has published in the first cluster, and some of it twice."""
    if clusters.outputs is not None:
        clusters.outputs.copy(again=2)


def finish(clusters: Clusters) -> None:
    """What an operator does who does not know whether it was done: the same again; then the service starts there."""
    copy_outputs(clusters)
    try:
        clusters.fail_over()
    except ConfigurationError as error:
        if "since a failover already" not in str(error):
            raise
        clusters.totals = clusters.service(clusters.second)
    clusters.totals.run_until_caught_up()
    clusters.check()
    clusters.feed("auk boa")
    clusters.mirror.copy(again=1)
    clusters.totals.run_until_caught_up()
    clusters.check()
    if clusters.outputs is not None:
        copy_outputs(clusters)
        found = read_by_lanes(clusters.second.records(clusters.outputs.name))
        if clusters.flow.name == "changes":  # each output has all words of its key so far
            found = {key: texts[-1].split() for key, texts in found.items()}
        assert found == clusters.expected()


@KILLED.enter(
    "failover", 5, declared=FLOWS, first=[FINISHED, SEALED, HALF_WRITTEN], then=["again", "first cluster"]
)
def killed(point: Point, _: Path, declared: Callable[[], Flow], first: int, then: str) -> None:
    """Then the operator repeats it, or starts the service in the first cluster, which may have been left already."""
    clusters = begun(declared, first)
    found, run = clusters.operation()
    with point.killed(found):
        run()
    if then == "first cluster":
        with suppress(AnotherCluster):
            clusters.totals.restart()
            clusters.totals.run_until_caught_up()
            clusters.check()
    finish(clusters)


@KILLED.enter("service in the first cluster", 5, declared=ALL_FLOWS, copied=[True, False])
def dies_before(point: Point, _: Path, declared: Callable[[], Flow], copied: bool) -> None:
    """What its last plan still lacks is done there, though the mirror may have got nothing of what it has published."""
    clusters = begun(declared)
    clusters.totals.run_until_caught_up()
    copy_outputs(clusters)
    clusters.feed("bug cub auk boa ant eel fly")
    die_in_a_batch(clusters, point)
    clusters.mirror.copy(again=2)
    if copied:
        copy_outputs(clusters)
    with suppress(GapError):  # it was published whole, or was perhaps: then the mirror has to have it
        clusters.fail_over()
    finish(clusters)


@KILLED.enter("service in the second cluster", 4, declared=ALL_FLOWS, first=[SEALED, 1, 2, HALF_WRITTEN])
def dies_in_the_redo(point: Point, _: Path, declared: Callable[[], Flow], first: int) -> None:
    """It finishes what the service in the first cluster has begun, and is killed meanwhile."""
    clusters = begun(declared, first)
    clusters.fail_over()
    with point.killed(clusters.totals):
        clusters.totals.start()
        clusters.totals.batch()
    clusters.totals.restart()
    finish(clusters)


@PAUSED.enter(
    "failover", 8, declared=FLOWS, first=[FINISHED, SEALED, HALF_WRITTEN], by=["service", "failover"]
)
def overtaken(point: Point, _: Path, declared: Callable[[], Flow], first: int, by: str) -> None:
    """The service of the first cluster goes on meanwhile, or somebody else fails over."""
    clusters = begun(declared, first)
    found, run = clusters.operation()

    def meanwhile() -> None:
        if by == "failover":
            with suppress(ConfigurationError):
                clusters.fail_over()
        else:
            with suppress(AnotherCluster):
                clusters.totals.restart()
                clusters.totals.run_until_caught_up()

    with point.paused(found, meanwhile, (Superseded, ConfigurationError, ServiceStopped, GapError)):
        run()
    finish(clusters)


@UNANSWERED.enter("failover", 8, declared=FLOWS, first=[FINISHED, HALF_WRITTEN], when=["before", "after"])
def unanswered(point: Point, _: Path, declared: Callable[[], Flow], first: int, when: str) -> None:
    clusters = begun(declared, first)
    found, run = clusters.operation()
    with point.unanswered(found, when=when, calls=2):  # type: ignore[arg-type]
        run()
    finish(clusters)


@pytest.mark.timeout(HANGS_S)
@pytest.mark.parametrize("name", KILLED.rows)
def test_killed_after_each_write(tmp_path: Path, name: str) -> None:
    KILLED.sweep(name, tmp_path)


@pytest.mark.timeout(HANGS_S)
@pytest.mark.parametrize("name", PAUSED.rows)
def test_paused_at_each_call(tmp_path: Path, name: str) -> None:
    PAUSED.sweep(name, tmp_path)


@pytest.mark.timeout(HANGS_S)
@pytest.mark.parametrize("name", UNANSWERED.rows)
def test_unanswered_at_each_call(tmp_path: Path, name: str) -> None:
    UNANSWERED.sweep(name, tmp_path)
