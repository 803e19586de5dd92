"""The reference: one process, a plain, tuned confluent-kafka loop that computes the same without any guarantee.

    python -m benchmarks.plain aggregate BOOTSTRAP TOPIC MESSAGES REDIS_URL KEY
    python -m benchmarks.plain republish BOOTSTRAP TOPIC MESSAGES TARGET

It parses with protobuf, runs the same user function, and keeps a dict or produces bare payloads.
Prints seconds and processor seconds as JSON; starting and connecting are not counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from redis import Redis

from benchmarks.flows import PARTITIONS, add, both_robots
from services._proto.fastening_pb2 import Fastening, LineTotal
from services.fastening import robot_of
from sqe_chain.envelope.message import EnvelopeHead

BLOCK = 1_000

Take = Callable[[Sequence[Any]], None]


def connected(bootstrap: str, topic: str) -> Consumer:
    """A consumer that is connected to its broker."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "plain",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 2,
        }
    )
    consumer.list_topics(topic)
    return consumer


def loop(consumer: Consumer, topic: str, messages: int, take: Take) -> None:
    """Consume everything, in blocks."""
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    seen = 0
    while seen < messages:
        block = consumer.consume(min(BLOCK, messages - seen), 1.0)
        for message in block:
            if message.error():
                raise RuntimeError(message.error())
        take(block)
        seen += len(block)
    consumer.unassign()


def aggregate(bootstrap: str, topic: str, messages: int, url: str, hash_key: str) -> dict[str, float]:
    """Sums in a dict, written to Redis at the end."""
    parse_head, parse = EnvelopeHead.FromString, Fastening.FromString
    states: dict[str, LineTotal] = {}
    redis: Any = Redis.from_url(url)
    redis.ping()

    def take(block: Sequence[Any]) -> None:
        for message in block:
            fastening = parse(parse_head(message.value()).payload)
            key = robot_of(fastening)
            state = states.get(key)
            if state is None:
                state = states[key] = LineTotal()
            add(state, fastening)

    consumer = connected(bootstrap, topic)
    began, began_cpu = time.perf_counter(), time.process_time()
    loop(consumer, topic, messages, take)
    pipeline = redis.pipeline(transaction=False)
    for key, state in states.items():
        pipeline.hset(hash_key, key, state.SerializeToString())
    pipeline.execute()
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - began_cpu}


def republish(bootstrap: str, topic: str, messages: int, target: str) -> dict[str, float]:
    """Two bare payloads for each envelope."""
    parse_head, parse = EnvelopeHead.FromString, Fastening.FromString
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 5,  # the default, which plain loops have
            "compression.type": "lz4",
            "linger.ms": 5,
            "partitioner": "murmur2",
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 65536,
        }
    )
    producer.list_topics(target)

    def take(block: Sequence[Any]) -> None:
        for message in block:
            fastening = parse(parse_head(message.value()).payload)
            for made in both_robots(fastening):
                value, key = made.SerializeToString(), robot_of(made)
                while True:
                    try:
                        producer.produce(target, value, key)
                        break
                    except BufferError:
                        producer.poll(0.01)
        producer.poll(0)

    consumer = connected(bootstrap, topic)
    began, began_cpu = time.perf_counter(), time.process_time()
    loop(consumer, topic, messages, take)
    producer.flush()
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - began_cpu}


def main(arguments: list[str]) -> None:
    """Run one of them."""
    kind, bootstrap, topic, messages, *rest = arguments
    result = (aggregate if kind == "aggregate" else republish)(bootstrap, topic, int(messages), *rest)
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
