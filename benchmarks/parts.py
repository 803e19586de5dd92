"""Where the time goes: processor nanoseconds for a message, piece by piece, in one process and without Spark.

Records of one partition are read once and kept. Then each piece processes the same ones many times. The
best time counts: on a machine that does other things, too, it has the least noise.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

from benchmarks.flows import (
    add,
    aggregation,
    both_robots,
    declared,
    declared_windows,
    republisher,
    windows,
)
from services._proto.fastening_pb2 import Fastening, LineTotal
from services.fastening import robot_of
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import EnvelopeHead
from sqe_chain.envelope.wire import RESIDUE
from sqe_chain.flow import Flow
from sqe_chain.ports import Header, Message, Range
from sqe_chain.task.event_times import EventTimes
from sqe_chain.task.reading import Reading
from sqe_chain.task.results import Job, Portion
from sqe_chain.task.states import Claim, Transition

BLOCKS = 12
ROUNDS = 25

Blocks = Sequence[Sequence[Message]]


class NoStates:
    """A store without states."""

    def read(
        self, _flow: str, _stage: str, _part: int, keys: Sequence[bytes]
    ) -> tuple[Header, list[None], Header]:
        header = Header(1, "run", 0, "0")
        return header, [None] * len(keys), header


def parts(bootstrap: str, topic: str) -> Iterator[tuple[str, float]]:
    """Piece of work -> nanoseconds per message."""
    log = KafkaLog(bootstrap)
    topic_id = log.describe([topic])[topic].topic_id
    stop = log.bounds([(topic, 0)])[topic, 0].stable_end
    wanted = Range(topic, topic_id, 0, 0, stop)
    for _ in log.read(wanted):
        pass  # connects
    began = time.process_time()
    everything = list(log.read(wanted))
    yield "consume, threads of the client included", (time.process_time() - began) / stop * 1e9
    blocks = everything[:BLOCKS]

    def segment(declared: Flow, *, in_place: bool) -> Callable[[], None]:
        store: Any = NoStates()
        flow = declared.compile()
        times = EventTimes(0) if flow.timed else None
        portion = Portion(wanted, PartitionMarks(topic, topic_id, 0), times=times)

        def run() -> None:
            job = Job(Transition(flow.name, Claim(1, "run"), 0, "0"), 1, in_place)
            reading = Reading(flow, job, lambda _: store)
            for _ in reading.read(portion, blocks):
                pass
            for _ in reading.finish():
                pass
            assert not reading.report.mispartitioned

        return run

    pieces = {
        "look at the value, check its CRC": lambda: _check(blocks),
        "parse the envelope": lambda: _parse(blocks),
        "aggregate: plain work (parse twice, fold)": lambda: _plain_aggregate(blocks),
        "aggregate: all of ours": segment(aggregation("parts", topic), in_place=True),
        "aggregate, declared: all of ours": segment(declared("parts", topic), in_place=True),
        "windows: all of ours": segment(windows("parts", topic), in_place=True),
        "windows, declared: all of ours": segment(declared_windows("parts", topic), in_place=True),
        "republish: plain work (parse twice, make and serialize two)": lambda: _plain_republish(blocks),
        "republish: all of ours": segment(republisher("parts", topic, "parts-out"), in_place=False),
    }
    best = dict.fromkeys(pieces, float("inf"))
    messages = sum(map(len, blocks))
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)  # as in a task
    try:
        for _ in range(ROUNDS):
            for name, piece in pieces.items():
                began = time.process_time()
                piece()
                best[name] = min(best[name], (time.process_time() - began) / messages * 1e9)
    finally:
        gc.set_threshold(*thresholds)
    yield from best.items()


def _check(blocks: Blocks) -> None:
    for block in blocks:
        for message in block:
            value = message.value()
            assert value
            assert crc32(value) == RESIDUE


def _parse(blocks: Blocks) -> None:
    parse = EnvelopeHead.FromString
    for block in blocks:
        for message in block:
            parse(message.value() or b"")


def _plain_aggregate(blocks: Blocks) -> None:
    parse_head, parse = EnvelopeHead.FromString, Fastening.FromString
    states: dict[str, LineTotal] = {}
    for block in blocks:
        for message in block:
            fastening = parse(parse_head(message.value() or b"").payload)
            key = robot_of(fastening)
            state = states.get(key)
            if state is None:
                state = states[key] = LineTotal()
            add(state, fastening)


def _plain_republish(blocks: Blocks) -> None:
    parse_head, parse = EnvelopeHead.FromString, Fastening.FromString
    for block in blocks:
        for message in block:
            for made in both_robots(parse(parse_head(message.value() or b"").payload)):
                made.SerializeToString()
                robot_of(made)
