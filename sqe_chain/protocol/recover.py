"""Step 2: whether what a run finds can be the work of a crash, and which plans have to be finished first. Pure.

A crash leaves every header at the last plan n or at n - 1, and no upstream header beyond a downstream one; a plan that
is begun counts as n upstream and as n - 1 downstream. Anything else means that a store lost writes that it had
acknowledged. Where it is still certain what was counted, the lost plans are redone; otherwise the service stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqe_chain.errors import StoreInconsistent
from sqe_chain.ports import Header
from sqe_chain.protocol.plan import Plan

Headers = Mapping[tuple[int, int], Header]
WAYS_OUT = "restore the store as a whole, or fold the states again with sqe-chain rebuild"


@dataclass(frozen=True, slots=True)
class Redo:
    """A plan to finish.

    Attributes:
        plan: the plan.
        before: the plan before it.
        publish: its outputs may be unpublished, so they are published.
        top_level: the highest level that has something to write.
    """

    plan: Plan
    before: Plan
    publish: bool
    top_level: int


def to_redo(
    last: Plan, headers: Headers, level_of: Mapping[int, int], fetch: Callable[[int], Plan | None]
) -> list[int]:
    """The numbers of the plans that have to be finished, oldest first.

    Args:
        last: the last plan, n.
        headers: (stage index, cell) -> header, stamped by this run. Without any, which is a flow without stages, nobody knows whether
            the last plan was published, so it is redone, unless nothing was.
        level_of: stage index -> its level.
        fetch: gives a plan by its number; None when the log has dropped it.

    Returns:
        Empty when every header is at n. More than one number when the store lost acknowledged writes, and they
        can be redone.

    Raises:
        StoreInconsistent: what was counted cannot be known.
    """
    if not headers:
        published = last.empty or last.layout.stages or last.number == 0
        return [] if published else [last.number]
    for cell, header in headers.items():
        _check_known(cell, header, last, fetch)
    _check_order(headers, level_of)
    lowest = min(header.number for header in headers.values())
    numbers = list(range(lowest + 1, last.number + 1))
    # The lowest too: a redo begins with the marks and offsets of the plan before it.
    for number in (lowest, *numbers):
        if number < last.number and fetch(number) is None:
            raise StoreInconsistent(
                f"a state partition is at plan {lowest}, the last plan is {last.number}, and plan {number} is no "
                f"longer kept: the store lost acknowledged writes; {WAYS_OUT}"
            )
    return numbers


def redo_of(plan: Plan, before: Plan, headers: Headers, level_of: Mapping[int, int]) -> Redo:
    """How to finish a plan, with the headers as they are now.

    Persisting starts when all outputs are acknowledged. So one header that has reached or begun the plan proves that
    everything was published: then nothing is published again, and levels above the last unfinished one do not run.
    """
    reached = any(
        header.number >= plan.number or (header.number == before.number and header.begun_id == plan.plan_id)
        for header in headers.values()
    )
    unfinished = [level_of[stage] for (stage, _), header in headers.items() if header.number < plan.number]
    return Redo(plan, before, not reached, max(unfinished) if reached and unfinished else 1 << 30)


def _check_known(
    cell: tuple[int, int], header: Header, last: Plan, fetch: Callable[[int], Plan | None]
) -> None:
    where = f"stage {cell[0]}, state partition {cell[1]}"
    if header.number > last.number:
        raise StoreInconsistent(
            f"{where}: is at plan {header.number}, but the home store's last plan is {last.number}: the home store "
            f"went back in time; {WAYS_OUT}"
        )
    plan = last if header.number == last.number else fetch(header.number)
    if plan is not None and plan.plan_id != header.plan_id:
        raise StoreInconsistent(
            f"{where}: is at plan {header.number} with id {header.plan_id}, but {plan.plan_id} was sealed: two histories "
            f"are mixed, a store went back in time; {WAYS_OUT}"
        )
    if header.begun_id:
        begun = last if header.number + 1 == last.number else fetch(header.number + 1)
        if begun is None or begun.plan_id != header.begun_id:
            raise StoreInconsistent(
                f"{where}: has begun a plan {header.begun_id} that was never sealed after {header.number}: the home "
                f"store went back in time; {WAYS_OUT}"
            )


def _check_order(headers: Headers, level_of: Mapping[int, int]) -> None:
    """Check that no upstream header is beyond a downstream one.

    An upstream stage that has reached a plan emits nothing in its redo, so a downstream stage before that plan would
    never get the events.
    """
    for level in range(1, max(level_of.values(), default=0)):
        upstream = [header for (stage, _), header in headers.items() if level_of[stage] <= level]
        downstream = [header for (stage, _), header in headers.items() if level_of[stage] > level]
        if not upstream or not downstream:
            continue
        # Of a begun plan some keys are written: those emit nothing any more, so it counts as reached.
        most = max(header.number + (1 if header.begun_id else 0) for header in upstream)
        least = min(header.number for header in downstream)
        if most > least:
            raise StoreInconsistent(
                f"a stage has reached plan {most}, but a stage after it is at {least}: what the first emitted is lost to the "
                f"second, for a redo does not emit it again; a store lost acknowledged writes; {WAYS_OUT}"
            )
