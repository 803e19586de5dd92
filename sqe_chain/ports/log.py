"""What the protocol needs from Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

TopicPartition = tuple[str, int]
"""Topic name and partition number."""

Headers = list[tuple[str, bytes | None]]
"""Kafka record headers, in order; names may repeat."""

Output = tuple[str, int, bytes | None, bytes | None, Headers | None, int]
"""One record to publish: topic, partition, key, value, headers, timestamp in milliseconds."""


class Message(Protocol):
    """One record, as a log returns it. The methods are those of confluent-kafka's Message."""

    def topic(self) -> str:
        """Topic name."""

    def partition(self) -> int:
        """Partition number."""

    def offset(self) -> int:
        """Offset, 0 or more."""

    def key(self) -> bytes | None:
        """Key bytes; None for a null key."""

    def value(self) -> bytes | None:
        """Value bytes; None for a tombstone."""

    def headers(self) -> Headers | None:
        """Headers; None when there are none."""

    def timestamp(self) -> tuple[int, int]:
        """Kind of timestamp, and milliseconds since 1970 (-1: unknown)."""

    def leader_epoch(self) -> int | None:
        """Leader epoch of the record's own batch; None in old message formats."""


NO_LIMIT = (1 << 63) - 1
"""Kafka's value for "no limit" in a topic's time limits (Long.MAX_VALUE), in milliseconds."""


def shown_place(message: Message) -> str:
    """Where a record is, for people: ``topic[partition]@offset``."""
    return f"{message.topic()}[{message.partition()}]@{message.offset()}"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What a broker knows of a topic: what it is, and which records it refuses.

    Attributes:
        name: topic name.
        topic_id: the broker's 16-byte UUID of this topic's incarnation.
        partitions: number of partitions.
        compacted: whether `cleanup.policy` contains `compact`.
        max_message_bytes: largest record batch the topic accepts, in bytes: the smaller one of
            `max.message.bytes` and `segment.bytes`.
        replicas: replication factor.
        min_insync_replicas: replicas that must acknowledge a write; 0: the broker has no such setting, and decides itself.
        before_max_ms: how much older than the broker's clock a record's time may be
            (`message.timestamp.before.max.ms`).
        after_max_ms: how much newer (`message.timestamp.after.max.ms`).
        append_time: the broker sets the time of every record itself (`message.timestamp.type` is
            LogAppendTime), so it refuses no record for its time.
        write_caching: the broker acknowledges a record before it is on a disk (`write.caching`).
        retention_ms: for how long after its own time it keeps a record (`retention.ms`); -1: without limit, or unknown.
        retention_bytes: how many bytes of each partition it keeps (`retention.bytes`); -1: without limit, or unknown.
        label: what people call it, where that is not its name: the path of a file. Empty: its name.
        records: its final number of records, where that is known: the rows of a file; -1: it may grow.
        cluster: id of the cluster that it is in; empty: nobody knows.
    """

    name: str
    topic_id: bytes
    partitions: int
    compacted: bool = False
    max_message_bytes: int = 1_048_588
    replicas: int = 1
    min_insync_replicas: int = 1
    before_max_ms: int = NO_LIMIT
    after_max_ms: int = NO_LIMIT
    append_time: bool = False
    write_caching: bool = False
    retention_ms: int = -1
    retention_bytes: int = -1
    label: str = ""
    records: int = -1
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a partition's log begins and how far it is stable.

    Attributes:
        begin: first offset that retention has not deleted.
        stable_end: last stable offset: one past the last record that a read-committed reader may see.
    """

    begin: int
    stable_end: int


@dataclass(frozen=True, slots=True)
class Range:
    """The part of one input partition that one batch reads.

    Attributes:
        topic: topic name.
        topic_id: 16 bytes; the incarnation that the offsets belong to.
        partition: partition number.
        start: first offset to read.
        stop: one past the last offset to read; equal to start for an idle partition.
        leader_epoch: leader epoch plus one of the last record before `start`; 0 when unknown.
            A reader sends it to the broker, which then notices a truncated log.
    """

    topic: str
    topic_id: bytes
    partition: int
    start: int
    stop: int
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's committed offset with its metadata text (at most 4,095 characters)."""

    offset: int
    metadata: str = ""


class Writer(Protocol):
    """Publishes records. Used by one thread. Every call may raise `ConfigurationError` (no such topic) and `Unavailable`."""

    def connect(self, topics: Sequence[str]) -> None:
        """Prepare for records of these topics, which must exist, so that the first `write` need not. Nothing is written."""

    def write(self, outputs: Sequence[Output]) -> None:
        """Send records; each partition receives its records in the order given, without holes.

        Blocks while the client's buffer is full. A record gets the time of sending (`sqe_chain.ports.accepting.stamps`) where
        its topic does not accept its own time, or would delete it at once. What is sealed must be published, and read.

        Raises:
            OutputTooLarge: a record is larger than its topic accepts; it was not sent.
            OutputRefused: the broker refuses a record permanently; the writer must be closed.
            Unavailable: sending a record failed; records written before may or may not have been
                stored, and the writer must be closed.
        """

    def flush(self) -> None:
        """Return when every record written so far is acknowledged by all in-sync replicas.

        Raises:
            OutputRefused, Unavailable: as `write`; not within the time limit (minimum in-sync replicas not met, broker down).
        """

    def close(self) -> None:
        """Release the writer. After an error its client is discarded, otherwise kept for this process."""


