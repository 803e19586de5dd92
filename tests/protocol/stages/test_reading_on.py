"""Goal: a backlog behind a republisher is worked off in about as many batches as it fills, and each record is read a few times.

Method: records that are hours or days apart, in batches that are small for them. Counted are batches, those that take nothing, and
records that come before the gate.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.task.gate import Gate, SourceTimes
from sqe_chain.task.records import Deciding, Records
from sqe_chain.testing import Rehearsal

DAY_MS = 86_400_000
BEGIN_MS = 1_600_000_000_000
Value = dict[str, Any]


def count(state: Value, value: Value) -> None:
    state["n"] = state.get("n", 0) + 1


def backlog(days: int, records: int, roots: int, limit: int) -> Rehearsal:
    """A reader that begins when a republisher is through with all records."""
    passing = Flow("up")
    passing.source("raw", dict, raw=True).to("mid", key=lambda value: value["k"], partitions=4)
    settings, rng = Settings(max_records=limit), random.Random(days)
    up = Rehearsal(passing, partitions={"raw": roots}, settings=settings)
    for at_ms in sorted(rng.randrange(days * DAY_MS) for _ in range(records)):
        value = {"k": f"k{rng.randrange(50)}"}
        up.feed("raw", value, partition=rng.randrange(roots), timestamp_ms=BEGIN_MS + at_ms)
    up.run_until_caught_up()
    flow = Flow("down", state_partitions=2)
    days_of = flow.source("mid", dict).windowed(
        "days", Tumbling(DAY_MS), key=lambda value: value["k"], state=dict, fold=count
    )
    days_of.to("out", partitions=1)
    return Rehearsal(flow, log=up.log, settings=settings)


@pytest.mark.parametrize(
    ("days", "records", "roots", "limit"), [(25, 600, 2, 60), (700, 600, 2, 60), (700, 300, 3, 20)]
)
def test_few_batches_take_nothing(
    monkeypatch: pytest.MonkeyPatch, days: int, records: int, roots: int, limit: int
) -> None:
    seen, take = Counter[str](), SourceTimes.take

    def counted(
        self: SourceTimes,
        read: Sequence[Records],
        gate: Gate,
        deciding: Deciding,
        given_times: Callable[[Records], Mapping[int, int] | None],
    ) -> Iterator[Records]:
        seen["read"] += sum(len(block.messages) for block in read)
        for block in take(self, read, gate, deciding, given_times):
            seen["taken"] += len(block.messages)
            yield block

    monkeypatch.setattr(SourceTimes, "take", counted)
    down = backlog(days, records, roots, limit)
    seen.clear()  # what the republisher has read
    for at_end in (False, True):
        taken = seen["taken"]
        while down.batch(at_end=at_end):
            seen["batches"] += 1
            seen["idle"] += seen["taken"] == taken
            taken = seen["taken"]
    assert seen["taken"] == records
    assert seen["batches"] <= 1.4 * records / limit
    assert seen["idle"] <= 0.4 * records / limit
    assert seen["read"] <= 6 * records
