"""Goal: every invariant holds in every schedule, and the checker would notice if one did not.

Method: random schedules (`tests/support/random_schedules.py`) of feeds, dying republishers, crashes, lost replies,
silent brokers and stores, zombies and takeovers, in chunks and not. Then the same with the code broken on
purpose, one line at a time: each time some schedule must find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import ChainError
from sqe_chain.protocol import aggregation, applying, planning, recover, recovery
from sqe_chain.protocol.applying import Applier
from sqe_chain.protocol.owned_flow import OwnedFlow
from sqe_chain.protocol.plan import Plan
from sqe_chain.stages.aggregate import Aggregate
from sqe_chain.task.outputs import Gatherer
from sqe_chain.task.states import CellStates
from tests.support.random_schedules import run_schedule

Patch = pytest.MonkeyPatch


@pytest.mark.few(2)
@pytest.mark.parametrize("tens", range(10))
def test_random_schedules(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            found = run_schedule(seed)
        except (AssertionError, ChainError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert found.checks > 0


def no_marks(patch: Patch) -> None:
    """Replays count again."""
    real = PartitionMarks.accept

    def accept(self: PartitionMarks, *args: Any) -> bool:
        real(self, *args)
        return True

    patch.setattr(PartitionMarks, "accept", accept)


def marks_of_offsets(patch: Patch) -> None:
    """The offset of the message at hand, in place of the root's."""
    patch.setattr(
        PartitionMarks, "accept", lambda self, _head, offset, epoch=0: self.accept_raw(offset, epoch)
    )


def marks_not_advanced_by_exclusions(patch: Patch) -> None:
    """Marks at the start are written into the plan as those at its end."""
    patch.setattr(aggregation, "batch_plan", _plan_with(lambda last, plan: replace(plan, marks=last.marks)))


def _plan_with(change: Callable[[Plan, Plan], Plan]) -> Callable[..., Plan]:
    real = planning.batch_plan

    def plan(flow: Any, last: Plan, *args: Any, **options: Any) -> Plan:
        return change(last, real(flow, last, *args, **options)).with_id()

    return plan


def exclusions_not_sealed(patch: Patch) -> None:
    patch.setattr(aggregation, "batch_plan", _plan_with(lambda _, plan: replace(plan, exclusions=())))


def ranges_forgotten(patch: Patch) -> None:
    """The plan says where the batch ends one record too early."""

    def shorter(_: Plan, plan: Plan) -> Plan:
        ranges = tuple(replace(one, stop=max(one.start, one.stop - 1)) for one in plan.ranges)
        return replace(plan, ranges=ranges)

    patch.setattr(aggregation, "batch_plan", _plan_with(shorter))


def header_not_compared(patch: Patch) -> None:
    real = MemoryStore.write

    def write(self: MemoryStore, flow: str, stage: str, part: int, before: Any, *rest: Any) -> Any:
        return real(self, flow, stage, part, self.headers(flow, stage, [part])[0] if before else None, *rest)

    patch.setattr(MemoryStore, "write", write)


def home_not_compared(patch: Patch) -> None:
    real = MemoryStore.set_home

    def set_home(self: MemoryStore, flow: str, before: Any, after: Any, *args: Any) -> Any:
        return real(self, flow, MemoryStore.home(self, flow)[0], after, *args)

    patch.setattr(MemoryStore, "set_home", set_home)


def first_stage_first(patch: Patch) -> None:
    """The persist order turned round."""

    def turned(*bounds: int) -> Any:
        return reversed(range(*bounds)) if bounds[2:] == (-1,) else range(*bounds)

    patch.setattr(applying, "range", turned, raising=False)


def seal_after_persist(patch: Patch) -> None:
    finish, seal = Applier.finish, OwnedFlow.seal
    waiting: list[tuple[OwnedFlow, Plan]] = []
    patch.setattr(OwnedFlow, "seal", lambda self, plan: waiting.append((self, plan)))

    def late(self: Applier, plan: Plan, *args: Any, **options: Any) -> None:
        finish(self, plan, *args, **options)
        if waiting:
            seal(*waiting.pop())

    patch.setattr(Applier, "finish", late)


def publish_after_persist(patch: Patch) -> None:
    persist, publish = InProcessEngine.persist, InProcessEngine.publish
    patch.setattr(InProcessEngine, "publish", lambda _self: None)

    def both(self: InProcessEngine, *args: Any) -> int:
        rows = persist(self, *args)
        publish(self)
        return rows

    patch.setattr(InProcessEngine, "persist", both)


def publish_never_again(patch: Patch) -> None:
    """A redo believes that all was published."""
    patch.setattr(recovery, "redo_of", lambda *args: replace(recover.redo_of(*args), publish=False))


def cursor_not_looked_at(patch: Patch) -> None:
    """Keys that a chunk has written are folded again."""
    real = CellStates._check

    def check(self: CellStates, header: Any) -> None:
        real(self, header)
        self.cursor = None

    patch.setattr(CellStates, "_check", check)


def done_not_looked_at(patch: Patch) -> None:
    """What is at the plan already is folded again in its redo."""
    real = CellStates._check

    def check(self: CellStates, header: Any) -> None:
        real(self, header)
        self.done = False

    patch.setattr(CellStates, "_check", check)


def commit_before_persist(patch: Patch) -> None:
    finish = Applier.finish

    def early(self: Applier, plan: Plan, *args: Any, **options: Any) -> None:
        self.commit(plan)
        finish(self, plan, *args, **options)

    patch.setattr(Applier, "finish", early)


def ordinals_unstable(patch: Patch) -> None:
    """Collections of one input go out in another order each time."""
    real = Gatherer._collections
    turns = [0]

    def collections(self: Gatherer, *args: Any) -> Any:
        turns[0] += 1
        found = real(self, *args)
        return {k: dict(list(v.items())[:: -1 if turns[0] % 2 else 1]) for k, v in found.items()}

    patch.setattr(Gatherer, "_collections", collections)


def collections_in_halves(patch: Patch) -> None:
    """A failing input leaves its first units behind."""
    patch.setattr(Aggregate, "_revert", lambda _: None)


MUTANTS = [
    no_marks,
    marks_of_offsets,
    marks_not_advanced_by_exclusions,
    exclusions_not_sealed,
    ranges_forgotten,
    header_not_compared,
    home_not_compared,
    first_stage_first,
    seal_after_persist,
    publish_after_persist,
    publish_never_again,
    cursor_not_looked_at,
    done_not_looked_at,
    commit_before_persist,
    ordinals_unstable,
    collections_in_halves,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_what_is_broken_on_purpose_is_found(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(200):
        try:
            run_schedule(seed)
        except (AssertionError, ChainError):
            return
    pytest.fail("200 schedules have not noticed")
