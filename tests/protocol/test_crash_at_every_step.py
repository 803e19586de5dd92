"""Goal: any crash, before or after any step, costs repeated work and nothing else.

Method: real tasks and protocol on a broker and a store in memory. The republisher in front dies
before its commits, so its outputs come again at new offsets. The service under test crashes at the given step,
starts again, goes on. Then all totals and all outputs must be exact. Pairs of faults, and faults at every call, are
for the explorer and the simulator.
"""

from __future__ import annotations

import pytest

from tests.support.memory_pipeline import (
    CRASH_POINTS,
    LAYOUTS,
    feed_with_replays,
    totals_pipeline,
)


@pytest.mark.parametrize(("stages", "in_place"), LAYOUTS)
def test_without_a_crash_totals_are_exact_through_replays(stages: int, in_place: bool) -> None:
    pipeline = totals_pipeline(stages, in_place)
    for _ in range(3):
        feed_with_replays(pipeline)
        pipeline.totals.run_until_caught_up()
    pipeline.check()
    assert sum(int(str(event["replays"])) for event in pipeline.totals.events("committed")) > 0


@pytest.mark.parametrize(("step", "when"), CRASH_POINTS)
@pytest.mark.parametrize(("stages", "in_place"), LAYOUTS)
def test_one_crash(stages: int, in_place: bool, step: int, when: str) -> None:
    pipeline = totals_pipeline(stages, in_place)
    if step > 2:
        pipeline.totals.crash(step=step, when=when)  # type: ignore[arg-type]
    feed_with_replays(pipeline)
    pipeline.totals.run_until_caught_up()
    if step <= 2:  # a run claims and recovers once, at its start
        pipeline.totals.crash(step=step, when=when)  # type: ignore[arg-type]
        pipeline.totals.service = None
    for _ in range(2):
        feed_with_replays(pipeline)
        pipeline.totals.run_until_caught_up()
    assert pipeline.totals.crashes == 1
    pipeline.check()
