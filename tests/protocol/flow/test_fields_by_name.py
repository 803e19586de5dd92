"""Goal: where a function gives a key, an id or a time, the name of a field does the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sqe_chain.engines.packing import PackedFlow
from sqe_chain.errors import FlowError
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal

ORDERS = [
    {"id": "1", "robot": "A", "meta": {"line": "x"}, "at": "2026-11-28T10:00:00Z"},
    {"id": "1", "robot": "A", "meta": {"line": "x"}, "at": "2026-11-28T10:00:01Z"},
    {"id": "2", "robot": "B", "meta": {"line": "x"}, "at": "2026-11-28T10:59:00Z"},
    {"id": "3", "robot": "A", "meta": {"line": "y"}, "at": "2026-11-28T12:00:00Z"},
]


class Order(msgspec.Struct):
    id: str
    robot: str
    meta: dict[str, str]
    at: str


def count_one(state: dict[str, int], value: object) -> None:
    del value
    state["n"] = state.get("n", 0) + 1


def declared(python_type: type[Any], read: Callable[[str], Any]) -> Flow:
    flow = Flow("orders")
    orders: Any = flow.source("in", python_type, raw=True, timestamp=read("at"))
    fresh = orders.deduplicate("once", read("id"), 60_000)
    by_robot = fresh.key_by(read("robot"))
    by_robot.to("by-robot", partitions=3)
    fresh.to("by-line", partitions=3, key=read("meta.line"))
    fresh.aggregate("totals", state=dict, fold=count_one, key=read("robot"))
    hours = fresh.windowed("hours", Tumbling(3_600_000), state=dict, fold=count_one, key=read("meta.line"))
    hours.to("hours", partitions=2, key=read("key"))
    return flow


def field(path: str) -> Callable[[Any], Any]:
    def found(value: Any) -> Any:
        for name in path.split("."):
            value = value[name] if isinstance(value, dict) else getattr(value, name)
        return value

    return found


def everything(flow: Flow) -> list[object]:
    service = Rehearsal(flow)
    for order in ORDERS:
        service.feed("in", order)
    service.close_windows()
    published = [
        (topic, one.key, one.timestamp_ms, one.payloads_as(dict))
        for topic in ("by-robot", "by-line", "hours")
        for one in service.published(topic)
    ]
    return [published, service.states("totals")]


@pytest.mark.parametrize("python_type", [dict, Order])
def test_the_name_of_a_field_does_what_its_function_does(python_type: type[Any]) -> None:
    found = everything(declared(python_type, str))
    assert found == everything(declared(python_type, field))
    published: Any = found[0]
    assert len(published) == 3 + 3 + 2


def test_it_reaches_other_processes() -> None:
    packed = PackedFlow.of(declared(Order, str).compile())
    unpacked = pickle.loads(pickle.dumps(packed)).unpack()  # noqa: S301 - our own
    (source,) = unpacked.sources
    assert source.timestamp.function(msgspec.convert(ORDERS[0], Order)) == "2026-11-28T10:00:00Z"


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda flow: flow.source("in", Order, timestamp="time"), "timestamp='time': Order has no field 'time'"),
        (lambda flow: orders(flow).key_by("robto"), "key='robto': Order has no field 'robto'"),
        (lambda flow: orders(flow).to("out", partitions=1, key="meta"), "key='meta' is of type dict, and keys"),
        (lambda flow: orders(flow).deduplicate("once", "idd", 1), "id='idd': Order has no field 'idd'"),
        (lambda flow: orders(flow).key_by(None), "key needs a function, got None"),
    ],
)  # fmt: skip
def test_a_field_that_values_do_not_have_is_refused(declare: Callable[[Flow], object], text: str) -> None:
    with pytest.raises(FlowError, match=text):
        declare(Flow("orders"))


def orders(flow: Flow) -> Any:
    return flow.source("in", Order, raw=True)
