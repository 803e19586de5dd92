"""Reference data has no times: a value finds what its key has, however old it is itself. Values that find nothing are counted and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import FlowError
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal

NOW_MS, OLD_MS = 1_700_000_000_000, 1_600_000_000_000
KEYS = tuple("ABCDEFG")
Fact = dict[str, Any]


def key_of(fact: Fact) -> str:
    return str(fact["key"])


def both(order: Fact, customer: Fact | None) -> list[Any]:
    return [order["number"], customer and customer["name"]]


def joining(
    log: MemoryLog, table: str, *, static: bool = True, how: Any = "left", parts: int = 2
) -> Rehearsal:
    """Orders joined with a table that is read raw, behind a republisher, or from files."""
    flow = Flow("joining", state_partitions=parts)
    orders = flow.source("orders", dict, raw=True).key_by(key_of)
    if table.endswith(".jsonl"):
        customers = flow.files("customers", dict, [table])
    else:
        customers = flow.source(table, dict, raw=table == "customers")
    joined: Any = orders.join_table(
        "with-names",
        customers.key_by(key_of),
        both,
        how=how,
        static=static,
        deleted=lambda one: not one["name"],
    )
    joined.to("named", partitions=1)
    return Rehearsal(flow, log=log)


def feed(service: Rehearsal, topic: str, *facts: Fact, at_ms: int) -> None:
    for fact in facts:
        part = KEYS.index(fact["key"]) % 2
        service.feed(topic, fact, partition=part, timestamp_ms=at_ms)


def customers(name: str) -> list[Fact]:
    return [{"key": key, "name": name and f"{name} {key}"} for key in KEYS]


def orders(first: int) -> list[Fact]:
    return [{"key": key, "number": first + index} for index, key in enumerate(KEYS)]


def named(service: Rehearsal) -> list[list[Any]]:
    return sorted(envelope.payload_as(list) for envelope in service.published("named"))


def expected(first: int, name: str | None) -> list[list[Any]]:
    return [[first + index, name and f"{name} {key}"] for index, key in enumerate(KEYS)]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("table", ["customers", "customers.again"])
def test_the_last_version_holds_at_all_times(table: str, parts: int) -> None:
    """It is written later than the orders, and its records bear later times."""
    log = MemoryLog(f"static-{table}-{parts}")
    for topic in ("orders", "customers"):
        log.create_topic(topic, 2)
    relay = Flow("relay")
    relay.source("customers", dict, raw=True).to("customers.again", key=key_of, partitions=2)
    upstream, service = Rehearsal(relay, log=log), joining(log, table, parts=parts)
    wanted: list[list[Any]] = []
    for number, name in enumerate(("Ann", "Bob", "")):
        feed(service, "orders", *orders(10 * number), at_ms=OLD_MS - number)
        feed(upstream, "customers", *customers(name), at_ms=NOW_MS + number)
        upstream.run_until_caught_up()
        service.crash(step=7 if number else 5)
        service.run_until_caught_up()
        wanted += expected(10 * number, name or None)
    assert sorted(map(list, {tuple(one) for one in named(service)})) == wanted
    assert not any("none of" in str(event["text"]) for event in service.events("notice"))
    service.rebuild()
    service.run_until_caught_up()
    feed(service, "orders", *orders(100), at_ms=OLD_MS)
    service.run_until_caught_up()
    assert named(service)[-len(KEYS) :] == expected(100, None)


def test_files_need_no_times_there(tmp_path: Path) -> None:
    file = tmp_path / "customers.jsonl"
    file.write_text("".join(f'{{"key": "{key}", "name": "Ann {key}"}}\n' for key in KEYS))
    log = MemoryLog("static-files")
    log.create_topic("orders", 2)
    service = joining(log, str(file))
    feed(service, "orders", *orders(0), at_ms=OLD_MS)
    service.run_until_caught_up()
    assert named(service) == expected(0, "Ann")


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_that_finds_nothing_reports_it_once(how: str) -> None:
    log = MemoryLog(f"unmatched-{how}")
    for topic in ("orders", "customers"):
        log.create_topic(topic, 2)
    service = joining(log, "customers", static=False, how=how)
    for number in range(3):
        feed(service, "orders", *orders(10 * number), at_ms=OLD_MS + number)
        service.run_until_caught_up()
    feed(service, "customers", *customers("Ann"), at_ms=OLD_MS + 5)
    service.run_until_caught_up()
    (text,) = (
        event["text"] for event in service.events("notice") if "has found anything" in str(event["text"])
    )
    assert "stage 'with-names': none of" in str(text)
    assert "static=True" in str(text)
    counted: list[Any] = [event["counts"] for event in service.events("filtered")]
    assert sum(one["with-names/unmatched"] for one in counted) == 3 * len(KEYS)
    feed(service, "orders", *orders(100), at_ms=OLD_MS + 6)
    feed(service, "customers", *customers("Ann"), at_ms=OLD_MS + 7)
    service.run_until_caught_up()
    assert named(service)[-len(KEYS) :] == expected(100, "Ann")
    assert len(service.events("filtered")) == 3


def refused(*, timestamp: Any = None, then: str = "") -> None:
    flow = Flow("wrong")
    orders, table = (
        flow.source("orders", dict, raw=True),
        flow.source("t", dict, raw=True, timestamp=timestamp),
    )
    changes = table.key_by(key_of)
    if then == "stage":
        changes = changes.deduplicate_by_key("once", interval_ms=5)
        orders = orders.deduplicate_by_key("once-too", interval_ms=5)
    joined = orders.key_by(key_of).join_table("join", changes, both, static=True)
    joined.to("out", partitions=1)
    if then == "output":
        table.to("copies", partitions=1)
    elif then == "window":
        changes.windowed("w", Tumbling(5), state=dict, fold=lambda s, v: None).to("w", partitions=1)
    elif then == "first":
        changes.map(lambda one: one).join_table("other", orders.key_by(key_of).map(lambda one: one), both).to(
            "o", partitions=1
        )
    flow.compile()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"timestamp": lambda _: 5}, "remove timestamp= from source 't'"),
        ({"then": "stage"}, "comes from a stage"),
        ({"then": "output"}, "nothing else can take them"),
        ({"then": "window"}, "nothing else can take them"),
        ({"then": "first"}, "nothing else can take them"),
    ],
)
def test_what_has_no_times_goes_nowhere_else(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(FlowError, match=why):
        refused(**wrong)


@pytest.mark.parametrize("setting", [{"history_ms": 5}, {"guard": None}, {"static": 1}])
def test_settings_without_effect_are_refused(setting: dict[str, Any]) -> None:
    flow = Flow("wrong")
    orders, table = (flow.source(topic, dict, raw=True).key_by(key_of) for topic in ("orders", "t"))
    with pytest.raises(FlowError, match=r"static"):
        orders.join_table("join", table, both, **{"static": True, **setting})


@pytest.mark.parametrize("table", ["an-early-name", "some-late-name"])
@pytest.mark.parametrize("after_ms", [(1, 2, 3), (1, 1, 1), (5, 3, 4)], ids=["rising", "equal", "falling"])
def test_a_change_that_is_read_with_a_value_comes_before_it_whatever_its_time(
    after_ms: tuple[int, ...], table: str
) -> None:
    flow = Flow("at-once", state_partitions=2)
    values, changes = (flow.source(topic, dict, raw=True).key_by(key_of) for topic in ("orders", table))
    values.join_table("with-names", changes, both, static=True).to("named", partitions=1)
    service = Rehearsal(flow, partitions={"orders": 2, table: 2})
    for number, time_ms in enumerate(after_ms):
        feed(service, table, *customers(f"name {number}"), at_ms=OLD_MS)
        feed(service, "orders", *orders(10 * number), at_ms=OLD_MS + time_ms)
        service.run_until_caught_up()
    assert named(service) == [pair for number in range(3) for pair in expected(10 * number, f"name {number}")]
