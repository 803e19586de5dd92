"""Goal: trace, why-not, audit and doctor answer on real servers. Method: two services on Kafka and Redis, one repeats itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from confluent_kafka import Consumer, TopicPartition
from google.protobuf.wrappers_pb2 import Int64Value
from typer.testing import CliRunner, Result

from sqe_chain import read, run, wrap
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.cli.commands import application

MODULE = """
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow


def add(state, value):
    state.value += value.value


def key_of(value):
    return f"k{value.value % 3}"


def is_small(value):
    return value.value < 100


up = Flow("NAME-up")
up.source("NAME.raw", Int64Value).to("NAME.numbers", key=key_of, partitions=2)
totals = Flow("NAME-totals", state_partitions=2)
totals.source("NAME.numbers", Int64Value).filter(is_small).aggregate("total", key=key_of, state=Int64Value, fold=add)
"""
VALUES = [*range(30), 500]


@pytest.fixture
def command(
    kafka: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Result]]:
    """Runs a command on a chain of two services. The republisher has published its output twice."""
    name = f"explain-{uuid4().hex[:8]}"
    module = name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(MODULE.replace("NAME", name), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    log = KafkaLog(kafka)
    for topic, partitions in ((f"{name}.raw", 2), (f"{name}.numbers", 2)):
        log.create_topic(topic, partitions)
    writer = log.writer()
    writer.connect([f"{name}.raw"])
    writer.write(
        [
            (
                f"{name}.raw",
                number % 2,
                None,
                wrap(Int64Value(value=value), key=None, timestamp_ms=number),
                None,
                number,
            )
            for number, value in enumerate(VALUES)
        ]
    )
    writer.flush()
    writer.close()
    flows = __import__(module)
    servers = ("--kafka", kafka, "--store", redis_url)

    def call(command: str, flow: str, *arguments: str) -> Result:
        target = f"{module}:{flow}"
        return CliRunner(env={"COLUMNS": "200"}).invoke(
            application(command), [command, target, *arguments, *servers]
        )

    run(flows.up, kafka=kafka, engine="inprocess", once=True, log="json")
    rewound = CliRunner().invoke(
        application("rewind"),
        ["rewind", f"{module}:up", "--to", f"{name}.raw[0]=5", "--republish", *servers],
    )
    assert rewound.exit_code == 0, rewound.stderr
    run(flows.up, kafka=kafka, engine="inprocess", once=True, log="json")
    run(
        flows.totals,
        kafka=kafka,
        store=redis_url,
        engine="inprocess",
        once=True,
        log="json",
        allow_weak_durability=True,
    )
    call.name = name  # type: ignore[attr-defined]
    yield call
    del sys.modules[module]


def records_of(kafka: str, topic: str) -> list[tuple[str, int]]:
    """Place and value of each record, read by a plain consumer."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": uuid4().hex, "enable.auto.commit": False})
    records: list[tuple[str, int]] = []
    for partition in (0, 1):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition))
        consumer.assign([TopicPartition(topic, partition, low)])
        while high and (not records or not records[-1][0].endswith(f"[{partition}]@{high - 1}")):
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            value = read(message.value()).payload_as(Int64Value).value
            records.append((f"{topic}[{partition}]@{message.offset()}", value))
    consumer.close()
    return records


def test_values_and_records_are_explained(command: Callable[..., Result], kafka: str, redis_url: str) -> None:
    name = command.name  # type: ignore[attr-defined]
    traced = command("trace", "totals", "total", "k1", "--format", "json")
    assert traced.exit_code == 0, traced.stderr
    found = json.loads(traced.stdout)
    assert found["equal"] is True
    assert len(found["records"]) == 10
    assert found["records"][-1]["state"] == sum(value for value in VALUES if value < 100 and value % 3 == 1)
    assert len(found["replays"]) > 2
    first: set[int] = set()
    for place, value in records_of(kafka, f"{name}.numbers"):
        fate = json.loads(command("why-not", "totals", place, "--json").stdout)
        expected = "replay" if value in first else "filtered" if value == 500 else "counted"
        assert fate["verdict"] == expected, (place, value, fate)
        first.add(value)
    assert command("audit", "totals").exit_code == 0
    client = redis.Redis.from_url(redis_url)
    (row,) = [
        key
        for key in client.scan_iter(match=f"*{name}-totals*total*")
        if client.type(key) == b"hash" and client.hexists(key, "k1")
    ]
    client.hset(row, "k1", Int64Value(value=1).SerializeToString())
    altered = command("audit", "totals", "--json")
    assert altered.exit_code == 1
    assert json.loads(altered.stdout)["different"] == ["k1"]
    examined = command("doctor", "totals", "--json")
    findings = [json.loads(line) for line in examined.stdout.splitlines()]
    assert {finding["check"] for finding in findings if finding["severity"] == "error"} <= {"weak-store"}
    assert "one-replica" in {finding["check"] for finding in findings}
