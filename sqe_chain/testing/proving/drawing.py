"""Which schedules there are: every single fault, replays, and then what is drawn from a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from sqe_chain.testing.proving.schedule import Fault, Point, Schedule, What

WHATS: Final[tuple[What, ...]] = ("crash", "no answer", "takeover")
_NEAR: Final = 40
"""Calls between two faults, at most: the second one hits what is redone after the first."""
_MOST_FAULTS: Final = 4


def inject_each_fault(base: Schedule, points: Sequence[Point], *, writes: bool) -> Iterator[Schedule]:
    """Each fault alone: the first point of each kind, then the second of each, and so on.

    Args:
        base: the schedule to which the fault is added.
        points: of its undisturbed run.
        writes: at calls that write, before and after them; else before those that read.
    """
    seen: Counter[object] = Counter()
    ranked = []
    for point in points:
        if point.write == writes and (writes or point.when == "before"):
            ranked.append((seen[point.kind], point.call, point))
            seen[point.kind] += 1
    for _, _, point in sorted(ranked, key=lambda place: place[:2]):
        for what in WHATS:
            if what != "takeover" or point.service == "flow":
                yield replace(base, faults=(Fault(what, point.call, point.when, point.service),))


def replay_everything(base: Schedule) -> Iterator[Schedule]:
    """Everything published again, after the first half of the inputs, after the second, and after both."""
    for rewinds in ((0,), (1,), (0, 1)):
        yield replace(base, rewinds=rewinds)


def draw_schedules(
    base: Schedule, random: Random, calls: int, *, upstream: int, rewinds: bool, functions: int
) -> Iterator[Schedule]:
    """Pairs of faults, and schedules with all that there is, without end; in some of them functions cannot reach what they need for a while."""
    apart = Random(calls)  # noqa: S311 - no secret; apart, so that what else is drawn stays the same
    while True:  # without end: the prover takes as many as it has time for
        first = random.randrange(max(1, calls))
        pair = tuple(_fault(random, call) for call in (first, first + 1 + random.randrange(_NEAR)))
        yield replace(base, faults=pair)
        count = random.randrange(1, _MOST_FAULTS + 1)
        faults = [_fault(random, random.randrange(calls + _NEAR)) for _ in range(count)]
        schedule = replace(
            base,
            block=random.choice((1, 2, 7, 1_000)),
            in_place=random.random() < 0.5,  # noqa: PLR2004 - a coin
            rows=random.choice((1, 2, 50)),
            batch=random.choice((0, 0, 1, 2, 1 + len(base.inputs) // 3)),
        )
        again = bool(upstream) and random.random() < 0.5  # noqa: PLR2004 - a coin
        if again:
            faults.append(
                replace(_fault(random, random.randrange(upstream)), what="crash", service="upstream")
            )
            schedule = replace(schedule, upstream=True, batch=0, carrier=random.choice(("value", "headers")))
        if again or (rewinds and not upstream):
            schedule = replace(schedule, rewinds=random.choice(((), (0,), (1,), (0, 1))))
        first = apart.randrange(max(1, functions))
        down = range(first, first + apart.choice((0, 0, 1, 5, 50))) if functions else range(0)
        yield replace(schedule, faults=tuple(faults), unreachable=tuple(down))


def _fault(random: Random, call: int) -> Fault:
    return Fault(random.choice(WHATS), call, random.choice(("before", "after")))
