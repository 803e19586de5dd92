"""Every error of sqe-chain, one tree.

    ChainError
    ├── EnvelopeError          a value that is no valid envelope (may go to a poison policy)
    │   ├── NotAnEnvelope, EmptyValue, TruncatedEnvelope, TrailingBytes, WrongChecksum
    │   ├── MissingField, MalformedField, ChainTooLong, OutOfBounds, InconsistentEnvelope
    │   └── WrongPayloadType
    ├── FlowError              a declaration that cannot work; names the place in the user's file
    ├── PoisonError            an input that user code or a decoder refused, under policy `stop`
    │   ├── OutputTooLarge
    │   ├── OutputRefused
    │   └── TooManyExcluded    the poison policy would leave out more than it may
    ├── ServiceStopped         going on could count a message twice or never; says the ways out
    │   ├── GapError, ChangedRepublisher, TooManyLanes, RecreatedTopic, TruncatedInput,
    │   │   LostOffsets, NoCommittedOffset, CompactedInput, PartitionsMismatch,
    │   │   WeakDurability, StoreInconsistent, StoreEmpty, PlanMismatch, ChangedType
    │   └── Superseded         a newer run owns the flow
    ├── EngineLost             the processes that run the tasks are gone: start the service again
    ├── Unavailable            a broker or store that does not answer: try again
    └── ConfigurationError     settings, topics, addresses: nothing was started

An error says what was found, where, what was expected, and what to do next. Errors cross process
boundaries as plain values (`to_record`, `from_record`), never pickled. Where it is about a topic, a partition or a message,
these are attributes too.
"""

from __future__ import annotations

from typing import Final, Self

START_OVER: Final = (
    "start over under another flow name (its states begin empty, and it is another writer: whatever it publishes, also "
    "of what was published before, counts as new for its readers)"
)
"""The last way out, with what it does."""


ErrorRecord = tuple[str, str, str | None, int | None, int | None]
"""An error on its way from a task to the driver: class name, text, topic, partition, offset."""


class ChainError(Exception):
    """Root of the tree.

    Attributes:
        exit_status: of a command that ends with it.
        topic: where the message stands that it is about; None: it is about no topic.
        partition: the same; None: about no single partition.
        offset: the same; None: about no single message.
    """

    exit_status = 1
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    def at(self, topic: str | None, partition: int | None = None, offset: int | None = None) -> Self:
        """The same error, with the coordinates that its text names as attributes.

        Args:
            topic: name of the topic.
            partition: its partition.
            offset: offset there.
        """
        self.topic, self.partition, self.offset = topic, partition, offset
        return self

    def to_record(self) -> ErrorRecord:
        """All of it, to be carried from a task to the driver."""
        return type(self).__name__, text_of(self), self.topic, self.partition, self.offset


class EnvelopeError(ChainError):
    """A value is not a valid envelope."""


class NotAnEnvelope(EnvelopeError):
    """The magic number is missing: another message type, or plain bytes."""


class EmptyValue(EnvelopeError):
    """The value is empty or null."""


class TruncatedEnvelope(EnvelopeError):
    """The value ends before its checksum field."""


class TrailingBytes(EnvelopeError):
    """Bytes follow the checksum field."""


class WrongChecksum(EnvelopeError):
    """The CRC-32 over the bytes does not agree with the last field."""


class MissingField(EnvelopeError):
    """A required field is absent."""


class MalformedField(EnvelopeError):
    """A field has a length or a form that the format does not allow, or the protobuf does not parse."""


class ChainTooLong(EnvelopeError):
    """More than 32 links: probably a loop of republish services."""


class OutOfBounds(EnvelopeError):
    """An offset, ordinal, partition or topic name outside its bounds."""


class InconsistentEnvelope(EnvelopeError):
    """Lane or position do not agree with the chain (strict check only)."""


class WrongPayloadType(EnvelopeError):
    """The payloads are of another type, or of another number, than was asked for."""


def text_of(error: BaseException) -> str:
    """What an error says, as text that can be encoded: also of one whose `str()` fails, or gives half characters."""
    try:
        text = str(error)
    except Exception as failed:  # noqa: BLE001 - the class of a user, who may have written anything
        text = f"(its text cannot be had: {type(failed).__name__})"
    return text.encode("utf-8", "backslashreplace").decode()


class FlowError(ChainError):
    """A flow's declaration cannot work."""

    exit_status = 2


class PoisonError(ChainError):
    """An input could not be decoded, or user code failed on it, and the policy is `stop`."""


class ServiceStopped(ChainError):
    """The service stops because going on could count something twice or never."""

    exit_status = 3


class GapError(ServiceStopped):
    """A writer's witness `previous` lies beyond the lane's mark: messages are missing or swapped."""


class ChangedRepublisher(ServiceStopped):
    """An upstream service made another number of envelopes from the same input than before (`of`)."""


class TooManyLanes(ServiceStopped):
    """An input partition carries more lanes than the limit."""


class RecreatedTopic(ServiceStopped):
    """A topic was deleted and created again."""


class TruncatedInput(ServiceStopped):
    """An input's log ends before, or has other records at, offsets that were already read."""


class LostOffsets(ServiceStopped):
    """Retention deleted records that were not yet read."""


class NoCommittedOffset(ServiceStopped):
    """The flow has no position in a log that no longer begins at offset 0."""


class CompactedInput(ServiceStopped):
    """An input topic is compacted, so records may be missing."""


class PartitionsMismatch(ServiceStopped):
    """The number of partitions, or the layout, is not the one the flow was born with."""


class WeakDurability(ServiceStopped):
    """A store or topic may lose acknowledged writes with its present settings."""


class StoreInconsistent(ServiceStopped):
    """Headers, plans and commits contradict each other: a store went back in time."""


class StoreEmpty(StoreInconsistent):
    """The store knows nothing of a flow for which Kafka holds a commit."""


class PlanMismatch(ServiceStopped):
    """Redoing a plan did not end where the plan says."""


class ChangedType(ServiceStopped):
    """States, or messages of an input, were written as a type that the declared one would read wrongly."""


class OutputTooLarge(PoisonError):
    """An output is larger than its topic accepts."""


class TooManyExcluded(PoisonError):
    """The poison policy would leave out more inputs than it may; nothing was left out."""


class OutputRefused(PoisonError):
    """A topic does not accept an output, however often it is sent: its time, or a key that is missing."""


class Superseded(ServiceStopped):
    """A newer run has claimed the flow; this one changes nothing any more."""

    exit_status = 4


class EngineLost(ChainError):
    """The processes that run the tasks are gone. Nothing is lost: the next start goes on."""

    exit_status = 5


class Unavailable(ChainError):
    """A broker or store does not answer, or its outcome is unknown. Trying again is safe."""

    exit_status = 5


class ConfigurationError(ChainError):
    """Settings, addresses or topics are wrong; nothing was started."""

    exit_status = 2


def _tree(root: type[ChainError]) -> dict[str, type[ChainError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def from_record(
    name: str,
    text: str,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
) -> ChainError:
    """The error that `to_record` described.

    Args:
        name: class name; one that is not in the tree becomes a plain ChainError naming it.
        text: the message.
        topic: see `ChainError`, like the rest.
        partition: see there.
        offset: see there.
    """
    found = _tree(ChainError).get(name)
    error = found(text) if found else ChainError(f"{name}: {text}")
    return error.at(topic, partition, offset)
