"""The content of a broker in memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqe_chain.ports import Commit, Headers, TopicInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class MemoryMessage:
    """One record; a `sqe_chain.ports.Message`.

    Attributes:
        coordinates: topic, partition and offset.
        content: key, value and headers.
        timestamp_ms: milliseconds since 1970.
        epoch: leader epoch of the record.
    """

    coordinates: tuple[str, int, int]
    content: tuple[bytes | None, bytes | None, Headers | None]
    timestamp_ms: int
    epoch: int

    def topic(self) -> str:
        """Topic name."""
        return self.coordinates[0]

    def partition(self) -> int:
        """Partition number."""
        return self.coordinates[1]

    def offset(self) -> int:
        """Offset."""
        return self.coordinates[2]

    def key(self) -> bytes | None:
        """Key bytes."""
        return self.content[0]

    def value(self) -> bytes | None:
        """Value bytes."""
        return self.content[1]

    def headers(self) -> Headers | None:
        """Headers; None when there are none."""
        return self.content[2] or None

    def timestamp(self) -> tuple[int, int]:
        """Kind 1 (set by the writer) and milliseconds."""
        return (1, self.timestamp_ms)

    def leader_epoch(self) -> int | None:
        """Leader epoch of the record."""
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
    open: dict[int, int] = field(default_factory=dict)  # transaction -> its first offset
    uncommitted: dict[int, int] = field(default_factory=dict)  # offset -> transaction

    def stable_end(self) -> int:
        """The last stable offset."""
        return min([self.end, *self.open.values()])

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
    transactions: int = 0
    down: bool = False
    block_records: int = 1_000


BROKERS: defaultdict[str, Broker] = defaultdict(Broker)
"""Name -> broker: logs of one name share it, as long as the process lives."""

CLOCKS: dict[str, Callable[[], int]] = {}
"""Name -> clock, for brokers with a clock of their own. Not in `Broker`: a snapshot must not copy it."""
