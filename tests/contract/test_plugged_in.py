"""Goal: a store and a codec of other packages give the same on a real Kafka, in one process and over two workers.

The codec has a setting, which decides what is between fields in each topic: workers must have it, and know their topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.codecs import codec_named
from sqe_chain.engines.workers import Team, WorkersEngine
from sqe_chain.envelope.message import read
from sqe_chain.flow import Flow
from sqe_chain.ports import Output
from tests.support.engine_runs import Made, Run, everything, in_process
from tests.support.plugins import install


@dataclass
class Report:
    robot: str = ""
    screws: int = 0


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with install(tmp_path, monkeypatch):
        yield


@pytest.fixture(params=["in process", "two workers"])
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    if request.param == "in process":
        yield in_process
        return
    team = Team(2, "workers of a test")
    yield lambda flow, log, stores: WorkersEngine(flow.compile(), log, stores, team)
    team.close()


def add(total: Int64Value, report: Report) -> list[Report]:
    total.value += report.screws
    return [Report(report.robot, total.value)]


def twice(report: Report) -> Report:
    return Report(report.robot, 2 * report.screws)


def names_robot(report: Report) -> str:
    return report.robot


def test_a_flow_with_a_store_and_a_codec_of_other_packages(kafka: str, tmp_path: Path, made: Made) -> None:
    log, name = KafkaLog(kafka), f"plugged-{uuid.uuid4().hex[:8]}"
    one, two, out = f"{name}.one", f"{name}.two", f"{name}.out"
    for topic in (one, two):
        log.create_topic(topic, 2)
    writer = log.writer()
    records: list[Output] = []
    for number in range(60):
        robot, screws = "abc"[number % 3], 1 << number % 20
        records.append((one, number % 2, None, f"{robot};{screws}".encode(), None, 1_000))
        records.append((two, number % 2, None, f"{robot}/{screws}".encode(), None, 1_000))
    writer.write(records)
    writer.flush()
    writer.close()
    make: Any = codec_named("pipes")
    codec = make(Report, separators={one: ";", two: "/", out: "+"})
    flow = Flow(name, state_partitions=2)
    totals = (
        flow.source((one, two), Report, codec=codec, raw=True)
        .map(twice)
        .stage("all", "keep-first", key=names_robot, count=1_000)
    )
    totals.aggregate("screws", key=names_robot, state=Int64Value, fold=add).to(out, partitions=1, codec=codec)
    run = Run(flow, log, open_store(f"folder://{tmp_path}/states"), made)
    run.until_caught_up()
    expected = {
        robot: 4 * sum(1 << number % 20 for number in range(60) if "abc"[number % 3] == robot)
        for robot in "abc"
    }
    stored = {
        key.decode(): Int64Value.FromString(state).value
        for (stage, _), states in run.states().items()
        for key, state in states.items()
        if stage == "screws"
    }
    assert stored == expected
    payloads = [payload for _, message in everything(log, out) for payload in read(message.value()).payloads]
    assert len(payloads) == 120
    most = dict.fromkeys("abc", 0)
    for payload in payloads:
        robot, _, total = (payload or b"").decode().partition("+")
        most[robot] = max(most[robot], int(total))
    assert most == expected
    log.close()
