"""Goal: results of windows are typed values for the steps after them, and rows of JSON in topics, exact through rebuilds."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow
from sqe_chain.stages import Sessions, Tumbling, Window, WindowResult
from sqe_chain.testing import Rehearsal
from tests.support.windows_of_windows import HOUR_MS, Total, add, feed, flow_of, rows


def expected() -> tuple[list[Any], list[Any]]:
    service = Rehearsal(flow_of(), partitions={"in": 2})
    feed(service, 0, 400)
    service.run_until_caught_up()
    return rows(service, "hours"), rows(service, "days")


def test_steps_after_windows_read_typed_results() -> None:
    service = Rehearsal(flow_of(), partitions={"in": 2})
    feed(service, 0, 400)
    service.run_until_caught_up()
    hours, days = rows(service, "hours"), rows(service, "days")
    assert hours[0] == {"key": "a0", "start_ms": 0, "end_ms": HOUR_MS, "state": {"events": 1, "screws": 0}}
    assert len(days) >= 8
    assert all(day["hours"] == sorted(day["hours"]) for day in days), "taken in the order of their times"
    still_open = sum(window.state.screws for window in service.windows("days"))
    assert sum(day["sum"] for day in days) + still_open == sum(one["state"]["screws"] for one in hours)


def test_a_result_waits_in_the_store_and_keeps_its_type() -> None:
    """A partition that is behind holds hours back before the second stage, from one batch to the next."""
    whole = expected()
    service = Rehearsal(flow_of(), partitions={"in": 2})
    for partition in (0, 1):
        for number in range(partition, 400, 2):
            robot = f"{'ab'[number % 2]}{number % 3}"
            service.feed(
                "in", {"robot": robot, "screws": number % 4, "at": number * HOUR_MS // 3}, partition=partition
            )
        service.batch()
        service.restart()
    service.run_until_caught_up()
    assert (rows(service, "hours"), rows(service, "days")) == whole


@pytest.mark.parametrize(("state", "name"), [(Total, "json:Window[Total]"), (dict, "json:")])
def test_another_flow_reads_the_rows_with_their_type(state: Any, name: str) -> None:
    upstream = Rehearsal(flow_of(state), partitions={"in": 2})
    feed(upstream, 0, 40)
    upstream.run_until_caught_up()
    assert {envelope.type for envelope in upstream.published("hours")} == {name}
    flow = Flow("reader", state_partitions=2)
    flow.source("hours", Window[Total]).aggregate(
        "sums",
        key=lambda hour: hour.key,
        state=Total,
        fold=lambda total, hour: add(total, {"screws": hour.state.screws}),
    )
    reader = Rehearsal(flow, partitions={"hours": 2}, log=upstream.log)
    reader.run_until_caught_up()
    found = {key.decode(): total.screws for key, total in reader.states("sums").items()}
    sums: dict[str, int] = {}
    for row in rows(upstream, "hours"):
        sums[row["key"]] = sums.get(row["key"], 0) + row["state"]["screws"]
    assert found == sums != {}


def test_a_session_and_a_key_that_is_not_text() -> None:
    flow = Flow("sessions", state_partitions=1)
    flow.source("in", dict, raw=True).windowed(
        "visits",
        Sessions(10),
        key=lambda _: b"\xff\x00",
        state=dict,
        fold=add,
        merge=add,
    ).to("out", partitions=1)
    service = Rehearsal(flow)
    for at_ms in (1, 5, 20):
        service.feed("in", {"screws": 2}, timestamp_ms=at_ms)
    service.run_until_caught_up()
    (envelope,) = service.published("out")
    assert envelope.key == b"\xff\x00"
    assert envelope.payload_as(dict) == {"key": "0xff00", "start_ms": 1, "end_ms": 5, "state": {"screws": 4}}


def test_states_in_protobuf_give_the_message_as_ever() -> None:
    flow = Flow("messages", state_partitions=1)

    def count(total: Int64Value, _: object) -> None:
        total.value += 1

    flow.source("in", dict, raw=True).windowed(
        "hours", Tumbling(10), key=lambda _: "k", state=Int64Value, fold=count
    ).to("out", partitions=1)
    service = Rehearsal(flow)
    for at_ms in (1, 20):
        service.feed("in", {}, timestamp_ms=at_ms)
    service.run_until_caught_up()
    (envelope,) = service.published("out")
    state = Int64Value(value=1).SerializeToString()
    assert envelope.payload_as(WindowResult) == WindowResult(
        key=b"k", start_ms=0, end_ms=10, type="google.protobuf.Int64Value", state=state
    )
    assert envelope.type == "sqe_chain.v1.WindowResult"
