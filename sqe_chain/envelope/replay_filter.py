"""Ignoring replays in a plain consumer, without Spark and without a flow.

Store the marks together with what was computed from the messages: in one transaction, one row, one
file that is renamed. With marks that are older than the result, messages count twice; with marks
that are newer, never. Marks kept only in memory are lost at a restart. Replace marks only if they are still
those that were loaded: a paused copy goes on with old marks. The page "plain consumers" of the docs has a whole consumer.

    >>> replays = ReplayFilter({"robot.raw": bytes(16)})
    >>> replays.accept(message), replays.accept(message)
    (True, False)
    >>> stored = replays.export()
    >>> ReplayFilter.load(stored, {"robot.raw": bytes(16)}).accept(message)
    False
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Protocol

from sqe_chain.chain import TOPIC_ID_LENGTH, stored_epoch
from sqe_chain.envelope.carrier import chain_header, find_head
from sqe_chain.envelope.marks import DEFAULT_MAX_LANES, PartitionMarks, Recreated
from sqe_chain.envelope.message import is_enveloped
from sqe_chain.errors import ConfigurationError, RecreatedTopic, ServiceStopped
from sqe_chain.ports import Headers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_FORMAT: Final = 1


class ReceivedMessage(Protocol):
    """The methods of a message that the filter calls; confluent_kafka.Message has them."""

    def topic(self) -> str | None:
        """The topic it was read from."""

    def partition(self) -> int | None:
        """The partition it was read from."""

    def offset(self) -> int | None:
        """Its offset."""

    def leader_epoch(self) -> int | None:
        """Leader epoch of its batch; None or negative when it has none."""

    def value(self) -> bytes | None:
        """Its value; None for a tombstone."""

    def headers(self) -> Headers | None:
        """Its headers; None when there are none."""

    def error(self) -> object | None:
        """None for a message; something else for an event of the client."""


class ReplayFilter:
    """Distinguishes new messages from replays, for any number of topics and partitions.

    A topic may hold envelopes (in values, or with the chain in headers) or raw messages, not both. For one
    consumer in one thread.
    """

    def __init__(
        self,
        topic_ids: Mapping[str, bytes],
        *,
        raw: Collection[str] = (),
        compacted: Collection[str] = (),
        max_lanes: int = DEFAULT_MAX_LANES,
        recreated: Recreated = "stop",
    ) -> None:
        """A filter that has seen nothing.

        Args:
            topic_ids: Kafka's UUID, 16 bytes, of every topic that is read (from `describe_topics` of the
                admin client).
            raw: topics whose messages were never wrapped.
            compacted: topics from which compaction removes records, so missing ones are no error.
            max_lanes: limit of lanes for one input partition.
            recreated: see `PartitionMarks`.

        Raises:
            ConfigurationError: a topic id has another length.
        """
        for topic, topic_id in topic_ids.items():
            if len(topic_id) != TOPIC_ID_LENGTH:
                raise ConfigurationError(
                    f"the id of topic {topic} has {len(topic_id)} bytes, Kafka's have {TOPIC_ID_LENGTH}: "
                    "pass the UUID's bytes, not its text"
                )
        self._topic_ids = dict(topic_ids)
        self._raw = frozenset(raw)
        self._compacted = frozenset(compacted)
        self._max_lanes = max_lanes
        self._recreated: Recreated = recreated
        self._partitions: dict[tuple[str, int], PartitionMarks] = {}

    def accept(self, message: ReceivedMessage) -> bool:
        """Whether a message is new; if so its lane's mark moves to it.

        If the first message of a partition is not at offset 0, the partition counts as entered in the middle.

        Returns:
            False for a replay: it was counted before, ignore it.

        Raises:
            EnvelopeError: the value is not an envelope. No mark has moved; call `undecodable` to go on
                after it.
            ServiceStopped: going on could count something twice or never; the text has the reason. Also when
                a topic declared as raw holds an envelope.
            ConfigurationError: `topic_ids` has no id of the topic.
            ValueError: the message is an event of the client; check `message.error()` first.
        """
        topic, partition, offset = _coordinates(message)
        marks = self._marks_of(topic, partition, offset)
        epoch = stored_epoch(message.leader_epoch())
        value = message.value()
        headers = message.headers()
        if topic not in self._raw:
            return marks.accept(find_head(value, headers), offset, epoch)
        if is_enveloped(value) or chain_header(headers) is not None:
            raise ServiceStopped(
                f"{topic}[{partition}]@{offset} is an envelope, or has a chain in its headers, but the topic is declared as raw. "
                "The chain would be ignored. Remove the topic from `raw`"
            )
        return marks.accept_raw(offset, epoch)

    def undecodable(self, message: ReceivedMessage) -> None:
        """Go on after a message that is not a valid envelope; it excuses one gap on each lane.

        It may have belonged to any lane, so the next message of each may name it as its `previous`.
        """
        topic, partition, offset = _coordinates(message)
        self._marks_of(topic, partition, offset).undecodable(offset)

    def marks(self, topic: str, partition: int) -> PartitionMarks:
        """The marks of one partition. Raises KeyError when no message of it was read."""
        return self._partitions[topic, partition]

    def notices(self) -> list[str]:
        """Warnings since the last call, for example that a root topic was created again."""
        texts = []
        for marks in self._partitions.values():
            texts += marks.notices
            marks.notices.clear()
        return texts

    def export(self) -> str:
        """All marks as JSON text, to be stored together with what was computed from the messages."""
        records = [marks.to_json() for _, marks in sorted(self._partitions.items())]
        return json.dumps({"format": _FORMAT, "partitions": records}, separators=(",", ":"))

    @classmethod
    def load(
        cls,
        text: str | bytes,
        topic_ids: Mapping[str, bytes],
        *,
        raw: Collection[str] = (),
        compacted: Collection[str] = (),
        max_lanes: int = DEFAULT_MAX_LANES,
        recreated: Recreated = "stop",
    ) -> ReplayFilter:
        """A filter with the marks that `export` wrote, and these settings.

        Raises:
            RecreatedTopic: a topic has another id now.
            ConfigurationError: the text was not made by `export`, or `topic_ids` has no id of a topic.
        """
        replays = cls(topic_ids, raw=raw, compacted=compacted, max_lanes=max_lanes, recreated=recreated)
        try:
            stored = json.loads(text)
            if stored["format"] != _FORMAT:
                raise ConfigurationError(
                    f"the marks have format {stored['format']}, this version reads format {_FORMAT}"
                )
            loaded = [
                PartitionMarks.from_json(
                    record,
                    compacted=record["topic"] in compacted,
                    max_lanes=max_lanes,
                    recreated=recreated,
                )
                for record in stored["partitions"]
            ]
            for marks in loaded:
                now = replays._topic_id(marks.topic)
                if now != marks.topic_id:
                    raise RecreatedTopic(
                        f"topic {marks.topic} has id {now.hex()}, the marks are for {marks.topic_id.hex()}: it was "
                        "deleted and created again; remove its marks to start over"
                    ).at(marks.topic, marks.partition)
                replays._partitions[marks.topic, marks.partition] = marks
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigurationError(
                f"these are not marks written by ReplayFilter.export: {error!r}"
            ) from error
        return replays

    def _marks_of(self, topic: str, partition: int, offset: int) -> PartitionMarks:
        marks = self._partitions.get((topic, partition))
        if marks is None:
            marks = self._partitions[topic, partition] = PartitionMarks(
                topic,
                self._topic_id(topic),
                partition,
                entered_in_middle=offset > 0,
                compacted=topic in self._compacted,
                max_lanes=self._max_lanes,
                recreated=self._recreated,
            )
        return marks

    def _topic_id(self, topic: str) -> bytes:
        topic_id = self._topic_ids.get(topic)
        if topic_id is None:
            raise ConfigurationError(f"no topic id was given for topic {topic}")
        return topic_id


def _coordinates(message: ReceivedMessage) -> tuple[str, int, int]:
    if message.error() is not None:
        raise ValueError(f"this is not a message but an event of the client: {message.error()}")
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise ValueError("the message was not read from Kafka: it has no topic, partition and offset")
    return topic, partition, offset
