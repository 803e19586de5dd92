"""The log of a broker in memory, its transactions and writers."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sqe_chain.adapters.memory._broker import (
    BROKERS,
    CLOCKS,
    Broker,
    MemoryMessage,
    Partition,
    Topic,
    accept,
    check_range,
    system_ms,
)
from sqe_chain.errors import ConfigurationError, GroupInUse, Superseded, Unavailable
from sqe_chain.ports import (
    NO_LIMIT,
    Bounds,
    Commit,
    Headers,
    Log,
    Membership,
    Output,
    Range,
    TopicInfo,
    TopicPartition,
    TransactionalWriter,
    Writer,
)
from sqe_chain.ports.accepting import stamps

_METADATA_CHARACTERS = 4095  # the broker's default limit is 4,096, and Kafka's client sends one more


class MemoryTransaction:
    """Records that become visible together, or never. From `MemoryLog.transaction`."""

    def __init__(self, log: MemoryLog, number: int) -> None:
        self._log = log
        self._number = number

    def append(self, topic: str, partition: int, value: bytes | None, key: bytes | None = None) -> int:
        """Append one record; it and everything after it stay invisible until the transaction ends."""
        part = self._log._partition(topic, partition)  # noqa: SLF001 - one module, one subject
        offset = self._log.append(topic, partition, value, key)
        part.uncommitted[offset] = self._number
        return offset

    def commit(self) -> None:
        """Make the records visible; a marker takes one more offset in each partition."""
        self._end(keep=True)

    def abort(self) -> None:
        """Discard the records; a marker takes one more offset in each partition."""
        self._end(keep=False)

    def _end(self, *, keep: bool) -> None:
        for topic in self._log._broker.topics.values():  # noqa: SLF001
            for part in topic.partitions:
                own = [offset for offset, number in part.uncommitted.items() if number == self._number]
                for offset in own:
                    del part.uncommitted[offset]
                    if not keep:
                        del part.records[offset]
                part.end += bool(own)


class MemoryLog(Log):
    """A broker in memory; see `sqe_chain.ports.Log`.

    All objects of one name in one process are one broker, so a pickled or copied log finds its records
    again. Outputs are stored by `write`, even if the writer never flushes.

    Args:
        name: name of the broker.

    >>> log = MemoryLog("example")
    >>> log.create_topic("robots", 1)
    >>> log.append("robots", 0, b"screw", key=b"r1")
    0
    >>> [message.value() for message in log.records("robots")]
    [b'screw']
    """

    def __init__(self, name: str = "memory") -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"MemoryLog({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryLog) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def _broker(self) -> Broker:
        return BROKERS[self.name]

    def _up(self) -> Broker:
        if self._broker.down:
            raise Unavailable(f"Memory broker {self.name} is down.")
        return self._broker

    def _partition(self, topic: str, partition: int) -> Partition:
        stored = self._broker.topics.get(topic)
        if stored is None or not 0 <= partition < len(stored.partitions):
            raise ConfigurationError(f"Memory broker {self.name} has no {topic}[{partition}].")
        return stored.partitions[partition]

    def _known_partition(self, topic_partition: TopicPartition) -> Partition:
        try:
            return self._partition(*topic_partition)
        except ConfigurationError as error:  # as for Kafka: the broker may not know the partition yet
            raise Unavailable(str(error)) from None

    # Control of the broker, for tests.

    def set_clock(self, now_ms: Callable[[], int]) -> None:
        """Set the broker's clock: milliseconds since 1970, by default the system's. Records without a time get the time of sending."""
        CLOCKS[self.name] = now_ms

    @property
    def has_clock(self) -> bool:
        """Whether the broker's clock was set."""
        return self.name in CLOCKS

    def now_ms(self) -> int:
        """The broker's clock."""
        return CLOCKS.get(self.name, system_ms)()

    def append(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int = 0,
        leader_epoch: int | None = None,
        offset: int | None = None,
    ) -> int:
        """Append one record.

        Args:
            topic: its name; it must exist.
            partition: its number.
            value: None is a tombstone.
            key: None is a null key.
            headers: in order; names may repeat.
            timestamp_ms: milliseconds since 1970.
            leader_epoch: an epoch later than the partition's current one begins here; None: the current one.
            offset: at the end of the partition, or beyond it to leave a gap; None: the end.

        Returns:
            The record's offset.

        Raises:
            OutputTooLarge, OutputRefused: the topic does not accept it (see `configure`).
        """
        part = self._partition(topic, partition)
        info, where = self._broker.topics[topic].info, f"{topic}[{partition}]"
        timestamp_ms = accept(info, where, (key, value, headers), timestamp_ms, self.now_ms)
        at = part.end if offset is None else offset
        epoch = part.epoch if leader_epoch is None else leader_epoch
        if at < part.end or epoch < part.epoch:
            raise ValueError(f"{topic}[{partition}] ends at {part.end} in leader epoch {part.epoch}")
        part.end = at
        part.enter(epoch)
        part.records[at] = MemoryMessage((topic, partition, at), (key, value, headers), timestamp_ms, epoch)
        part.end = at + 1
        return at

    def records(self, topic: str) -> list[MemoryMessage]:
        """All committed records of a topic, by partition and offset; [] when it does not exist."""
        stored = self._broker.topics.get(topic)
        return [record for part in stored.partitions for record in part.visible()] if stored else []

    def kept(self, topic: str, partition: int) -> Mapping[int, MemoryMessage]:
        """Offset -> record of everything in a partition, including open transactions. Not a copy."""
        return self._partition(topic, partition).records

    def transaction(self) -> MemoryTransaction:
        """Begin a transaction."""
        self._broker.transactions += 1
        return MemoryTransaction(self, self._broker.transactions)

    def elect(self, topic: str, partition: int) -> int:
        """Begin a new leader epoch; returns it."""
        part = self._partition(topic, partition)
        part.enter(part.epoch + 1)
        return part.epoch

    def truncate_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete everything before an offset, as retention does."""
        part = self._partition(topic, partition)
        part.begin, part.end = max(part.begin, offset), max(part.end, offset)
        part.records = {at: record for at, record in part.records.items() if at >= offset}

    def truncate_after(self, topic: str, partition: int, offset: int) -> None:
        """Lose everything from an offset on, as an unclean election does; a new leader epoch begins."""
        part = self._partition(topic, partition)
        part.records = {at: record for at, record in part.records.items() if at < offset}
        part.end = offset
        part.epochs = [(epoch, first) for epoch, first in part.epochs if first < offset or not first]
        part.enter(part.epoch + 1)

    def lose(self, topic: str, partition: int, offset: int) -> None:
        """Lose one record in the middle of a log."""
        del self._partition(topic, partition).records[offset]

    def compact(self, topic: str, partition: int) -> None:
        """Keep the last record of each key only."""
        part = self._partition(topic, partition)
        last = {record.key(): offset for offset, record in part.records.items()}
        part.records = {at: record for at, record in part.records.items() if last[record.key()] == at}

    def configure(self, topic: str, **settings: Any) -> None:  # noqa: ANN401 - those of TopicInfo
        """Set what `describe` gives for a topic, and which records it refuses from now on.

        Args:
            topic: its name.
            settings: fields of `TopicInfo`; those that are not given get their defaults.
        """
        stored = self._broker.topics[topic]
        stored.info = TopicInfo(
            stored.info.name, stored.info.topic_id, stored.info.partitions, cluster=self.name, **settings
        )

    def delete(self, topic: str, *, keep_commits: bool = False) -> None:
        """Delete a topic, and what groups have committed of it.

        Args:
            topic: its name.
            keep_commits: they stay: those of a group whose coordinator does not learn of the deletion.
        """
        broker = self._broker
        del broker.topics[topic]
        if not keep_commits:
            broker.commits = {key: commit for key, commit in broker.commits.items() if key[1] != topic}

    def recreate(self, topic: str, partitions: int | None = None, *, keep_commits: bool = False) -> None:
        """Delete a topic, as `delete` does, and create it again: empty, with another id."""
        count = partitions or len(self._broker.topics[topic].partitions)
        self.delete(topic, keep_commits=keep_commits)
        self.create_topic(topic, count)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions up to this number."""
        stored = self._broker.topics[topic]
        stored.partitions += [Partition() for _ in range(partitions - len(stored.partitions))]
        stored.info = replace(stored.info, partitions=partitions)

    def forget(self, group: str) -> None:
        """Delete a group's commits, as a broker does after a week without new ones."""
        broker = self._broker
        broker.commits = {key: commit for key, commit in broker.commits.items() if key[0] != group}
        broker.members.pop(group, None)

    def set_commits_kept(self, kept_ms: int) -> None:
        """Set for how long the broker claims to keep commits; it forgets none by itself (`forget`)."""
        self._broker.commits_kept_ms = kept_ms

    def set_down(self, *, down: bool) -> None:
        """While down, every request of a service raises `Unavailable`."""
        self._broker.down = down

    def set_block(self, records: int) -> None:
        """Set the most records of a block (by default 1,000): `read` gives blocks."""
        if records < 1:
            raise ConfigurationError(f"a block of {records} records; at least 1")
        self._broker.block_records = records

    def snapshot(self) -> object:
        """The whole broker, for `restore`."""
        return copy.deepcopy(self._broker)

    def restore(self, snapshot: object) -> None:
        """Return to a snapshot; it can be restored again later."""
        if not isinstance(snapshot, Broker):
            raise TypeError("expected what snapshot() returned")
        BROKERS[self.name] = copy.deepcopy(snapshot)

    def clear(self) -> None:
        """Delete everything, topic ids included: the next topic of a name gets the first id again."""
        BROKERS.pop(self.name, None)
        CLOCKS.pop(self.name, None)

    # The port `Log`.

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        known = self._up().topics
        return {topic: known[topic].info for topic in topics if topic in known}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        return {topic: info.topic_id for topic, info in self.describe(topics).items()}

    def create_topic(
        self, topic: str, partitions: int, *, kept: bool = False, compacted: bool = False
    ) -> None:
        del kept  # tests delete
        broker = self._up()
        if partitions < 1:
            raise ConfigurationError(f"Topic {topic} needs at least one partition; found {partitions}.")
        if topic in broker.topics:
            return
        broker.incarnations[topic] += 1
        seed = f"{self.name}\0{topic}\0{broker.incarnations[topic]}".encode()
        topic_id = hashlib.blake2b(seed, digest_size=16).digest()
        parts = [Partition() for _ in range(partitions)]
        info = TopicInfo(topic, topic_id, partitions, compacted=compacted, cluster=self.name)
        broker.topics[topic] = Topic(info, parts)

    def delete_topic(self, topic: str) -> None:
        if topic in self._up().topics:
            self.delete(topic)

    def delete_group(self, group: str) -> None:
        self._up()
        self.forget(group)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        self._up()
        parts = {key: self._known_partition(key) for key in partitions}
        return {key: Bounds(part.begin, part.stable_end()) for key, part in parts.items()}

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        self._up()
        parts = {key: self._known_partition(key) for key in partitions}
        return {key: part.offset_at(timestamp_ms) for key, part in parts.items()}

    def read(self, read_range: Range) -> Iterator[Sequence[MemoryMessage]]:
        self._up()
        if read_range.start >= read_range.stop:
            return
        check_range(read_range, self._broker.topics.get(read_range.topic))
        part = self._partition(read_range.topic, read_range.partition)
        wanted = [r for r in part.visible() if read_range.start <= r.offset() < read_range.stop]
        size = self._broker.block_records
        for first in range(0, len(wanted), size):
            self._up()
            yield wanted[first : first + size]

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[MemoryMessage]]:
        return [[message for block in self.read(wanted) for message in block] for wanted in ranges]

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        commits = self._up().commits
        return {key: commits[group, *key] for key in partitions if (group, *key) in commits}

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        if group in self._up().members:
            raise GroupInUse(
                f"Committing for group {group} on memory broker {self.name}: the group has members. Stop the run of the flow."
            )
        self._store(group, commits)

    def join(self, group: str, topics: Iterable[str]) -> Membership:
        del topics
        broker = self._up()
        broker.joined += 1
        broker.members[group] = broker.joined
        return MemoryMember(self, group, broker.joined)

    def end_session(self, group: str) -> None:
        """Let the session of a group's member end, as that of a run which was killed. For tests."""
        self._broker.members.pop(group, None)

    def _store(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        broker = self._up()
        for key, commit in commits.items():
            self._known_partition(key)
            if len(commit.metadata) > _METADATA_CHARACTERS:
                raise ConfigurationError(
                    f"Commit metadata for {key[0]}[{key[1]}] is longer than {_METADATA_CHARACTERS} characters."
                )
        broker.commits.update({(group, *key): commit for key, commit in commits.items()})

    def commits_kept_ms(self) -> int:
        """For how long the broker keeps what a group without members has committed; -1: without limit, or unknown."""
        return self._up().commits_kept_ms

    def writer(self) -> MemoryWriter:
        return MemoryWriter(self)

    def transactional_writer(self, transactional_id: str, topics: Iterable[str]) -> MemoryTransactionalWriter:
        writer = MemoryTransactionalWriter(self, transactional_id)
        writer.connect(list(topics))
        return writer


class MemoryMember(Membership):
    """A membership in a group of a `MemoryLog`."""

    def __init__(self, log: MemoryLog, group: str, number: int) -> None:
        self._log, self._group, self._number = log, group, number
        self._known: dict[TopicPartition, Commit | None] = {}

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        asked = list(partitions)
        commits = self._log.committed(self._group, asked)
        self._known = {tp: commits.get(tp) for tp in asked} | self._known
        return commits

    def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        members = self._log._up().members  # noqa: SLF001 - one module, one subject
        member = members.get(self._group)
        if member is None:  # its session has ended
            stored = self._log.committed(self._group, self._known)
            if all(self._known[tp] == commit for tp, commit in stored.items()):
                member = members[self._group] = self._number
        if member != self._number:
            raise Superseded(
                f"flow {self._group!r}: a newer run has joined the group of the flow, and this one no longer commits anything"
            )
        self._log._store(self._group, commits)  # noqa: SLF001
        self._known |= commits

    def leave(self) -> None:
        members = self._log._broker.members  # noqa: SLF001
        if members.get(self._group) == self._number:
            del members[self._group]


class MemoryWriter(Writer):
    """Writes into a `MemoryLog`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def connect(self, topics: Sequence[str]) -> None:
        missing = sorted(set(topics) - set(self._log._up().topics))  # noqa: SLF001 - one module, one subject
        if missing:
            raise ConfigurationError(f"Output topics {', '.join(missing)} do not exist. Create them first.")

    def write(self, outputs: Sequence[Output]) -> None:
        topics = self._log._up().topics  # noqa: SLF001
        for topic, partition, key, value, headers, timestamp_ms in outputs:
            if topic not in topics:
                raise ConfigurationError(f"Output topic {topic} does not exist. Create it first.")
            info = topics[topic].info
            stamp = timestamp_ms
            limited = (info.before_max_ms, info.after_max_ms) != (NO_LIMIT, NO_LIMIT)
            if timestamp_ms <= 0 or limited or info.retention_ms >= 0:
                now_ms = self._log.now_ms()
                first, last = stamps(info, now_ms)
                first = max(first, 1)  # Kafka's client takes 0, too, for the time of sending
                stamp = timestamp_ms if first <= timestamp_ms <= last else now_ms
            self._append(topic, partition, value, key, headers, stamp)

    def _append(self, topic: str, partition: int, *record: Any) -> None:  # noqa: ANN401 - as `MemoryLog.append`
        self._log.append(topic, partition, *record)

    def flush(self) -> None:
        self._log._up()  # noqa: SLF001

    def close(self) -> None:
        """Nothing to release."""


class MemoryTransactionalWriter(MemoryWriter, TransactionalWriter):
    """Writes transactions into a `MemoryLog`. A process that dies leaves its transaction open, until the next one of the id begins."""

    def __init__(self, log: MemoryLog, transactional_id: str) -> None:
        super().__init__(log)
        self.worn = False
        broker = log._up()  # noqa: SLF001 - one module, one subject
        self._id = transactional_id
        before, left_open = broker.transactional.get(transactional_id, (0, 0))
        if left_open:
            MemoryTransaction(log, left_open).abort()
        self._number = before + 1
        broker.transactional[transactional_id] = self._number, 0

    def write(self, outputs: Sequence[Output]) -> None:
        if not self._open():
            broker = self._log._broker  # noqa: SLF001
            broker.transactions += 1
            broker.transactional[self._id] = self._number, broker.transactions
        super().write(outputs)

    def commit(self) -> None:
        if transaction := self._open():
            MemoryTransaction(self._log, transaction).commit()
            self._log._broker.transactional[self._id] = self._number, 0  # noqa: SLF001

    def close(self) -> None:
        with suppress(Unavailable):
            if transaction := self._open():
                MemoryTransaction(self._log, transaction).abort()
                self._log._broker.transactional[self._id] = self._number, 0  # noqa: SLF001

    def _open(self) -> int:
        """The transaction that is open, or 0."""
        number, transaction = self._log._up().transactional[self._id]  # noqa: SLF001
        if number != self._number:
            raise Unavailable(f"Transactional id {self._id!r}: a newer writer has fenced this one.")
        return transaction

    def _append(self, topic: str, partition: int, *record: Any) -> None:  # noqa: ANN401 - as `MemoryLog.append`
        offset = self._log.append(topic, partition, *record)
        self._log._partition(topic, partition).uncommitted[offset] = self._open()  # noqa: SLF001
