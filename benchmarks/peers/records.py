"""The input: JSON records of about 120 bytes, as they are and in envelopes, and the totals that must come of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from confluent_kafka import Producer

from benchmarks.flows import LINES, PARTITIONS
from benchmarks.peers.flows import Fastening
from sqe_chain.chain import root_position
from sqe_chain.envelope.partitioner import Partitioner
from sqe_chain.envelope.template import OutputTemplate

KEYS = 1_000
JOINT = "joint 3, spindle left of axle"
START_MS = 1_700_000_000_000

_TYPE = "json:Fastening"
_ROOTS = 3  # partitions of the root topic, hence lanes of one input partition
_BATCH = (
    30_000  # inputs of one batch of the republisher: `previous` is empty in its first message of each lane
)
_PRODUCER = {
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 1,
    "compression.type": "lz4",
    "linger.ms": 20,
    "queue.buffering.max.kbytes": 65536,
    "queue.buffering.max.messages": 200_000,
    "log_level": 3,  # of syslog: a broker that has just started is no reason for a warning
}


@dataclass(slots=True)
class Expected:
    """What must have been counted for one robot, or one line.

    Attributes:
        events: how many records.
        fastened: sum of that field.
        failed: sum of that field.
    """

    events: int = 0
    fastened: int = 0
    failed: int = 0

    def add(self, other: Expected) -> None:
        """Add up."""
        self.events += other.events
        self.fastened += other.fastened
        self.failed += other.failed


@dataclass(frozen=True, slots=True)
class Records:
    """The content of the input topics.

    Attributes:
        count: how many records.
    """

    count: int

    def fastenings(self) -> Iterator[Fastening]:
        """The records, in the order in which they are written: computed, not kept."""
        robots = [f"robot-{number:06d}" for number in range(KEYS)]
        random.Random(7).shuffle(robots)
        for number in range(self.count):
            key = number % KEYS
            line = f"line-{key % LINES:02d}"
            yield Fastening(robots[key], line, JOINT, number, 1 + number % 7, number % 3)

    def by_robot(self) -> dict[str, Expected]:
        """Totals of each robot, computed without any of the systems' functions."""
        found: dict[str, Expected] = {}
        for fastening in self.fastenings():
            one = found.setdefault(fastening.robot, Expected())
            one.events += 1
            one.fastened += fastening.fastened
            one.failed += fastening.failed
        return found

    def by_line(self) -> dict[str, Expected]:
        """Totals of each line."""
        robots, found = self.by_robot(), dict[str, Expected]()
        line_of = {one.robot: one.line for one in Records(min(self.count, KEYS)).fastenings()}
        for robot, totals in robots.items():
            found.setdefault(line_of[robot], Expected()).add(totals)
        return found

    def write(self, bootstrap: str, plain: str, enveloped: str) -> tuple[float, float]:
        """Write all of them into two topics, and return the average size of their values, in bytes.

        Args:
            bootstrap: Kafka.
            plain: topic of the JSON records as they are.
            enveloped: topic of the same JSON in envelopes with a chain of one link, as a republisher writes them.
        """
        producer = Producer({"bootstrap.servers": bootstrap, **_PRODUCER})
        partition_of, encode = Partitioner(PARTITIONS), msgspec.json.Encoder().encode
        wrapped, sizes = _Republisher(), [0, 0]
        for number, fastening in enumerate(self.fastenings()):
            value, key = encode(fastening), fastening.robot.encode()
            partition = partition_of(key)
            for side, (topic, content) in enumerate(
                ((plain, value), (enveloped, wrapped.envelope(number, partition, key, value)))
            ):
                sizes[side] += len(content)
                _produce(producer, topic, content, key, partition, START_MS + number)
        producer.flush()
        return sizes[0] / self.count, sizes[1] / self.count


class _Republisher:
    """Makes the envelopes that a republisher upstream would have written."""

    def __init__(self) -> None:
        self._templates = [
            OutputTemplate(
                lane=0, topic="robot.raw", topic_id=bytes(16), partition=root, output="peers/robots"
            )
            for root in range(_ROOTS)
        ]
        self._previous: dict[tuple[int, int], bytes] = {}

    def envelope(self, number: int, partition: int, key: bytes, payload: bytes) -> bytes:
        """The envelope of one record."""
        if number % _BATCH == 0:
            self._previous.clear()
        root, offset = number % _ROOTS, number // _ROOTS
        value, position = self._templates[root].encode(
            b"", offset, 1, 0, 1, root_position(1, offset), START_MS + number, key, _TYPE,
            [payload], self._previous.get((root, partition), b""),
        )  # fmt: skip
        self._previous[root, partition] = position
        return value


def _produce(
    producer: Producer, topic: str, value: bytes, key: bytes, partition: int, timestamp_ms: int
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition, timestamp=timestamp_ms)
        except BufferError:
            producer.poll(0.05)
        else:
            return
