"""Goal: every engine ingests the same rows into a table, and Spark reads what it finds there.

Method: a flow from real Kafka into a Delta table, in one process, on worker processes, and on Spark with small and large
batches. All state partitions commit to one table, at the same time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.engines.spark import SparkEngine, Tuning
from sqe_chain.engines.workers import Team, WorkersEngine
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.ext.tables import Table, open_table
from sqe_chain.flow import Flow
from tests.support.engine_runs import Made, Run, in_process

PARTITIONS = 4


class Reading(msgspec.Struct):
    robot: str
    at_ms: int
    bar: float


@pytest.fixture(params=["spark-large", "workers", "in-process", "spark-small"])
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    if request.param == "in-process":
        yield in_process
    elif request.param == "workers":
        team = Team(2, "workers of a test")
        yield lambda flow, log, stores: WorkersEngine(flow.compile(), log, stores, team)
        team.close()
    else:
        spark: SparkSession = request.getfixturevalue("spark")
        large = Tuning(inline_bytes=0, records_per_task=1, small_records=0)
        tuning = large if request.param == "spark-large" else Tuning()
        yield lambda flow, log, stores: SparkEngine(flow.compile(), log, stores, spark, tuning=tuning)


def feed(kafka: str, topic: str, first: int, count: int) -> dict[tuple[str, int], float]:
    producer = Producer(
        {"bootstrap.servers": kafka, "enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
    )
    rows = {}
    for number in range(first, first + count):
        robot = f"robot-{number % 11}"
        rows[robot, number % 60] = float(number)
        row = {"robot": robot, "at_ms": number % 60, "bar": float(number)}
        partition = partition_of(robot.encode(), PARTITIONS)
        producer.produce(topic, json.dumps(row).encode(), robot.encode(), partition)
    producer.flush()
    return rows


def rows_of(table: Table) -> dict[tuple[str, int], float]:
    return {(row["robot"], row["at_ms"]): row["bar"] for row in table.read().to_pylist()}


@pytest.mark.few(2)
@pytest.mark.parametrize("state_partitions", [pytest.param(4, id="in-place"), pytest.param(3, id="shuffled")])
def test_every_engine_ingests_the_same_rows(
    kafka: str, log: KafkaLog, tmp_path: Path, made: Made, state_partitions: int
) -> None:
    name = f"tables-{uuid.uuid4().hex[:8]}"
    log.create_topic(f"{name}.raw", PARTITIONS)
    flow = Flow(name, state_partitions=state_partitions)
    source = flow.source(f"{name}.raw", Reading, codec="json", raw=True)
    source.ingest("readings", partition_key="robot", row_key="at_ms", at=tmp_path)
    store = open_store(f"sqlite://{tmp_path}/store.db")
    expected = feed(kafka, f"{name}.raw", 0, 300)
    run = Run(flow, log, store, made)
    run.until_caught_up()
    table = open_table(str(tmp_path / "readings"))
    assert rows_of(table) == expected
    expected |= feed(kafka, f"{name}.raw", 300, 200)
    again = Run(flow, log, store, made)  # a new run, which claims the table
    again.until_caught_up()
    assert rows_of(table) == expected
    assert sum(chunk.rows for chunk in table.chunks()) == 300 + 200, (
        "each flushed row once; no key comes twice in a batch"
    )
    store.close()


@pytest.mark.release
def test_spark_reads_a_table(spark: SparkSession, kafka: str, log: KafkaLog, tmp_path: Path) -> None:
    name = f"tables-{uuid.uuid4().hex[:8]}"
    log.create_topic(f"{name}.raw", PARTITIONS)
    flow = Flow(name, state_partitions=4)
    source = flow.source(f"{name}.raw", Reading, codec="json", raw=True)
    source.ingest("readings", partition_key="robot", row_key="at_ms", at=tmp_path)
    store = open_store(f"sqlite://{tmp_path}/store.db")
    run = Run(flow, log, store, in_process)
    expected = feed(kafka, f"{name}.raw", 0, 200)
    run.until_caught_up()
    expected |= feed(kafka, f"{name}.raw", 200, 700)
    run.until_caught_up()
    table = open_table(str(tmp_path / "readings"))
    frame = spark.read.parquet(*table.files())
    assert frame.count() > len(expected)
    frame.createOrReplaceTempView("everything")
    found = spark.sql(table.latest_sql("everything", quote="`")).collect()
    assert {(row["robot"], row["at_ms"]): row["bar"] for row in found} == expected
    store.close()
