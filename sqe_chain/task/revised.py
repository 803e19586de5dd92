"""Which records have no effect, because of revisions: those that newer ones supersede, and those of revisions that nobody follows yet.

They are dropped before anything else looks at them. So no mark moves, no event time, no state, and nothing is skipped.
All messages of a lane have the same links, and roots of one partition. So it is decided once for each lane from which root
position on its messages have no effect. What decides is in the plan before the batch, so every attempt at it decides the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from sqe_chain.chain import ROOT_LENGTH, Link
from sqe_chain.envelope.head import EnvelopeHead, check_consistent
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.revisions import Known, Revision, family_of, newer_than_known, superseded_from
from sqe_chain.errors import EnvelopeError

if TYPE_CHECKING:
    from sqe_chain.envelope.block import Block
    from sqe_chain.task.records import Deciding, Records

_FROM_THE_BEGINNING: Final = bytes(ROOT_LENGTH)


@dataclass(frozen=True, slots=True)
class Followed:
    """What tasks get: the revisions that count for the flow, beside the first one of each output.

    Attributes:
        known: family -> its revisions.
    """

    known: Mapping[str, tuple[Revision, ...]] = field(default_factory=dict)


class Newer(NamedTuple):
    """A revision that the flow does not follow, and the topic that it is in."""

    family: str
    number: int
    topic: str


class _Limit(NamedTuple):
    """From which root position on the messages of a lane have no effect, and why: a newer revision, or None where they are superseded."""

    since: bytes
    newer: Newer | None = None


class Ignoring:
    """Drops the records of one input partition that have no effect, in one attempt.

    Attributes:
        superseded: how many were superseded, of those that are read for the first time.
        newer: the same of revisions that the flow does not follow.

    Args:
        topic: the input topic.
        known: the revisions that count.
        marks: of the partition.
        since: first offset that was not read before.
    """

    def __init__(self, topic: str, known: Known, marks: PartitionMarks, since: int) -> None:
        self._topic, self._known, self._marks, self._since = topic, known, marks, since
        self.superseded, self.newer = 0, Counter[Newer]()
        # Lane as envelopes state it -> its limit; None: all of its messages count. Those met so far.
        self._limits: dict[int, _Limit | None] = {0: None}

    def drop(self, records: Records, deciding: Deciding) -> Records:
        """A block without the records that have no effect; the same block where all have."""
        dropped = self._found_closely(records, deciding)
        if records.block is not None:
            dropped |= self._found_in_columns(records.block)
        if not dropped:
            return records
        for number, newer in dropped.items():
            if records.messages[number].offset() < self._since:
                continue  # it waited for event time with others, and was counted when it was read first
            if newer is None:
                self.superseded += 1
            else:
                self.newer[newer] += 1
        return deciding.records_of(
            [message for number, message in enumerate(records.messages) if number not in dropped]
        )

    def _found_in_columns(self, block: Block) -> dict[int, Newer | None]:
        """The ordinary records of a block that have no effect."""
        dropped: dict[int, Newer | None] = {}
        for lane in block.distinct_lanes:
            if self._passes(lane):
                continue
            numbers = block.numbers_on(lane)
            limit = self._limit_of(lane, block.head(numbers[0])) if numbers else None
            if limit is not None:
                dropped |= {
                    number: limit.newer
                    for number in numbers
                    if block.position(number)[:ROOT_LENGTH] >= limit.since
                }
        return dropped

    def _found_closely(self, records: Records, deciding: Deciding) -> dict[int, Newer | None]:
        """The records that columns are not right for and have no effect; their envelopes are kept in `records`."""
        dropped: dict[int, Newer | None] = {}
        block = records.block
        numbers = range(len(records.messages)) if block is None else (~block.ordinary).nonzero()[0].tolist()
        for number in numbers:
            try:
                head = deciding.head_of(records, number)
            except EnvelopeError:
                continue  # nobody knows its lane; the policy decides
            if head is None:
                continue
            records.heads[number] = head
            limit = None if self._passes(head.lane) else self._limit_of(head.lane, head)
            if limit is not None and head.position[:ROOT_LENGTH] >= limit.since:
                dropped[number] = limit.newer
        return dropped

    def _passes(self, lane: int) -> bool:
        """Whether it is known that all messages of a lane count."""
        if lane in self._limits:
            return self._limits[lane] is None
        # A flow that follows no revision has marks of lanes alone that it has looked at: no chain is parsed again.
        return not self._known and lane in self._marks.lanes

    def _limit_of(self, lane: int, head: EnvelopeHead | None) -> _Limit | None:
        if lane not in self._limits and head is not None:
            try:
                links = check_consistent(head).links
            except EnvelopeError:
                return None  # marks refuse it
            newer, since = newer_than_known(links, self._known), superseded_from(links, self._known)
            if newer is not None:
                self._limits[lane] = _Limit(
                    _FROM_THE_BEGINNING, Newer(*newer, self._topic_of(links, newer[0]))
                )
            else:
                self._limits[lane] = None if since is None else _Limit(since)
        return self._limits.get(lane)

    def _topic_of(self, links: Sequence[Link], family: str) -> str:
        """The topic that the output of a family is in."""
        at = max(index for index, link in enumerate(links) if family_of(link.output)[0] == family)
        return links[at + 1].topic if at + 1 < len(links) else self._topic
