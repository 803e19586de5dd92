"""The flows whose files are kept, their inputs, and the broker that they read: as text, with all records and commits."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import msgspec

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.flow import Flow
from sqe_chain.ports import Commit
from sqe_chain.stages import Tumbling

ROOT = Path(__file__).parent
PARTITIONS = 2
TABLE = "table"
"""Where rows are, relative to the working directory: the table's address must not name this machine."""


class Reading(msgspec.Struct):
    """One report of a robot."""

    robot: str
    at_ms: int
    screws: int


class Total(msgspec.Struct):
    """The state of one robot."""

    events: int = 0
    screws: int = 0


def readings(begin: int, end: int) -> list[Reading]:
    """Reports of three robots, one a second, without randomness."""
    return [Reading(f"robot-{n % 3}", 1_000 * n, n * n % 11) for n in range(begin, end)]


def clean_flow() -> Flow:
    """A republisher, which writes one topic with each carrier."""
    flow = Flow("kept-clean")
    source = flow.source("kept.raw", Reading, codec="json", raw=True, timestamp=lambda reading: reading.at_ms)
    source.to("kept.clean", partitions=PARTITIONS)
    source.to("kept.headers", partitions=PARTITIONS, name="headers", carrier="headers")
    return flow


def totals_flow() -> Flow:
    """Totals with a view, windows by event time, and rows of a table."""
    flow = Flow("kept-totals", state_partitions=3)
    source = flow.source(["kept.clean", "kept.headers"], Reading)
    source.aggregate("per-robot", key=lambda reading: reading.robot, state=Total, fold=_add, view="json")
    source.windowed(
        "per-minute", Tumbling(60_000), key=lambda reading: reading.robot, state=Total, fold=_add
    ).to("kept.minutes", partitions=1)
    source.ingest("rows", partition_key="robot", row_key="at_ms", at=TABLE)
    return flow


def _add(state: Total, reading: Reading) -> None:
    state.events += 1
    state.screws += reading.screws


def expected_totals(count: int) -> dict[bytes, Total]:
    """The totals after this number of reports: each is counted from both topics."""
    totals: dict[bytes, Total] = {}
    for reading in readings(0, count):
        total = totals.setdefault(reading.robot.encode(), Total())
        total.events += 2
        total.screws += 2 * reading.screws
    return totals


def dump_broker(log: MemoryLog, groups: tuple[str, ...]) -> str:
    """All topics, records and commits as JSON."""
    topics: dict[str, Any] = {}
    for topic in ("kept.raw", "kept.clean", "kept.headers", "kept.minutes"):
        info = log.describe([topic])[topic]
        records = [
            [
                message.partition(),
                _text(message.key()),
                _text(message.value()),
                [[name, _text(value)] for name, value in message.headers() or ()],
                message.timestamp_ms,
            ]
            for message in log.records(topic)
        ]
        topics[topic] = {"id": info.topic_id.hex(), "partitions": info.partitions, "records": records}
    commits = [
        [group, topic, partition, commit.offset, commit.metadata]
        for group in groups
        for (topic, partition), commit in log.committed(
            group,
            [(topic, partition) for topic in topics for partition in range(topics[topic]["partitions"])],
        ).items()
    ]
    return json.dumps({"topics": topics, "commits": commits})


def load_broker(text: str, name: str) -> MemoryLog:
    """A broker with what `dump_broker` wrote.

    Args:
        text: what it wrote.
        name: the broker's name when it wrote it: topics have their ids by it.
    """
    kept = json.loads(text)
    log = MemoryLog(name)
    log.clear()
    for topic, content in kept["topics"].items():
        log.create_topic(topic, content["partitions"])
        assert log.topic_ids([topic])[topic].hex() == content["id"], "topics in memory have other ids now"
        for partition, key, value, headers, timestamp_ms in content["records"]:
            pairs = [(header, _bytes(content)) for header, content in headers]
            log.append(topic, partition, _bytes(value), _bytes(key), pairs or None, timestamp_ms)
    for group, topic, partition, offset, metadata in kept["commits"]:
        log.commit(group, {(topic, partition): Commit(offset, metadata)})
    return log


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
