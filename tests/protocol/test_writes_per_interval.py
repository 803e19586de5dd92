"""Goal: however many messages touch a key, its state is written at most once in a batch, and headers once a cell."""

from __future__ import annotations

from collections import Counter

from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.ports import Header, Rows, Views
from sqe_chain.testing import Rehearsal
from tests.support.typed_results import states_as

BATCHES, MESSAGES, KEYS = 5, 300, 7


class CountingStore(MemoryStore):
    """Counts the writes of each key of each stage."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.rows: Counter[tuple[str, bytes]] = Counter()
        self.stamped: Counter[tuple[str, int]] = Counter()

    def write(
        self,
        flow: str,
        stage: str,
        part: int,
        before: Header | None,
        after: Header,
        rows: Rows,
        views: Views | None = None,
    ) -> Header | None:
        self.rows.update((stage, key) for key, _ in rows)
        self.stamped[stage, part] += 1
        return super().write(flow, stage, part, before, after, rows, views)


def add(total: Int64Value, number: Int64Value) -> list[Int64Value]:
    total.value += number.value
    return [number]


def test_in_steady_state_a_key_is_written_once_an_interval() -> None:
    flow = Flow("steady", state_partitions=2)
    first = flow.source("numbers", Int64Value).aggregate(
        "first", key=lambda number: str(number.value % KEYS), state=Int64Value, fold=add
    )
    first.aggregate("second", key=lambda _: "all", state=Int64Value, fold=add)
    store = CountingStore("steady")
    store.restore_all()
    service = Rehearsal(flow, store=store)
    service.start()
    for _ in range(BATCHES):
        store.rows.clear()
        store.stamped.clear()
        for number in range(MESSAGES):
            service.feed("numbers", Int64Value(value=number))
        service.batch()
        assert len(store.rows) == KEYS + 1
        assert set(store.rows.values()) == {1}
        assert store.stamped == dict.fromkeys(
            [(stage, part) for stage in ("first", "second") for part in (0, 1)], 1
        )
    counted = sum(state.value for state in states_as(Int64Value, service, "first").values())
    assert counted == BATCHES * sum(range(MESSAGES))
