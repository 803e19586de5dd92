"""Every error of sqe-chain, one tree.

    ChainError
    ├── EnvelopeError          a value that is not a valid envelope (a poison policy may handle it)
    │   ├── NotAnEnvelope, EmptyValue, TruncatedEnvelope, TrailingBytes, WrongChecksum
    │   ├── MissingField, MalformedField, ChainTooLong, OutOfBounds, InconsistentEnvelope
    │   └── WrongPayloadType
    ├── FlowError              a declaration that cannot work; names the place in the user's file
    ├── PoisonError            an input that user code or a decoder refused, under policy `stop`
    │   ├── OutputTooLarge
    │   ├── OutputRefused
    │   ├── RowWithoutKey, RowOfAnotherType, RowTooLarge    a table does not take a row
    │   ├── TooManyExcluded    the poison policy would skip more than it may
    │   └── TooManyParked      more records of a partition would wait than may
    ├── ServiceStopped         going on could count a message twice or never; the text lists what to do
    │   ├── GapError, ChangedRepublisher, TooManyLanes, RecreatedTopic, TruncatedInput,
    │   │   LostOffsets, NoCommittedOffset, CompactedInput, PartitionsMismatch,
    │   │   WeakDurability, StoreInconsistent, StoreEmpty, PlanMismatch, RepeatedPosition,
    │   │   ChangedType, NotCaughtUp, DeadLettersLost, MarkersLost, ChangedFile, UnreadableFile,
    │   │   TableAltered, TableInconsistent, ReadersOverlap, OverwriteUnderWay, AnotherCluster,
    │   │   UnknownRevision
    │   └── Superseded         a newer run owns the flow
    ├── WriteAheadLogError     a write-ahead log cannot be opened, or has not taken a record
    │   ├── LogFull            too much waits for Kafka (back-pressure): try again later
    │   ├── LogUnwritable      the disk is full, fails or refuses; nothing acknowledged is lost
    │   ├── LogDamaged         bytes that were acknowledged have changed, or are gone
    │   ├── LogLocked, LogClosed
    │   └── RecordTooLarge
    ├── NotExact               `sqe_chain.testing.prove` found a schedule after which a flow has other results
    │   └── NotDeterministic   it found out which function is to blame
    ├── ReadOutOfOrder         a program without flows has passed over rows or records
    ├── EngineLost             the processes that run the tasks are gone: start the service again
    ├── Unavailable            a broker or store that does not answer: try again
    └── ConfigurationError     settings, topics, addresses: nothing was started
        └── GroupInUse         the flow's group has a member

An error text has what was found, where, what was expected, and what to do next. An error about a topic,
partition or message has these as attributes, too. Errors cross process boundaries as plain values
(`to_record`, `from_record`), never pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from sqe_chain.errors.safe_text import one_line

START_OVER: Final = (
    "start over under another flow name (its states begin empty, and it is another writer: its readers count everything "
    "it publishes as new, even what was published before)"
)
"""What can be done as a last resort, and what it costs; the end of many error texts."""
RESTORE_OR_REBUILD: Final = "restore the store as a whole, or fold the states again with sqe-chain rebuild"
"""What can be done when a store has lost what it had acknowledged."""


ErrorRecord = tuple[str, str, str | None, int | None, int | None]
"""An error on its way from a task to the driver: class name, text, topic, partition, offset."""


class ChainError(Exception):
    """Root of the tree.

    Attributes:
        exit_status: exit status of a command that ends with this error.
        topic: the topic it is about; None: about no topic.
        partition: the partition it is about; None: about no single partition.
        offset: the offset of the message it is about; None: about no single message.
    """

    exit_status = 1
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    def at(self, topic: str | None, partition: int | None = None, offset: int | None = None) -> Self:
        """Set the coordinates that the text names as attributes, and return this error.

        Args:
            topic: name of the topic.
            partition: its partition.
            offset: offset in the partition.
        """
        self.topic, self.partition, self.offset = topic, partition, offset
        return self

    def to_record(self) -> ErrorRecord:
        """The error as plain values, to send from a task to the driver; see `from_record`."""
        return type(self).__name__, text_of(self), self.topic, self.partition, self.offset


class EnvelopeError(ChainError):
    """A value is not a valid envelope. In a flow it is poison."""


class NotAnEnvelope(EnvelopeError):
    """The magic number is missing: another message type, or plain bytes. Perhaps the source needs `raw=True`."""


class EmptyValue(EnvelopeError):
    """The value is empty or null; `source(nulls=…)` decides about null."""


class TruncatedEnvelope(EnvelopeError):
    """The value ends before its checksum field."""


class TrailingBytes(EnvelopeError):
    """Bytes follow the checksum field."""


class WrongChecksum(EnvelopeError):
    """The CRC-32 over the bytes does not match the last field."""


class MissingField(EnvelopeError):
    """A required field is absent."""


class MalformedField(EnvelopeError):
    """A field has a length or form that the format does not allow, or occurs twice; or the protobuf does not parse."""


class ChainTooLong(EnvelopeError):
    """A chain has more than 32 links: probably services republish in a loop."""


class OutOfBounds(EnvelopeError):
    """An offset, ordinal, partition, time or name is outside its bounds."""


class InconsistentEnvelope(EnvelopeError):
    """Chain, lane and position do not agree, or a republished envelope has an event id."""


class WrongPayloadType(EnvelopeError):
    """The payloads have another type, or there are more or fewer of them, than was asked for."""


def text_of(error: BaseException) -> str:
    """The text of an error, always encodable, that of others on one line: even if its `str()` raises, or returns lone surrogates."""
    try:
        text = str(error)
    except Exception as failed:  # noqa: BLE001 - a user's exception class: its `__str__` may raise anything
        text = f"(no text: its __str__ raised {type(failed).__name__})"
    if isinstance(error, ChainError):  # ours may have several lines: the end of a traceback
        return "\n".join(map(one_line, text.split("\n")))
    return one_line(text)


class FlowError(ChainError):
    """A flow's declaration cannot work."""

    exit_status = 2


