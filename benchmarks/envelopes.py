"""`python -m benchmarks.envelopes`: what publishing an envelope costs, and what the client's `produce_batch` does not support.

No server: the client's own stand-in for a broker is enough to see what its calls cost this process's thread.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from confluent_kafka import Consumer, Producer, TopicPartition, libversion, version
from google.protobuf.wrappers_pb2 import BytesValue
from rich.console import Console
from rich.table import Table

from benchmarks.machine import facts
from sqe_chain.chain import read_lane, root_position, stored_epoch
from sqe_chain.envelope import parse_head
from sqe_chain.envelope.block import EnvelopeBlock
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.flow import Flow
from sqe_chain.flow.context import TopicIdPartition, new_origin
from sqe_chain.ports import Headers, Output
from sqe_chain.task.collector import Made
from sqe_chain.task.inputs import BlockInputs, Inputs
from sqe_chain.task.outputs import Gatherer

INPUTS, PARTITIONS, ROUNDS = 1_000, 4, 40
NOW_MS = 1_700_000_000_000
TP = TopicIdPartition("robot.raw", b"i" * 16, 2)
TYPE = BytesValue.DESCRIPTOR.full_name
BROKER = {"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0, "linger.ms": 20}


@dataclass(slots=True)
class Record:
    """A message as the log gives it."""

    at: int
    data: bytes

    def topic(self) -> str:
        """See `Message`."""
        return TP.topic

    def partition(self) -> int:
        """See `Message`."""
        return TP.partition

    def offset(self) -> int:
        """See `Message`."""
        return self.at

    def value(self) -> bytes:
        """See `Message`."""
        return self.data

    def key(self) -> None:
        """See `Message`."""

    def headers(self) -> Headers | None:
        """See `Message`."""
        return None

    def leader_epoch(self) -> int:
        """See `Message`."""
        return 3

    def timestamp(self) -> tuple[int, int]:
        """See `Message`."""
        return 1, NOW_MS


class Block:
    """A block of envelopes; each gives two payloads for two keys."""

    def __init__(self) -> None:
        upstream = OutputTemplate(
            lane=0, topic="joints", topic_id=b"j" * 16, partition=0, output="intake/robots"
        )
        self.records = [
            Record(
                at,
                upstream.encode(b"", at, 1, 0, 1, root_position(1, at), NOW_MS + at, b"k", TYPE, [b"x" * 60])[
                    0
                ],
            )
            for at in range(INPUTS)
        ]
        self.heads = [parse_head(record.data) for record in self.records]
        self.envelopes = EnvelopeBlock(self.records, TYPE.encode())
        self.lanes = {head.lane: read_lane(head.lane, *TP) for head in self.heads}
        flow = Flow("standard")
        flow.source(TP.topic, BytesValue).to("robot.ok", key=lambda _: "k", partitions=PARTITIONS)
        self.flow = flow.compile()
        (index,) = (node.index for node in self.flow.outputs)
        self.inputs = [at for at in range(INPUTS) for _ in range(2)]
        self.made: list[Made] = [
            (index, b"robot-%d" % (at % 10 + other), TYPE, b"y" * 60)
            for at in range(INPUTS)
            for other in (0, 100)
        ]

    def one_by_one(self) -> list[Output]:
        """Its records, each input by itself, without the parsing of the inputs."""
        gatherer, found = Gatherer(self.flow, None, {}, NOW_MS), list[Output]()
        for at, (record, head) in enumerate(zip(self.records, self.heads, strict=True)):
            epoch, lane = stored_epoch(record.leader_epoch()), self.lanes[head.lane]
            origin = new_origin((TP, record.offset(), epoch, lane, head.position, head, record, None, -1))
            gatherer.gather(self.made[2 * at : 2 * at + 2], [0, 0], Inputs([origin]), found)
        return found

    def in_a_run(self) -> list[Output]:
        """Its records, all together."""
        gatherer, found = Gatherer(self.flow, None, {}, NOW_MS), list[Output]()
        inputs = BlockInputs(TP, self.envelopes, self.lanes.__getitem__)
        gatherer.gather(self.made, self.inputs, inputs, found)
        return found


def one_call_each(producer: Producer, outputs: Sequence[Output]) -> None:
    """Hand records to the client, as the writer does."""
    produce: Any = producer.produce  # its stubs refuse None as the content of a header
    for topic, partition, key, value, headers, timestamp_ms in outputs:
        produce(topic, value, key, partition, None, None, timestamp_ms, headers)


def by_partition(producer: Producer, outputs: Sequence[Output]) -> None:
    """The same by `produce_batch`, which takes neither times nor headers: each partition's at once."""
    found: dict[int, list[dict[str, Any]]] = {}
    for _topic, partition, key, value, _headers, _time_ms in outputs:
        found.setdefault(partition, []).append({"value": value, "key": key})
    for partition, messages in found.items():
        if producer.produce_batch(outputs[0][0], messages, partition) != len(messages):
            raise BufferError


