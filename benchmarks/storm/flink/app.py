"""The consumer on Flink by SQL, exactly once, in an environment of its own: this file imports nothing of the project.

    python app.py BOOTSTRAP GROUP SOURCE TARGET DIRECTORY JAR

It begins at its newest complete checkpoint, as Flink's high availability does on a cluster.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

INPUT = """
CREATE TABLE items (robot STRING, amount BIGINT) WITH (
    'connector' = 'kafka', 'topic' = '{source}', 'properties.bootstrap.servers' = '{kafka}',
    'properties.group.id' = '{name}', 'scan.startup.mode' = 'earliest-offset', 'value.format' = 'json',
    'properties.isolation.level' = 'read_committed'
)
"""
OUTPUT = """
CREATE TABLE totals (robot STRING, events BIGINT, `sum` BIGINT, PRIMARY KEY (robot) NOT ENFORCED) WITH (
    'connector' = 'upsert-kafka', 'topic' = '{target}', 'properties.bootstrap.servers' = '{kafka}',
    'key.format' = 'raw', 'value.format' = 'json', 'value.fields-include' = 'EXCEPT_KEY',
    'properties.transaction.timeout.ms' = '600000',
    'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{name}'
)
"""


def newest(checkpoints: Path) -> Path | None:
    """The newest checkpoint that is complete."""
    found = checkpoints.glob("*/chk-*/_metadata")
    complete = sorted(found, key=lambda file: file.stat().st_mtime)
    return complete[-1].parent if complete else None


def main(arguments: list[str]) -> None:
    """Run it."""
    kafka, name, source, target, directory, jar = arguments
    # The Python inside Flink's Java finds neither the packages of this environment nor its program by itself.
    os.environ["PYTHONPATH"] = sysconfig.get_path("purelib")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    checkpoints = Path(directory, "checkpoints")
    settings = {
        "pipeline.jars": f"file://{jar}",
        "parallelism.default": "2",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{checkpoints}",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "state.backend.type": "rocksdb",
    }
    if checkpoint := newest(checkpoints):
        settings["execution.state-recovery.path"] = f"file://{checkpoint}"
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for setting, value in settings.items():
        tables.get_config().set(setting, value)
    names = {"kafka": kafka, "name": name, "source": source, "target": target}
    tables.execute_sql(INPUT.format(**names))
    tables.execute_sql(OUTPUT.format(**names))
    query = "INSERT INTO totals SELECT robot, COUNT(*), SUM(amount) FROM items GROUP BY robot"
    tables.execute_sql(query).wait()


if __name__ == "__main__":
    main(sys.argv[1:])
