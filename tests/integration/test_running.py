"""Goal: a flow that a Python file runs is exact through kill -9. Method: real Kafka and Redis, the file in a separate process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import Flow, read, run, running, states, wrap
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev.process import wait_until
from tests.support.waiting import PATIENCE_S

IN_PROCESS, WORKERS, SPARK = 'engine="inprocess"', 'engine="inprocess", workers=2', 'engine="spark"'

SCRIPT = """
import sys

from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import Flow, run

name, kafka, store = sys.argv[1:]


def add(total: Int64Value, word: StringValue) -> None:
    total.value += 1


totals = Flow(f"{name}-totals", state_partitions=2)
totals.source(f"{name}.words", StringValue).aggregate(
    "per-word", key=lambda word: word.value, state=Int64Value, fold=add
).changes().to(f"{name}.totals", partitions=1)

if __name__ == "__main__":
    run(totals, kafka=kafka, store=store, engine="inprocess", interval="20ms", create_topics=0, max_records=20, log="json")
"""

JSON_SCRIPT = """
import json
import sys

import msgspec

from sqe_chain import Flow, run, states


class Fastening(msgspec.Struct):
    robot: str
    line: str
    screws: int


class Passed(msgspec.Struct):
    line: str
    screws: int


class Total(msgspec.Struct):
    events: int = 0
    screws: int = 0


def add_and_pass(total: Total, found: Fastening) -> list[Passed]:
    total.events += 1
    total.screws += found.screws
    return [Passed(found.line, found.screws)]


def add(total: Total, found: Passed) -> None:
    total.events += 1
    total.screws += found.screws


name, kafka, store = sys.argv[1:]
flow = Flow(f"{name}-totals", state_partitions=2)
per_robot = flow.source(f"{name}.raw", Fastening, raw=True).aggregate(
    "per-robot", key=lambda found: found.robot, state=Total, fold=add_and_pass
)
per_robot.aggregate("per-line", key=lambda found: found.line, state=Total, fold=add).changes().to(
    f"{name}.lines", partitions=1
)

if __name__ == "__main__":
    run(flow, kafka=kafka, store=store, engine="spark", interval="1s", once=True, create_topics=0, max_records=300, log="json")
    found = {}
    for stage in ("per-robot", "per-line"):
        with states(flow, stage, store) as stored:
            found[stage] = {key: [state.events, state.screws] for key, state in stored.to_dict().items()}
    print(json.dumps(found))
"""


WINDOWS_SCRIPT = """
import sys

from sqe_chain import Flow, run
from sqe_chain.stages import Tumbling


def key(load):
    return load["machine"]


def group(window):
    return "all"


def add(state, load):
    state["loads"] = state.get("loads", 0) + 1


def add_hour(state, hour):
    state["loads"] = state.get("loads", 0) + hour.state["loads"]


name, kafka, store, engine = sys.argv[1:]
flow = Flow(f"{name}-hours", state_partitions=2)
hours = flow.source(f"{name}.raw", dict, raw=True).windowed("hours", Tumbling(3_600_000), key=key, state=dict, fold=add)
hours.to(f"{name}.hours", partitions=1)
hours.windowed("days", Tumbling(86_400_000), key=group, state=dict, fold=add_hour).to(f"{name}.days", partitions=1)

if __name__ == "__main__":
    run(flow, kafka=kafka, store=store, engine=engine, once=True, close_windows=True, create_topics=0, log="json")
