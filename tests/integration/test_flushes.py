"""Goal: records of a partition keep their order, and none is lost, whatever happens to brokers and connections during a flush.

Method: three brokers of one cluster, reached by connections that take time and are cut; a plain consumer reads what is there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from benchmarks.cluster import Cluster
from tests.support.interrupted_flushes import PARTITIONS, RECORDS, Interrupted, faults_of, producers_with

ROUND_TRIP_S = 0.004
UNSAFE = dict.fromkeys(("enable.idempotence", "enable.gapless.guarantee"), "false")
UNSAFE["max.in.flight.requests.per.connection"] = "5"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(fast_boot=True) as started:
        yield started


@pytest.fixture
def written(cluster: Cluster) -> Interrupted:
    """A topic with one batch."""
    topic = f"t-{uuid.uuid4().hex}"
    cluster.create_topic(topic, PARTITIONS)
    made = Interrupted(cluster, topic)
    made.write()
    cluster.wire.delay(ROUND_TRIP_S / 2)
    return made


def test_flushes_lose_and_swap_nothing_when_connections_are_cut_and_brokers_killed(
    written: Interrupted,
) -> None:
    with written.cutting(seed=1):
        while written.cuts < 5:
            written.write()
    with written.killing(1, after_s=0.02):
        written.write()
    written.write()
    assert written.kills
    written.check()


def test_the_check_finds_a_writer_that_sends_several_requests_without_numbering_them(
    written: Interrupted,
) -> None:
    with producers_with(UNSAFE), written.cutting(seed=1):
        while written.cuts < 5:
            written.write()
    with pytest.raises(AssertionError, match=r"comes after|times"):
        written.check()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda numbers: [*numbers[:5], numbers[6], numbers[5], *numbers[7:]], "6 comes after 4"),
        (lambda numbers: [*numbers[:5], *numbers[6:]], "5 is missing"),
        (lambda numbers: [*numbers, 7], "7 is there 2 times"),
        (lambda numbers: numbers[:-1], f"{RECORDS - 2} is the last"),
    ],
)
def test_each_fault_is_found(change: object, fault: str) -> None:
    assert callable(change)
    assert fault in faults_of(change(list(range(RECORDS))), [1])
    assert not faults_of(range(RECORDS), [1])
    assert not faults_of([*range(7), *range(RECORDS)], [2])
