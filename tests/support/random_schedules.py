"""Random schedules: everything that may happen to a service happens, in an order drawn from a seed."""

from __future__ import annotations

import random

from sqe_chain.errors import Superseded, Unavailable
from sqe_chain.protocol.surroundings import Settings
from sqe_chain.testing import Crash
from tests.support.checked_pipeline import Ledger, ledgers
from tests.support.fault_points import die, no_answer


def ledger_of(draw: random.Random, seed: int) -> Ledger:
    """A plant whose layout, chunks, batches and poison policy are drawn."""
    stages, parts = draw.choice([1, 2, 2]), draw.choice([1, 2, 3, 3])
    poison = draw.choice(["stop", "dead_letter", "skip"])
    settings = Settings(max_records=draw.choice([3, 5, 400_000]), keep_plans=draw.choice([2, 3, 20]))
    flow = ledgers(stages, parts, poison=poison, buckets=draw.choice([1, 1, 1, 3]))
    found = Ledger(flow, seed=seed, max_rows=draw.choice([1, 1, 2, 5_000]), settings=settings)
    found.service.clock._stop_after = 1 << 60
    return found


def run_schedule(seed: int, *, acts: int = 6) -> Ledger:
    """One schedule, every invariant looked at after each write, and at the end at rest.

    Raises:
        AssertionError: an invariant does not hold.
        ServiceStopped: the service stopped though nothing was wrong.
    """
    draw = random.Random(seed)
    found = ledger_of(draw, seed)
    poison = 0.0 if found.flow.poison == "stop" else 0.15
    for _ in range(acts):
        found.feed(draw.randrange(6), poison)
        if poison and draw.random() < 0.3:
            found.feed_rubbish()
        if draw.random() < 0.8:
            found.republish(draw.choice([None, None, 0, 2, 5]))
        plan_faults(found, draw)
        one_batch(found)
    found.points.actions.clear()
    found.points.awaited.clear()
    found.republish()
    found.run()
    found.check()
    return found


def plan_faults(found: Ledger, draw: random.Random) -> None:
    """Up to four faults at points soon to come."""
    for _ in range(draw.choice([0, 1, 1, 2, 4])):
        what = draw.choice([die, die, no_answer, no_answer, "zombie"])
        action = what if callable(what) else lambda: take_over(found, draw)
        if callable(what) and draw.random() < 0.2:
            found.points.awaited["after *part of the next"] = what
        else:
            found.points.at(draw.randrange(draw.choice([10, 40, 120])), action)


def take_over(found: Ledger, draw: random.Random) -> None:
    """The present run stands still; others do their work, or die of it; then it wakes."""
    for _ in range(draw.choice([1, 1, 2])):
        if draw.random() < 0.4:
            found.feed(2)
            found.republish()
        try:
            found.service.start()
            for _ in range(draw.randrange(4)):
                found.service.batch()
        except (Crash, Superseded, Unavailable):
            found.service.service = None


def one_batch(found: Ledger) -> None:
    if found.points.passed % 5 == 0:
        found.service.service = None  # killed while idle
    try:
        found.service.batch()
    except (Crash, Superseded, Unavailable):
        found.service.service = None
