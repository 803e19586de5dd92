"""The log over a broker in memory, and its transactions."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from sqe_chain.errors import (
    ConfigurationError,
    LostOffsets,
    RecreatedTopic,
    TruncatedInput,
    Unavailable,
)
from sqe_chain.logs.memory._accepting import accepted, system_ms
from sqe_chain.logs.memory._broker import BROKERS, CLOCKS, Broker, MemoryMessage, Partition, Topic
from sqe_chain.logs.memory._writer import MemoryWriter
from sqe_chain.ports import NO_LIMIT, Bounds, Commit, Headers, Range, TopicInfo, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_METADATA_CHARACTERS = 4095  # Kafka's client adds one to a broker's default limit of 4,096


class MemoryTransaction:
    """Records that become visible together, or never. From `MemoryLog.transaction`."""

    def __init__(self, log: MemoryLog, number: int) -> None:
        self._log = log
        self._number = number

    def append(self, topic: str, partition: int, value: bytes | None, key: bytes | None = None) -> int:
        """Append one record; it stays invisible, and with it all that comes later, until the end."""
        place = self._log._partition(topic, partition)  # noqa: SLF001 - one module, one subject
        offset = self._log.append(topic, partition, value, key)
        place.open.setdefault(self._number, offset)
        place.uncommitted[offset] = self._number
        return offset

    def commit(self) -> None:
        """Make the records visible; a marker takes one more offset in each partition."""
        self._end(keep=True)

    def abort(self) -> None:
        """Make the records invisible for ever; a marker takes one more offset in each partition."""
        self._end(keep=False)

    def _end(self, *, keep: bool) -> None:
        for topic in self._log._broker.topics.values():  # noqa: SLF001
            for place in topic.partitions:
                if place.open.pop(self._number, None) is None:
                    continue
                for offset in [o for o, number in place.uncommitted.items() if number == self._number]:
                    del place.uncommitted[offset]
                    if not keep:
                        del place.records[offset]
                place.end += 1


class MemoryLog:
    """A broker in memory; see `sqe_chain.ports.Log`.

    All objects of one name in one process are one broker, so a pickled or copied log finds its records
    again. An output lands when it is written, also when its writer never flushes.

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
        found = self._broker.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            raise ConfigurationError(f"Memory broker {self.name} has no {topic}[{partition}].")
        return found.partitions[partition]

    def _asked(self, place: TopicPartition) -> Partition:
        try:
            return self._partition(*place)
        except ConfigurationError as error:  # a broker may just not know yet
            raise Unavailable(str(error)) from None

    # What tests do to a broker.

    def set_clock(self, now_ms: Callable[[], int]) -> None:
        """Give the broker a clock: milliseconds since 1970. Without one it has the system's.

        Asked only for topics that have limits for the time of a record, or set it themselves.
        """
        CLOCKS[self.name] = now_ms

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
            topic: topic name; must exist.
            partition: partition number.
            value: None is a tombstone.
            key: key bytes.
            headers: headers.
            timestamp_ms: milliseconds since 1970.
            leader_epoch: a later epoch than the partition's present one begins here; None: the present.
            offset: at or beyond the end of the partition, to leave a gap; None: the end.

        Returns:
            The record's offset.

        Raises:
            OutputTooLarge: the record is larger than the topic accepts.
            OutputRefused: the topic is compacted and the record has no key, or the topic does not accept its
                time, as `configure` has set it.
        """
        place = self._partition(topic, partition)
        info, where = self._broker.topics[topic].info, f"{topic}[{partition}]"
        timestamp_ms = accepted(info, where, (key, value, headers), timestamp_ms, self.now_ms)
        at = place.end if offset is None else offset
        epoch = place.epoch if leader_epoch is None else leader_epoch
        if at < place.end or epoch < place.epoch:
            raise ValueError(f"{topic}[{partition}] ends at {place.end} in leader epoch {place.epoch}")
        place.end = at
        place.enter(epoch)
        place.records[at] = MemoryMessage((topic, partition, at), (key, value, headers), timestamp_ms, epoch)
        place.end = at + 1
        return at

    def records(self, topic: str) -> list[MemoryMessage]:
        """All committed records of a topic, by partition and offset; [] when it does not exist."""
        found = self._broker.topics.get(topic)
        return [record for place in found.partitions for record in place.visible()] if found else []

    def kept(self, topic: str, partition: int) -> Mapping[int, MemoryMessage]:
        """Offset -> record of all that a partition holds now, transactions that are open included. Not a copy."""
        return self._partition(topic, partition).records

    def transaction(self) -> MemoryTransaction:
        """Begin a transaction."""
        self._broker.transactions += 1
        return MemoryTransaction(self, self._broker.transactions)

    def elect(self, topic: str, partition: int) -> int:
        """Begin a new leader epoch; returns it."""
        place = self._partition(topic, partition)
        place.enter(place.epoch + 1)
        return place.epoch

    def truncate_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete what lies before an offset, as retention does."""
        place = self._partition(topic, partition)
        place.begin = max(place.begin, offset)
        place.end = max(place.end, offset)
        place.records = {at: record for at, record in place.records.items() if at >= offset}

    def truncate_after(self, topic: str, partition: int, offset: int) -> None:
        """Lose what lies at or after an offset, as an unclean election does; a new leader epoch begins."""
        place = self._partition(topic, partition)
        place.records = {at: record for at, record in place.records.items() if at < offset}
        place.end = offset
        place.epochs = [(epoch, first) for epoch, first in place.epochs if first < offset or not first]
        place.enter(place.epoch + 1)

    def compact(self, topic: str, partition: int) -> None:
        """Keep the last record of each key only."""
        place = self._partition(topic, partition)
        last = {record.key(): offset for offset, record in place.records.items()}
        place.records = {at: record for at, record in place.records.items() if last[record.key()] == at}

    def configure(
        self,
        topic: str,
        *,
        compacted: bool = False,
        max_message_bytes: int = 1_048_588,
        replicas: int = 1,
        min_insync_replicas: int = 1,
        before_max_ms: int = NO_LIMIT,
        after_max_ms: int = NO_LIMIT,
        append_time: bool = False,
    ) -> None:
        """Set what `describe` tells of a topic, and what it refuses from now on; see `TopicInfo`."""
        found = self._broker.topics[topic]
        info = found.info
        found.info = TopicInfo(
            info.name,
            info.topic_id,
            info.partitions,
            compacted,
            max_message_bytes,
            replicas,
            min_insync_replicas,
            before_max_ms,
            after_max_ms,
            append_time,
        )

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        del self._broker.topics[topic]

    def recreate(self, topic: str, partitions: int | None = None) -> None:
        """Delete a topic and create it again: empty, with another id."""
        count = partitions or len(self._broker.topics[topic].partitions)
        self.delete(topic)
        self.create_topic(topic, count)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions up to this number."""
        found = self._broker.topics[topic]
        found.partitions += [Partition() for _ in range(partitions - len(found.partitions))]
        found.info = replace(found.info, partitions=partitions)

    def forget(self, group: str) -> None:
        """Forget a group's commits, as a broker does after a week without any."""
        commits = self._broker.commits
        for place in [place for place in commits if place[0] == group]:
            del commits[place]

    def set_down(self, *, down: bool) -> None:
        """While down, whatever a service asks is `Unavailable`."""
        self._broker.down = down

    def set_block(self, records: int) -> None:
        """How many records a block holds at most (1,000 at first): readers get them block by block."""
        if records < 1:
            raise ConfigurationError(f"a block of {records} records; at least 1")
        self._broker.block_records = records

    def snapshot(self) -> object:
        """The whole broker, for `restore`."""
        return copy.deepcopy(self._broker)

    def restore(self, snapshot: object) -> None:
        """Be as at the time of the snapshot; it can be restored again."""
        if not isinstance(snapshot, Broker):
            raise TypeError("expected what snapshot() returned")
        BROKERS[self.name] = copy.deepcopy(snapshot)

    def clear(self) -> None:
        """Forget everything, topic ids included: the next topic of a name has the first id again."""
        BROKERS.pop(self.name, None)
        CLOCKS.pop(self.name, None)

    # What services ask.

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """See `Log.describe`."""
        known = self._up().topics
        return {topic: known[topic].info for topic in topics if topic in known}

    def create_topic(self, topic: str, partitions: int) -> None:
        """See `Log.create_topic`."""
        broker = self._up()
        if partitions < 1:
            raise ConfigurationError(f"Topic {topic} needs at least one partition; found {partitions}.")
        if topic in broker.topics:
            return
        broker.incarnations[topic] += 1
        seed = f"{self.name}\0{topic}\0{broker.incarnations[topic]}".encode()
        topic_id = hashlib.blake2b(seed, digest_size=16).digest()
        parts = [Partition() for _ in range(partitions)]
        broker.topics[topic] = Topic(TopicInfo(topic, topic_id, partitions), parts)

    def delete_topic(self, topic: str) -> None:
        """See `Log.delete_topic`."""
        if topic in self._up().topics:
            self.delete(topic)

    def delete_group(self, group: str) -> None:
        """See `Log.delete_group`."""
        self._up()
        self.forget(group)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """See `Log.bounds`."""
        self._up()
        places = {place: self._asked(place) for place in partitions}
        return {key: Bounds(place.begin, place.stable_end()) for key, place in places.items()}

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """See `Log.offsets_at`."""
        self._up()
        found = {}
        for topic, partition in partitions:
            place = self._asked((topic, partition))
            later = (r.offset() for r in place.records.values() if r.timestamp_ms >= timestamp_ms)
            found[topic, partition] = min(next(later, place.end), place.stable_end())
        return found

    def read(self, read_range: Range) -> Iterator[Sequence[MemoryMessage]]:
        """See `Log.read`."""
        self._up()
        if read_range.start >= read_range.stop:
            return
        _check(read_range, self._broker.topics.get(read_range.topic))
        place = self._partition(read_range.topic, read_range.partition)
        wanted = [r for r in place.visible() if read_range.start <= r.offset() < read_range.stop]
        size = self._broker.block_records
        for first in range(0, len(wanted), size):
            self._up()
            yield wanted[first : first + size]

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        """See `Log.committed`."""
        commits = self._up().commits
        return {place: commits[group, *place] for place in partitions if (group, *place) in commits}

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """See `Log.commit`."""
        broker = self._up()
        for place, commit in commits.items():
            self._asked(place)
            if len(commit.metadata) > _METADATA_CHARACTERS:
                raise ConfigurationError(
                    f"Commit metadata for {place} is longer than {_METADATA_CHARACTERS} characters."
                )
        broker.commits.update({(group, *place): commit for place, commit in commits.items()})

    def writer(self) -> MemoryWriter:
        """See `Log.writer`."""
        return MemoryWriter(self)


