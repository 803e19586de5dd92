"""The revisions that a flow with stages follows: what its plans keep of them.

A flow folds one revision of what each root has made, so it follows for life those that its first plan has. It ignores newer ones
as a whole, and notes that they are there. `sqe-chain rebuild` takes them up: it folds all inputs again, and its first plan has
the newest ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from sqe_chain.chain import ROOT_LENGTH, Link
from sqe_chain.envelope.revisions import (
    FIRST,
    Revision,
    RevisionRecord,
    family_of,
    last_settled,
    newer_than_known,
    revision_from_json,
    revision_to_json,
    superseded_from,
)
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.task.results import PartitionEnd
from sqe_chain.task.revised import Followed, Newer
from sqe_chain.task.revisions import OutputRevisions

Ignored = Literal["superseded", "newer"]
"""Why a message has no effect."""


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """A revision that a flow has met and does not follow.

    Attributes:
        number: the highest number of the family.
        topic: the topic that the output is in.
    """

    number: int
    topic: str


@dataclass(frozen=True, slots=True)
class Revisions(Section):
    """The revisions that a flow follows, and those that it has met beside them.

    Attributes:
        known: family -> its revisions that count, beside the first one.
        topics: names of the root topics of their seams, by id.
        newer: family -> what was met of it that is newer.
        own: the revision under which the flow publishes all of its outputs.
        since: number of the first plan that does; what plans before it have published, is of older ones.
    """

    name: ClassVar[str] = "revisions"
    known: Mapping[str, tuple[Revision, ...]] = field(default_factory=dict)
    topics: Mapping[bytes, str] = field(default_factory=dict)
    newer: Mapping[str, Unfollowed] = field(default_factory=dict)
    own: int = FIRST
    since: int = 0

    def carried(self, last: Plan, plan: Plan) -> Revisions:  # noqa: ARG002 - see `Section`
        """All of it, for life."""
        return self

    def follows(self, family: str) -> int:
        """The newest revision of a family that counts."""
        return max((revision.number for revision in self.known.get(family, ())), default=FIRST)

    def is_behind(self, family: str) -> bool:
        """Whether a revision of a family was met that is newer than what counts."""
        return family in self.newer and self.newer[family].number > self.follows(family)

    def texts(self) -> list[str]:
        """The newest revision of each family that counts, for people."""
        return [f"revision {self.follows(family)} of {family}" for family in sorted(self.known)]

    def why_ignored(self, links: Sequence[Link], position: bytes) -> tuple[Ignored, str] | None:
        """Why a message has no effect, as a word and a sentence; None: revisions do not ignore it.

        Args:
            links: of the message, root first.
            position: of the message.
        """
        unknown, begins = newer_than_known(links, self.known), superseded_from(links, self.known)
        if unknown is not None:
            family, number = unknown
            return (
                "newer",
                f"It is of revision {number} of {family}, and the flow follows {self.follows(family)}. A rebuild takes it up.",
            )
        if begins is None or position[:ROOT_LENGTH] < begins:
            return None
        root = links[0]
        return "superseded", " ".join(
            f"It is superseded by revision {revision.number} of {family}"
            + (
                "."
                if revision.whole
                else f" from {root.topic}[{root.partition}]@{int.from_bytes(place[4:], 'big')} on."
            )
            for family, number in (family_of(link.output) for link in links[last_settled(links) :])
            for revision in self.known.get(family, ())
            if revision.number > number
            and (place := revision.begins(root.topic_id, root.partition)) is not None
            and place <= position[:ROOT_LENGTH]
        )

    def for_tasks(self) -> Followed | None:
        """What tasks get; None: the first revision of everything counts."""
        return Followed(self.known) if self.known else None

    def for_outputs(self, flow: CompiledFlow) -> OutputRevisions | None:
        """Under which revision tasks publish; None: the first one."""
        if self.own == FIRST or not flow.outputs:
            return None
        return OutputRevisions({node.name: (Revision(self.own),) for node in flow.outputs})

    def noting(self, ends: Iterable[PartitionEnd]) -> Revisions:
        """The same with the newer revisions that a batch has met."""
        met = Counter[Newer]()
        for end in ends:
            met.update(end.newer)
        newer = dict(self.newer)
        for family, number, topic in sorted(met):
            if family not in newer or newer[family].number < number:
                newer[family] = Unfollowed(number, topic)
        return replace(self, newer=newer)

    @classmethod
    def of_records(cls, records: Mapping[str, Iterable[RevisionRecord]]) -> Self:
        """The newest revisions, as the topics of revisions have them.

        Args:
            records: family -> the records of its revisions.
        """
        known = {family: tuple(record.revision for record in own) for family, own in records.items()}
        topics = {
            topic_id: name
            for own in records.values()
            for record in own
            for topic_id, name in record.topics.items()
        }
        return cls({family: own for family, own in known.items() if own}, topics)

    def to_json(self) -> dict[str, Any]:
        follows = {
            family: [revision_to_json(revision, self.topics) for revision in own]
            for family, own in self.known.items()
        }
        newer = {family: [own.number, own.topic] for family, own in self.newer.items()}
        own = [] if self.own == FIRST else [self.own, self.since]
        members: dict[str, Any] = {"follows": follows, "newer": newer, "own": own}
        return {name: value for name, value in members.items() if value}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        known, topics = dict[str, tuple[Revision, ...]](), dict[bytes, str]()
        for family, own in raw.get("follows", {}).items():
            read = [revision_from_json(revision) for revision in own]
            known[family] = tuple(revision for revision, _ in read)
            for _, names in read:
                topics |= names
        newer = {
            family: Unfollowed(int(number), str(topic))
            for family, (number, topic) in raw.get("newer", {}).items()
        }
        own, since = raw.get("own", (FIRST, 0))
        return cls(known, topics, newer, int(own), int(since))