class PoisonError(ChainError):
    """An input could not be decoded, or user code failed on it, and the policy is `stop`."""


class ServiceStopped(ChainError):
    """The service stops because going on could count something twice or never."""

    exit_status = 3


class GapError(ServiceStopped):
    """A record names a predecessor on its lane that was not read: records are missing or out of order."""


class ChangedRepublisher(ServiceStopped):
    """A service upstream made more or fewer envelopes from an input than the first time."""


class TooManyLanes(ServiceStopped):
    """An input partition carries more lanes than the limit."""


class RecreatedTopic(ServiceStopped):
    """A topic was deleted and created again."""


class TruncatedInput(ServiceStopped):
    """An input's log ends before, or has other records at, offsets that were already read."""


class LostOffsets(ServiceStopped):
    """Retention deleted records that were not yet read."""


class NoCommittedOffset(ServiceStopped):
    """The flow has read nothing yet of a log that no longer begins at offset 0."""


class CompactedInput(ServiceStopped):
    """An input topic is compacted, so records may be missing."""


class PartitionsMismatch(ServiceStopped):
    """The number of partitions, or the layout, is not the one the flow was first started with."""


class WeakDurability(ServiceStopped):
    """A store or topic may lose acknowledged writes with its current settings."""


class StoreInconsistent(ServiceStopped):
    """Headers, plans and commits contradict each other: a store went back in time."""


class AnotherCluster(ServiceStopped):
    """The store holds states of inputs in another Kafka cluster."""


class StoreEmpty(StoreInconsistent):
    """The store has no data of a flow for which Kafka holds a commit."""


class PlanMismatch(ServiceStopped):
    """The redo of a plan, or what is published again, would differ from the first time."""


class RepeatedPosition(ServiceStopped):
    """A stage of your own emitted again for an input that it had left: readers would ignore the second output as a replay."""


class ChangedType(ServiceStopped):
    """States or input messages were written as another type, which the declared type would read wrongly."""


class OutputTooLarge(PoisonError):
    """An output is larger than its topic accepts."""


class TooManyExcluded(PoisonError):
    """The poison policy would skip more inputs than it may; nothing was skipped."""


class TooManyParked(PoisonError):
    """More records of an input partition would be parked than may wait; nothing was parked."""


class OutputRefused(PoisonError):
    """A topic refuses an output permanently: for its time, or for a missing key. Retrying does not help."""


class RowWithoutKey(PoisonError):
    """A row has no value in a column of its partition key or row key. It is poison."""


class RowOfAnotherType(PoisonError):
    """A value is not of the type of a table's rows, or a cell not of the type of its column. It is poison."""


