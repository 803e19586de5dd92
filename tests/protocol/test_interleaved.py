"""Goal: of several live runs only the newest changes anything, however their requests interleave.

Method: up to three runs in threads of which one moves at a time, from point to point, by a seeded
schedule (`tests/support/interleaved_runs.py`); every invariant is looked at after every write. Then the same with the
fence broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ChainError, Superseded
from tests.support.interleaved_runs import run_interleaved

Patch = pytest.MonkeyPatch


def test_random_interleavings_of_three_live_runs() -> None:
    superseded = 0
    for seed in range(30):
        found = run_interleaved(seed)
        superseded += sum(isinstance(one.error, Superseded) for one in found.points.runs_by_thread.values())  # type: ignore[attr-defined]
    assert superseded > 30, "else it would prove nothing"


def the_run_not_compared(patch: Patch) -> None:
    """A write is compared with number and plan, not with who may write."""
    real = MemoryStore.write

    def write(self: MemoryStore, flow: str, stage: str, part: int, *writing: Any) -> Any:
        before, after, rows = writing
        standing = self.headers(flow, stage, [part])[0]
        if (
            before
            and standing
            and replace(before, epoch=0, run_id="") == replace(standing, epoch=0, run_id="")
        ):
            before = standing
        return real(self, flow, stage, part, before, after, rows)

    patch.setattr(MemoryStore, "write", write)


def the_claim_not_compared(patch: Patch) -> None:
    """A plan is sealed whoever holds the claim."""
    real = MemoryStore.set_home

    def set_home(self: MemoryStore, flow: str, before: Any, after: Any, *args: Any) -> Any:
        standing = MemoryStore.home(self, flow)[0]
        if standing and before and standing.number == before.number:
            before = standing
        return real(self, flow, before, after, *args)

    patch.setattr(MemoryStore, "set_home", set_home)


MUTANTS = [the_run_not_compared, the_claim_not_compared]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_fence_is_found(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(150):
        try:
            run_interleaved(seed)
        except (AssertionError, ChainError):
            return
    pytest.fail("150 schedules have not noticed")
