"""Inputs that wait with `poison="park"`: the record that failed, and what follows it of the same key of its partition."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sqe_chain.envelope.revisions import FIRST
from sqe_chain.flow.context import Origin, TopicIdPartition
from sqe_chain.ports import Headers, Message, TopicPartition
from sqe_chain.task.dead_letters import identity_of
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.records import Records
from sqe_chain.task.revisions import OutputRevisions


class Parked(Exception):
    """An earlier input of the same key waits, so this one waits behind it."""


class Discarded(Exception):
    """The input was parked and then discarded, and is read again."""


@dataclass(frozen=True, slots=True)
class ParkedRecord:
    """A record that waits, with all that it takes to process it later. It is a `Message`.

    Attributes:
        at: topic, id of the topic, partition and offset.
        epoch: leader epoch; None in old message formats.
        kind: of the timestamp, as Kafka gives it.
        timestamp_ms: its time.
        record_key: Kafka's key of the record.
        record_value: its value.
        record_headers: its headers.
        error: class of the error; `Parked` if it waits behind another one.
        text: the error's text.
        readable: its envelope can be read, so its lane is known.
    """

    at: tuple[str, bytes, int, int]
    epoch: int | None
    kind: int
    timestamp_ms: int
    record_key: bytes | None = field(repr=False)
    record_value: bytes | None = field(repr=False)
    record_headers: tuple[tuple[str, bytes | None], ...] = field(repr=False)
    error: str
    text: str
    readable: bool

    @classmethod
    def of(cls, tp: TopicIdPartition, message: Message, why: Exclusion, *, readable: bool) -> Self:
        """The record of an input."""
        kind, timestamp_ms = message.timestamp()
        return cls(
            (*tp, message.offset()),
            message.leader_epoch(),
            kind,
            timestamp_ms,
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
            why.error,
            why.text,
            readable,
        )

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return self.at[0], self.at[2]

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.record_headers)
        return len(self.record_key or b"") + len(self.record_value or b"") + headers

    def __str__(self) -> str:
        return f"{self.at[0]}[{self.at[2]}]@{self.at[3]}"

    # Of `Message`.

    def topic(self) -> str:
        return self.at[0]

    def partition(self) -> int:
        return self.at[2]

    def offset(self) -> int:
        return self.at[3]

    def key(self) -> bytes | None:
        return self.record_key

    def value(self) -> bytes | None:
        return self.record_value

    def headers(self) -> Headers | None:
        return list(self.record_headers) or None

    def timestamp(self) -> tuple[int, int]:
        return self.kind, self.timestamp_ms

    def leader_epoch(self) -> int | None:
        return self.epoch

    def to_json(self) -> list[Any]:
        """For json.dumps."""
        topic, topic_id, partition, offset = self.at
        headers = [[name, _text(value)] for name, value in self.record_headers]
        place = [topic, topic_id.hex(), partition, offset, self.epoch, self.kind, self.timestamp_ms]
        return [
            *place,
            _text(self.record_key),
            _text(self.record_value),
            headers,
            self.error,
            self.text,
            self.readable,
        ]

    @classmethod
    def from_json(cls, raw: list[Any]) -> Self:
        """What `to_json` gave."""
        topic, topic_id, partition, offset, epoch, kind, timestamp_ms, key, value, headers, *rest = raw
        own = tuple((name, _bytes(content)) for name, content in headers)
        at = topic, bytes.fromhex(topic_id), partition, offset
        return cls(at, epoch, kind, timestamp_ms, _bytes(key), _bytes(value), own, *rest)


@dataclass(frozen=True, slots=True)
class ParkedKeys:
    """What tasks get in a flow with `poison="park"`: what waits before the batch.

    Attributes:
        keys: input partition -> Kafka's key of what waits -> the first offset of it.
        offsets: input partition -> offsets that wait, and are read again.
        discarded: input partition -> offsets that were discarded or skipped, and are read again.
        failed: lanes and positions of inputs that were skipped, wherever they are read again.
    """

    keys: Mapping[TopicPartition, Mapping[bytes, int]] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)
    discarded: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)
    failed: frozenset[tuple[int, bytes]] = frozenset()

    def skips(self, tp: TopicPartition) -> bool:
        """Whether any record of a partition may have been skipped before."""
        return bool(self.failed or self.discarded.get(tp))


@dataclass(frozen=True, slots=True)
class Releasing:
    """A batch that processes what has waited, and reads nothing.

    Attributes:
        records: what it processes, by topic, partition and offset.
        suffix: what the names of outputs have at their ends. Outputs of later inputs are out already, so these need lanes of
            their own.
    """

    records: tuple[ParkedRecord, ...]
    suffix: str


def discarded(origin: Origin) -> Exclusion:
    """How a discarded input is skipped, whatever the flow's policy is now."""
    tp = origin.tp
    return Exclusion(
        tp.topic, tp.partition, origin.offset, "skip", Discarded.__name__, "was skipped or discarded before"
    )


class Following:
    """Lets records of one input partition wait behind those that fail, and skips those that were discarded.

    Args:
        tp: the partition.
        waiting: what waits before the batch.
        parks: the flow's policy is `park`; else only discarded records are skipped.
        revisions: of the flow's outputs: what a revision has skipped, the next one tries again.
    """

    def __init__(
        self,
        tp: TopicPartition,
        waiting: ParkedKeys,
        *,
        parks: bool = True,
        revisions: OutputRevisions | None = None,
    ) -> None:
        self._tp, self._parks, self._revisions = tp, parks, revisions
        self._first = dict(waiting.keys.get(tp, {}))
        self._offsets = waiting.offsets.get(tp, frozenset())
        self._discarded = waiting.discarded.get(tp, frozenset())
        self._failed = waiting.failed

    def follow(self, records: Records) -> None:
        """Add to the failures of a block what waits behind other records.

        A candidate is tried whatever waits before it: it is taken back in this attempt.
        """
        taken = {*records.inputs, *records.failures, *records.trial}
        for number in sorted(taken):
            message = records.messages[number]
            key, offset = message.key(), message.offset()
            first = None if key is None else self._first.get(key)
            # Sealed in the plan with its reason already: a redo keeps that reason.
            known = isinstance(records.failures.get(number), Exclusion)
            if offset in self._discarded or (self._failed and self._has_failed(records.origin(number))):
                if not known:
                    records.failures[number] = Discarded()
            elif not self._parks:
                continue
            elif offset in self._offsets:
                if not known:
                    records.failures[number] = Parked("waits since an earlier batch")
            elif first is not None and first < offset:
                if not known and number not in records.trial:
                    topic, partition = self._tp
                    records.failures[number] = Parked(f"waits behind {topic}[{partition}]@{first}")
            elif key is not None and (number in records.failures or number in records.trial):
                self._first[key] = offset

    def _has_failed(self, origin: Origin) -> bool:
        revision = FIRST if self._revisions is None else self._revisions.label_of(origin)
        return identity_of(origin.lane, origin.position, revision) in self._failed


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)
