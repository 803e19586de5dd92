"""What dead-letter records give when the flow's code processes them now, as if the flow read them where it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby

from sqe_chain.engines.task import not_ending
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs
from sqe_chain.ports import Message, Output, Range, TopicInfo
from sqe_chain.task.failed_log import Decision, Letter
from sqe_chain.task.parking import ParkedRecord, Releasing
from sqe_chain.task.reading import run_without_stages
from sqe_chain.task.results import Job, Portion, Sections
from sqe_chain.task.revisions import OutputRevisions
from sqe_chain.task.states import Transition


@dataclass(frozen=True, slots=True)
class LettersMade:
    """What dead-letter records give.

    Attributes:
        outputs: records to publish, in order.
        digest: of all of them.
        failed: why others have failed, by topic, partition and offset of their inputs.
    """

    outputs: list[Output]
    digest: str
    failed: dict[tuple[str, int, int], str]


def process_letters(
    flow: CompiledFlow,
    letters: Sequence[Letter],
    decision: Decision,
    described: Mapping[str, TopicInfo],
    revisions: OutputRevisions | None = None,
) -> LettersMade:
    """What dead-letter records give to receivers, on lanes of their own.

    Args:
        flow: a flow without stages.
        letters: sorted by `place_of`.
        decision: names the lanes, and has the time.
        described: what topics accept; those that are absent are not checked.
        revisions: of the flow's outputs; None: they have the first one alone.
    """
    portions = [
        Portion(
            Range(topic, topic_id, partition, 0, 0),
            PartitionMarks(topic, topic_id, partition, entered_in_middle=True),
            parked=tuple(map(parked_record, own)),
        )
        for (topic, topic_id, partition), own in groupby(letters, key=_partition_of)
    ]
    job = Job(
        Transition.without_plans(flow.name),
        decision.clock_ms,
        topics=described,
        compacted=inputs.compacted_topics(described),
        sections=Sections.of(Releasing((), decision.suffix), revisions),
    )
    # Whatever the flow's policy is: what fails again is reported, and is not kept a second time.
    with not_ending():
        made = run_without_stages(replace(flow, poison="skip"), job, portions, _read_nothing)
    failed = {
        (skipped.topic, skipped.partition, skipped.offset): f"{skipped.error}: {skipped.text}"
        for skipped in made.report.excluded
    }
    return LettersMade(made.outputs, digest_of(made.outputs), failed)


def place_of(letter: Letter) -> tuple[str, int, int]:
    """Topic, partition and offset where the flow has read the input."""
    return letter.dead.topic, letter.dead.partition, letter.dead.offset


def _partition_of(letter: Letter) -> tuple[str, bytes, int]:
    return letter.dead.topic, letter.dead.topic_id, letter.dead.partition


def parked_record(letter: Letter) -> ParkedRecord:
    """The input as the flow has read it."""
    dead, message = letter.dead, letter.message
    # The epoch is part of the position of a record without a chain; of others it means nothing.
    stored = int.from_bytes(dead.position[:4], "big")
    return ParkedRecord(
        (dead.topic, dead.topic_id, dead.partition, dead.offset),
        stored - 1 if stored else None,
        1,
        dead.timestamp_ms,
        message.key(),
        message.value(),
        tuple(dead.headers),
        dead.error,
        dead.text,
        readable=dead.readable,
    )


def digest_of(outputs: Sequence[Output]) -> str:
    """A digest of all outputs in their order."""
    digest = blake2b(digest_size=16)
    for output in outputs:
        digest.update(repr(output).encode())
    return digest.hexdigest()


def _read_nothing(_range: Range) -> Sequence[Sequence[Message]]:
    return ()
