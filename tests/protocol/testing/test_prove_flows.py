"""Goal: exact flows are proven, whatever they are made of. Method: one flow for each kind of part; few schedules, all of them counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from services import fastening
from services._proto.fastening_pb2 import Fastening, RawReport
from sqe_chain import Flow
from sqe_chain.errors import NotDeterministic
from sqe_chain.flow import Context, Timer, count, max_, sum_
from sqe_chain.stages import Sessions, Tumbling
from sqe_chain.testing import Feed, Finding, Proof, prove
from sqe_chain.testing.proving.other_process import HASH_SEEDS
from tests.support import file_flows

MINUTE_MS = 60_000
Event = dict[str, Any]


class Reading(msgspec.Struct):
    robot: str
    at_ms: int
    bar: float = 0.0


def events(number: int) -> list[Event]:
    return [{"robot": f"r{n % 3}", "n": n, "at_ms": n * 20_000} for n in range(number)]


def robot_of(event: Event) -> str:
    return str(event["robot"])


def at_ms(event: Event) -> int:
    return int(event["at_ms"])


def count_event(state: Event, event: Event) -> None:
    state["count"] = state.get("count", 0) + 1
    state["last"] = event["n"]


def merge_counts(state: Event, later: Event) -> None:
    state["count"] += later["count"]
    state["last"] = later["last"]


def both(event: Event, other: Event | None) -> Event:
    return {"robot": event["robot"], "n": event["n"], "other": other and other["n"]}


def proven(flow: Flow, inputs: Any, *, schedules: int = 30, **settings: Any) -> Proof:
    """Enough time for all schedules on any machine; other processes have tests of their own."""
    proof = prove(flow, inputs, seconds=600, schedules=schedules, other_processes=False, **settings)
    assert proof.schedules == schedules
    return proof


def reports(numbers: Sequence[int]) -> Iterator[RawReport]:
    for number in numbers:
        report = RawReport(number=number)
        for robot in range(2):
            added = report.robots.add(robot=f"robot-{robot}", line=f"line-{robot}")
            added.joints.add(joint="j1", fastened=number, failed=number % 2, torque_mnm=7)
        yield report


def test_the_services_of_the_demo_are_exact() -> None:
    republisher = proven(
        fastening.standard, {"robot.raw": list(reports(range(6)))}, partitions={"robot.raw": 2}
    )
    assert republisher.replays >= 3
    fed = [
        Feed(
            "robot.fastenings", Fastening(robot=f"r{n % 3}", line="l", report=n, fastened=n), key=f"r{n % 3}"
        )
        for n in range(10)
    ]
    totals = proven(fastening.totals, fed, partitions={"robot.fastenings": 4}, schedules=90)
    assert totals.faults["takeover"] > 10
    assert totals.points["seal"][0] > 1
    assert {"prefix", "redo", "commit", "order", "one writer", "plans", "rest"} <= set(totals.checked)
    two_stores = proven(fastening.totals_in_two_stores, fed, partitions={"robot.fastenings": 4})
    assert two_stores.functions == totals.functions == 4


def test_windows_of_each_kind() -> None:
    flow = Flow("windows", state_partitions=2)
    stream = flow.source("in", dict, raw=True, timestamp=at_ms)
    stream.windowed("minutes", Tumbling(MINUTE_MS), key=robot_of, state=dict, fold=count_event).to(
        "minutes", partitions=2
    )
    stream.windowed(
        "visits", Sessions(70_000), key=robot_of, state=dict, fold=count_event, merge=merge_counts
    ).to("visits", partitions=1)
    proof = proven(flow, {"in": events(12)}, partitions={"in": 2})
    assert any("replays of topic 'in': it is read raw" in text for text in proof.not_reached)


def test_joins() -> None:
    flow = Flow("joins", state_partitions=2)
    orders = flow.source("orders", dict, timestamp=at_ms).key_by(robot_of)
    others = flow.source("others", dict, timestamp=at_ms).key_by(robot_of)
    orders.join_table("named", others, both, how="left").to("named", partitions=2)
    orders.join_stream("paired", others, both, before_ms=30_000, after_ms=30_000, how="left").to(
        "paired", partitions=1
    )
    proof = proven(flow, {"orders": events(8), "others": events(6)})
    assert proof.replays >= 3


def test_several_outputs_of_one_input() -> None:
    """What waits for the other topic, what is dropped, and early results: of inputs that have three values of two keys."""

    def three(event: Event) -> list[Event]:
        return [{**event, "robot": robot} for robot in ("r1", "r2", "r1")]

    flow = Flow("several", state_partitions=2)
    values = flow.source("orders", dict, timestamp=at_ms).flat_map(three).key_by(robot_of)
    others = flow.source("others", dict, timestamp=at_ms).flat_map(three).key_by(robot_of)
    values.join_table("named", others, both, how="left").to("named", partitions=2)
    once = values.deduplicate("once", lambda event: str(event["n"]), 10 * MINUTE_MS)
    once.to("firsts", key=lambda _: "all", partitions=1)
    once.dropped().to("twins", key=lambda _: "all", partitions=1)
    hours = values.merge(others).windowed("hours", Tumbling(MINUTE_MS), state=dict, fold=count_event)
    hours.to("closed", key=lambda _: "all", partitions=1)
    hours.changes().to("early", key=lambda _: "all", partitions=1)
    proven(flow, {"orders": events(8), "others": events(6)})


def test_timers_of_both_clocks() -> None:
    def remind(state: Event, event: Event, context: Context) -> None:
        count_event(state, event)
        context.set_timer(event["at_ms"] + 30_000)
        context.set_timer(context.now_ms + 1_000, "later", clock="batch")

    def fire(state: Event, timer: Timer, context: Context) -> list[Event]:
        if timer.clock == "batch":
            context.delete_state()
        return [
            {"robot": (context.key or b"").decode(), "count": state.get("count", 0), "timer": timer.at_ms}
        ]

    flow = Flow("timers", state_partitions=2)
    stage = flow.source("in", dict, timestamp=at_ms).aggregate(
        "open", key=robot_of, state=dict, fold=remind, on_timer=fire
    )
    stage.to("fired", key=robot_of, partitions=1)
    stage.changes().to("open", partitions=1)
    assert proven(flow, {"in": events(9)}).functions == 5


def test_timers_of_a_later_day_fire_and_are_watched() -> None:
    """The clock does not move within a half of the inputs, and a day passes between the two."""

    def remind(state: Event, event: Event, context: Context) -> None:
        count_event(state, event)
        context.set_timer(context.now_ms + 12 * 60 * MINUTE_MS, clock="batch")

    def fire(_state: Event, _timer: Timer) -> list[Event]:
        return [{"at": random()}]

    flow = Flow("timers-of-tomorrow", state_partitions=1)
    stage = flow.source("in", dict).aggregate("open", key=robot_of, state=dict, fold=remind, on_timer=fire)
    stage.to("fired", partitions=1)
    with pytest.raises(NotDeterministic) as raised:
        proven(flow, {"in": events(4)}, schedules=1)
    (finding,) = raised.value.findings
    assert isinstance(finding, Finding)
    assert finding.function.endswith(".fire")


def test_functions_over_batches_and_declared_aggregates() -> None:
    def doubled(batch: Any) -> Any:
        return batch.set_column(1, "at_ms", pc.multiply(batch["at_ms"], pa.scalar(2)))

    flow = Flow("columns", state_partitions=2)
    stream = flow.source("in", Reading, codec="json", raw=True).map_batches(doubled, Reading)
    totals = stream.aggregate("per-robot", key="robot", events=count(), total=sum_("at_ms"), top=max_("bar"))
    totals.changes().to("totals", partitions=1)
    proof = proven(flow, {"in": [Reading(f"r{n % 2}", n, n / 2) for n in range(9)]})
    assert proof.functions == 1, "what this package makes of names is not the user's"


def test_filters_and_what_they_drop() -> None:
    flow = Flow("filters", state_partitions=2, poison="dead_letter")
    once = flow.source("in", dict, timestamp=at_ms).deduplicate(
        "once", interval_ms=60_000, id=lambda event: str(event["n"])
    )
    once.map(lambda event: {**event, "inverse": 1 / (event["n"] - 3)}).to("out", key=robot_of, partitions=2)
    once.dropped().to("dropped", partitions=1)
    proof = proven(flow, {"in": [*events(6), *events(2)]}, partitions={"in": 1})
    assert proof.checked["redo"] > 0


def test_a_table_is_written_elsewhere(tmp_path: Path) -> None:
    flow = Flow("table", state_partitions=2)
    flow.source("in", Reading).ingest("readings", partition_key="robot", row_key="at_ms", at=str(tmp_path))
    proof = proven(flow, {"in": [Reading(f"r{n % 2}", n, n / 2) for n in range(6)]}, schedules=40)
    assert list(tmp_path.iterdir()) == []
    assert proof.points["persist"][1] > 8


def test_a_flow_with_a_table_in_memory_is_compared_with_other_processes() -> None:
    flow = Flow("table-in-memory", state_partitions=2)
    readings = flow.source("in", Reading).filter(lambda one: one.bar >= 0)
    readings.ingest("readings", partition_key="robot", row_key="at_ms", at="memory://other-processes")
    events = {"in": [Reading(f"r{n % 2}", n, n / 2) for n in range(6)]}
    proof = prove(flow, events, schedules=3, seconds=60, progress=False)
    assert proof.processes == len(HASH_SEEDS)


def test_files_are_read_where_they_are(tmp_path: Path) -> None:
    file_flows.write(tmp_path / "a.jsonl", file_flows.rows_of(1, 5))
    flow = Flow("files", state_partitions=2)
    rows = flow.files("rows", file_flows.Fastening, str(tmp_path / "*.jsonl"))
    rows.aggregate("sum", key=lambda row: row.robot, state=file_flows.Total, fold=file_flows.add)
    assert proven(flow, {}).records == 0


@pytest.mark.parametrize("carrier", ["value", "headers"])
def test_both_carriers_of_chains(carrier: Any) -> None:
    flow = Flow("carried", state_partitions=1)
    stream = flow.source("in", Int64Value)
    stream.aggregate(
        "sum", key=lambda _: "k", state=Int64Value, fold=lambda a, b: setattr(a, "value", a.value + b.value)
    )
    stream.map(lambda n: Int64Value(value=2 * n.value)).to(
        "out", partitions=1, carrier=carrier, key=lambda n: str(n.value % 2)
    )
    assert proven(flow, {"in": [Int64Value(value=n) for n in range(5)]}).replays >= 3
