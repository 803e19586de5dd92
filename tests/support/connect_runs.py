"""Runs flows on Spark Connect, and compares what they give with a run in one process. A program, since a process has one kind of Spark.

Arguments: the server's address, that of Kafka, and a directory for stores.
"""

from __future__ import annotations

import gc
import sys
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.engines.spark import SparkEngine, Tuning, close_session, open_session
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Engine
from sqe_chain.ports import StateStore
from tests.support.engine_runs import (
    FLOWS,
    INPUT_PARTITIONS,
    Declare,
    Made,
    Names,
    Run,
    feed,
    in_process,
    sending_poison_away,
    skipping,
    stateless,
    without_junk,
)

WAYS = {"small": Tuning(), "large": Tuning(inline_bytes=0, records_per_task=1, small_records=0)}


def main() -> None:
    """Run all flows in all ways; prints a line for each that gives the same."""
    address, kafka, directory = sys.argv[1:]
    session, log = open_session(address), KafkaLog(kafka)
    for way, tuning in WAYS.items():
        for declare in FLOWS:
            compare(declare, log, Path(directory), partial(_on_connect, session, tuning))
            sys.stdout.write(f"{way} {declare.__name__}\n")
    log.close()
    close_session(session)
    # Python may never end while a channel is open.
    sessions = [one for one in gc.get_objects() if isinstance(one, ConnectSession)]
    assert [one.session_id for one in sessions if not one.client.is_closed] == []


def compare(declare: Declare, log: KafkaLog, directory: Path, spread: Made) -> None:
    """Run a flow in one process and spread, on the same input; assert that both give the same."""
    prefix = uuid.uuid4().hex[:8]
    inputs = f"in-{prefix}.one", f"in-{prefix}.two"
    for topic in inputs:
        log.create_topic(topic, INPUT_PARTITIONS)
    decodable = declare in (sending_poison_away, skipping, stateless)
    feed(log, inputs, 0, 100) if decodable else without_junk(log, inputs)
    runs = [
        Run(
            declare(Names(f"{who}-{prefix}", inputs)),
            log,
            open_store(f"sqlite://{directory}/{who}-{prefix}.db"),
            made,
        )
        for who, made in (("a", in_process), ("b", spread))
    ]
    for run in runs:
        run.until_caught_up()
    feed(log, inputs, 101, 49)
    for run in runs:
        run.until_caught_up()
        run.until_caught_up(at_end=True)
    reference, found = runs
    assert found.published(), "nothing was published"
    assert found.published() == reference.published()
    assert found.states() == reference.states()


def _on_connect(
    session: SparkSession, tuning: Tuning, flow: Flow, log: KafkaLog, stores: Mapping[str, StateStore]
) -> Engine:
    return SparkEngine(flow.compile(), log, stores, session, tuning=tuning)


if __name__ == "__main__":
    main()
