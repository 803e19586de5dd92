"""The workloads on Flink, by SQL and a Python function, in an environment of its own: this file imports nothing of the project.

    python app.py WORKLOAD BOOTSTRAP GROUP SOURCE TARGET STATE_DIRECTORY JAR

It runs until it is killed, and prints "first" when Flink calls the job running.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from pyflink.table import DataTypes, EnvironmentSettings, TableEnvironment
from pyflink.table.udf import udtf

COMMIT_INTERVAL = "1 s"
PARALLELISM = "2"
LOOK_S = 0.01

INPUT = """
CREATE TABLE records (
    robot STRING, line STRING, joint STRING, report BIGINT, fastened BIGINT, failed BIGINT,
    happened TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL, WATERMARK FOR happened AS happened
) WITH (
    'connector' = 'kafka', 'topic' = '{source}', 'properties.bootstrap.servers' = '{kafka}',
    'properties.group.id' = '{name}', 'scan.startup.mode' = 'earliest-offset', 'value.format' = 'json'
)
"""
OUTPUT = """
CREATE TABLE results ({columns}) WITH (
    'connector' = '{connector}', 'topic' = '{target}', 'properties.bootstrap.servers' = '{kafka}',
    'key.format' = 'raw', {fields}, 'value.format' = 'json',
    'properties.compression.type' = 'lz4', 'properties.transaction.timeout.ms' = '600000',
    'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{name}'
)
"""
WITH_KEY = "'key.fields' = '{key}', 'value.fields-include' = 'ALL'"


@udtf(result_types=[DataTypes.STRING(), DataTypes.BIGINT()])
def two_values(robot: str, fastened: int, failed: int) -> Iterator[tuple[str, int]]:
    """Two values with two keys: what was fastened, and what failed."""
    yield robot, fastened
    yield robot + "!", failed


# Workload -> columns of the output, its connector, how keys are written, and the query.
WORKLOADS = {
    "w1-flat-map": (
        "robot STRING, joint STRING, report BIGINT, screws BIGINT",
        "kafka",
        WITH_KEY.format(key="robot"),
        (
            "SELECT made.robot, joint, report, made.screws FROM records,"
            " LATERAL TABLE(two_values(records.robot, fastened, failed)) AS made (robot, screws)"
        ),
    ),
    "w2-fold": (
        "robot STRING, events BIGINT, fastened BIGINT, failed BIGINT, PRIMARY KEY (robot) NOT ENFORCED",
        "upsert-kafka",
        "'value.fields-include' = 'EXCEPT_KEY'",
        "SELECT robot, COUNT(*), SUM(fastened), SUM(failed) FROM records GROUP BY robot",
    ),
    "w4-windows": (
        "`key` STRING, start_ms BIGINT, events BIGINT",
        "kafka",
        WITH_KEY.format(key="key"),
        (
            "SELECT robot, UNIX_TIMESTAMP(CAST(window_start AS STRING)) * 1000, COUNT(*)"
            " FROM TABLE(TUMBLE(TABLE records, DESCRIPTOR(happened), INTERVAL '10' SECOND))"
            " GROUP BY robot, window_start, window_end"
        ),
    ),
}


def main(arguments: list[str]) -> None:
    """Run one workload."""
    workload, kafka, name, source, target, directory, jar = arguments
    # The Python inside Flink's Java finds neither the packages of this environment nor its program by itself.
    os.environ["PYTHONPATH"] = sysconfig.get_path("purelib")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for setting, value in {
        "pipeline.jars": f"file://{jar}",
        "parallelism.default": PARALLELISM,
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "execution.checkpointing.interval": COMMIT_INTERVAL,
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{directory}/checkpoints",
        "state.backend.type": "rocksdb",
        "table.local-time-zone": "UTC",
        # As the cache of Kafka Streams does: changes of a moment are published as one.
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": COMMIT_INTERVAL,
        "table.exec.mini-batch.size": "20000",
    }.items():
        tables.get_config().set(setting, value)
    columns, connector, fields, query = WORKLOADS[workload]
    tables.create_temporary_system_function("two_values", two_values)
    names = {"kafka": kafka, "name": name, "source": source, "target": target}
    tables.execute_sql(INPUT.format(**names))
    tables.execute_sql(OUTPUT.format(columns=columns, connector=connector, fields=fields, **names))
    job = tables.execute_sql(f"INSERT INTO results {query}").get_job_client()
    while job.get_job_status().result().name != "RUNNING":
        time.sleep(LOOK_S)
    print("first", flush=True)
    job.get_job_execution_result().result()


if __name__ == "__main__":
    main(sys.argv[1:])
