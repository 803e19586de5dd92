"""Goal: a batch that is redone publishes the same records, `traceparent` included. Method: crashes at every step, and a run without."""

from __future__ import annotations

from typing import Any

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.flow import Flow
from sqe_chain.ports import Headers
from sqe_chain.testing import Rehearsal
from tests.support.memory_pipeline import CRASH_POINTS

Record = tuple[str, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
TOPICS = ("sums", "emitted", "by-size")


def add(total: dict[str, Any], sale: dict[str, Any]) -> Any:
    if sale["amount"] == 13:
        raise ValueError("nobody sells 13")
    total["sum"] = total.get("sum", 0) + sale["amount"]
    if sale["amount"] % 2:
        return [{"size": sale["amount"] % 3, "amount": sale["amount"]}]
    return None


def flow(in_place: bool) -> Flow:
    """Outputs of a filter, of what a fold emits, and of changes; flat-mapped, with an input that fails in the fold."""
    found = Flow("traced", state_partitions=2 if in_place else 3, poison="skip", traces=True)
    sales = found.source("sales", dict)
    both = sales.flat_map(lambda sale: [sale, {**sale, "amount": 1}] if sale["amount"] > 6 else [sale])
    first = both.aggregate("total", state=dict, fold=add, key=lambda sale: sale["shop"])
    first.changes().to("sums", partitions=2, carrier="headers")
    first.to("emitted", key=lambda emitted: str(emitted["size"]), partitions=2)
    second = first.aggregate("sizes", state=dict, fold=count, key=lambda emitted: str(emitted["size"]))
    second.changes().to("by-size", partitions=1)
    return found


def count(total: dict[str, Any], emitted: dict[str, Any]) -> None:
    total["amount"] = total.get("amount", 0) + emitted["amount"]


def fed(in_place: bool) -> Rehearsal:
    log = MemoryLog("traces-redone")
    log.clear()  # so that ids of topics are the same
    rehearsal = Rehearsal(flow(in_place), partitions={"sales": 2}, block_records=3, log=log)
    for number in range(1, 31):
        shop = f"shop-{number % 4}"
        trace: Headers | None = None
        if number % 3:
            trace = [("traceparent", f"00-{number:032x}-{number:016x}-01".encode())]
        rehearsal.feed("sales", {"shop": shop, "amount": number % 16}, key=shop, headers=trace)
    return rehearsal


def published(rehearsal: Rehearsal) -> list[Record]:
    return [
        (topic, message.partition(), message.key(), message.value(), tuple(message.headers() or ()))
        for topic in TOPICS
        for message in rehearsal.log.records(topic)
    ]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("step", "when"), CRASH_POINTS)
def test_a_redo_publishes_the_same_bytes_and_headers(in_place: bool, step: int, when: Any) -> None:
    control = fed(in_place)
    control.run_until_caught_up()
    expected = published(control)
    assert sum(name == "traceparent" for *_, headers in expected for name, _ in headers) > 20
    crashed = fed(in_place)
    crashed.crash(step=step, when=when)
    crashed.run_until_caught_up()
    assert crashed.crashes == 1
    found = published(crashed)
    assert set(found) == set(expected)
    assert len(found) in (len(expected), 2 * len(expected)), "a redo publishes all of it, or nothing"


def test_a_shuffle_makes_no_other_traces() -> None:
    """State partitions and lanes differ, so what is compared is which changes bear a trace."""
    found = []
    for in_place in (True, False):
        rehearsal = fed(in_place)
        rehearsal.run_until_caught_up()
        found.append(
            sorted(
                (topic, key or b"", any(name == "traceparent" for name, _ in headers))
                for topic, _, key, _, headers in published(rehearsal)
            )
        )
    assert found[0] == found[1]
