"""Goal: a flow over a table's changes has what a query of the table has, whatever Debezium emits again and wherever the service dies.

Method: a naive database with a connector that is killed; the service dies after each of its writes in turn.
"""

from __future__ import annotations

from typing import Any

import pytest

from sqe_chain import Flow
from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.flow import Change, Changes
from sqe_chain.testing import Rehearsal
from tests.support.databases import Row, record, world
from tests.support.spent import TOPIC, Order, Spent, add, customer_of, spent
from tests.support.suites import points


def orders_of(flow: Flow) -> Changes[Order]:
    return flow.changes_of(TOPIC, Order, key="id")


def sums(**settings: Any) -> Flow:
    flow = Flow("sums", state_partitions=2, **settings)
    orders = orders_of(flow)
    orders.deltas().aggregate("spent", key=customer_of, state=Spent, fold=add)
    orders.to("orders.changed", partitions=1)
    return flow


def feed(service: Rehearsal, topic: list[tuple[bytes, bytes]]) -> None:
    for key, value in topic:
        service.feed(TOPIC, value, key=key)
        if b'"op": "d"' in value:
            service.feed(TOPIC, None, key=key)  # the tombstone that follows it, for compaction


@pytest.mark.parametrize("seed", [1, 4])
def test_sums_are_those_of_a_query_wherever_the_service_dies(seed: int) -> None:
    database, connector = world(seed)
    half = len(connector.topic) // 2
    published: list[Any] = []
    for write in points(f"changes {seed}"):
        service = Rehearsal(sums(), partitions={TOPIC: 3}, max_rows_per_write=2)
        feed(service, connector.topic[:half])
        service.crash_at_write(write, "after")
        service.run_until_caught_up()
        feed(service, connector.topic[half:])
        service.run_until_caught_up()
        assert spent(service) == database.total()
        changes = [envelope.payload_as(Change[Order]) for envelope in service.published("orders.changed")]
        published.append({(change.row.id, change.position, change.op) for change in changes if change.row})
        if not service.crashes:
            break
    assert len(published) > 3, "it has died at several writes"
    assert all(each == published[0] for each in published)


def joined(order: Change[Order], customer: Row | None) -> list[Any]:
    assert order.after is not None
    return [order.after.id, customer and customer["name"]]


def test_orders_are_joined_with_the_table_of_customers_as_it_was() -> None:
    flow = Flow("named", state_partitions=2)
    customers = flow.changes_of("shop.public.customers", dict, key="name", name="customers")
    orders = orders_of(flow).filter(lambda change: change.after is not None).key_by(customer_of)
    orders.join_table("named", customers.table(), joined, how="left").to("named", partitions=1)
    service = Rehearsal(flow)
    # The last one of each lets the others pass: event time waits for both topics.
    for op, at_ms, name in (("r", 10, "ann"), ("d", 40, "ann"), ("c", 90, "bob")):
        row = None if op == "d" else {"name": name, "id": 7}
        _, value = record(op, 7, row, at_ms, at_ms, commit_before=at_ms - 1)
        service.feed("shop.public.customers", value, key=f'{{"name": "{name}"}}')
    for number, at_ms in enumerate((20, 50, 90)):
        row = {"id": number, "customer": "ann", "amount": 1}
        key, value = record("c", number, row, at_ms, at_ms, commit_before=5)
        service.feed(TOPIC, value, key=key)
    service.run_until_caught_up()
    assert [envelope.payload_as(list) for envelope in service.published("named")] == [
        [0, "ann"],
        [1, None],
        [2, None],
    ]


@pytest.mark.parametrize(("history_ms", "name"), [(0, "ann"), (60_000, "Ann")])
def test_an_idle_table_holds_nothing_back_and_what_its_connector_emits_late_is_dropped_or_kept(
    history_ms: int, name: str
) -> None:
    flow = Flow("named", state_partitions=2)
    customers = flow.changes_of("shop.public.customers", dict, key="id", name="customers")
    orders = orders_of(flow).key_by(lambda _: "0")
    named = orders.join_table("named", customers.table(), joined, how="left", history_ms=history_ms)
    named.to("named", partitions=1)
    named.dropped().map(lambda late: str(late.reason)).to("late", partitions=1)
    service = Rehearsal(flow)

    def change(topic: str, row: Row, at_ms: int) -> None:
        key, value = record("u", row["id"], row, at_ms, at_ms, commit_before=at_ms - 1)
        service.feed(topic, value, key=key)

    change("shop.public.customers", {"id": 0, "name": "ann"}, 10_000)
    for number in (1, 2):
        change(TOPIC, {"id": number, "customer": "ann", "amount": 1}, 20_000 * number)
    service.run_until_caught_up()
    assert [each.payload_as(list) for each in service.published("named")] == [[1, "ann"], [2, "ann"]]
    # Its connector was away for longer than the service waits, and emits what was committed meanwhile.
    change("shop.public.customers", {"id": 0, "name": "Ann"}, 30_000)
    change(TOPIC, {"id": 3, "customer": "ann", "amount": 1}, 50_000)
    service.run_until_caught_up()
    assert service.published("named")[-1].payload_as(list) == [3, name]
    assert len(service.published("late")) == (name == "ann")


def test_a_table_knows_which_rows_are_deleted() -> None:
    flow = Flow("named")
    customers = flow.changes_of("shop.public.customers", dict, key="name")
    with pytest.raises(FlowError, match="Remove deleted="):
        orders_of(flow).join_table("named", customers.table(), joined, how="left", deleted=lambda _: True)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"key": ()}, r"key=\(\); the name of a column"),
        ({"row": 7}, "needs the type of its rows"),
        ({"row": int}, "takes rows that are objects of JSON"),
        ({"topic": ["a", "b"]}, "topic name"),
        ({"name": "a b"}, "stage name 'a b'"),
    ],
)
def test_declarations_that_cannot_work_are_refused(settings: dict[str, Any], error: str) -> None:
    given: dict[str, Any] = {"topic": TOPIC, "row": Order, "key": "id"} | settings
    with pytest.raises(FlowError, match=error):
        Flow("sums").changes_of(given.pop("topic"), given.pop("row"), **given)


def test_what_is_no_change_stops_the_service_or_becomes_a_dead_letter_record() -> None:
    service = Rehearsal(sums())
    service.feed(
        TOPIC, b'{"before":null,"after":null,"op":"t","source":{"connector":"postgresql"}}', key=None
    )
    with pytest.raises(PoisonError, match="the table was truncated"):
        service.run_until_caught_up()
    service = Rehearsal(sums(poison="dead_letter"))
    key, value = record("c", 1, {"id": 1, "customer": "ann", "amount": 3}, 20, 2, commit_before=10)
    service.feed(TOPIC, b"{}", key=key)
    service.feed(TOPIC, value, key=key)
    service.run_until_caught_up()
    assert spent(service) == {"ann": 3}
    assert len(service.log.records("sums.dead-letters")) == 1
