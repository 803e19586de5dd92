"""Goal: the doctor finds faults of real servers. Method: a broker that soon forgets commits, and clocks that differ."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from google.protobuf.wrappers_pb2 import Int64Value
from typer.testing import CliRunner

from sqe_chain import run, wrap
from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.cli.commands import application
from sqe_chain.cli.loading import load_flow
from sqe_chain.ext.dev import KafkaServer
from sqe_chain.ext.doctor.machine import Clocked, clock_differences
from tests.support.waiting import PATIENCE_S

HOUR_MS = 3_600_000

MODULE = """
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow


def double(value):
    return Int64Value(value=2 * value.value)


doubled = Flow("{name}")
doubled.source("{name}.raw", Int64Value).map(double).to("{name}.doubled", partitions=1)
"""


@pytest.fixture(scope="module")
def forgetful() -> Iterator[str]:
    with KafkaServer(fast_boot=True, properties={"offsets.retention.minutes": "60"}) as server:
        yield server.bootstrap


def test_a_broker_reports_how_long_it_keeps_commits(kafka: str, forgetful: str) -> None:
    assert KafkaLog(kafka).commits_kept_ms() == 7 * 24 * HOUR_MS
    assert KafkaLog(forgetful).commits_kept_ms() == HOUR_MS


def findings(target: str, kafka: str) -> set[str]:
    examined = CliRunner().invoke(application("doctor"), ["doctor", target, "--kafka", kafka, "--json"])
    assert examined.exit_code == 0, examined.output
    return {json.loads(line)["check"] for line in examined.stdout.splitlines()}


def test_a_place_that_is_soon_forgotten_is_found_and_then_that_it_is_forgotten(
    forgetful: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"doctor-{uuid4().hex[:8]}"
    module = name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(MODULE.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)
    log, target = KafkaLog(forgetful), f"{module}:doubled"
    log.create_topic(f"{name}.raw", 1)
    log.create_topic(f"{name}.doubled", 1)
    flow = load_flow(target)
    producer = Producer({"bootstrap.servers": forgetful, "acks": "all"})
    for number in range(5):
        producer.produce(f"{name}.raw", wrap(Int64Value(value=number), key="k", timestamp_ms=1_000))
    assert producer.flush(PATIENCE_S) == 0

    run(flow, kafka=forgetful, engine="inprocess", once=True, log="json")
    assert {"short-commits"} == findings(target, forgetful) & {"short-commits", "place-lost"}
    log.delete_group(name)
    assert "place-lost" in findings(target, forgetful)


@pytest.mark.parametrize("server", ["redis", "cassandra"])
def test_a_clock_that_differs_from_that_of_a_real_server_is_measured(
    server: str, request: pytest.FixtureRequest
) -> None:
    store = open_store(request.getfixturevalue("redis_url" if server == "redis" else "cassandra_url"))
    assert isinstance(store, Clocked)

    def ahead_ms(wrong_by_ms: int) -> int:
        def clock() -> int:
            return time.time_ns() // 1_000_000 + wrong_by_ms

        (difference,) = clock_differences(store, clock).values()
        return difference

    assert ahead_ms(0) == 0
    assert HOUR_MS - PATIENCE_S * 1_000 < ahead_ms(-HOUR_MS) <= HOUR_MS
    assert -HOUR_MS <= ahead_ms(HOUR_MS) < PATIENCE_S * 1_000 - HOUR_MS
