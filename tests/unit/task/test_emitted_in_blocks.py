"""Goal: what folds give goes on as blocks, and gives what it gives with the origin of each value: records and states.

Method: one flow runs three times. The second time a kind applies each run in parts. The third time aggregates are not offered to name
units by numbers, so that they name origins.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, partialmethod
from random import Random
from typing import Any

import pytest

from sqe_chain.envelope import wrap
from sqe_chain.flow import Context, Flow
from sqe_chain.flow.stage_kind import StageTask
from sqe_chain.flow.units import UnitRun
from sqe_chain.stages.aggregate import Aggregate
from sqe_chain.task import level
from sqe_chain.testing import Rehearsal


def pass_on(state: dict[str, Any], value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fold: as many values as the input asks for, all of them the same object, which changes."""
    state["count"] = state.get("count", 0) + 1
    for number in range(value["n"] % 4):
        value["at"] = number
        yield value


def add(state: dict[str, Any], value: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Fold: what comes, in order; passes on every other one."""
    state["seen"] = [*state.get("seen", []), [value["n"], value["at"]]][-40:]
    return [value] if value["n"] % 2 else None


def offset_of(value: dict[str, Any], context: Context) -> dict[str, Any]:
    """Map: which input it comes from."""
    return {**value, "offset": context.offset, "topic": context.topic}


def flow_of(*, raw: bool) -> Flow:
    """Two stages, and outputs of both."""
    flow = Flow("f", state_partitions=3)
    source = flow.source("in", dict, raw=raw)
    first = source.aggregate("first", key=lambda value: value["key"], state=dict, fold=pass_on)
    first.to("emitted", key=lambda value: str(value["at"]), partitions=2)
    first.map(offset_of).to("told", key=lambda value: value["key"], partitions=2)
    second = first.aggregate("second", key=lambda value: str(value["n"] % 5), state=dict, fold=add)
    second.to("deeper", key=lambda value: value["key"], partitions=2)
    second.changes().to("totals", partitions=2)
    return flow


def apply_in_parts(work: Aggregate, apply: Any, run: UnitRun) -> None:
    """Apply a run as a kind does that puts itself around another one."""
    for begin in range(0, len(run), 2):
        apply(work, run[begin : begin + 2])


def ran(*, raw: bool, in_place: bool, block_records: int, seed: int) -> object:
    """All that comes of random records: records and states."""
    flow, random = flow_of(raw=raw), Random(seed)
    rehearsal = Rehearsal(flow, partitions={"in": 3}, block_records=block_records)
    for number in range(150):
        own = random.choice("abcdefgh")
        values = [{"key": own, "n": random.randrange(13), "at": 0} for _ in range(random.choice([1, 1, 3]))]
        payload = values[0] if raw else wrap(values, key=own, timestamp_ms=number)
        key = own if in_place else None  # else it lies where it does not belong
        rehearsal.feed("in", payload, key=key, timestamp_ms=number)
        if number % 60 == 59:
            rehearsal.run_until_caught_up()
    rehearsal.run_until_caught_up()
    records = {
        topic: [
            (str(one.chain), one.position, one.previous, one.key, one.payloads, one.timestamp_ms)
            for one in published
        ]
        for topic in ("emitted", "told", "deeper", "totals")
        if (published := rehearsal.published(topic))
    }
    assert len(records) == 4
    return records, rehearsal.states("first"), rehearsal.states("second")


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("block_records", [1, 7, 100])
def test_blocks_give_what_origins_give(
    *, raw: bool, in_place: bool, block_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(level, "BLOCK", 3)  # so that units of an input come to a stage in several runs
    given = partial(ran, raw=raw, in_place=in_place, block_records=block_records)
    by_blocks = [given(seed=seed) for seed in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(Aggregate, "apply", partialmethod(apply_in_parts, Aggregate.apply))
        assert [given(seed=seed) for seed in range(2)] == by_blocks
    monkeypatch.setattr(level, "StageTask", lambda **fields: StageTask(**{**fields, "applies": None}))
    assert [given(seed=seed) for seed in range(2)] == by_blocks