class TransactionalWriter(Protocol):
    """Publishes records that readers of committed records see together, or never. Used by one thread.

    Making one ends what an older one of the same id has left open, and waits for what that was committing. From then on the older
    one commits nothing. Every call may raise `ConfigurationError` and `Unavailable`. After any error the writer must be closed,
    and nobody knows whether its transaction is committed until a newer writer of the id is there.

    Attributes:
        worn: the last commit was answered, but must not be followed by another one: a repetition of its request may still be on its
            way. Close the writer.
    """

    worn: bool

    def write(self, outputs: Sequence[Output]) -> None:
        """Send records, as `Writer.write` does. The first ones begin a transaction.

        Raises:
            OutputTooLarge, OutputRefused, Unavailable: as `Writer.write`; also, a newer writer of the id is there.
        """

    def commit(self) -> None:
        """Return when everything written is acknowledged, and committed. Nothing, if nothing was written.

        Readers may see it a moment later; at once when a newer writer of the id has been made.

        Raises:
            OutputRefused, Unavailable: it is not known to be committed.
        """

    def close(self) -> None:
        """Release the writer. A transaction that is open is aborted, if the broker answers; raises nothing."""


class Membership(Protocol):
    """The one membership in a flow's group: as long as nobody else joins, its run alone commits.

    Used by one thread at a time. Every call may raise `Unavailable` and `ConfigurationError`, as those of a `Log`.
    """

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        """As `Log.committed`. A run reads here where it goes on, because a commit of an older run cannot follow."""

    def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        """Commit offsets with metadata. A member whose session has ended joins again, if nobody has committed since.

        Raises:
            Superseded: somebody else has joined since, or committed; nothing was committed.
        """

    def leave(self) -> None:
        """Leave the group, so that it has no members. It does not wait for a broker that is away, and raises nothing."""


class Log(Protocol):
    """Kafka, as seen by a service: topics, ranges of records, group commits.

    Every call may raise `Unavailable` (no answer within the time limit) and `ConfigurationError` (the broker refuses the login, or
    has no topic ids).
    """

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """What the broker knows about these topics; a topic that does not exist is absent.

        Settings of a topic may be what they were a second ago; which topics there are, their ids and partitions are not.
        """

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        """The ids that these topics have now, at half the cost of `describe`; a topic that does not exist is absent."""

    def create_topic(
        self, topic: str, partitions: int, *, kept: bool = False, compacted: bool = False
    ) -> None:
        """Create a topic with the broker's default replication; an existing topic is left as it is.

        Args:
            topic: its name.
            partitions: how many it has.
            kept: its records are never deleted.
            compacted: it keeps the last record of each key without limit.
        """

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and everything in it; no error if it does not exist."""

    def delete_group(self, group: str) -> None:
        """Delete a group's commits; no error if there are none, `ConfigurationError` if it has members."""

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Where each partition begins and how far it is stable now (read committed)."""

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        """Every committed record of a range, in offset order, in blocks of about 1,000 at most.

        When the iterator ends, the range is complete: the consumer's position (or the offset of an
        end-of-partition event) has reached `stop`. Offsets may be sparse (transactions, compaction).
        Records at or after `stop` are never returned. Fetches carry no topic ids: of a topic that was created again, the
        records of the new one may come. So compare its id after reading.

        Raises:
            RecreatedTopic: the range cannot be read, and the topic has another id now, or is gone.
            LostOffsets: the log now begins after `start`.
            TruncatedInput: the log ends before `stop`, or was truncated since `leader_epoch`.
        """

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        """All committed records of each of these short ranges, at the same time; see `read`."""

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        """The group's committed offsets with metadata; partitions without one are absent."""

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """Commit offsets with metadata for a group that has no members.

        Any number of partitions. Where it ends before it returns, some of them may be committed and others not.

        Raises:
            GroupInUse: the group has members, for example a run of a flow without stages.
        """

    def join(self, group: str, topics: Iterable[str]) -> Membership:
        """Become the one member of a group. The one before can no longer commit.

        A member that ends without leaving counts as alive until its session has ended, after some seconds.

        Args:
            group: its name.
            topics: the topics that it commits for; they exist.
        """

    def writer(self) -> Writer:
        """A writer of this process: idempotent, every record acknowledged by all in-sync replicas."""

    def transactional_writer(self, transactional_id: str, topics: Iterable[str]) -> TransactionalWriter:
        """A writer whose records become visible together, and the only one of its id from now on.

        Args:
            transactional_id: names it, for all processes that use the cluster.
            topics: all that it writes to; they exist.
        """

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """First offset of a record at or after the timestamp; the stable end if there is none."""
