"""Shrink a failing schedule: remove steps, faults and facts as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from sqe_chain.testing.invariants import Violation
from sqe_chain.testing.shrinking import smallest
from tests.lab.simulator.run import simulate
from tests.lab.simulator.schedule import Schedule, Step

MOST_ATTEMPTS = 600


def violation_of(schedule: Schedule) -> Violation | None:
    """The violation of a schedule; None when there is none."""
    try:
        simulate(schedule)
    except Violation as violation:
        return violation
    return None


def shrink_schedule(
    schedule: Schedule,
    violation: Violation,
    fails: Callable[[Schedule], Violation | None] = violation_of,
    most_attempts: int = MOST_ATTEMPTS,
) -> Schedule:
    """Find a small schedule that violates the same invariant; where a service stops, one that stops with the same error.

    Args:
        schedule: violates the invariant.
        violation: what is found then.
        fails: executes a schedule.
        most_attempts: limit on schedules to try.
    """

    def fails_the_same(candidate: Schedule) -> bool:
        try:
            found = fails(candidate)
        except (LookupError, TypeError, ValueError):
            return False  # the remaining steps make no sense
        return found is not None and _kind(found) == _kind(violation)

    return smallest(schedule, _smaller_schedules, fails_the_same, most_attempts)


def _kind(violation: Violation) -> tuple[str, ...]:
    """The invariant; and who stopped with which error."""
    return violation.name, *(violation.text.split(":")[:2] if violation.name == "sound" else ())


def _smaller_schedules(schedule: Schedule) -> Iterator[Schedule]:
    """Smaller schedules, those without large pieces first."""
    steps = schedule.steps
    size = len(steps) // 2
    while size:
        for first in range(0, len(steps), size):
            yield replace(schedule, steps=(*steps[:first], *steps[first + size :]))
        size //= 2
    for index, step in enumerate(steps):
        for less in _shorter_steps(step):
            yield replace(schedule, steps=(*steps[:index], less, *steps[index + 1 :]))
    for field in fields(schedule.world):
        if getattr(schedule.world, field.name) != field.default:
            plain: dict[str, Any] = {field.name: field.default}
            yield replace(schedule, world=replace(schedule.world, **plain))


def _shorter_steps(step: Step) -> Iterator[Step]:
    """Variants of a step with one element fewer in one of its lists, including those of nested steps."""
    for position, part in enumerate(step):
        if not isinstance(part, list) or not part or not isinstance(part[0], list):
            continue
        for index, element in enumerate(part):
            yield [*step[:position], [*part[:index], *part[index + 1 :]], *step[position + 1 :]]
            for less in _shorter_faults(element):
                yield [*step[:position], [*part[:index], less, *part[index + 1 :]], *step[position + 1 :]]


def _shorter_faults(element: list[Any]) -> Iterator[list[Any]]:
    """Variants of a pausing fault with fewer steps during the pause."""
    if element and isinstance(element[0], str) and element[0].endswith("meanwhile"):
        *head, steps = element
        for index, step in enumerate(steps):
            yield [*head, [*steps[:index], *steps[index + 1 :]]]
            for less in _shorter_steps(step):
                yield [*head, [*steps[:index], less, *steps[index + 1 :]]]
