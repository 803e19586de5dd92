"""Sends dead-letter records back to where a flow with plans has read them, on lanes of their own: it counts each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqe_chain.chain import root_position
from sqe_chain.envelope.carrier import find_head, passed_on
from sqe_chain.envelope.message import payloads_of
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.errors import ConfigurationError, EnvelopeError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import SourceNode
from sqe_chain.operations.processing_letters import LettersMade, Processing, digest_of, place_of
from sqe_chain.ports import Output, TopicInfo
from sqe_chain.task.failed_log import Decision, Letter
from sqe_chain.task.target import RECORD_OVERHEAD, headers_size

Infos = Mapping[str, TopicInfo]


class CannotBeSentError(Exception):
    """Why a dead-letter record stays in its topic."""


def sending_back(infos: Infos) -> Processing:
    """What a release makes of dead-letter records where the flow itself must process them again.

    Args:
        infos: input topics of the flow that exist.
    """

    def process(
        flow: CompiledFlow,
        letters: Sequence[Letter],
        decision: Decision,
        _described: Mapping[str, TopicInfo],
        /,
    ) -> LettersMade:
        outputs, failed = list[Output](), dict[tuple[str, int, int], str]()
        for letter in letters:
            try:
                outputs.append(_output(flow, infos, letter, decision))
            except (CannotBeSentError, EnvelopeError) as error:
                failed[place_of(letter)] = str(error)
        return LettersMade(outputs, digest_of(outputs), failed)

    return process


def _output(flow: CompiledFlow, infos: Infos, letter: Letter, decision: Decision) -> Output:
    """The output that sends a dead-letter record back: the same in every repetition.

    Raises:
        ConfigurationError: its topic cannot recognise a repetition.
        EnvelopeError, CannotBeSentError: it cannot be sent at all.
    """
    dead, message = letter.dead, letter.message
    source, head = _source(flow, infos, dead.topic), find_head(message.value(), dead.headers)
    if source.codec is not None and not source.codec.reads(head.type):
        raise CannotBeSentError(f"it is a {head.type}, topic {dead.topic!r} is declared with another type")
    template = OutputTemplate(
        lane=head.lane,
        topic=dead.topic,
        topic_id=dead.topic_id,
        partition=dead.partition,
        output=f"{flow.name}/dead-letters-replay.{dead.topic_id.hex()[:8]}.{decision.by}",
    )
    position = head.position or dead.position
    epoch = 0 if head.position else int.from_bytes(position[:4], "big")
    if not head.position and position != root_position(epoch, dead.offset):
        raise CannotBeSentError(f"its position {position.hex()!r} does not belong to offset {dead.offset}")
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
    info, key = infos[dead.topic], message.key()
    size = len(value) + len(key or b"") + headers_size(dead.headers)
    if size > info.max_message_bytes - RECORD_OVERHEAD:
        raise CannotBeSentError(
            f"it has {size} bytes, topic {dead.topic!r} accepts {info.max_message_bytes} (max.message.bytes)"
        )
    headers = passed_on(dead.headers, carrier="value") or None
    return dead.topic, dead.partition % info.partitions, key, value, headers, dead.timestamp_ms


def _source(flow: CompiledFlow, infos: Infos, topic: str) -> SourceNode:
    """What reads a topic, if it recognises repetitions.

    Raises:
        ConfigurationError: the flow does not read it, or reads it without envelopes.
    """
    node = flow.source_of[topic]
    if node is None or topic not in infos:
        known = ", ".join(name for name in flow.input_topics if name in infos)
        raise ConfigurationError(f"flow {flow.name!r} does not read {topic!r}. Expected one of: {known}")
    if node.raw:
        raise ConfigurationError(
            f"{node.declared_at}: {topic!r} is read without envelopes. Expected envelopes, or a repetition would not be recognised. "
            "Instead, fold the inputs again with the right code: sqe-chain rebuild, or rewind"
        )
    return node
