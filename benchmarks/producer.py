"""`python -m benchmarks.producer KAFKA TOPIC RATE KEYS`: a producer with a constant rate, until its standard input ends.

Then it prints how many records it has produced. The time in a record is that of the call, on the machine's monotonic clock.
"""

from __future__ import annotations

import sys
import threading
import time

from confluent_kafka import Producer

from benchmarks.flows import PARTITIONS
from sqe_chain.envelope.partitioner import Partitioner

TICK_S = 0.001


def produce(bootstrap: str, topic: str, rate: int, keys: int, ended: threading.Event) -> int:
    """Produce `rate` records a second until `ended` is set; returns how many."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 1,
        }
    )
    partition_of = Partitioner(PARTITIONS)
    names = [f"key-{number}" for number in range(keys)]
    partitions = [partition_of(name.encode()) for name in names]
    began_s, number = time.monotonic(), 0
    while not ended.wait(TICK_S):
        due = int((time.monotonic() - began_s) * rate)
        for one in range(number, due):
            key = one % keys
            value = b'{"key":"%s","number":%d,"sent_ns":%d}'
            filled = value % (names[key].encode(), one, time.monotonic_ns())
            producer.produce(topic, filled, names[key], partitions[key])
        number = max(number, due)
        producer.poll(0)
    producer.flush()
    return number


def _wait(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def main() -> None:
    """Produce until the standard input ends."""
    bootstrap, topic, rate, keys = sys.argv[1:]
    ended = threading.Event()
    threading.Thread(target=_wait, args=(ended,), daemon=True).start()
    sys.stdout.write(f"{produce(bootstrap, topic, int(rate), int(keys), ended)}\n")


if __name__ == "__main__":
    main()
