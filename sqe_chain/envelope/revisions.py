"""Revisions of an output: what a corrected flow publishes again, beside what it had published.

The code of a flow was wrong for a week. Fixed, it publishes that week again, and every reader ignores it, for its positions are
those that were counted. So an output has a *revision*, which is part of its name in links, and thus of the lane:

    clean/good         revision 1
    clean/good@2       revision 2, from its seam on

All revisions of an output are a *family*, here ``clean/good``. The *seam* of a revision is a place in the root topics. What roots at
or beyond it made, counts in this revision, and what it made in older ones is superseded. Each message carries its root, so every
reader can compare, whatever way the message has come.

The topic ``<topic>.revisions`` has one record for each revision: see `RevisionRecord`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from sqe_chain.chain import ROOT_LENGTH, Chain, Link, root_position
from sqe_chain.errors import OutOfBounds, UnknownRevision
from sqe_chain.ports import Message
from sqe_chain.ports.log import shown_place

FIRST: Final = 1
"""The revision of an output that was never corrected. Names in links do not have it."""
REVISION_HEADER: Final = "sqe-revision"
"""Of records that a revision other than the first has published: its name, ``flow/output@2``. Each further one adds its own."""
MAX_REVISION: Final = 999_999
_OUTPUT = re.compile(r"([^/]+/[^/@]+)(?:@([2-9]|[1-9][0-9]{1,5}))?(/.*)?", re.DOTALL)
_FORMAT: Final = 1
_REVISED: Final = 1 << 31
_SHOWN: Final = 100
"""Characters of a name in errors."""

Place = tuple[int, int]
"""Leader epoch plus one (0: none) and offset of a record in a root partition."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of an output, and which roots it counts for.

    Attributes:
        number: 2 or more; 1 is in no record, and counts for all roots.
        since: of each root topic by its id, 16 bytes: where the revision begins in its partitions. A partition that is not named:
            from its beginning. A topic that is not named, as one created later: never, its roots stay with the revision before.
            None: the revision counts for all roots, whatever topic they are in.
    """

    number: int
    since: Mapping[bytes, Mapping[int, Place]] | None = None

    @property
    def whole(self) -> bool:
        """Whether it counts for all roots."""
        return self.since is None

    def begins(self, topic_id: bytes, partition: int) -> bytes | None:
        """The first 12 bytes of the first position in a root partition that counts in this revision; None: the topic is not named.

        Args:
            topic_id: of the root topic, 16 bytes.
            partition: of the root topic.
        """
        if self.since is None:
            return bytes(ROOT_LENGTH)
        places = self.since.get(topic_id)
        return None if places is None else root_position(*places.get(partition, (0, 0)))


def earliest(revisions: Iterable[Revision]) -> Revision:
    """A revision that begins, in each root partition, where the first of these does; its number is the highest."""
    number, since = FIRST, dict[bytes, Mapping[int, Place]]()
    whole = False
    for own in revisions:
        number, whole = max(number, own.number), whole or own.since is None
        for topic_id, places in (own.since or {}).items():
            known = since.get(topic_id)
            # A partition that one of them does not name begins at its beginning.
            since[topic_id] = (
                places
                if known is None
                else {at: min(places[at], known[at]) for at in places.keys() & known.keys()}
            )
    return Revision(number, None if whole else since)


Known = Mapping[str, Sequence[Revision]]
"""The revisions of each family that somebody knows, the first one not among them."""


def name_with(family: str, number: int) -> str:
    """The name in links of a revision of an output.

    >>> name_with("clean/good", 1), name_with("clean/good", 2)
    ('clean/good', 'clean/good@2')
    """
    return family if number == FIRST else f"{family}@{number}"


def family_of(output: str) -> tuple[str, int]:
    """The family and the revision that the name of an output in a link is of. What is released belongs to the same ones.

    >>> family_of("clean/good"), family_of("clean/good@2"), family_of("clean/good@2/released.9f")
    (('clean/good', 1), ('clean/good', 2), ('clean/good', 2))
    """
    parts = _OUTPUT.fullmatch(output)
    return (parts[1], int(parts[2] or FIRST)) if parts else (output, FIRST)


def is_of(output: str, families: Container[str]) -> bool:
    """Whether the name of an output in a link is one of these outputs, in any revision, and nothing released."""
    family, number = family_of(output)
    return family in families and name_with(family, number) == output


def written_shard(output: str, shard: int | None) -> int | None:
    """The field `shard` of a link. Of a revision it has its first bit, which readers that know no revisions refuse.

    Such a reader would take a revision for another output, and count both. The other bits are the shard plus one, 0 for none.

    Raises:
        OutOfBounds: the shard is too large.

    >>> written_shard("clean/good", 3), written_shard("clean/good@2", None) == 2**31, written_shard("clean/good@2", 3) == 2**31 + 4
    (3, True, True)
    """
    if "@" not in output or family_of(output)[1] == FIRST:
        return shard
    number = 0 if shard is None else shard + 1
    if number >= _REVISED:
        raise OutOfBounds(f"shard of a link is {shard}, allowed is 0 to {_REVISED - 2} in a revision")
    return _REVISED + number


def shard_of(output: str, written: int | None) -> int | None:
    """The shard of a link, from what `written_shard` gave.

    Raises:
        OutOfBounds: it does not fit the name of the output: it is no revision, or one that is not marked as such.
    """
    revised = "@" in output and family_of(output)[1] != FIRST
    if revised != (written is not None and written >= _REVISED):
        raise OutOfBounds(
            f"shard of a link is {written}, of output {output[:_SHOWN]!r}. Expected {_REVISED} or more if the output is a revision, "
            "FLOW/OUTPUT@NUMBER, and less if it is none: the writer does not follow the format"
        )
    if not revised or written is None:
        return written
    return None if written == _REVISED else written - _REVISED - 1


def label(topic_id: bytes, partition: int, position: bytes, revisions: Iterable[Revision]) -> int:
    """Under which revision an output publishes what a root makes: the newest that begins at or before it.

    Args:
        topic_id: of the root topic, 16 bytes.
        partition: of the root topic.
        position: of the message, or of its root alone.
        revisions: all of the output, in any order.
    """
    root = position[:ROOT_LENGTH]
    begins = ((own.number, own.begins(topic_id, partition)) for own in revisions)
    return max((number for number, place in begins if place is not None and place <= root), default=FIRST)


def superseded_from(links: Sequence[Link], known: Known) -> bytes | None:
    """From which root position on the messages with these links are superseded; None: none is.

    All messages of a lane have the same answer. The links before the last one of a state partition do not count. Its flow has folded
    all that it reads, and published it again under a revision of its own.

    Args:
        links: of the message, root first; empty: it is its own root, and nothing supersedes it.
        known: the revisions that count for the reader.
    """
    if not links:
        return None
    topic_id, partition = links[0].topic_id, links[0].partition
    places = [
        place
        for link in links[last_settled(links) :]
        for family, number in [family_of(link.output)]
        for revision in known.get(family, ())
        if revision.number > number and (place := revision.begins(topic_id, partition)) is not None
    ]
    return min(places, default=None)


def superseded(links: Sequence[Link], known: Known) -> bool:
    """Whether a newer revision of any of its outputs counts for the root of a message: then it has no effect. See `superseded_from`."""
    begins = superseded_from(links, known)
    return begins is not None and begins <= Chain(tuple(links)).position()[:ROOT_LENGTH]


def newer_than_known(links: Sequence[Link], known: Known) -> tuple[str, int] | None:
    """The family and number of the first link whose revision is newer than all known ones; None: there is none."""
    for link in links[last_settled(links) :]:
        family, number = family_of(link.output)
        if number > max((own.number for own in known.get(family, ())), default=FIRST):
            return family, number
    return None


def last_settled(links: Sequence[Link]) -> int:
    """The index of the first link whose revision counts: what lies before the last link of a state partition is settled by its flow."""
    return max((index for index, link in enumerate(links) if link.shard is not None), default=0)


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    """The record of a revision in ``<topic>.revisions``. The first record of a revision holds.

    Attributes:
        family: ``flow/output``.
        revision: which one, and from where on it counts.
        topics: names of the root topics, by id.
        ends: where each partition of the output's topic ended: nothing of the revision lies before it.
        by: id of the run that wrote it.
    """

    family: str
    revision: Revision
    topics: Mapping[bytes, str] = field(default_factory=dict)
    ends: tuple[int, ...] = ()
    by: str = ""

    @property
    def key(self) -> bytes:
        """Of its record."""
        return self.family.encode()

    def to_bytes(self) -> bytes:
        """The value of its record: JSON, ``{"format", "revision", "since", "ends", "by"}``."""
        raw = {
            "format": _FORMAT,
            **revision_to_json(self.revision, self.topics),
            "ends": self.ends,
            "by": self.by,
        }
        return json.dumps(raw, separators=(",", ":")).encode()

    @classmethod
    def from_record(cls, message: Message) -> Self:
        """What a record of the topic holds.

        Raises:
            UnknownRevision: it cannot be understood, so nobody knows what counts.
        """
        try:
            raw: dict[str, Any] = json.loads(message.value() or b"")
            revision, topics = revision_from_json(raw, raw["format"])
            ends = tuple(int(end) for end in raw["ends"])
            return cls((message.key() or b"").decode(), revision, topics, ends, str(raw["by"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnknownRevision(
                f"{shown_place(message)}: a revision that cannot be understood ({error}). Expected a record of format {_FORMAT} as `sqe-chain correct` "
                "writes it. Run the version of sqe-chain that has written it"
            ).at(message.topic(), message.partition(), message.offset()) from None


def revisions_topic(topic: str) -> str:
    """The topic that keeps the revisions of the outputs which a topic has."""
    return f"{topic}.revisions"


def records_by_family(messages: Iterable[Message]) -> dict[str, list[RevisionRecord]]:
    """The revisions of each family, by number, as the records of one topic hold them.

    Args:
        messages: all records of ``<topic>.revisions``, in their order. Of several for one revision the first holds.

    Raises:
        UnknownRevision: one cannot be understood.
    """
    first: dict[str, dict[int, RevisionRecord]] = {}
    for message in messages:
        record = RevisionRecord.from_record(message)
        first.setdefault(record.family, {}).setdefault(record.revision.number, record)
    return {family: [own[number] for number in sorted(own)] for family, own in first.items()}


def revision_to_json(revision: Revision, topics: Mapping[bytes, str]) -> dict[str, Any]:
    """A revision for json.dumps: ``{"revision": 2, "since": [{"topic": "raw", "id": "…", "from": {"0": [1, 17]}}]}``."""
    since = [
        {
            "topic": topics.get(topic_id, ""),
            "id": topic_id.hex(),
            "from": {str(partition): [*place] for partition, place in sorted(places.items())},
        }
        for topic_id, places in sorted((revision.since or {}).items())
    ]
    return {"revision": revision.number, "since": None if revision.since is None else since}


def revision_from_json(raw: Mapping[str, Any], form: int = _FORMAT) -> tuple[Revision, dict[bytes, str]]:
    """What `revision_to_json` gave: the revision, and the names of its root topics.

    Args:
        raw: what was read.
        form: the format it is in.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    if form != _FORMAT:
        raise ValueError(f"format {form!r}")
    number, since = raw["revision"], raw["since"]
    if type(number) is not int or not FIRST < number <= MAX_REVISION:
        raise ValueError(f"revision {number!r}")
    if since is None:
        return Revision(number), {}
    ids = [bytes.fromhex(topic["id"]) for topic in since]
    places = [
        {int(partition): (int(epoch), int(offset)) for partition, (epoch, offset) in topic["from"].items()}
        for topic in since
    ]
    names = {topic_id: str(topic["topic"]) for topic_id, topic in zip(ids, since, strict=True)}
    return Revision(number, dict(zip(ids, places, strict=True))), names
