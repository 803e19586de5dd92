"""The input: envelopes with a chain of one link, as a republisher writes them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Producer

from benchmarks.flows import LINES, PARTITIONS
from services._proto.fastening_pb2 import Fastening
from sqe_chain.chain import root_position
from sqe_chain.envelope.partitioner import Partitioner
from sqe_chain.envelope.template import OutputTemplate

START_MS = 1_700_000_000_000
WARM_UP = 40_000
"""Messages to warm up with."""

ROOTS = 3
"""Partitions of the root topic, hence lanes of one input partition."""

BATCH = 30_000
"""Inputs of one batch of the republisher: `previous` is empty in its first message of each lane."""

JOINT = "joint 3, spindle left of the rear axle carrier, tightening program 17, second stage of three"


@dataclass(frozen=True, slots=True)
class Backlog:
    """The content of a topic.

    Attributes:
        topic: its name.
        messages: how many.
        keys: how many distinct keys.
        step_ms: event time from one message to the next.
        trace_each: one message in this number has a `traceparent`; 0: none has.
    """

    topic: str
    messages: int
    keys: int
    step_ms: int = 1
    trace_each: int = 0

    def fastenings(self) -> Iterator[Fastening]:
        """The payloads, in the order in which they were written: computed, not kept."""
        robots = [f"robot-{number:06d}" for number in range(self.keys)]
        random.Random(7).shuffle(robots)
        fastening = Fastening(joint=JOINT)
        for number in range(self.messages):
            robot = robots[number % self.keys]
            fastening.robot = robot
            fastening.line = f"line-{number % self.keys % LINES:02d}"
            fastening.report = number
            fastening.fastened = 1 + number % 7
            fastening.failed = number % 3
            yield fastening

    def write(self, bootstrap: str, time: int = 0) -> float:
        """Write everything; returns the bytes of an average envelope.

        Args:
            bootstrap: Kafka.
            time: how often it was written before. Each time the same payloads are of new events; without this
                they would be replays.
        """
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 1,
                "compression.type": "lz4",
                "linger.ms": 20,
                "queue.buffering.max.kbytes": 65536,
                "queue.buffering.max.messages": 200_000,
            }
        )
        partition_of = Partitioner(PARTITIONS)
        templates = [
            OutputTemplate(
                lane=0, topic="robot.raw", topic_id=bytes(16), partition=root, output="bench/robots"
            )
            for root in range(ROOTS)
        ]
        previous: dict[tuple[int, int], bytes] = {}
        size, type_name = 0, Fastening.DESCRIPTOR.full_name
        for number, fastening in enumerate(self.fastenings(), time * self.messages):
            if (number - time * self.messages) % BATCH == 0:
                previous.clear()
            key = fastening.robot.encode()
            root, offset, partition = number % ROOTS, number // ROOTS, partition_of(key)
            at_ms = START_MS + number * self.step_ms
            value, position = templates[root].encode(
                b"", offset, 1, 0, 1, root_position(1, offset), at_ms, key, type_name,
                [fastening.SerializeToString()], previous.get((root, partition), b""),
            )  # fmt: skip
            previous[root, partition] = position
            size += len(value)
            while True:
                try:
                    producer.produce(
                        self.topic, value, key, partition, timestamp=at_ms, headers=self._headers(number)
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.flush()
        return size / self.messages

    def _headers(self, number: int) -> dict[str, str | bytes | None]:
        if not self.trace_each or number % self.trace_each:
            return {}
        return {"traceparent": f"00-{number + 1:032x}-{number + 1:016x}-01"}

    def expected(self) -> dict[bytes, tuple[int, int]]:
        """Events and sum of each key."""
        events, sums = Counter[str](), Counter[str]()
        for fastening in self.fastenings():
            events[fastening.robot] += 1
            sums[fastening.robot] += fastening.fastened
        return {robot.encode(): (events[robot], sums[robot]) for robot in events}
