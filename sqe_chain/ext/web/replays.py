"""Watches topics for records that repeat others: by which writer, how many, when last."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

from sqe_chain.envelope.carrier import find_head, lane_and_position
from sqe_chain.envelope.head import parse_chain
from sqe_chain.errors import EnvelopeError
from sqe_chain.ports import Bounds, Log, Message, Range, TopicInfo

FIRST_LOOK = 10_000
"""Records of each partition that are read when a topic is looked at for the first time."""
MOST_RECORDS = 20_000
"""Records of each partition that one look reads."""
_MOST_PARTITIONS = 64
MOST_LANES = 100_000


@dataclass(slots=True)
class SeenWriter:
    """What one writer has repeated in a topic since it is watched.

    Attributes:
        newest_ms: timestamp of the last one, milliseconds since 1970.
        first: where the first one is.
    """

    records: int = 0
    newest_ms: int = -1
    first: str = ""


@dataclass(slots=True)
class _WatchedTopic:
    """What is known of one topic.

    Attributes:
        reached: (partition, lane) -> highest position.
        writers: "flow/output" -> what it has repeated.
        begins: partition -> the first offset that was read.
        unread: records before and after what was read, of all partitions, at the last look. Also those that are deleted.
        unwatched: records that were read and not compared, because they are on too many lanes.
    """

    topic_id: bytes = b""
    next_offsets: dict[int, int] = field(default_factory=dict)
    reached: dict[tuple[int, int], bytes] = field(default_factory=dict)
    writers: dict[str, SeenWriter] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    unread: int = 0
    unwatched: int = 0


@dataclass(slots=True)
class ReplayWatch:
    """Watches the topics that somebody looks at."""

    log: Log
    _topics: dict[str, _WatchedTopic] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def look(self, topic: str) -> tuple[dict[str, SeenWriter], int]:
        """Read what is new in a topic.

        A record whose original lies among the offsets that were not read looks like a new one.

        Returns:
            What each writer has repeated among the records that were read, and how many records of the topic were not compared.
        """
        info = self.log.describe([topic]).get(topic)
        if info is None:
            return {}, 0
        with self._lock:
            watched = self._topics.setdefault(topic, _WatchedTopic(info.topic_id))
            if watched.topic_id != info.topic_id:
                watched = self._topics[topic] = _WatchedTopic(info.topic_id)
            watched.unread = 0
            bounds = self.log.bounds([(info.name, partition) for partition in range(info.partitions)])
            for (_, partition), bound in bounds.items():
                if partition < _MOST_PARTITIONS:
                    self._read(info, partition, watched, bound)
                first = watched.begins.get(partition, bound.stable_end)
                last = watched.next_offsets.get(partition, bound.stable_end)
                watched.unread += first + max(0, bound.stable_end - last)
            return dict(watched.writers), watched.unread + watched.unwatched

    def _read(self, info: TopicInfo, partition: int, watched: _WatchedTopic, bounds: Bounds) -> None:
        begin = watched.next_offsets.get(partition, bounds.stable_end - FIRST_LOOK)
        begin = max(bounds.begin, begin)
        watched.begins.setdefault(partition, begin)
        end = min(bounds.stable_end, begin + MOST_RECORDS)
        if begin < end:
            for block in self.log.read(Range(info.name, info.topic_id, partition, begin, end)):
                for message in block:
                    self._note(info, partition, message, watched)
        watched.next_offsets[partition] = max(begin, end)

    def _note(self, info: TopicInfo, partition: int, message: Message, watched: _WatchedTopic) -> None:
        try:
            head = find_head(message.value(), message.headers())
            links = parse_chain(head.chain).links
        except EnvelopeError:
            return
        if not links:
            return
        stated, position = lane_and_position(head, message, info.topic_id)
        lane = partition, stated
        if position <= watched.reached.get(lane, b""):
            writer = watched.writers.setdefault(links[-1].output, SeenWriter())
            writer.first = writer.first or f"{info.name}[{partition}]@{message.offset()}"
            writer.records += 1
            writer.newest_ms = max(writer.newest_ms, message.timestamp()[1])
        elif lane in watched.reached or len(watched.reached) < MOST_LANES:
            watched.reached[lane] = position
        else:
            watched.unwatched += 1
