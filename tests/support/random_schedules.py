"""Random schedules: input, crashes, outages and takeovers, in an order drawn from a seed."""

from __future__ import annotations

import random

from sqe_chain.errors import Superseded, Unavailable
from sqe_chain.protocol.settings import Settings
from sqe_chain.testing import Crash
from tests.support.checked_pipeline import CheckedPipeline
from tests.support.fault_points import crash, raise_unavailable
from tests.support.unit_id_flows import unit_id_flow


def random_pipeline(draw: random.Random, seed: int) -> CheckedPipeline:
    """A pipeline with random layout, chunk size, batch size and poison policy."""
    stages, parts = draw.choice([1, 2, 2]), draw.choice([1, 2, 3, 3])
    poison = draw.choice(["stop", "dead_letter", "skip"])
    settings = Settings(max_records=draw.choice([3, 5, 400_000]), keep_plans=draw.choice([2, 3, 20]))
    flow = unit_id_flow(stages, parts, poison=poison, buckets=draw.choice([1, 1, 1, 3]))
    pipeline = CheckedPipeline(flow, seed=seed, max_rows=draw.choice([1, 1, 2, 5_000]), settings=settings)
    pipeline.service.clock._stop_after = 1 << 60
    return pipeline


def run_schedule(seed: int, *, actions: int = 6) -> CheckedPipeline:
    """Execute one schedule; check every invariant after each write, and at the end.

    Raises:
        AssertionError: an invariant does not hold.
        ServiceStopped: the service stopped though nothing was wrong.
    """
    draw = random.Random(seed)
    pipeline = random_pipeline(draw, seed)
    poison = 0.0 if pipeline.flow.poison == "stop" else 0.15
    for _ in range(actions):
        pipeline.feed(draw.randrange(6), poison)
        if poison and draw.random() < 0.3:
            pipeline.feed_garbage()
        if draw.random() < 0.8:
            pipeline.republish(draw.choice([None, None, 0, 2, 5]))
        plan_faults(pipeline, draw)
        one_batch(pipeline)
    pipeline.points.actions.clear()
    pipeline.points.actions_by_name.clear()
    pipeline.republish()
    pipeline.run_until_caught_up()
    pipeline.check_at_rest()
    return pipeline


def plan_faults(pipeline: CheckedPipeline, draw: random.Random) -> None:
    """Inject up to four faults at upcoming points."""
    for _ in range(draw.choice([0, 1, 1, 2, 4])):
        what = draw.choice([crash, crash, raise_unavailable, raise_unavailable, "zombie"])
        action = what if callable(what) else lambda: take_over(pipeline, draw)
        if callable(what) and draw.random() < 0.2:
            pipeline.points.actions_by_name["after *part of the next"] = what
        else:
            pipeline.points.act_at(draw.randrange(draw.choice([10, 40, 120])), action)


def take_over(pipeline: CheckedPipeline, draw: random.Random) -> None:
    """While the present run is paused, other runs do their work or crash; then it continues."""
    for _ in range(draw.choice([1, 1, 2])):
        if draw.random() < 0.4:
            pipeline.feed(2)
            pipeline.republish()
        try:
            pipeline.service.start()
            for _ in range(draw.randrange(4)):
                pipeline.service.batch()
        except (Crash, Superseded, Unavailable):
            pipeline.service.service = None


def one_batch(pipeline: CheckedPipeline) -> None:
    if pipeline.points.passed % 5 == 0:
        pipeline.service.service = None  # killed while idle
    try:
        pipeline.service.batch()
    except (Crash, Superseded, Unavailable):
        pipeline.service.service = None
