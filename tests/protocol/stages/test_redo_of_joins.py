"""Goal: a batch of a join that is redone calls no function with a table of later, which it might refuse.

Method: a batch with a value and then a change of its key, and a crash after each write of its rows.
"""

from __future__ import annotations

from typing import Any

import pytest

from sqe_chain import Flow
from sqe_chain.testing import Crash, Rehearsal

LATE = [("rates", 10, 2), ("orders", 20, 3), ("rates", 25, 5), ("rates", 15, -1)]
"""Topic, time, number: the last change comes too late for the order, and takes its place before it."""
PURGED = LATE[:3]
"""The version that the order has joined is purged at the end of the batch."""
WRITES = range(4, 12)
"""Those of the batch, and one before and after it."""


def combine(order: dict[str, int], rate: dict[str, int] | None) -> int:
    if order["number"] != 3:
        return 0
    if rate is None or rate["number"] < 0:
        raise ValueError("the order has joined another rate")
    return order["number"] * rate["number"]


def rehearsal_of(poison: str, how: str, history_ms: int) -> Rehearsal:
    flow = Flow("orders", state_partitions=1, poison=poison)  # type: ignore[arg-type]
    orders, rates = (
        flow.source(topic, dict, raw=True).key_by(lambda one: one["key"]) for topic in ("orders", "rates")
    )
    settings: dict[str, Any] = {"how": how, "history_ms": history_ms}
    orders.join_table("join", rates, combine, **settings).to("sums", partitions=1)
    return Rehearsal(flow, max_rows_per_write=1)


@pytest.mark.parametrize("poison", ["stop", "skip"])
@pytest.mark.parametrize(("records", "how", "history_ms"), [(LATE, "inner", 100), (PURGED, "left", 0)])
def test_a_crash_between_writes_stops_no_join(
    records: list[tuple[str, int, int]], how: str, history_ms: int, poison: str
) -> None:
    crashes = 0
    for write in WRITES:
        rehearsal = rehearsal_of(poison, how, history_ms)
        for topic, at_ms, number in records:
            rehearsal.feed(topic, {"key": "a", "number": number}, timestamp_ms=at_ms)
        for topic in ("rates", "orders"):  # lets the others pass in one batch
            rehearsal.feed(topic, {"key": "b", "number": 1}, timestamp_ms=40)
        rehearsal.crash_at_write(write, "after")
        try:
            rehearsal.batch(at_end=True)
        except Crash:
            rehearsal.restart()
            crashes += 1
        rehearsal.run_until_caught_up()
        published = {payload for envelope in rehearsal.published("sums") for payload in envelope.payloads}
        assert published - {b"0"} == {b"6"}
    assert crashes > 4, "the batch has this many writes at least"
