"""Reads ranges of partitions: the hot loop of every service."""

from __future__ import annotations

import atexit
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import Message as DriverMessage
from confluent_kafka import TopicPartition as DriverPartition

from sqe_chain.adapters.kafka._admin import admin
from sqe_chain.adapters.kafka._clients import KafkaClient, Pool, error_for
from sqe_chain.adapters.kafka._settings import READER, READER_TUNING, KafkaSettings
from sqe_chain.errors import START_OVER, ChainError, LostOffsets, RecreatedTopic, TruncatedInput, Unavailable
from sqe_chain.ports import Bounds, Message, Range, TopicPartition

BLOCK = 1000
"""Records of a block at most: 250 to 2,000 are fastest, more do not fit the processor's cache."""

_ATTEMPTS = 10
"""How often reading one range is resumed because the log continues in a later leader epoch."""

_SEEKS = 200
"""How often a seek is tried, a millisecond apart, before the partition is assigned again."""

CONSUME_S = 0.01
"""How long one call waits for a full block. It returns early only when the block is full."""

_READERS = 8
"""Consumers that read many ranges at the same time."""

_error = DriverMessage.error
_END_OF_EPOCH = re.compile(r"broker end offset is (\d+)")


class _Unreadable(Exception):
    """The partition cannot be read from `position` on; `KafkaReader._explain` finds the reason."""

    def __init__(self, error: KafkaError, position: int) -> None:
        super().__init__(error.str())
        self.position = position
        match = _END_OF_EPOCH.search(error.str())
        self.end_of_epoch = int(match.group(1)) if match else None
        self.epoch_differs = "truncation" in error.str()


