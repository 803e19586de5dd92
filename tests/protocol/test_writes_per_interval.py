"""Goal: however many messages touch a key, its state is written at most once in a batch, and headers once a cell."""

from __future__ import annotations

from collections import Counter

from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import PortCall
from tests.support.typed_results import states_as

BATCHES, MESSAGES, KEYS = 5, 300, 7


def add(total: Int64Value, number: Int64Value) -> list[Int64Value]:
    total.value += number.value
    return [number]


def test_in_steady_state_a_key_is_written_once_an_interval() -> None:
    flow = Flow("steady", state_partitions=2)
    first = flow.source("numbers", Int64Value).aggregate(
        "first", key=lambda number: str(number.value % KEYS), state=Int64Value, fold=add
    )
    first.aggregate("second", key=lambda _: "all", state=Int64Value, fold=add)
    service = Rehearsal(flow)
    service.start()
    rows, stamped = Counter[tuple[str, bytes]](), Counter[tuple[str, int]]()

    def count(call: PortCall, _: object) -> None:
        if call.name == "write":
            _flow, stage, part, _before, _after, written, *_views = call.args
            rows.update((stage, key) for key, _ in written)
            stamped[stage, part] += 1

    service.script.watch = count
    for _ in range(BATCHES):
        rows.clear()
        stamped.clear()
        for number in range(MESSAGES):
            service.feed("numbers", Int64Value(value=number))
        service.batch()
        assert len(rows) == KEYS + 1
        assert set(rows.values()) == {1}
        assert stamped == dict.fromkeys(
            [(stage, part) for stage in ("first", "second") for part in (0, 1)], 1
        )
    counted = sum(state.value for state in states_as(Int64Value, service, "first").values())
    assert counted == BATCHES * sum(range(MESSAGES))