def _check(wanted: Range, topic: Topic | None) -> None:
    where = f"Reading {wanted.topic}[{wanted.partition}] from {wanted.start} to {wanted.stop}"
    if topic is None or (wanted.topic_id and topic.info.topic_id != wanted.topic_id):
        raise RecreatedTopic(f"{where}: the topic was deleted, or created again; its id differs.").at(
            wanted.topic, wanted.partition, wanted.start
        )
    place = topic.partitions[wanted.partition]
    if place.begin > wanted.start:
        raise LostOffsets(f"{where}: the log begins at {place.begin} now.").at(
            wanted.topic, wanted.partition, wanted.start
        )
    if place.stable_end() < wanted.stop:
        raise TruncatedInput(f"{where}: the log is stable up to {place.stable_end()} only.").at(
            wanted.topic, wanted.partition, wanted.start
        )
    if not wanted.leader_epoch:
        return
    end = place.end_of(wanted.leader_epoch - 1)
    if end is None:
        raise TruncatedInput(f"{where}: the log has no leader epoch {wanted.leader_epoch - 1} any more.").at(
            wanted.topic, wanted.partition, wanted.start
        )
    # A later epoch may begin before `start` if nothing of it can be seen: markers, aborted records.
    if any(end <= record.offset() < wanted.start for record in place.visible()):
        raise TruncatedInput(
            f"{where}: from {end} on the log was written later, in another leader epoch."
        ).at(wanted.topic, wanted.partition, wanted.start)