class KafkaReader(KafkaClient):
    """One consumer, reading one range at a time."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings, Consumer, settings.client(READER, READER_TUNING))

    def rest(self) -> None:
        """Stop fetching, and discard what was fetched ahead."""
        self.driver.unassign()

    def read(self, wanted: Range) -> Iterator[Sequence[Message]]:
        position = wanted.start
        for attempt in range(_ATTEMPTS):
            try:
                for after, block in self._blocks(wanted, position, validate=attempt == 0):
                    yield block
                    position = after
            except _Unreadable as unreadable:
                self.rest()
                self._explain(wanted, unreadable)
            else:
                self.rest()
                return
        raise Unavailable(f"{_doing(wanted)}: the leader changed {_ATTEMPTS} times during the read.")

    def _blocks(
        self, wanted: Range, position: int, *, validate: bool
    ) -> Iterator[tuple[int, Sequence[Message]]]:
        """Blocks with the position after each, up to the end of the range."""
        if position >= wanted.stop:
            return
        self._assign(wanted, position, validate=validate)
        stop, timeout_s, consume = wanted.stop, self._settings.timeout_s, self.driver.consume
        end = -1  # end of the partition, from the latest event
        deadline = time.monotonic() + timeout_s
        while position < stop:
            # In a dense log this is the rest of the range exactly, so the call does not wait.
            block = consume(min(BLOCK, stop - position), CONSUME_S)
            if any(map(_error, block)):  # check first: the value of an event is the text of its error
                block, end = self._without_events(wanted, block, position)
            if block:
                if block[0].offset() < position or block[0].partition() != wanted.partition:
                    raise Unavailable(f"{_doing(wanted)}: got offset {block[0].offset()} at {position}.")
                position = block[-1].offset() + 1
                if position >= stop:
                    self.rest()  # fetch nothing while the caller works on the last block
                    block = [message for message in block if message.offset() < stop]
                if block:
                    yield position, block
                deadline = time.monotonic() + timeout_s
            else:
                self._faults.raise_refusal()
                if end < stop and time.monotonic() > deadline:
                    self._give_up(wanted, position, end)
            if end >= stop:  # a lower end may be that of a new leader that lags behind: keep reading
                return

    def _assign(self, wanted: Range, position: int, *, validate: bool) -> None:
        epoch = wanted.leader_epoch - 1 if validate else -1
        start = DriverPartition(wanted.topic, wanted.partition, position, leader_epoch=epoch)
        self.driver.assign([start])
        if epoch < 0:
            return
        # assign() alone does not compare epochs (librdkafka #5158); seek() does, before it fetches.
        deadline = time.monotonic() + self._settings.timeout_s
        for attempt in itertools.count(1):
            try:
                # A fetch that failed before the seek stops the partition, and then no seek ever succeeds.
                if attempt % _SEEKS == 0:
                    self.driver.assign([start])
                self.driver.seek(start)
            except KafkaException as error:
                # _STATE: the assignment is not active yet
                if error.args[0].name() != "_STATE" or time.monotonic() > deadline:
                    raise error_for(error, _doing(wanted), self._settings) from None
                time.sleep(0.001)
            else:
                return

    def _without_events(
        self, wanted: Range, block: Sequence[DriverMessage], position: int
    ) -> tuple[list[DriverMessage], int]:
        """The records of a block without its events; and the end of the partition, -1 if no event has it."""
        records, end = [], -1
        for message in block:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.name() == "_PARTITION_EOF":
                end = message.offset() or 0
            elif error.name() == "GROUP_AUTHORIZATION_FAILED":
                continue  # of the group that the driver wants named, and that nobody joins
            elif error.name() in {"_AUTO_OFFSET_RESET", "_LOG_TRUNCATION", "OFFSET_OUT_OF_RANGE"}:
                raise _Unreadable(error, position)
            else:
                if "UNKNOWN_TOPIC" in error.name():
                    self._bounds(wanted)  # raises RecreatedTopic if the topic was deleted
                raise error_for(error, f"{_doing(wanted)}, at {position},", self._settings)
        return records, end

    def _give_up(self, wanted: Range, position: int, end: int) -> None:
        """Raise the reason why nothing came within the time limit."""
        try:
            bounds = self._bounds(wanted)
        except Unavailable as error:
            raise Unavailable(f"{_doing(wanted)}: no records since offset {position}. {error}") from None
        if bounds.begin > position:
            raise _lost(wanted, position, bounds)
        if bounds.stable_end < wanted.stop:
            raise _truncated(wanted, f"its stable end is {bounds.stable_end}, below the end of the range")
        raise Unavailable(
            f"{_doing(wanted)}: no records since offset {position} within {self._settings.timeout_s:g} s, "
            f"although the partition is stable up to {bounds.stable_end} (last end seen: {end})."
            f"{self._faults.why()}"
        )

    def _explain(self, wanted: Range, unreadable: _Unreadable) -> None:
        """Raise the reason why the partition is unreadable; return if reading can continue."""
        bounds = self._bounds(wanted)
        if bounds.begin > unreadable.position:
            raise _lost(wanted, unreadable.position, bounds)
        first, position = unreadable.end_of_epoch, unreadable.position
        if not unreadable.epoch_differs or first is None or bounds.stable_end < position:
            raise _truncated(wanted, str(unreadable))
        # A later epoch begins at `first`, before our position. That is not a truncation if everything between
        # is invisible: the marker of a transaction that outlived a change of leader, aborted records, compacted
        # ones. A visible record there is not the one that was read before.
        hidden = replace(wanted, start=max(first, bounds.begin), stop=position, leader_epoch=0)
        between = KafkaReader(self._settings)  # this one is in the middle of a read
        try:
            for block in between.read(hidden):
                seen = f"offset {block[0].offset()} holds a record that was written later, in another epoch"
                raise _truncated(wanted, seen)
        finally:
            between.close()

    def _bounds(self, wanted: Range) -> Bounds:
        client = admin(self._settings)
        now = client.topic_ids([wanted.topic]).get(wanted.topic)
        if now is None or (wanted.topic_id and now != wanted.topic_id):
            state = (
                f"the id of {wanted.topic} is now {now.hex()}" if now else f"{wanted.topic} does not exist"
            )
            raise RecreatedTopic(
                f"{_doing(wanted)}: {state}, expected {wanted.topic_id.hex()}. "
                f"The offsets belong to another topic. The only way to continue is to {START_OVER}"
            ).at(wanted.topic, wanted.partition, wanted.start)
        return client.bounds([(wanted.topic, wanted.partition)])[wanted.topic, wanted.partition]


def _doing(wanted: Range) -> str:
    return f"Reading {wanted.topic}[{wanted.partition}] from {wanted.start} to {wanted.stop}"


def _lost(wanted: Range, position: int, bounds: Bounds) -> LostOffsets:
    return LostOffsets(
        f"{_doing(wanted)}: the log now begins at {bounds.begin}; offsets {position} to {bounds.begin - 1} "
        f"were deleted before they were read. Raise the topic's retention; restore them, or {START_OVER} with --start earliest"
    ).at(wanted.topic, wanted.partition, position)


def _truncated(wanted: Range, why: str) -> TruncatedInput:
    epoch = f" in leader epoch {wanted.leader_epoch - 1}" if wanted.leader_epoch else ""
    return TruncatedInput(
        f"{_doing(wanted)}: the log was truncated: {why}. Everything before {wanted.start} was read{epoch} "
        "and counted. Find out which broker lost its data before going on."
    ).at(wanted.topic, wanted.partition, wanted.start)


POOL: Pool[KafkaReader] = Pool()
atexit.register(POOL.close)


def read(settings: KafkaSettings, wanted: Range) -> Iterator[Sequence[Message]]:
    """Read a range; the consumer is kept for the next one, unless something went wrong."""
    reader = POOL.take(settings, lambda: KafkaReader(settings))
    try:
        yield from reader.read(wanted)
    except GeneratorExit:
        try:
            reader.rest()
        except KafkaException:  # the caller has stopped reading: no one needs this error
            reader.close()
        else:
            POOL.give_back(settings, reader)
        raise
    except ChainError:
        reader.close()
        raise
    except KafkaException as error:
        reader.close()
        raise error_for(error, _doing(wanted), settings) from None
    POOL.give_back(settings, reader)


_PATIENCE_S = 1.0
"""How long nothing may come before ranges that are incomplete are read one by one, where reasons are found."""


def read_all(settings: KafkaSettings, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
    """Read short ranges, the ordinary ones together.

    A range is read again by itself if its partition reports anything, or if its records do not clearly follow what was read
    before. There every error is found and named.
    """
    first: dict[TopicPartition, Range] = {}
    for wanted in ranges:
        if wanted.start < wanted.stop:
            first.setdefault((wanted.topic, wanted.partition), wanted)
    records = _read_together(settings, first) if first else {}
    left = list(dict.fromkeys(wanted for wanted in ranges if wanted not in records))
    records |= zip(left, _read_each(settings, left), strict=True)
    return [records[wanted] for wanted in ranges]


def _read_each(settings: KafkaSettings, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
    """The records of each range, by a few consumers at the same time.

    One alone mostly waits: for 256 ranges of one record, 8 took a sixth of the time.
    """

    def records(wanted: Range) -> list[Message]:
        return [message for block in read(settings, wanted) for message in block]

    if len(ranges) <= 1:
        return [records(wanted) for wanted in ranges]
    with ThreadPoolExecutor(min(_READERS, len(ranges))) as pool:
        return list(pool.map(records, ranges))


def _read_together(
    settings: KafkaSettings, wanted: dict[TopicPartition, Range]
) -> dict[Range, Sequence[Message]]:
    """The records of those ranges that are complete and ordinary."""
    reader = POOL.take(settings, lambda: KafkaReader(settings))
    try:
        records = _complete(reader.driver, wanted)
        reader.rest()
    except KafkaException:  # each range will find out by itself what it is
        reader.close()
        return {}
    POOL.give_back(settings, reader)
    return records


def _complete(consumer: Any, wanted: dict[TopicPartition, Range]) -> dict[Range, Sequence[Message]]:  # noqa: ANN401 - the driver has no types
    consumer.assign([DriverPartition(*tp, open_range.start) for tp, open_range in wanted.items()])
    records: dict[TopicPartition, list[Message]] = {tp: [] for tp in wanted}
    open_ranges = dict(wanted)
    complete: dict[Range, Sequence[Message]] = {}
    deadline = time.monotonic() + _PATIENCE_S
    while open_ranges and time.monotonic() < deadline:
        missing = sum(left.stop - left.start - len(records[tp]) for tp, left in open_ranges.items())
        # In dense logs these are all that is missing, so the call does not wait.
        block = consumer.consume(max(1, min(BLOCK, missing)), CONSUME_S)
        if block:
            deadline = time.monotonic() + _PATIENCE_S
        for message in block:
            tp = message.topic(), message.partition()
            left = open_ranges.get(tp)
            if left is None:
                continue
            error, offset = message.error(), message.offset()
            if error is None and offset < left.stop:
                records[tp].append(message)
                offset += 1
            elif error is not None and error.name() != "_PARTITION_EOF":
                del open_ranges[tp]
                continue
            if offset >= left.stop:
                del open_ranges[tp]
                if _follows(left, records[tp]):
                    complete[left] = records[tp]
    return complete


def _follows(wanted: Range, records: Sequence[Message]) -> bool:
    """Whether these records clearly follow those before the range: the first has the leader epoch of the last one before.

    An epoch has one leader, so a broker with this record has the same log before it. Of any other epoch the broker must be
    asked where it ended.
    """
    if records and (records[0].offset() or 0) < wanted.start:
        return False
    if not wanted.leader_epoch:
        return True
    return bool(records) and records[0].leader_epoch() == wanted.leader_epoch - 1
