"""The records of a case: envelopes, as republishers upstream write them, in chains as long as the case wants."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Producer
from numpy.typing import NDArray

from benchmarks.backlog import BATCH, START_MS
from benchmarks.growth.cases import Case
from services._proto.fastening_pb2 import Fastening
from sqe_chain.chain import root_position
from sqe_chain.envelope.message import EnvelopeHead
from sqe_chain.envelope.partitioner import Partitioner
from sqe_chain.envelope.template import OutputTemplate

FEW = 8
"""Records of a batch that is almost empty."""

_TYPE = Fastening.DESCRIPTOR.full_name
_BESIDES = 36
"""Bytes of a payload that are not its text."""
_STRIDE = 7_919
"""A prime number that divides no number of keys here: the keys of a batch lie all over the key space."""
_POOL = 200_000
_MIX = 2_654_435_761


def robot(number: int) -> str:
    """The key with this number."""
    return f"robot-{number:09d}"


def numbers_of_keys(case: Case, start: int, stop: int) -> NDArray[np.int64]:
    """The numbers of the keys of these records."""
    records = np.arange(start, stop, dtype=np.int64)
    distinct = records // case.batch * case.changed + records % case.changed
    return distinct % case.keys * _STRIDE % case.keys


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a case, without end: each number gives one.

    Attributes:
        case: the case.
        topic: where they go.
    """

    case: Case
    topic: str

    def write(self, bootstrap: str, start: int, stop: int) -> None:
        """Write the records with these numbers; each number once, or it is a replay."""
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
        for key, partition, value, at_ms in self._encoded(start, stop):
            while True:
                try:
                    producer.produce(self.topic, value, key, partition, timestamp=at_ms)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.flush()

    def _encoded(self, start: int, stop: int) -> Iterator[tuple[bytes, int, bytes, int]]:
        """Key, partition, envelope and time of each."""
        case, partition_of = self.case, Partitioner(self.case.partitions)
        hops = [_hops(root, case.links) for root in range(case.lanes)]
        text = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz ", k=_POOL))
        length = max(0, case.payload - _BESIDES)
        fastening, previous = Fastening(), dict[tuple[int, int], bytes]()
        for number, index in enumerate(numbers_of_keys(case, start, stop).tolist(), start):
            if number % BATCH == 0:
                previous.clear()
            fastening.robot = robot(index)
            fastening.report = number
            fastening.fastened = 1 + number % 7
            begin = number * 31 % (_POOL - length)
            fastening.joint = text[begin : begin + length]
            key = fastening.robot.encode()
            root, partition = (number * _MIX >> 16) % case.lanes, partition_of(key)
            at_ms = START_MS + number
            payloads, chain, position = [fastening.SerializeToString()], b"", root_position(1, number)
            *upstream, last = hops[root]
            for hop in upstream:
                value, position = hop.encode(chain, number, 1, 0, 1, position, at_ms, key, _TYPE, payloads)
                chain = EnvelopeHead.FromString(value).chain
            witness = previous.get((root, partition), b"")
            value, position = last.encode(
                chain, number, 1, 0, 1, position, at_ms, key, _TYPE, payloads, witness
            )
            previous[root, partition] = position
            yield key, partition, value, at_ms


def _hops(root: int, links: int) -> list[OutputTemplate]:
    """What the services upstream wrote with; the first of them read this partition of the root topic."""
    hops, lane = list[OutputTemplate](), 0
    for number in range(links):
        topic, partition = (f"bench.hop-{number}", 0) if number else ("robot.raw", root)
        hops.append(
            OutputTemplate(
                lane=lane, topic=topic, topic_id=bytes(16), partition=partition, output=f"bench/hop-{number}"
            )
        )
        lane = hops[-1].lane
    return hops
