"""Ignoring replays in a plain consumer, without Spark and without a flow.

The marks must be stored together with what was made of the messages (in one transaction, one row,
one file renamed into place): marks that are behind count twice, marks that are ahead count never.
Marks kept in memory alone forget at a restart.

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
from sqe_chain.envelope.message import is_enveloped
from sqe_chain.errors import ConfigurationError, RecreatedTopic, ServiceStopped
from sqe_chain.ports import Headers
from sqe_chain.replays.marks import DEFAULT_MAX_LANES, PartitionMarks, Recreated

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_FORMAT: Final = 1


class ReceivedMessage(Protocol):
    """What is asked of a message; confluent_kafka.Message has it."""

    def topic(self) -> str | None:
        """Where it was read."""

    def partition(self) -> int | None:
        """Where it was read."""

    def offset(self) -> int | None:
        """Its offset."""

    def leader_epoch(self) -> int | None:
        """Leader epoch of its batch; None or negative when it has none."""

    def value(self) -> bytes | None:
        """What it holds."""

    def headers(self) -> Headers | None:
        """Its headers; None when there are none."""

    def error(self) -> object | None:
        """None, unless it is no message but an event of the client."""


class ReplayFilter:
    """Tells new messages from replays, for any number of topics and partitions.

    Topics may hold envelopes (in values, or with the chain in headers) or raw messages, not both. For one consumer in one thread.
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
            topic_ids: Kafka's UUID, 16 bytes, of every topic that is read (the admin client's
                `describe_topics` gives them).
            raw: topics whose messages were never wrapped.
            compacted: topics in which records may be missing by intent.
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

        A partition whose first message here is not at offset 0 counts as entered in the middle.

        Returns:
            False for a replay: it was counted, ignore it.

        Raises:
            EnvelopeError: the value is no envelope. Nothing has moved; call `undecodable` to go on
                behind it.
            ServiceStopped: going on could count something twice or never; the text says why. Also when
                a topic declared as raw holds an envelope.
            ConfigurationError: the topic has no id here.
            ValueError: the message is an event of the client; look at `message.error()` first.
        """
        topic, partition, offset = _place_of(message)
        marks = self._marks_of(topic, partition, offset)
        epoch = stored_epoch(message.leader_epoch())
        value = message.value()
        headers = message.headers()
        if topic not in self._raw:
            return marks.accept(find_head(value, headers), offset, epoch)
        if is_enveloped(value) or chain_header(headers) is not None:
            raise ServiceStopped(
                f"{topic}[{partition}]@{offset} is an envelope, or has a chain in its headers, but the topic is declared as raw: "
                "its chain would be lost; leave it out of `raw`"
            )
        return marks.accept_raw(offset, epoch)

    def undecodable(self, message: ReceivedMessage) -> None:
        """Go on behind a message that is no valid envelope: witnesses that it may have broken are waived."""
        topic, partition, offset = _place_of(message)
        self._marks_of(topic, partition, offset).undecodable(offset)

    def marks(self, topic: str, partition: int) -> PartitionMarks:
        """The marks of one partition. Raises KeyError when nothing of it was read."""
        return self._partitions[topic, partition]

    def notices(self) -> list[str]:
        """Texts worth a warning since the last call, such as a root topic that was created again."""
        texts = []
        for marks in self._partitions.values():
            texts += marks.notices
            marks.notices.clear()
        return texts

    def export(self) -> str:
        """All marks as JSON text, to be stored together with what was made of the messages."""
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
        """The filter whose marks `export` gave, under these settings.

        Raises:
            RecreatedTopic: a topic has another id now.
            ConfigurationError: the text was not made by `export`, or a topic has no id here.
        """
        replays = cls(topic_ids, raw=raw, compacted=compacted, max_lanes=max_lanes, recreated=recreated)
        try:
            stored = json.loads(text)
            if stored["format"] != _FORMAT:
                raise ConfigurationError(f"marks of format {stored['format']}, known is {_FORMAT}")
            loaded = [
                PartitionMarks.from_json(
                    record,
                    compacted=record["topic"] in compacted,
                    max_lanes=max_lanes,
                    recreated=recreated,
                )
                for record in stored["partitions"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"these are no exported marks: {error!r}") from error
        for marks in loaded:
            now = replays._topic_id(marks.topic)
            if now != marks.topic_id:
                raise RecreatedTopic(
                    f"topic {marks.topic} has id {now.hex()}, the marks are for {marks.topic_id.hex()}: it was "
                    "deleted and created again; leave its marks out to begin anew"
                ).at(marks.topic, marks.partition)
            replays._partitions[marks.topic, marks.partition] = marks
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


def _place_of(message: ReceivedMessage) -> tuple[str, int, int]:
    if message.error() is not None:
        raise ValueError(f"this is no message but an event of the client: {message.error()}")
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise ValueError("the message was not read from Kafka: it has no topic, partition and offset")
    return topic, partition, offset
