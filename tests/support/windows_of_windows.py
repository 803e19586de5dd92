"""Hours of robots in days of lines: results of windows that are values of the next windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from sqe_chain import Flow
from sqe_chain.stages import Tumbling, Window
from sqe_chain.testing import Rehearsal

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


def grown() -> Rehearsal:
    service = Rehearsal(flow_of(), partitions={"in": 2})
    for begin in range(0, 400, 100):
        feed(service, begin, begin + 100)
        service.run_until_caught_up()
    return service
