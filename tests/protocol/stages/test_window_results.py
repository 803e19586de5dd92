"""Goal: results of windows are typed values for the steps after them, and rows of JSON in topics, exact through rebuilds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow
from sqe_chain.stages import Sessions, Tumbling, Window, WindowResult
from sqe_chain.testing import Crash, Rehearsal
from tests.support.rebuilding import rebuild_after_a_crash
from tests.support.suites import points

HOUR_MS = 3_600_000


class Total(msgspec.Struct):
    events: int = 0
    screws: int = 0


@dataclass
class Day:
    hours: list[int] = field(default_factory=list)
    screws: int = 0


def add(total: Any, event: dict[str, Any]) -> None:
    if isinstance(total, dict):
        total["screws"] = total.get("screws", 0) + event["screws"]
    else:
        total.events += 1
        total.screws += event["screws"]


def add_hour(day: Day, hour: Window[Total]) -> None:
    day.hours.append(hour.start_ms // HOUR_MS)
    day.screws += hour.state.screws


def of_day(window: Window[Day]) -> dict[str, Any]:
    return {"day": window.start_ms, "of": window.key, "hours": window.state.hours, "sum": window.state.screws}


def flow_of(state: Any = Total, **settings: Any) -> Flow:
    """Hours of each robot, then days of each line: the hours pass a shuffle, and wait there for their order."""
    flow = Flow("screws", state_partitions=3, **settings)
    hours: Any = flow.source("in", dict, raw=True, timestamp=lambda event: event["at"]).windowed(
        "hours", Tumbling(HOUR_MS), key=lambda event: event["robot"], state=state, fold=add
    )
    hours.to("hours", partitions=2)
    if state is Total:
        hours.filter(lambda hour: hour.state.screws > 0).windowed(
            "days", Tumbling(24 * HOUR_MS), key=lambda hour: hour.key[:1], state=Day, fold=add_hour
        ).map(of_day).to("days", partitions=1)
    return flow


def feed(service: Rehearsal, begin: int, end: int) -> None:
    for number in range(begin, end):
        robot = f"{'ab'[number % 2]}{number % 3}"
        event = {"robot": robot, "screws": number % 4, "at": number * HOUR_MS // 3}
        service.feed("in", event, partition=number % 2)


def rows(service: Rehearsal, topic: str) -> list[Any]:
    """What was published, without what a crash has published twice."""
    found = {
        (envelope.lane, envelope.position): envelope.payload_as(dict) for envelope in service.published(topic)
    }
    return sorted(found.values(), key=str)


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


def test_a_rebuild_that_dies_anywhere_and_is_resumed_gives_each_result_once() -> None:
    """Also in its last batch: what had been closed then is closed without being published again."""
    calm = grown()
    calm.rebuild()
    feed(calm, 400, 460)
    calm.run_until_caught_up()
    for at in points("a rebuild of windows that dies"):
        service = grown()
        service.crash_at_write(at, "after")
        try:
            service.rebuild()
        except Crash:
            service.script.writes.clear()
            rebuild_after_a_crash(service, resume=True)
        else:
            assert at > 5
            return
        feed(service, 400, 460)
        service.run_until_caught_up()
        for topic in ("hours", "days"):
            assert len(service.published(topic)) == len(calm.published(topic)), (at, topic)
            assert rows(service, topic) == rows(calm, topic), (at, topic)


def grown() -> Rehearsal:
    service = Rehearsal(flow_of(), partitions={"in": 2})
    for begin in range(0, 400, 100):
        feed(service, begin, begin + 100)
        service.run_until_caught_up()
    return service
