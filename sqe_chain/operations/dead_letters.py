"""Dead-letter records: what their headers hold, and the output that sends one back to its flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqe_chain.chain import root_position
from sqe_chain.envelope.carrier import find_head, passed_on
from sqe_chain.envelope.message import EnvelopeHead, payloads_of
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import SourceNode
from sqe_chain.ports import Message, Output, Range, TopicInfo
from sqe_chain.task.dead_letters import DeadLetter
from sqe_chain.task.target import RECORD_OVERHEAD, headers_size

_FOLD_AGAIN = "fold the inputs again with the right code: sqe-chain rebuild, or rewind"


class CannotBeSentError(Exception):
    """Why a dead-letter record stays in its topic."""


@dataclass(frozen=True, slots=True)
class DeadLetterTargets:
    """Where dead-letter records go back to.

    Args:
        infos: its input topics that exist.
        to: an input topic with envelopes for all of them; "": each goes to where the flow read it.
    """

    flow: CompiledFlow
    infos: Mapping[str, TopicInfo]
    to: str = ""

    def output_for(self, dead: DeadLetter, message: Message, read: Range, lanes: str) -> Output:
        """The output that sends a dead-letter record back: the same in every repetition.

        Raises:
            ConfigurationError: its topic cannot recognise a repetition.
            EnvelopeError, CannotBeSentError: it cannot be sent at all.
        """
        source = self.flow.source_of[dead.topic]
        if source is not None and source.files is not None:
            raise CannotBeSentError(
                f"it is row {dead.offset} of a file ({dead.topic}), which is read from files only; put what is right into another file"
            )
        topic = self.to or dead.topic
        target, head = self.check(topic), _head_of(source, dead, message)
        if target.codec is not None and not target.codec.reads(head.type):
            raise CannotBeSentError(f"it is a {head.type}, topic {topic!r} is declared with another type")
        template = OutputTemplate(
            lane=head.lane,
            topic=dead.topic,
            topic_id=dead.topic_id,
            partition=dead.partition,
            output=f"{self.flow.name}/dead-letters-replay.{read.topic_id.hex()[:8]}.{lanes}",
        )
        position = head.position or dead.position
        epoch = 0 if head.position else int.from_bytes(position[:4], "big")
        if not head.position and position != root_position(epoch, dead.offset):
            raise CannotBeSentError(
                f"its position {position.hex()!r} does not belong to offset {dead.offset}"
            )
        value, _ = template.encode(
            head.chain,
            dead.offset,
            epoch,
            0,
            1,
            position,
            head.timestamp_ms,
            head.key if head.HasField("key") else None,
            head.type,
            payloads_of(head),
        )
        info, key = self.infos[topic], message.key()
        size = len(value) + len(key or b"") + headers_size(dead.headers)
        if size > info.max_message_bytes - RECORD_OVERHEAD:
            raise CannotBeSentError(
                f"it has {size} bytes, topic {topic!r} accepts {info.max_message_bytes} (max.message.bytes)"
            )
        headers = passed_on(dead.headers, carrier="value") or None
        return topic, dead.partition % info.partitions, key, value, headers, dead.timestamp_ms

    def check(self, topic: str) -> SourceNode:
        """Check that readers of a topic recognise repetitions; returns its source.

        Raises:
            ConfigurationError: the flow does not read it, or reads it without envelopes.
        """
        node = self.flow.source_of[topic]
        if node is None or topic not in self.infos:
            known = ", ".join(name for name in self.flow.input_topics if name in self.infos)
            raise ConfigurationError(
                f"flow {self.flow.name!r} does not read {topic!r}. Expected one of: {known}"
            )
        if node.raw:
            raise ConfigurationError(
                f"{node.declared_at}: {topic!r} is read without envelopes. Expected envelopes, or a repetition would not be recognised. "
                f"Instead, {_FOLD_AGAIN}"
            )
        return node


def _head_of(source: SourceNode | None, dead: DeadLetter, message: Message) -> EnvelopeHead:
    """The record as an envelope; one from a raw source gets the envelope that it would have had."""
    value = message.value()
    if source is None or not source.raw:
        return find_head(value, dead.headers)
    if source.codec is None:
        raise ConfigurationError(
            f"{source.declared_at}: a decoder of your own reads {dead.topic!r} without envelopes, so its dead-letter records have no "
            f"protobuf type. Expected a type, to send them back. Instead, {_FOLD_AGAIN}"
        )
    if value is None:
        raise CannotBeSentError("it has no value")
    head = EnvelopeHead(type=source.codec.type_name, payload=value, timestamp_ms=dead.timestamp_ms)
    key = message.key()
    if key is not None:
        head.key = key
    return head