class RowTooLarge(PoisonError):
    """A row is larger than a table takes. It is poison."""


class TableAltered(ServiceStopped):
    """Another program has written to a table, or changed its columns; or another stage writes to it."""


class TableInconsistent(ServiceStopped):
    """A table and the store contradict each other: one of them went back in time, or the table was replaced."""


class NotCaughtUp(ServiceStopped):
    """States cannot be republished yet: receivers have newer ones, or inputs created again were not read. Or windows are not closed yet."""


class DeadLettersLost(ServiceStopped):
    """A flow without stages reads inputs again, and dead-letter records are gone that name those it had skipped."""


class MarkersLost(ServiceStopped):
    """A transactional flow cannot know whether its last batch is published: its topic of markers is not the one that it was."""


class UnknownRevision(ServiceStopped):
    """Nobody knows where a revision of an output begins, so nobody knows what counts."""


class ChangedFile(ServiceStopped):
    """A file that is read has another content than at the first look, or is gone before its last row."""


class UnreadableFile(ServiceStopped):
    """A file does not follow its format: cut off, damaged, or of another format."""


class ReadersOverlap(ServiceStopped):
    """Another reader of the flow has one of the input partitions, or the sets of the readers are being changed."""


class OverwriteUnderWay(ServiceStopped):
    """A load that replaces what tables hold was begun and is not finished, and this run is not to go on with it."""


class Superseded(ServiceStopped):
    """A newer run has claimed the flow; this one no longer writes anything."""

    exit_status = 4


class WriteAheadLogError(ChainError):
    """A write-ahead log cannot be opened or read, or has not taken a record: that record is not acknowledged."""


class LogFull(WriteAheadLogError):
    """The write-ahead log has no room, because too much waits for Kafka or for the disk. Retrying later is safe."""


class LogUnwritable(WriteAheadLogError):
    """The disk is full, fails or refuses. What was acknowledged before is safe."""


class LogDamaged(WriteAheadLogError):
    """Bytes that were acknowledged have changed, or are gone. Nothing was skipped."""


class LogLocked(WriteAheadLogError):
    """Another process has the write-ahead log open, or this one is a fork of the process that opened it."""

    exit_status = 2


class LogClosed(WriteAheadLogError):
    """The write-ahead log was closed."""


class RecordTooLarge(WriteAheadLogError):
    """A record is larger than the write-ahead log accepts."""


class ReadOutOfOrder(ChainError):
    """A program without flows has passed over rows or records that come first. Nothing has changed: read those, then continue."""


class EngineLost(ChainError):
    """The processes that run the tasks are gone. Nothing is lost: the next start continues."""

    exit_status = 5


class Unavailable(ChainError):
    """A broker or store does not answer, or the outcome of a call is unknown. Retrying is safe."""

    exit_status = 5


class ConfigurationError(ChainError):
    """Settings, addresses or topics are wrong; nothing was started."""

    exit_status = 2


class GroupInUse(ConfigurationError):
    """Offsets cannot be committed: the flow's group has a member, which is a run of the flow, or another program."""


class NotExact(ChainError, AssertionError):
    """A flow under proof has other results after faults or replays than without them; see `sqe_chain.testing.prove`.

    Attributes:
        schedule: the shortest schedule that shows it (`sqe_chain.testing.Schedule`); None for an error of another process.
    """

    schedule: object | None = None


class NotDeterministic(NotExact):
    """Functions of a flow under proof do not give the same for the same arguments, or change what is not theirs.

    Attributes:
        findings: what was found of each of them (`sqe_chain.testing.Finding`), in the order of the flow.
    """

    findings: Sequence[object] = ()


def _tree(root: type[ChainError]) -> dict[str, type[ChainError]]:
    tree = {root.__name__: root}
    for child in root.__subclasses__():
        tree.update(_tree(child))
    return tree


def from_record(
    name: str,
    text: str,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
) -> ChainError:
    """The error that `to_record` described.

    Args:
        name: class name; one that is not in the tree becomes a plain ChainError that names it.
        text: the message.
        topic: see `ChainError`.
        partition: see `ChainError`.
        offset: see `ChainError`.
    """
    cls = _tree(ChainError).get(name)
    error = cls(text) if cls else ChainError(f"{name}: {text}")
    return error.at(topic, partition, offset)
