"""Reads many short ranges with one consumer: a small batch mostly waits for brokers, and each consumer has threads of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as DriverPartition

from sqe_chain.adapters.kafka._reader import BLOCK, CONSUME_S, POOL, Reader, read_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqe_chain.adapters.kafka._settings import Settings
    from sqe_chain.ports import Message, Range, TopicPartition

_PATIENCE_S = 1.0
"""How long nothing may come before ranges that are incomplete are read one by one, where reasons are found."""


def read_all(settings: Settings, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
    """See `Log.read_all`.

    What is ordinary is read together. A range whose partition reports anything, or whose records are not clearly those that
    follow what was read before, is read again by itself, which is also where every error is found and named.
    """
    first: dict[TopicPartition, Range] = {}
    for wanted in ranges:
        if wanted.start < wanted.stop:
            first.setdefault((wanted.topic, wanted.partition), wanted)
    found = _read_together(settings, first) if first else {}
    left = list(dict.fromkeys(wanted for wanted in ranges if wanted not in found))
    found |= zip(left, read_each(settings, left), strict=True)
    return [found[wanted] for wanted in ranges]


def _read_together(settings: Settings, wanted: dict[TopicPartition, Range]) -> dict[Range, Sequence[Message]]:
    """The records of those ranges that are complete and ordinary."""
    reader = POOL.take(settings, lambda: Reader(settings))
    try:
        found = _complete(reader.consumer, wanted)
        reader.rest()
    except KafkaException:  # each range will find out by itself what it is
        reader.close()
        return {}
    POOL.give_back(settings, reader)
    return found


def _complete(consumer: Any, wanted: dict[TopicPartition, Range]) -> dict[Range, Sequence[Message]]:  # noqa: ANN401 - the driver has no types
    consumer.assign([DriverPartition(*tp, one.start) for tp, one in wanted.items()])
    records: dict[TopicPartition, list[Message]] = {tp: [] for tp in wanted}
    open_ranges = dict(wanted)
    complete: dict[Range, Sequence[Message]] = {}
    deadline = time.monotonic() + _PATIENCE_S
    while open_ranges and time.monotonic() < deadline:
        missing = sum(one.stop - one.start - len(records[tp]) for tp, one in open_ranges.items())
        # In dense logs these are all that is missing, so the call does not wait.
        block = consumer.consume(max(1, min(BLOCK, missing)), CONSUME_S)
        if block:
            deadline = time.monotonic() + _PATIENCE_S
        for message in block:
            tp = message.topic(), message.partition()
            one = open_ranges.get(tp)
            if one is None:
                continue
            error, offset = message.error(), message.offset()
            if error is None and offset < one.stop:
                records[tp].append(message)
                offset += 1
            elif error is not None and error.name() != "_PARTITION_EOF":
                del open_ranges[tp]
                continue
            if offset >= one.stop:
                del open_ranges[tp]
                if _follows(one, records[tp]):
                    complete[one] = records[tp]
    return complete


def _follows(wanted: Range, records: Sequence[Message]) -> bool:
    """Whether these records clearly follow those before the range.

    A record of the leader epoch of the last record before it does: an epoch has one leader, so whoever has this record has the
    same log before it. For any other the broker must be asked where that epoch ended.
    """
    if records and (records[0].offset() or 0) < wanted.start:
        return False
    if not wanted.leader_epoch:
        return True
    return bool(records) and records[0].leader_epoch() == wanted.leader_epoch - 1
