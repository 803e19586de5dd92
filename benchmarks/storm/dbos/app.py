"""The consumer on DBOS, totals in PostgreSQL, in an environment of its own: this file imports nothing of the project.

    python app.py BOOTSTRAP GROUP SOURCE DATABASE_URL

DBOS makes a workflow of each message, whose id is the message's topic, partition and offset. Its transaction commits with its result,
so it counts once whatever crashes.
"""

from __future__ import annotations

import json
import sys
import threading

import sqlalchemy as sa
from dbos import DBOS, KafkaMessage, SQLAlchemyDatasource

WORKERS = 16  # workflows at once
bootstrap, group, source, url = sys.argv[1:]
ADD = sa.text(
    "INSERT INTO totals (run, robot, events, sum) VALUES (:run, :robot, 1, :amount) ON CONFLICT (run, robot)"
    " DO UPDATE SET events = totals.events + 1, sum = totals.sum + :amount"
)
DBOS(
    config={
        "name": "totals",
        "system_database_url": url,
        "dbos_system_schema": "storm_" + group.replace("-", "_").replace(".", "_"),
        "log_level": "WARNING",
    }
)
datasource = SQLAlchemyDatasource.create(url, engine_kwargs={"pool_size": WORKERS})


@datasource.transaction
def add(robot: str, amount: int) -> None:
    """Count a fact of a robot."""
    datasource.sql_session().execute(ADD, {"run": group, "robot": robot, "amount": amount})


@DBOS.kafka_consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
        "isolation.level": "read_committed",
    },
    [source],
    queue_name="items",
)
@DBOS.workflow()
def count(message: KafkaMessage) -> None:
    """Take a message."""
    item = json.loads(message.value or b"")
    add(item["robot"], item["amount"])


if __name__ == "__main__":
    DBOS.launch()
    DBOS.register_queue("items", worker_concurrency=WORKERS, polling_interval_sec=0.1)
    threading.Event().wait()
