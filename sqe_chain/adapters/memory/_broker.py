"""The content of a broker in memory, and the records and reads that it refuses: the same ones as Kafka."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sqe_chain.errors import (
    LostOffsets,
    OutputRefused,
    OutputTooLarge,
    RecreatedTopic,
    ServiceStopped,
    TruncatedInput,
)
from sqe_chain.ports import NO_LIMIT, Commit, Headers, Message, Range, TopicInfo

Content = tuple[bytes | None, bytes | None, Headers | None]
"""Key, value and headers of a record."""

_OVERHEAD_BYTES = 97  # of a batch and of a record in it, as Kafka's client counts


@dataclass(frozen=True, slots=True)
class MemoryMessage(Message):
    """One record.

    Attributes:
        coordinates: topic, partition and offset.
        content: key, value and headers.
        timestamp_ms: milliseconds since 1970; its kind is 1, set by the writer.
        epoch: leader epoch of the record.
    """

    coordinates: tuple[str, int, int]
    content: Content
    timestamp_ms: int
    epoch: int

    def topic(self) -> str:
        return self.coordinates[0]

    def partition(self) -> int:
        return self.coordinates[1]

    def offset(self) -> int:
        return self.coordinates[2]

    def key(self) -> bytes | None:
        return self.content[0]

    def value(self) -> bytes | None:
        return self.content[1]

    def headers(self) -> Headers | None:
        return self.content[2] or None

    def timestamp(self) -> tuple[int, int]:
        return (1, self.timestamp_ms)

    def leader_epoch(self) -> int | None:
        return self.epoch

    def error(self) -> None:
        """None: there are no events among the records."""


@dataclass(slots=True)
class Partition:
    """One partition: its records, its leader epochs, and transactions that are open."""

    begin: int = 0
    end: int = 0
    epoch: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # epoch, its first offset
    records: dict[int, MemoryMessage] = field(default_factory=dict)  # in offset order
    uncommitted: dict[int, int] = field(default_factory=dict)  # offset -> open transaction

    def stable_end(self) -> int:
        """The last stable offset."""
        return min([self.end, *self.uncommitted])

    def offset_at(self, timestamp_ms: int) -> int:
        """The offset of the first record of this time or later; without one the last stable offset."""
        later = (at for at, record in self.records.items() if record.timestamp_ms >= timestamp_ms)
        return min(next(later, self.end), self.stable_end())

    def enter(self, epoch: int) -> None:
        """Begin a leader epoch, if it is later than the current one."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.epochs.append((epoch, self.end))

    def end_of(self, epoch: int) -> int | None:
        """The offset where a leader epoch ends; None if the log never had an epoch that late."""
        later = [first for known, first in self.epochs if known > epoch]
        return (later[0] if later else self.end) if epoch <= self.epoch else None

    def visible(self) -> Iterator[MemoryMessage]:
        """Records outside transactions, and of committed ones."""
        for offset, record in self.records.items():
            if offset not in self.uncommitted:
                yield record


@dataclass(slots=True)
class Topic:
    """One topic."""

    info: TopicInfo
    partitions: list[Partition]


@dataclass(slots=True)
class Broker:
    """All topics and commits of one broker."""

    topics: dict[str, Topic] = field(default_factory=dict)
    incarnations: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    commits: dict[tuple[str, str, int], Commit] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)  # group -> its one member
    joined: int = 0  # members so far
    transactions: int = 0
    # Transactional id -> its newest writer, and the transaction that is open or 0.
    transactional: dict[str, tuple[int, int]] = field(default_factory=dict)
    down: bool = False
    block_records: int = 1_000
    commits_kept_ms: int = -1


BROKERS: defaultdict[str, Broker] = defaultdict(Broker)
"""Name -> broker: logs of one name share it, as long as the process lives."""

CLOCKS: dict[str, Callable[[], int]] = {}
"""Name -> clock, for brokers with a clock of their own. Not in `Broker`: a snapshot must not copy it."""


def accept(
    info: TopicInfo, where: str, content: Content, timestamp_ms: int, now_ms: Callable[[], int]
) -> int:
    """Check a record as a broker does, and give the timestamp that it gets.

    Args:
        info: the topic.
        where: topic and partition, for errors.
        content: the record.
        timestamp_ms: the timestamp from its writer.
        now_ms: the broker's clock; called only if the topic limits or sets timestamps.

    Raises:
        OutputTooLarge: the record is larger than the topic accepts.
        OutputRefused: a key is missing, or the topic does not accept the time.
    """
    key, value, headers = content
    size = _OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    size += sum(len(name) + len(text or b"") for name, text in headers or ())
    if size > info.max_message_bytes:
        raise OutputTooLarge(
            f"A record for {where}, key {key and key[:60]!r}, has {size:,} bytes; its topic takes {info.max_message_bytes:,}."
        )
    if key is None and info.compacted:
        raise OutputRefused(f"{where}: the topic is compacted and takes no record without a key.")
    if info.append_time:
        return now_ms()
    if (info.before_max_ms, info.after_max_ms) != (NO_LIMIT, NO_LIMIT):
        ahead_ms = timestamp_ms - now_ms()
        if ahead_ms > info.after_max_ms or -ahead_ms > info.before_max_ms:
            raise OutputRefused(f"{where}: the topic takes no record {ahead_ms} ms ahead of its clock.")
    return timestamp_ms


def system_ms() -> int:
    """The system's clock."""
    return time.time_ns() // 1_000_000


def check_range(wanted: Range, topic: Topic | None) -> None:
    """Check that a range can be read. As at Kafka, a topic that was created again is noticed only if it cannot."""
    where = f"Reading {wanted.topic}[{wanted.partition}] from {wanted.start} to {wanted.stop}"
    recreated = RecreatedTopic(f"{where}: the topic was deleted, or created again; its id differs.")
    if topic is None or wanted.partition >= len(topic.partitions):
        error: ServiceStopped | None = recreated
    else:
        error = _obstacle(wanted, topic.partitions[wanted.partition], where)
        if error is not None and wanted.topic_id not in (b"", topic.info.topic_id):
            error = recreated
    if error is not None:
        raise error.at(wanted.topic, wanted.partition, wanted.start)


def _obstacle(wanted: Range, part: Partition, where: str) -> ServiceStopped | None:
    if part.begin > wanted.start:
        return LostOffsets(f"{where}: the log now begins at {part.begin}.")
    if part.stable_end() < wanted.stop:
        return TruncatedInput(f"{where}: the log is stable only up to {part.stable_end()}.")
    if not wanted.leader_epoch:
        return None
    end = part.end_of(wanted.leader_epoch - 1)
    if end is None:
        return TruncatedInput(f"{where}: the log no longer has leader epoch {wanted.leader_epoch - 1}.")
    # A later epoch may begin before `start` if none of its records there are visible: markers, aborted records.
    if any(end <= record.offset() < wanted.start for record in part.visible()):
        return TruncatedInput(
            f"{where}: from offset {end} on, the log was written later, in another leader epoch."
        )
    return None
