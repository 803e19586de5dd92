"""The input: JSON records of about 120 bytes, as they are and in envelopes, and the totals that must come of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

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

AGAIN_EACH = 10
"""Each record of a robot with this number is the one before it, sent again."""

CLOSER = "closing-"
CLOSING = 24
"""Records of each topic behind all others: two for each lane and partition.

The second ones show that the first ones are complete, and these end the windows of their partitions.
"""

_PAUSE_MS = 60_000
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
        """The records, in the order in which they are written: computed, not kept.

        Each tenth of a robot is the one before it, sent again.
        """
        robots = [f"robot-{number:06d}" for number in range(KEYS)]
        random.Random(7).shuffle(robots)
        for number in range(self.count):
            key = number % KEYS
            line = f"line-{key % LINES:02d}"
            again = number // KEYS % AGAIN_EACH == AGAIN_EACH - 1
            report = number - KEYS if again else number
            yield Fastening(robots[key], line, JOINT, report, 1 + report % 7, report % 3)

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

    def by_window(self, window_ms: int) -> Counter[tuple[str, int]]:
        """How many records each robot has in each window, by its start."""
        times = ((START_MS + number, one.robot) for number, one in enumerate(self.fastenings()))
        return Counter((robot, time_ms - time_ms % window_ms) for time_ms, robot in times)

    def once_by_robot(self) -> dict[str, Expected]:
        """Totals of each robot, of the first record of each of its reports."""
        seen, found = set[int](), dict[str, Expected]()
        for fastening in self.fastenings():
            if fastening.report not in seen:  # numbers of reports differ between robots
                seen.add(fastening.report)
                one = Expected(1, fastening.fastened, fastening.failed)
                found.setdefault(fastening.robot, Expected()).add(one)
        return found

    def write(self, bootstrap: str, plain: str, enveloped: str) -> tuple[float, float]:
        """Write all of them into two topics, and return the average size of their values, in bytes.

        Behind them come a few more, a minute later, which end windows: `CLOSING` in each topic, of robots that begin with
        `CLOSER`. What comes of these is not looked at.

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
        closers = _closers(partition_of)
        for number in range(CLOSING):
            robot, place = closers[number % len(closers)], number % len(closers)
            closing_ms = START_MS + self.count + _PAUSE_MS * (1 + number // len(closers))
            if place == 0:
                wrapped.begin(closing_ms)
            key, partition = robot.encode(), place % PARTITIONS
            value = encode(Fastening(robot, robot, JOINT, -1 - number, 0, 0))
            offset = self.count // _ROOTS + 1 + number
            wrapper = wrapped.closing(place // PARTITIONS, offset, closing_ms, key, value)
            _produce(producer, plain, value, key, partition, closing_ms)
            _produce(producer, enveloped, wrapper, key, partition, closing_ms)
        producer.flush()
        return sizes[0] / self.count, sizes[1] / self.count


def _closers(partition_of: Partitioner) -> list[str]:
    """Names of robots: those of partition 0, 1, 2, 3, 0, 1 and so on, by their keys."""
    names = (f"{CLOSER}{number}" for number in count())
    by_partition: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}
    while min(map(len, by_partition.values())) < _ROOTS:
        name = next(names)
        by_partition[partition_of(name.encode())].append(name)
    return [by_partition[number % PARTITIONS][number // PARTITIONS] for number in range(PARTITIONS * _ROOTS)]


class _Republisher:
    """Makes the envelopes that a republisher upstream would have written."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, watermark_ms: int) -> None:
        """Begin a batch: its envelopes state up to which time all before it is published."""
        self._templates = [
            OutputTemplate(
                lane=0,
                topic="robot.raw",
                topic_id=bytes(16),
                partition=root,
                output="peers/robots",
                watermark_ms=watermark_ms,
            )
            for root in range(_ROOTS)
        ]
        self._previous: dict[tuple[int, int], bytes] = {}

    def closing(self, root: int, offset: int, time_ms: int, key: bytes, payload: bytes) -> bytes:
        """The envelope of a record after all others."""
        value, _ = self._templates[root].encode(
            b"", offset, 1, 0, 1, root_position(1, offset), time_ms, key, _TYPE, [payload], b""
        )
        return value

    def envelope(self, number: int, partition: int, key: bytes, payload: bytes) -> bytes:
        """The envelope of one record."""
        if number % _BATCH == 0:
            self.begin(START_MS + number - 1 if number else 0)
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
