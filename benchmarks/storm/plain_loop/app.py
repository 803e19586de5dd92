"""A plain consumer with manual commits, totals in Redis, in an environment of its own: this file imports nothing of the project.

    python app.py BOOTSTRAP GROUP SOURCE TARGET REDIS_URL

For each block: all additions in one MULTI/EXEC, the new totals published, then the offsets committed. It is at least once, as the
client's documentation calls it. A crash behind the EXEC, and before the commit, counts the block again.

A line "die" on its standard input makes it kill itself there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from redis import Redis, exceptions
from redis.backoff import ConstantBackoff
from redis.retry import Retry

BLOCK = 200
dying = threading.Event()


def listen() -> None:
    """Wait for the order to die."""
    for line in sys.stdin:
        if line.strip() == "die":
            dying.set()


def add(redis: Redis, name: str, block: Sequence[Message]) -> dict[str, tuple[int, int]]:
    """Add a block to its totals, and return the new ones."""
    robots, found = [], {}
    with redis.pipeline(transaction=True) as pipeline:
        for message in block:
            item = orjson.loads(message.value())
            robots.append(item["robot"])
            pipeline.hincrby(f"{name}/events", item["robot"], 1)
            pipeline.hincrby(f"{name}/sum", item["robot"], item["amount"])
        replies = pipeline.execute()
    for number, robot in enumerate(robots):
        found[robot] = (replies[2 * number], replies[2 * number + 1])
    return found


def main(arguments: list[str]) -> None:
    """Consume without end."""
    bootstrap, group, source, target, url = arguments
    threading.Thread(target=listen, daemon=True).start()
    redis = Redis.from_url(
        url,
        retry=Retry(ConstantBackoff(0.2), 100),
        retry_on_error=[exceptions.ConnectionError, exceptions.TimeoutError, exceptions.BusyLoadingError],
    )
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "log_level": 3,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 1,
            "partitioner": "murmur2",
            "log_level": 3,
        }
    )
    consumer.subscribe([source])
    while True:
        block = [message for message in consumer.consume(BLOCK, 0.1) if not message.error()]
        if not block:
            continue
        for robot, (events, total) in add(redis, group, block).items():
            producer.produce(target, orjson.dumps({"events": events, "sum": total}), robot)
        producer.flush()
        if dying.is_set():
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            # After a rebalance the partitions are another's; what was added stays added.
            if error.args[0].code() not in {
                KafkaError.UNKNOWN_MEMBER_ID,
                KafkaError.ILLEGAL_GENERATION,
                KafkaError.REBALANCE_IN_PROGRESS,
                KafkaError._NO_OFFSET,  # noqa: SLF001 - the client's public name for it
                KafkaError._STATE,  # noqa: SLF001 - the client's public name for it
            }:
                raise


if __name__ == "__main__":
    main(sys.argv[1:])
