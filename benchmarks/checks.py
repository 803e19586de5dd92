"""Checks of the results: a benchmark of wrong results would be worth nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from redis import Redis

from benchmarks.backlog import Backlog
from benchmarks.flows import PARTITIONS
from services._proto.fastening_pb2 import Fastening, LineTotal
from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.envelope.message import read
from sqe_chain.envelope.replay_filter import ReplayFilter

_PATIENCE_S = 10.0


def check_totals(url: str, flow: str, backlog: Backlog) -> None:
    """Every key has the events and the sum that it should have, and there is no other key."""
    store = open_store(url)
    found = {
        key: LineTotal.FromString(state)
        for part in range(PARTITIONS)
        for key, state in store.scan(flow, "per-robot", part)
    }
    assert {key: (total.events, total.fastened) for key, total in found.items()} == backlog.expected()


def check_plain_totals(url: str, key: str, backlog: Backlog) -> None:
    """The same for the results of the plain loop."""
    redis: Any = Redis.from_url(url)
    found = {robot: LineTotal.FromString(state) for robot, state in redis.hgetall(key).items()}
    assert {key: (total.events, total.fastened) for key, total in found.items()} == backlog.expected()


def check_count(bootstrap: str, topic: str, records: int) -> None:
    """As many records as there should be."""
    ends = KafkaLog(bootstrap).bounds([(topic, partition) for partition in range(PARTITIONS)])
    assert sum(bounds.stable_end - bounds.begin for bounds in ends.values()) == records


def check_republished(bootstrap: str, topic: str, backlog: Backlog) -> None:
    """Every envelope in order and without a gap, and the right sums under the right keys."""
    replays = ReplayFilter(KafkaLog(bootstrap).topic_ids([topic]))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 2,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    events, sums, left = Counter[bytes](), Counter[bytes](), 2 * backlog.messages
    while left:
        block = consumer.consume(min(1_000, left), _PATIENCE_S)
        assert block
        for message in block:
            assert message.error() is None
            assert replays.accept(message)  # type: ignore[arg-type] # its stubs know more kinds of headers
            envelope = read(message.value())
            assert envelope.key is not None
            assert len(envelope.payloads) == 1
            made = Fastening.FromString(envelope.payloads[0] or b"")
            assert made.robot.encode() == envelope.key == message.key()
            events[envelope.key] += 1
            sums[envelope.key] += made.fastened
        left -= len(block)
    consumer.close()
    for key, (count, fastened) in backlog.expected().items():
        assert (events[key], sums[key]) == (count, fastened)
        assert (events[key + b"!"], sums[key + b"!"]) == (count, 0)
    assert len(events) == 2 * backlog.keys
