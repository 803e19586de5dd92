"""The republisher that all systems read from: explodes reports, and gives each part the key of its robot. At least once.

    python republisher.py BOOTSTRAP GROUP SOURCE TARGET

A usual loop: it reads a block, publishes, waits until all is acknowledged, and commits. After a crash, or when an operator puts its
offsets back, it publishes the same facts again, at new offsets. Values are plain JSON. The chain of each message is in its Kafka
headers, by the library for programs without flows (docs/plain-consumers.md). Readers that do not know these headers ignore them.

A line "die" on its standard input makes it kill itself after its next publication and before the commit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from sqe_chain import Coordinates, republish
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.chain import stored_epoch
from sqe_chain.envelope.carrier import in_headers
from sqe_chain.envelope.partitioner import partition_of

PARTITIONS = 4
BLOCK = 100
dying = threading.Event()


def listen() -> None:
    """Wait for the order to die."""
    for line in sys.stdin:
        if line.strip() == "die":
            dying.set()


def publish(producer: Producer, message: Message, topic_id: bytes, target: str) -> None:
    """Publish what a report holds, robot by robot."""
    at = Coordinates(
        topic=str(message.topic()),
        topic_id=topic_id,
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        leader_epoch=stored_epoch(message.leader_epoch()),
    )
    items = json.loads(message.value() or b"")["items"]
    for ordinal, item in enumerate(items):
        key = item["robot"].encode()
        envelope = republish(
            None,
            at,
            item,
            output=f"republisher/{target}",
            key=key,
            ordinal=ordinal,
            of=len(items),
            timestamp_ms=message.timestamp()[1],
        )
        value, headers = in_headers(envelope, source="republisher")
        producer.produce(target, value, key, partition_of(key, PARTITIONS), headers=list(headers))
    producer.poll(0)


def main(arguments: list[str]) -> None:
    """Republish without end."""
    bootstrap, group, source, target = arguments
    threading.Thread(target=listen, daemon=True).start()
    topic_id = KafkaLog(bootstrap).topic_ids([source])[source]
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 3}
    )
    places = [TopicPartition(source, partition) for partition in range(PARTITIONS)]
    for place in consumer.committed(places, timeout=60):
        consumer.incremental_assign([TopicPartition(source, place.partition, max(0, place.offset))])
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 5,
            "log_level": 3,
        }
    )
    while True:
        block = consumer.consume(BLOCK, 0.05)
        ends: dict[int, int] = {}
        for message in block:
            if message.error():
                continue  # the broker is away: the client tries again by itself
            publish(producer, message, topic_id, target)
            ends[message.partition() or 0] = (message.offset() or 0) + 1
        if not ends:
            continue
        producer.flush()
        if dying.is_set():
            os.kill(os.getpid(), signal.SIGKILL)
        reached = [TopicPartition(source, partition, offset) for partition, offset in ends.items()]
        consumer.commit(offsets=reached, asynchronous=False)


if __name__ == "__main__":
    main(sys.argv[1:])
