"""Goal: which times are believed follows from the records and the plans alone: restarts, batches and the clock of a rebuild change nothing.

Method: the first record, or one in the middle, has a time farther ahead than the guard allows. Each way reads the same lane: in one batch,
record by record, with a restart before each record, and rebuilt after 60 days. A naive sum by days is the expectation.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import JumpGuard, Tumbling
from sqe_chain.testing import Rehearsal

DAY_MS = 86_400_000
NOW_MS = 47_481 * DAY_MS
RIGHT_MS = [NOW_MS + number * DAY_MS // 2 for number in range(6)]
AHEAD_MS = NOW_MS + 40 * DAY_MS

LANES = {
    "the first is wrong": [AHEAD_MS, *RIGHT_MS],
    "one in the middle is wrong": [*RIGHT_MS[:3], AHEAD_MS, *RIGHT_MS[3:]],
    "two in the middle are wrong": [*RIGHT_MS[:3], AHEAD_MS, AHEAD_MS + 1, *RIGHT_MS[3:]],
}
"""Lane -> event times of its records, in their order."""


def add(state: dict[str, Any], _: dict[str, Any]) -> None:
    state["n"] = state.get("n", 0) + 1


def service_of(name: str, batch: int) -> Rehearsal:
    flow = Flow(name, state_partitions=1)
    flow.source("in", dict, raw=True).windowed(
        "days",
        Tumbling(DAY_MS),
        key=lambda _: "k",
        state=dict,
        fold=add,
        retention_ms=400 * DAY_MS,
        guard=JumpGuard(max_jump_ms=31 * DAY_MS),
    ).to("out", partitions=1)
    return Rehearsal(flow, now_ms=NOW_MS, settings=Settings(max_records=batch))


def by_day(service: Rehearsal) -> dict[int, int]:
    return {window.span.start_ms: window.state["n"] for window in service.windows("days")}


@pytest.mark.parametrize("lane", LANES.values(), ids=LANES)
@pytest.mark.parametrize("batch", [1, 2, 1_000])
@pytest.mark.parametrize("restarts", [False, True])
def test_live_and_rebuilt_a_wrong_clock_closes_no_window(lane: list[int], batch: int, restarts: bool) -> None:
    service = service_of("clocks", batch)
    for at_ms in lane:
        service.feed("in", {}, timestamp_ms=at_ms)
        if restarts:
            service.restart()
        if batch < len(lane):
            service.batch()
    service.run_until_caught_up()
    expected = Counter(at_ms - at_ms % DAY_MS for at_ms in lane)
    assert by_day(service) == expected
    service.clock.jump(60 * DAY_MS)
    service.rebuild()
    service.run_until_caught_up()
    assert by_day(service) == expected


@pytest.mark.parametrize("restarts", [False, True])
def test_confirmations_count_from_batch_to_batch(restarts: bool) -> None:
    """As many records in a row as the guard asks for move event time, wherever batches end and processes begin."""
    service = service_of("jump", 1)
    closed = []
    for at_ms in (NOW_MS, *(AHEAD_MS + number for number in range(JumpGuard().confirmations + 1))):
        service.feed("in", {}, timestamp_ms=at_ms)
        if restarts:
            service.restart()
        service.batch()
        closed.append(len(service.published("out")))
    while service.batch():
        pass
    closed.append(len(service.published("out")))
    assert (closed[2], closed[-1]) == (0, 1), "two agree, then all: the day before the jump is over"
