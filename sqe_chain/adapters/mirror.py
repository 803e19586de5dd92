"""A log whose topics are held by those of another cluster: a flow goes on to know them by their old names, ids and offsets.

Lanes of what a flow publishes have the names and ids of its inputs in them. So these stay as they were, whatever the topics
are called in the other cluster. Offsets go on where the flow had read to: those that it knows from before mean nothing there.
So nobody can read by an old offset what has another record now: everything before the failover looks deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqe_chain.errors import AnotherCluster, ConfigurationError, LostOffsets
from sqe_chain.ports import (
    Bounds,
    Commit,
    Headers,
    Log,
    Membership,
    Message,
    Output,
    Range,
    TopicInfo,
    TopicPartition,
    TransactionalWriter,
    Writer,
)


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """What holds an input now, or takes an output.

    Attributes:
        name: name of the topic.
        topic_id: its id, 16 bytes.
        known_id: the id by which the flow knows it, 16 bytes; of an output the topic's own.
        begins: partition -> offset at which the flow goes on as it counts, and the same as the topic counts; of an output none.
    """

    name: str
    topic_id: bytes
    known_id: bytes
    begins: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def first(self, partition: int) -> int:
        """The first offset that the flow may read, as it counts."""
        return self.begins.get(partition, (0, 0))[0]

    def shift(self, partition: int) -> int:
        """What is added to an offset of the topic to give the flow's."""
        counted, there = self.begins.get(partition, (0, 0))
        return counted - there


@dataclass(slots=True)  # not frozen: one is made for each record
class _MirroredMessage:
    """A record under the name and offset by which the flow knows it; a `sqe_chain.ports.Message`."""

    record: Message
    name: str
    place: int

    def topic(self) -> str:
        return self.name

    def partition(self) -> int:
        return self.record.partition()

    def offset(self) -> int:
        return self.place

    def key(self) -> bytes | None:
        return self.record.key()

    def value(self) -> bytes | None:
        return self.record.value()

    def headers(self) -> Headers | None:
        return self.record.headers()

    def timestamp(self) -> tuple[int, int]:
        return self.record.timestamp()

    def leader_epoch(self) -> int | None:
        return self.record.leader_epoch()

    def error(self) -> None:
        """None: there are no events among the records."""


@dataclass(frozen=True, slots=True)
class _MirrorWriter(Writer):
    """Publishes to the topics that hold those which the flow names."""

    base: Writer
    name: Callable[[str], str]

    def connect(self, topics: Sequence[str]) -> None:
        self.base.connect([self.name(topic) for topic in topics])

    def write(self, outputs: Sequence[Output]) -> None:
        self.base.write(
            [
                (self.name(topic), partition, key, value, headers, time_ms)
                for topic, partition, key, value, headers, time_ms in outputs
            ]
        )

    def flush(self) -> None:
        self.base.flush()

    def close(self) -> None:
        self.base.close()