def costs() -> dict[str, float]:
    """Piece of work -> nanoseconds of this thread for one envelope; the best of several rounds."""
    block = Block()
    outputs = block.one_by_one()
    if outputs != block.in_a_run():
        raise AssertionError("both ways must give the same records")
    values: list[Any] = [output[3] for output in outputs]
    single, batch = Producer(BROKER), Producer(BROKER)
    pieces: dict[str, Callable[[], object]] = {
        "gather and encode, one by one": block.one_by_one,
        "gather and encode, in a run": block.in_a_run,
        "of that the CRC": lambda: list(map(crc32, values)),
        "produce(), with its times": lambda: one_call_each(single, outputs),
        "produce_batch(), without": lambda: by_partition(batch, outputs),
    }
    best = dict.fromkeys(pieces, float("inf"))
    gc.disable()
    for _ in range(ROUNDS):
        for name, piece in pieces.items():
            began = time.thread_time_ns()
            piece()
            best[name] = min(best[name], (time.thread_time_ns() - began) / len(outputs))
            single.flush()
            batch.flush()
    gc.enable()
    return best


def left_out() -> dict[str, str]:
    """What the client's `produce_batch` does with a message's partition, headers and time."""
    producer = Producer(BROKER)
    broker = next(iter(producer.list_topics().brokers.values()))
    messages: list[dict[str, Any]] = [
        {"value": b"%d" % number, "key": b"k", "partition": number, "headers": [("a", b"b")]}
        for number in range(PARTITIONS)
    ]
    queued = producer.produce_batch("t", messages)
    producer.flush()
    reader = Consumer({"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g", "log_level": 0})
    reader.assign([TopicPartition("t", number, 0) for number in range(PARTITIONS)])
    found = [message for message in reader.consume(queued, timeout=30) if not message.error()]
    reader.close()
    try:
        producer.produce_batch("t", [{"value": b"x", "timestamp": NOW_MS}])
        time_taken = "taken"
    except NotImplementedError as error:
        time_taken = f"refused: {error}"
    partitions = sum(message.partition() == int(message.value() or b"") for message in found)
    return {
        "queued, read": f"{queued}, {len(found)}",
        "in the partition that the message names": f"{partitions} of {len(found)}",
        "with the headers of the message": f"{sum(bool(message.headers()) for message in found)} of {len(found)}",
        "its time": time_taken,
    }


def main() -> None:
    """Print both."""
    out = Console(highlight=False, soft_wrap=True)
    for name, fact in facts().items():
        out.print(f"{name}: {fact}")
    table = Table("an envelope", "ns", title="publishing")
    for name, cost in costs().items():
        table.add_row(name, f"{cost:,.0f}")
    out.print(table)
    table = Table("produce_batch", "", title=f"confluent-kafka {version()}, librdkafka {libversion()[0]}")
    for name, answer in left_out().items():
        table.add_row(name, answer)
    out.print(table)


if __name__ == "__main__":
    main()
