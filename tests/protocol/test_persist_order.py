"""Goal: persisting the first stage first loses messages; the last stage first does not, in the same schedule.

Method: two stages; the run dies between the persists of the two, and another one recovers. The order is
turned round for one test, and so are the two checks that would not let such a store recover.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sqe_chain.errors import PlanMismatch, StoreInconsistent
from sqe_chain.protocol import finish, redo
from tests.support.memory_pipeline import TotalsPipeline, totals_pipeline


def schedule(pipeline: TotalsPipeline) -> None:
    """A batch whose run dies when one of the two stages is persisted."""
    pipeline.feed(12)
    pipeline.republish()
    pipeline.totals.run_until_caught_up()
    pipeline.feed(12)
    pipeline.republish()
    pipeline.totals.crash(step=6, when="after")
    pipeline.totals.run_until_caught_up()
    assert pipeline.totals.crashes == 1


def turn_round(patch: pytest.MonkeyPatch) -> None:
    """Persist level 1, then level 2."""

    def turned(*bounds: int) -> Any:
        return reversed(range(*bounds)) if bounds[2:] == (-1,) else range(*bounds)

    patch.setattr(finish, "range", turned, raising=False)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_last_stage_first_survives(in_place: bool) -> None:
    pipeline = totals_pipeline(2, in_place)
    schedule(pipeline)
    pipeline.check()


@pytest.mark.parametrize("in_place", [True, False])
def test_the_first_stage_first_loses(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stage 1 emitted in that batch is never emitted again: stage 2 has lost it permanently."""
    pipeline = totals_pipeline(2, in_place)
    turn_round(monkeypatch)
    monkeypatch.setattr(redo, "_check_order", lambda *_: None)
    monkeypatch.setattr(redo.Recovery, "_check_given", lambda *_: None)
    schedule(pipeline)
    robots, lines = (pipeline.totals.states(stage) for stage in ("per-robot", "per-line"))
    fed = sum(events["events"] for events in pipeline.expected.lines.values())
    assert sum(state.events for state in robots.values()) == fed
    counted = Counter({key: state.events for key, state in lines.items()})
    assert 0 < counted.total() < fed, "lost, and nothing reports it"


def test_the_redo_notices_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of the order, the redo still gives stage 2 less than the plan has sealed."""
    pipeline = totals_pipeline(2, in_place=True)
    turn_round(monkeypatch)
    monkeypatch.setattr(redo, "_check_order", lambda *_: None)
    with pytest.raises(PlanMismatch, match="its redo gives something else than what was sealed"):
        schedule(pipeline)


def test_such_a_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service that comes next sees an upstream stage beyond a downstream one, and stops."""
    pipeline = totals_pipeline(2, in_place=True)
    turn_round(monkeypatch)
    with pytest.raises(StoreInconsistent, match="the second has lost it"):
        schedule(pipeline)
