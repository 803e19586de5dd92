"""Sends dead-letter records back to where a flow with plans has read them, on lanes of their own: it counts each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqe_chain.errors import EnvelopeError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.dead_letters import CannotBeSentError, DeadLetterTargets
from sqe_chain.operations.processing_letters import LettersMade, Processing, digest_of, place_of
from sqe_chain.ports import Output, Range, TopicInfo
from sqe_chain.task.failed_log import Decision, Letter


def sending_back(targets: DeadLetterTargets) -> Processing:
    """What a release makes of dead-letter records where the flow itself must process them again."""

    def process(
        _flow: CompiledFlow,
        letters: Sequence[Letter],
        decision: Decision,
        _described: Mapping[str, TopicInfo],
        /,
    ) -> LettersMade:
        outputs, failed = list[Output](), dict[tuple[str, int, int], str]()
        for letter in letters:
            dead = letter.dead
            read = Range(dead.topic, dead.topic_id, dead.partition, dead.offset, dead.offset)
            try:
                outputs.append(targets.output_for(dead, letter.message, read, decision.by))
            except (CannotBeSentError, EnvelopeError) as error:
                failed[place_of(letter)] = str(error)
        return LettersMade(outputs, digest_of(outputs), failed)

    return process