"""


class Fastening(msgspec.Struct):
    robot: str
    screws: int


class Totals(msgspec.Struct):
    events: int = 0
    screws: int = 0


def add_fastening(totals: Totals, fastening: Fastening) -> None:
    totals.events += 1
    totals.screws += fastening.screws


def counted(word: StringValue) -> str:
    return word.value


def add(total: Int64Value, word: StringValue) -> None:
    total.value += 1


def totals(name: str) -> Flow:
    flow = Flow(f"{name}-totals", state_partitions=2)
    stage = flow.source(f"{name}.words", StringValue).aggregate(
        "per-word", key=counted, state=Int64Value, fold=add
    )
    stage.changes().to(f"{name}.totals", partitions=1)
    return flow


def produce(kafka: str, topic: str, count: int) -> None:
    producer = Producer(
        {"bootstrap.servers": kafka, "enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
    )
    for number in range(count):
        value = wrap(StringValue(value=f"w{number % 7}"), key=f"w{number % 7}", timestamp_ms=number)
        producer.produce(topic, value, key=f"w{number % 7}", partition=number % 2)
    assert producer.flush(60) == 0


def test_a_file_that_runs_a_flow_is_exact_through_kill_9(kafka: str, redis_url: str, tmp_path: Path) -> None:
    name = f"script-{uuid4().hex[:8]}"
    (tmp_path / "totals.py").write_text(SCRIPT, encoding="utf-8")
    log = KafkaLog(kafka)
    log.create_topic(f"{name}.words", 2)
    produce(kafka, f"{name}.words", 2_000)
    output = tmp_path / "log.jsonl"
    command = [sys.executable, "totals.py", name, kafka, redis_url]

    def start() -> subprocess.Popen[bytes]:
        with output.open("ab") as file:
            return subprocess.Popen(command, cwd=tmp_path, stderr=file)

    def committed() -> int:
        return output.read_text(encoding="utf-8").count('"committed"')

    def run_until(count: int) -> None:
        """One more run, killed when this many batches are committed over all runs."""
        process = start()
        assert wait_until(lambda: committed() >= count or process.poll() is not None, 60)
        assert process.poll() is None, output.read_text(encoding="utf-8")
        process.kill()
        process.wait(60)

    output.touch()
    for kill in range(1, 4):
        run_until(committed() + kill)
    with running(totals(name), kafka=kafka, store=redis_url, engine="inprocess", interval="50ms") as service:
        service.wait_until_caught_up()
        found = service.state("per-word").to_dict()
    assert {key: state.value for key, state in found.items()} == {
        f"w{number}": len(range(number, 2_000, 7)) for number in range(7)
    }


@pytest.mark.parametrize("engine", [IN_PROCESS, WORKERS, pytest.param(SPARK, marks=pytest.mark.release)])
def test_sigterm_ends_it_after_the_batch(kafka: str, redis_url: str, tmp_path: Path, engine: str) -> None:
    name = f"script-{uuid4().hex[:8]}"
    (tmp_path / "totals.py").write_text(SCRIPT.replace(IN_PROCESS, engine), encoding="utf-8")
    KafkaLog(kafka).create_topic(f"{name}.words", 2)
    produce(kafka, f"{name}.words", 20)
    output = tmp_path / "log.jsonl"
    with output.open("ab") as file:
        command = [sys.executable, "totals.py", name, kafka, redis_url]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=file)

    def text() -> str:
        return output.read_text(encoding="utf-8")

    assert wait_until(lambda: '"caught_up"' in text() or process.poll() is not None, 120), text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, text()
    assert '"stopped"' in text()


@pytest.mark.parametrize("engine", [WORKERS, pytest.param(SPARK, marks=pytest.mark.release)])
def test_a_script_of_json_with_types_of_its_own_is_exact_through_kill_9(
    kafka: str, redis_url: str, tmp_path: Path, engine: str
) -> None:
    """Other processes compute with types and lambdas that they cannot import."""
    name = f"script-{uuid4().hex[:8]}"
    (tmp_path / "totals.py").write_text(JSON_SCRIPT.replace(SPARK, engine), encoding="utf-8")
    KafkaLog(kafka).create_topic(f"{name}.raw", 2)
    producer = Producer(
        {"bootstrap.servers": kafka, "enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
    )
    for number in range(1_000):
        value = {"robot": f"r{number % 7}", "line": f"l{number % 3}", "screws": number % 4, "more": None}
        producer.produce(f"{name}.raw", json.dumps(value), partition=number % 2)
    assert producer.flush(60) == 0
    output = tmp_path / "log.jsonl"
    command = [sys.executable, "totals.py", name, kafka, redis_url]

    def text() -> str:
        return output.read_text(encoding="utf-8")

    with output.open("ab") as file:
        process = subprocess.Popen(command, cwd=tmp_path, stderr=file)
    assert wait_until(lambda: '"committed"' in text() or process.poll() is not None, 120), text()
    assert process.poll() is None, text()
    process.kill()
    process.wait(60)
    with output.open("ab") as file:
        done = subprocess.run(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=file, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 0, text()

    def totals(group: int) -> list[list[int]]:
        numbers = [range(first, 1_000, group) for first in range(group)]
        return [[len(own), sum(number % 4 for number in own)] for own in numbers]

    found = json.loads(done.stdout)
    assert [found["per-robot"][f"r{number}"] for number in range(7)] == totals(7)
    assert [found["per-line"][f"l{number}"] for number in range(3)] == totals(3)


@pytest.mark.parametrize("engine", ["inprocess", pytest.param("spark", marks=pytest.mark.release)])
def test_a_chain_in_headers_is_read_by_anybody_and_stays_exact(
    kafka: str, redis_url: str, engine: Literal["inprocess", "spark"]
) -> None:
    name = f"plain-{uuid4().hex[:8]}"
    clean, totals = Flow(f"{name}-clean"), Flow(f"{name}-totals", state_partitions=2)
    clean.source(f"{name}.raw", Fastening, raw=True).filter(lambda found: found.screws > 0).to(
        f"{name}.screws", key=lambda found: found.robot, partitions=2, carrier="headers"
    )
    totals.source(f"{name}.screws", Fastening).aggregate("per-robot", state=Totals, fold=add_fastening)
    log = KafkaLog(kafka)
    log.create_topic(f"{name}.raw", 1)
    producer = Producer(
        {"bootstrap.servers": kafka, "enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
    )
    for number in range(300):
        producer.produce(f"{name}.raw", json.dumps({"robot": f"r{number % 3}", "screws": number % 2}))
    assert producer.flush(60) == 0
    where: Any = {"kafka": kafka, "store": redis_url, "engine": engine, "log": None, "create_topics": 0}
    run(clean, **where, once=True)
    admin = AdminClient({"bootstrap.servers": kafka})
    group = ConsumerGroupTopicPartitions(f"{name}-clean", [TopicPartition(f"{name}.raw", 0, 0)])
    admin.alter_consumer_group_offsets([group])[f"{name}-clean"].result()
    run(clean, **where, once=True)  # it publishes everything again
    run(totals, **where, once=True)
    with states(totals, "per-robot", redis_url) as found:
        assert found.to_dict() == {f"r{robot}": Totals(50, 50) for robot in range(3)}
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([f"{name}.screws"])
    messages = consumer.consume(300, timeout=PATIENCE_S)
    consumer.close()
    assert [json.loads(message.value() or b"")["screws"] for message in messages] == [1] * 300
    assert {dict(message.headers() or [])["content-type"] for message in messages} == {b"application/json"}
    assert len({dict(message.headers() or [])["ce_id"] for message in messages}) == 150


@pytest.mark.parametrize("engine", ["inprocess", pytest.param("spark", marks=pytest.mark.release)])
def test_loads_day_after_day_close_all_windows(
    kafka: str, redis_url: str, tmp_path: Path, engine: Literal["inprocess", "spark"]
) -> None:
    """Windows after windows; a run without a new load publishes nothing."""
    name, day_ms = f"loads-{uuid4().hex[:8]}", 86_400_000
    (tmp_path / "hours.py").write_text(WINDOWS_SCRIPT, encoding="utf-8")
    log = KafkaLog(kafka)
    log.create_topic(f"{name}.raw", 2)
    producer = Producer(
        {"bootstrap.servers": kafka, "enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
    )
    command = [sys.executable, "hours.py", name, kafka, redis_url, engine]
    published: list[dict[str, int]] = []
    for day in (20_000, 20_000, 20_001):
        if not published or day == 20_001:
            for number in range(100):
                load, at_ms = {"machine": f"m{number % 3}"}, day * day_ms + number * 600_000
                producer.produce(f"{name}.raw", json.dumps(load), partition=number % 2, timestamp=at_ms)
            assert producer.flush(60) == 0
        done = subprocess.run(
            command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        assert ('"windows_closed"' in done.stderr) == (len(published) != 1), done.stderr
        ends = log.bounds([(f"{name}.hours", 0), (f"{name}.days", 0)])
        published.append({topic: bound.stable_end for (topic, _), bound in ends.items()})
    # 100 loads, one every 10 minutes: 17 hours, each with all three machines
    assert published[0] == published[1] == {f"{name}.hours": published[0][f"{name}.hours"], f"{name}.days": 1}
    days = payloads(kafka, f"{name}.days", 2)
    assert [(one["start_ms"] // day_ms, one["state"]["loads"]) for one in days] == [
        (20_000, 100),
        (20_001, 100),
    ]


def payloads(kafka: str, topic: str, count: int) -> list[Any]:
    """The payloads of messages in the only partition of a topic."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "reads-once", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None
        assert not message.error()
        found.append(read(message.value()).payload_as(dict))
    consumer.close()
    return found