@dataclass(frozen=True, eq=False)
class MirrorLog(Log):
    """A log some of whose topics are known by other names, ids and offsets; see the module and `sqe_chain.ports.Log`.

    Args:
        base: the log.
        cluster: id of its cluster: in another one it is refused.
        topics: name by which the flow knows it -> the topic.
    """

    base: Log
    cluster: str
    topics: Mapping[str, MirroredTopic]

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """Describe topics.

        Raises:
            AnotherCluster: this is not the cluster of the failover.
        """
        wanted = {topic: self._name(topic) for topic in topics}
        # Under both names: in the cluster before there is none by the new one, which must not look like a topic that is missing.
        described = self.base.describe({*wanted.values(), *wanted})
        self._check_cluster(described.values())
        return {
            topic: replace(
                described[name], name=topic, topic_id=self._known_id(topic, described[name].topic_id)
            )
            for topic, name in wanted.items()
            if name in described
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        wanted = {topic: self._name(topic) for topic in topics}
        ids = self.base.topic_ids(wanted.values())
        return {topic: self._known_id(topic, ids[name]) for topic, name in wanted.items() if name in ids}

    def create_topic(
        self, topic: str, partitions: int, *, kept: bool = False, compacted: bool = False
    ) -> None:
        if topic in self.topics:
            raise ConfigurationError(
                f"topic {topic!r} is held by {self._name(topic)!r} of cluster {self.cluster!r}, which is gone. Expected that topic. "
                "Restore it, or fail over to another cluster"
            )
        self.base.create_topic(topic, partitions, kept=kept, compacted=compacted)

    def delete_topic(self, topic: str) -> None:
        self.base.delete_topic(self._name(topic))

    def delete_group(self, group: str) -> None:
        self.base.delete_group(group)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        wanted = {tp: self._there(tp) for tp in partitions}
        bounds = self.base.bounds(wanted.values())
        return {tp: self._bounds(tp, bounds[there]) for tp, there in wanted.items()}

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        """Read records.

        Raises:
            LostOffsets: they were read in the cluster before.
        """
        there = self._range(read_range)
        if there is read_range:
            yield from self.base.read(read_range)
            return
        for block in self.base.read(there):
            yield self._known(read_range, block)

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        blocks = self.base.read_all([self._range(wanted) for wanted in ranges])
        return [
            self._known(wanted, messages) if wanted.topic in self.topics else messages
            for wanted, messages in zip(ranges, blocks, strict=True)
        ]

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        wanted = {self._there(tp): tp for tp in partitions}
        commits = self.base.committed(group, wanted)
        return {wanted[there]: self._moved(wanted[there], commit, 1) for there, commit in commits.items()}

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        self.base.commit(
            group, {self._there(tp): self._moved(tp, commit, -1) for tp, commit in commits.items()}
        )

    def join(self, group: str, topics: Iterable[str]) -> Membership:
        # A flow without stages joins its group, and has no failover.
        raise ConfigurationError(
            f"group {group!r} cannot be joined in cluster {self.cluster!r} for {', '.join(topics)}. Expected a flow with stages. Rebuild it there"
        )

    def writer(self) -> Writer:
        return _MirrorWriter(self.base.writer(), self._name)

    def transactional_writer(self, transactional_id: str, topics: Iterable[str]) -> TransactionalWriter:
        return self.base.transactional_writer(transactional_id, topics)

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        wanted = {tp: self._there(tp) for tp in partitions}
        offsets = self.base.offsets_at(wanted.values(), timestamp_ms)
        return {tp: max(self._first(tp), offsets[there] + self._shift(tp)) for tp, there in wanted.items()}

    def _name(self, topic: str) -> str:
        known = self.topics.get(topic)
        return topic if known is None else known.name

    def _there(self, tp: TopicPartition) -> TopicPartition:
        return self._name(tp[0]), tp[1]

    def _first(self, tp: TopicPartition) -> int:
        known = self.topics.get(tp[0])
        return 0 if known is None else known.first(tp[1])

    def _shift(self, tp: TopicPartition) -> int:
        known = self.topics.get(tp[0])
        return 0 if known is None else known.shift(tp[1])

    def _check_cluster(self, infos: Iterable[TopicInfo]) -> None:
        for info in infos:
            if info.cluster and info.cluster != self.cluster:
                raise AnotherCluster(
                    f"the flow was failed over to Kafka cluster {self.cluster}, this is cluster {info.cluster}. Expected the one that it was "
                    "failed over to. Give its address, or fail over to this cluster: sqe-chain failover"
                )

    def _known_id(self, topic: str, topic_id: bytes) -> bytes:
        """The id by which the flow knows a topic, if it is the noted one; else an id that the flow has not read."""
        known = self.topics.get(topic)
        if known is None:
            return topic_id
        if topic_id == known.topic_id:
            return known.known_id
        if topic_id == known.known_id:  # it would look like the one that was read, with other offsets
            raise AnotherCluster(
                f"input {topic!r} has the id of before the failover to cluster {self.cluster}. Expected {known.topic_id.hex()}. Give the "
                "address of that cluster, or fail over to this one: sqe-chain failover"
            )
        return topic_id

    def _bounds(self, tp: TopicPartition, bounds: Bounds) -> Bounds:
        shift = self._shift(tp)
        return Bounds(max(self._first(tp), bounds.begin + shift), bounds.stable_end + shift)

    def _range(self, wanted: Range) -> Range:
        known = self.topics.get(wanted.topic)
        if known is None:
            return wanted
        if wanted.start < known.first(wanted.partition):
            raise LostOffsets(
                f"{wanted.topic}[{wanted.partition}]@{wanted.start}: it was read in the cluster before the failover, which has other offsets. "
                f"Expected offsets from {known.first(wanted.partition)} on. What depends on older records needs that cluster"
            ).at(wanted.topic, wanted.partition, wanted.start)
        shift = known.shift(wanted.partition)
        same = wanted.topic_id == known.known_id
        return replace(
            wanted,
            topic=known.name,
            topic_id=known.topic_id if same else wanted.topic_id,
            start=wanted.start - shift,
            stop=wanted.stop - shift,
        )

    def _known(self, wanted: Range, block: Sequence[Message]) -> list[Message]:
        name, shift = wanted.topic, self._shift((wanted.topic, wanted.partition))
        return [_MirroredMessage(message, name, message.offset() + shift) for message in block]

    def _moved(self, tp: TopicPartition, commit: Commit, sign: int) -> Commit:
        return replace(commit, offset=commit.offset + sign * self._shift(tp))
