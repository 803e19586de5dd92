"""The topics of a service as they were a moment ago; whether they are still those that it has read, by ids and last records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sqe_chain.chain import stored_epoch
from sqe_chain.errors import START_OVER, PartitionsMismatch, RecreatedTopic, TruncatedInput
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.plan import PlannedRange
from sqe_chain.plans.retrying import RetryingLog
from sqe_chain.ports import Bounds, Message, Range, TopicInfo, TopicPartition
from sqe_chain.task.exclusion import record_crc


def check_same(known: PlannedRange, info: TopicInfo | None) -> None:
    """Check that a topic is still the one that was read.

    Args:
        known: what was read.
        info: its topic now; None: it is gone.

    Raises:
        RecreatedTopic: it has another id, or is gone.
        PartitionsMismatch: it has fewer partitions.
    """
    check_same_id(known, None if info is None else info.topic_id)
    if info is not None and info.partitions <= known.partition:
        raise PartitionsMismatch(
            f"input {known.topic!r} has {info.partitions} partitions, partition {known.partition} was read"
        ).at(known.topic, known.partition)


def check_same_id(known: PlannedRange, topic_id: bytes | None) -> None:
    """Check that a topic still has the id of the one that was read; None: it is gone.

    Args:
        known: what was read.
        topic_id: the id now.

    Raises:
        RecreatedTopic: it has another id, or is gone.
    """
    if topic_id is None or topic_id.hex() != known.topic_id:
        current = "no topic" if topic_id is None else topic_id.hex()
        raise RecreatedTopic(
            f"input {known.topic!r} was {known.topic_id}, now it is {current}: it was deleted or created again; what it "
            f"holds now is not what was read. The only way on is to {START_OVER}"
        ).at(known.topic, known.partition)


def is_new_root(flow: CompiledFlow, topic: str, known_id: str, info: TopicInfo | None) -> bool:
    """Whether an input without envelopes was created again: then it is another root, and is read from offset 0.

    Args:
        flow: the flow.
        topic: one of its inputs.
        known_id: id of the topic that was read, hexadecimal.
        info: the topic now.
    """
    node = flow.source_of[topic]
    raw = node is not None and node.files is None and node.raw
    return raw and info is not None and info.topic_id.hex() != known_id


def check_never_read(topic: str, past: Iterable[str], topic_id: bytes) -> None:
    """Check that a topic without envelopes that was created again is a new one, not one that was read before.

    Args:
        topic: its name.
        past: ids of topics of this name that were read.
        topic_id: its id now.

    Raises:
        RecreatedTopic: it was read before; from offset 0 all of it would be counted again.
    """
    if topic_id.hex() in past:
        raise RecreatedTopic(
            f"input {topic!r} is {topic_id.hex()} again, which was read before another topic took its place. Expected one that was never "
            "read: from offset 0 its records would count twice. This is probably another Kafka cluster than at the last run: give the "
            f"right address. Otherwise {START_OVER}"
        ).at(topic)


def recreation_text(topic: str, known_id: str, info: TopicInfo, read: Mapping[TopicPartition, int]) -> str:
    """The text of the notice that a topic without envelopes was created again.

    Args:
        topic: its name.
        known_id: id of the topic that was read, hexadecimal.
        info: the topic now.
        read: partition -> offset up to which the old topic was read.
    """
    ends = ", ".join(f"[{tp[1]}] up to {offset}" for tp, offset in sorted(read.items()))
    return (
        f"input {topic!r} was {known_id}, now it is {info.topic_id.hex()}: it was deleted and created again. What was "
        f"read of the old one ({ends}) stays counted and published; the new one is another root: all of its "
        f"{info.partitions} partitions are read from offset 0, and count as new"
    )


def check_last_records(
    log: RetryingLog,
    ranges: Iterable[PlannedRange],
    bounds: Mapping[TopicPartition, Bounds],
) -> list[PlannedRange]:
    """Read the last record of each range again and compare it.

    Returns:
        The ranges whose last record retention has deleted, so that nothing could be compared.

    Raises:
        TruncatedInput: there is another record now, or none.
        Unavailable: asked to stop while waiting for the broker.
    """
    known = [planned for planned in ranges if planned.last_offset >= 0]
    aged_out = [planned for planned in known if bounds[planned.tp].begin > planned.last_offset]
    there = [planned for planned in known if bounds[planned.tp].begin <= planned.last_offset]
    ends = [
        Range(
            known.topic,
            bytes.fromhex(known.topic_id),
            known.partition,
            known.last_offset,
            known.last_offset + 1,
        )
        for known in there
    ]
    for planned, messages in zip(there, log.read_all(ends), strict=True):
        _check_last_record(planned, messages)
    return aged_out


def _check_last_record(known: PlannedRange, messages: Sequence[Message]) -> None:
    where = f"{known.topic}[{known.partition}]@{known.last_offset}"
    if not messages:
        raise TruncatedInput(
            f"{where}: it was read before, but there is no record now: the log was truncated or compacted"
        ).at(known.topic, known.partition, known.last_offset)
    epoch, timestamp_ms = stored_epoch(messages[0].leader_epoch()), messages[0].timestamp()[1]
    if (epoch, timestamp_ms) != (known.last_epoch, known.last_timestamp_ms):
        raise TruncatedInput(
            f"{where}: was written in leader epoch {known.last_epoch - 1} at {known.last_timestamp_ms} ms, now it is "
            f"epoch {epoch - 1} at {timestamp_ms} ms: the log was truncated and written again. Restore it, or {START_OVER}"
        ).at(known.topic, known.partition, known.last_offset)
    if known.last_crc >= 0 and record_crc(messages[0].key(), messages[0].value()) != known.last_crc:
        raise TruncatedInput(
            f"{where}: key or value are not those that were read, though leader epoch and time are: the log was truncated "
            f"and written again. Restore it, or {START_OVER}"
        ).at(known.topic, known.partition, known.last_offset)


DESCRIBE_MS: Final = 5_000
"""How old the description of a topic may be: new partitions enter that late, and changed limits hold from then on. It is looked
for new records up to hundreds of times a second, and the driver loses some memory with each description."""


@dataclass(slots=True)
class DescribedTopics:
    """Describes topics, at most every `DESCRIBE_MS`.

    Their ids need not be asked for before records are read: a topic that still has its id afterwards had it all the time.
    """

    env: Environment
    _infos: dict[str, TopicInfo] = field(default_factory=dict)
    _described_ms: int = 0

    def look(self, *, again: bool) -> dict[str, TopicInfo]:
        """The topics as they are now, or were at most `DESCRIBE_MS` ago.

        Args:
            again: as they are now. Files always are: there may be new ones at any time.

        Raises:
            Unavailable: asked to stop while one of them is gone, or the broker does not answer.
        """
        env = self.env
        old = abs(env.clock.now_ms() - self._described_ms) > DESCRIBE_MS  # clocks may be set back
        if again or old or not self._infos or env.flow.file_sources:
            look = partial(inputs.describe, env.flow, env.ports.log, running=True)
            self._infos = env.retry.call("look at the topics", look)
            self._described_ms = env.clock.now_ms()
        return self._infos

    def recreated(self) -> bool:
        """Whether an input was created again since the last look."""
        look = partial(inputs.is_recreated_since, self.env.flow, self.env.ports.log, self._infos)
        return self.env.retry.call("look at the topics", look)
