"""Under which revision a task publishes what it makes of an input: by the input's root, whatever code runs now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqe_chain.chain import Link
from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.head import parse_chain
from sqe_chain.envelope.revisions import FIRST, Revision, label
from sqe_chain.errors import EnvelopeError
from sqe_chain.flow.context import Origin
from sqe_chain.ports import Message
from sqe_chain.task.dead_letters import DeadLetter


@dataclass(frozen=True, slots=True)
class OutputRevisions:
    """What tasks get of a flow whose outputs were corrected.

    Attributes:
        of: name of an output -> its revisions without the first one, in any order; an output that is absent has the first alone.
    """

    of: Mapping[str, tuple[Revision, ...]]

    def label(self, output: str, origin: Origin) -> int:
        """Under which revision an output publishes what is made of an input.

        Args:
            output: its name.
            origin: the input.
        """
        revisions = self.of.get(output, ())
        return label(*root_of(origin), origin.position, revisions) if revisions else FIRST

    def label_of(self, origin: Origin) -> int:
        """The same for all outputs of a flow, which have the same revisions; the newest one if its envelope cannot be read."""
        if not origin.position:
            return self.newest
        return max((self.label(output, origin) for output in self.of), default=FIRST)

    @property
    def all(self) -> tuple[Revision, ...]:
        """Those of a flow without stages, whose outputs all have the same ones."""
        return next(iter(self.of.values()), ())

    @property
    def newest(self) -> int:
        """The newest revision of any output."""
        return max((own.number for revisions in self.of.values() for own in revisions), default=FIRST)


def label_of_letter(dead: DeadLetter, message: Message, revisions: Sequence[Revision]) -> int:
    """The newest revision that counts for an input which was skipped.

    Args:
        dead: what the headers of its dead-letter record hold.
        message: that record.
        revisions: of the flow's outputs.
    """
    newest = max((own.number for own in revisions), default=FIRST)
    if not dead.readable:
        return newest
    root: Link | None = None
    with suppress(EnvelopeError):
        head = find_head(message.value(), dead.headers)
        root = parse_chain(head.chain).root if head.chain else None
    place = (dead.topic_id, dead.partition) if root is None else (root.topic_id, root.partition)
    return label(*place, dead.position, revisions)


def root_of(origin: Origin) -> tuple[bytes, int]:
    """The id of the topic and the partition of an input's root.

    Raises:
        EnvelopeError: its chain cannot be read.
    """
    _, chain, _ = origin.stated
    root = parse_chain(chain).root if chain else None
    return (origin.tp.topic_id, origin.tp.partition) if root is None else (root.topic_id, root.partition)
