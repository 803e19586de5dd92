"""Goal: partitions are read in step by the times of their records, and all records are read. Late ones: `test_event_time_worlds.py`."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal

PARTITIONS = 4
BEGIN_MS = 1_700_000_000_000


def add(state: Int64Value, _: object) -> None:
    state.value += 1


def partitions_of(seed: int) -> list[list[int]]:
    """Event times of each partition, in order; all begin and end at about the same time, with very different rates."""
    draw = random.Random(seed)
    found = []
    for partition in range(PARTITIONS):
        count = draw.choice([5, 40, 200]) if partition else 300
        found.append(sorted(BEGIN_MS + draw.randrange(10_000_000) for _ in range(count)))
    return found


def fed(flow: Flow, times: list[list[int]], records: int) -> Rehearsal:
    rehearsal = Rehearsal(flow, settings=Settings(max_records=records), partitions={"in": PARTITIONS})
    for partition, own in enumerate(times):
        for number, at_ms in enumerate(own):
            rehearsal.log.append(
                "in", partition, b'{"n": %d}' % number, b"k%d" % (number % 3), timestamp_ms=at_ms
            )
    return rehearsal


def counted(**source: Any) -> Flow:
    """A flow with windows that are only kept."""
    flow = Flow("hours", state_partitions=3)
    flow.source("in", dict, raw=True, **source).windowed(
        "windows",
        Tumbling(60_000),
        key=lambda value: f"k{value['n'] % 3}",
        state=Int64Value,
        fold=add,
        retention_ms=5,
    )
    return flow


@pytest.mark.parametrize("seed", range(5))
def test_records_in_any_order_are_all_read(seed: int) -> None:
    times = partitions_of(seed)
    for own in times:
        random.Random(seed).shuffle(own)
    rehearsal = fed(counted(), times, 20)
    rehearsal.run_until_caught_up()
    ends = {
        tp: bound.stable_end
        for tp, bound in rehearsal.log.bounds([("in", at) for at in range(PARTITIONS)]).items()
    }
    assert {tp: commit.offset for tp, commit in rehearsal.commits().items()} == ends


def test_times_of_values_are_not_compared_with_those_of_records() -> None:
    rehearsal = fed(counted(timestamp=lambda value: value["n"]), partitions_of(1), 40)
    asked: list[int] = []
    rehearsal.log.offsets_at = lambda partitions, at_ms: asked.append(at_ms)  # type: ignore[assignment,method-assign,return-value]
    rehearsal.run_until_caught_up()
    assert asked == []
