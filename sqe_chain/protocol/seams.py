"""Where a revision begins, in root topics and in a flow's inputs.

A flow that is corrected reads again from the first record on whose root lies at or beyond the seam. Which that is depends on what has
come before on each lane: so all that is kept of an input is looked at. Marks that lie beyond the seam go back to it, since nothing
beyond was published under the new revision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from sqe_chain.chain import MAX_EPOCH, MAX_OFFSET, ROOT_LENGTH, Link, root_position, stored_epoch
from sqe_chain.envelope.carrier import find_head, is_chained
from sqe_chain.envelope.head import parse_chain
from sqe_chain.envelope.lanes_before import lanes_up_to
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.revisions import (
    Place,
    Revision,
    RevisionRecord,
    family_of,
    records_by_family,
    revisions_topic,
)
from sqe_chain.errors import ConfigurationError, EnvelopeError, LostOffsets
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.plans.inputs import partitions_of
from sqe_chain.plans.own_revisions import family
from sqe_chain.ports import Bounds, Range, TopicInfo, TopicPartition
from sqe_chain.protocol.committed import InputProgress
from sqe_chain.task.roots import names_no_topic

Root = tuple[str, bytes, int]
"""A root partition: name and id of its topic, and its number."""
_NEVER: Final[Place] = MAX_EPOCH, MAX_OFFSET
_LOOK_BACK: Final = (100, 10_000, 1 << 62)
_LAST: Final = b"\xff" * 4
"""The highest ordinal."""


@dataclass(slots=True)
class _Lane:
    """A lane as it is kept in an input partition.

    Attributes:
        root: of all its messages.
        first: place of the root of the first message that is kept.
        links: of that message; empty: it is its own root.
    """

    root: Root
    first: bytes
    links: tuple[Link, ...] = ()


@dataclass(slots=True)
class KeptInput:
    """What is kept of an input partition, up to where it was read.

    Attributes:
        env: the flow and its ports.
        tp: topic and partition.
        progress: how far it was read.
        bound: where its log begins and ends.
        lanes: lane as its writer states it -> what is known of it, after `places` or `find_lanes`.
        known: the revisions of the outputs that it is; None: they were not read.
    """

    env: Environment
    tp: TopicPartition
    progress: InputProgress
    bound: Bounds
    lanes: dict[int, _Lane] = field(default_factory=dict)
    known: dict[str, list[RevisionRecord]] | None = None

    @property
    def begin(self) -> int:
        """The first offset that is the flow's: what `--start latest` has skipped is not corrected."""
        return max(self.bound.begin, self.progress.began)

    def places(self) -> Iterator[tuple[int, int, bytes]]:
        """Offset, lane and place of the root of each message; notes the lanes. Records that cannot be read are passed over."""
        yield from self._places(self.begin, self.progress.offset)
        self._note_lanes_ahead()

    def _note_lanes_ahead(self) -> None:
        """Look beyond the offset for lanes that have marks: where an input was moved back before, that is where their messages are."""
        wanted = self.progress.marks.lanes.keys() - self.lanes.keys()
        if self.raw or not wanted:
            return
        before = set(self.lanes)
        for _ in self._places(self.progress.offset, self.bound.stable_end):
            if wanted <= self.lanes.keys():
                break
        for lane in self.lanes.keys() - before - wanted:  # nothing of these was read yet
            del self.lanes[lane]

    def _places(self, start: int, stop: int) -> Iterator[tuple[int, int, bytes]]:
        (topic, partition), progress = self.tp, self.progress
        read = Range(topic, progress.topic_id, partition, start, stop)
        own: Root = topic, progress.topic_id, partition
        for block in self.env.ports.log.read(read) if read.start < read.stop else ():
            for message in block:
                place = root_position(stored_epoch(message.leader_epoch()), message.offset())
                lane, root, links = 0, own, tuple[Link, ...]()
                if not self.raw and is_chained(message):
                    try:
                        head = find_head(message.value(), message.headers())
                        lane, place = head.lane, head.position[:ROOT_LENGTH] or place
                        if lane not in self.lanes and (links := parse_chain(head.chain).links):
                            root = links[0].topic, links[0].topic_id, links[0].partition
                    except EnvelopeError:
                        continue
                if lane not in self.lanes:
                    self.lanes[lane] = _Lane(root, place, links)
                yield message.offset(), lane, place

    def find_lanes(self) -> None:
        """Look for all lanes. Without envelopes there is one, whose root the input is itself."""
        if not self.raw:
            for _ in self.places():
                pass

    def moved_back(self, revision: Revision) -> InputProgress:
        """The progress from which a revision is made: back to the first record at or beyond its seam, never forward.

        Raises:
            LostOffsets: records that would have to be read again may be gone.
        """
        progress = self.progress
        first = progress.offset
        if self.raw:
            begins = revision.begins(progress.topic_id, self.tp[1])
            self.lanes[0] = _Lane((self.tp[0], progress.topic_id, self.tp[1]), begins or b"")
            if begins is not None:
                first = min(first, max(int.from_bytes(begins[4:]), self.progress.began))
            if first < self.bound.begin:
                raise self._lost(f"offset {first} on")
        else:
            for offset, lane, place in self.places():
                begins = revision.begins(*self.lanes[lane].root[1:])
                if begins is not None and begins <= place:
                    first = min(first, offset)
            self._check_kept(revision)
        marks = self._marks(revision, first)
        if self.begin > 0:  # a lane's first message that is kept follows one that a revision has replaced
            _enter_in_middle(marks)
        skipped = tuple(offset for offset in progress.skipped if offset < first)
        return replace(progress, offset=first, epoch=0, marks=marks, skipped=skipped)

    def marks_of_rewind(self, revision: Revision, offset: int) -> PartitionMarks:
        """Marks for reading again from an offset on: what lies before the seam of a revision is a replay, all else is new."""
        self.find_lanes()
        marks = self._marks(revision, offset)
        if offset > 0:
            _enter_in_middle(marks)
        return marks

    @property
    def raw(self) -> bool:
        """Whether its records have no envelopes."""
        source = self.env.flow.source_of[self.tp[0]]
        return source is not None and source.raw

    def _marks(self, revision: Revision, first: int) -> PartitionMarks:
        """The marks, with those of lanes that went beyond the seam just before it."""
        marks = self.progress.marks.copy()
        for lane, mark in list(marks.lanes.items()):
            known = self.lanes.get(lane)
            begins = None if known is None else revision.begins(*known.root[1:])
            if begins is None or mark.position[:ROOT_LENGTH] < begins:
                continue
            if not any(begins):
                del marks.lanes[lane]
                continue
            before = (int.from_bytes(begins) - 1).to_bytes(ROOT_LENGTH)
            last = before + _LAST * ((len(mark.position) - ROOT_LENGTH) // len(_LAST))
            mark.move_to(last, min(mark.offset, first - 1))
        marks.undecodable_offset = min(marks.undecodable_offset, first - 1)
        return marks

    def _check_kept(self, revision: Revision) -> None:
        """Check that retention has taken nothing that would have to be read again.

        On a lane roots rise. So if the first message that is kept of a lane lies before the seam, all before it do.
        """
        if self.begin == self.progress.began:
            return
        newest = dict[str, int]()
        for lane in self.lanes.values():
            begins = revision.begins(*lane.root[1:])
            later, replaced = self._begun_since(lane)
            if replaced:
                family = family_of(lane.links[-1].output)[0]
                newest[family] = max(own.revision.number for own in self._records()[family])
            if begins is not None and begins <= lane.first and not later:
                root, _, partition = lane.root
                raise self._lost(f"roots of {root}[{partition}]")
        seam = _first_place(revision)
        gone = {
            number
            for number, mark in self.progress.marks.lanes.items()
            if number not in self.lanes and mark.position[:ROOT_LENGTH] >= seam
        }
        if gone and newest:  # what is gone may be what these revisions have replaced
            gone -= self._lanes_up_to(newest)
        if gone:
            raise self._lost(f"all of lane {min(gone):016x}")

    def _lanes_up_to(self, newest: Mapping[str, int]) -> set[int]:
        chains = [lane.links for lane in self.lanes.values()]
        before = {link.topic for links in chains for link in links}
        described = self.env.log.describe(before).values()
        return lanes_up_to(
            chains, newest, {(info.name, info.topic_id): info.partitions for info in described}
        )

    def _begun_since(self, lane: _Lane) -> tuple[bool, bool]:
        """Whether all that counts of a lane's output is kept: its revision, or one that replaces it as a whole, began in the kept log.

        Second, whether it is one that replaces all.
        """
        family, number = family_of(lane.links[-1].output if lane.links else "")
        began = [
            record.revision
            for record in self._records().get(family, ())
            if record.revision.number >= number
            and record.ends[self.tp[1] : self.tp[1] + 1] >= (self.bound.begin,)
        ]
        whole = any(revision.whole for revision in began)
        return whole or any(revision.number == number for revision in began), whole

    def _records(self) -> dict[str, list[RevisionRecord]]:
        """The revisions of the outputs that this input is."""
        if self.known is None:
            name, log = revisions_topic(self.tp[0]), self.env.ports.log
            info = log.describe([name]).get(name)
            self.known = {}
            if info is not None:
                bound = log.bounds([(name, 0)])[name, 0]
                read = Range(name, info.topic_id, 0, bound.begin, bound.stable_end)
                self.known = records_by_family(message for block in log.read(read) for message in block)
        return self.known

    def _lost(self, what: str) -> LostOffsets:
        topic, partition = self.tp
        return LostOffsets(
            f"flow {self.env.flow.name!r}: {what} are to be read again in {topic}[{partition}], which begins at {self.bound.begin}. Expected all of it. Correct "
            "from a later time; or correct the flow that writes this topic from the beginning first"
        ).at(topic, partition)


def begin_at(
    env: Environment, kept: list[KeptInput], time_ms: int | None
) -> tuple[Revision, dict[bytes, str]]:
    """The seam that a time is in the root topics of a flow's inputs, as a revision without number, and the names of these topics.

    Args:
        env: the flow and its ports.
        kept: its inputs.
        time_ms: in milliseconds since 1970, by the roots' own timestamps; None: all roots, from the beginning.

    Raises:
        ConfigurationError: no root topic can be read, or what timers and closed windows gave has no time there.
    """
    roots = dict[bytes, str]()
    for own in kept:
        own.find_lanes()
        roots[own.progress.topic_id] = own.tp[0]
        roots |= own.progress.marks.root_topics | {lane.root[1]: lane.root[0] for lane in own.lanes.values()}
    described = env.log.describe({*roots.values()})
    known = {
        topic_id: name
        for topic_id, name in roots.items()
        if name in described and described[name].topic_id == topic_id
    }
    tps = partitions_of(described[name] for name in known.values())
    if all(own.raw or not any(own.lanes) for own in kept) and not all(own.raw for own in kept):
        env.emit(
            Notice(
                f"flow {env.flow.name!r}: nothing in its inputs has come from a root topic yet, so the revision counts for none but a correction "
                "from the beginning. What comes is published under the revision of before"
            )
        )
    if time_ms is None:
        _check_from_beginning(env, [own for own in kept if own.raw])
        return Revision(0), {}
    made_up = sorted(name for name in roots.values() if names_no_topic(name))
    if made_up:
        raise ConfigurationError(
            f"flow {env.flow.name!r}: its inputs have what timers or closed windows gave ({', '.join(made_up)}), which have no place in "
            "topics. Expected a correction of all. Give --from beginning"
        )
    for topic_id, name in sorted(roots.items()):
        if topic_id not in known:
            env.emit(
                Notice(
                    f"root topic {name!r} ({topic_id.hex()}) is gone, or was created again: what was made of it stays in the revision before"
                )
            )
    bounds, offsets = env.log.bounds(tps), env.log.offsets_at(tps, time_ms)
    since: dict[bytes, dict[int, Place]] = {}
    for topic_id, name in known.items():
        places = since.setdefault(topic_id, {})
        for partition in range(described[name].partitions):
            tp = name, partition
            places[partition] = _place(env, described[name], partition, bounds[tp], offsets[tp])
    return Revision(0, since), known


def _check_from_beginning(env: Environment, kept: list[KeptInput]) -> None:
    """Check that inputs without envelopes have all roots that the outputs were made of; of others see `KeptInput.moved_back`."""
    for own in kept:
        (topic, partition), begin = own.tp, own.begin
        if begin > own.progress.began:
            raise LostOffsets(
                f"flow {env.flow.name!r}: {topic}[{partition}] begins at {begin}, so what was made of its first records cannot be made "
                "again. Expected all of it. Correct from a time: what was made of roots before it stays"
            ).at(topic, partition)
    published = roots_of_outputs(env) if kept else {}
    for topic_id in published.keys() - {own.progress.topic_id for own in kept}:
        topic = published[topic_id]
        if env.flow.source_of.get(topic) is not None:
            raise LostOffsets(
                f"flow {env.flow.name!r}: {topic!r} was created again, so what was made of the topic before ({topic_id.hex()}) cannot be made "
                "again. Expected all of it. Correct from a time: what was made of that topic stays"
            ).at(topic)


def roots_of_outputs(env: Environment) -> dict[bytes, str]:
    """The topics from which what is kept of a flow's outputs has come as their roots: id -> name."""
    names = {family(env.flow, node): node.topic for node in env.flow.outputs}
    infos = env.log.describe({*names.values()})
    roots, lanes = dict[bytes, str](), set[int]()
    for (topic, partition), bound in env.log.bounds(partitions_of(infos.values())).items():
        read = Range(topic, infos[topic].topic_id, partition, bound.begin, bound.stable_end)
        for block in env.ports.log.read(read) if read.start < read.stop else ():
            for message in block:
                with suppress(EnvelopeError):
                    head = find_head(message.value(), message.headers())
                    if head.lane and head.lane not in lanes:
                        lanes.add(head.lane)
                        links = parse_chain(head.chain).links
                        if family_of(links[-1].output)[0] in names:
                            roots[links[0].topic_id] = links[0].topic
    return roots


def _place(env: Environment, info: TopicInfo, partition: int, bound: Bounds, offset: int) -> Place:
    """The place of an offset in a root partition."""
    if offset <= bound.begin == 0:
        return 0, 0
    epoch = _epoch(env, Range(info.name, info.topic_id, partition, offset, bound.stable_end))
    if epoch is not None:
        return epoch, offset
    for size in (
        _LOOK_BACK
    ):  # nothing was written since: roots that come have the epoch of the last record, or a later one
        begin = max(bound.begin, offset - size)
        last = _epoch(env, Range(info.name, info.topic_id, partition, begin, offset), last=True)
        if last is not None:
            return last, offset
        if begin == bound.begin:
            break
    # All is gone, and nobody knows its epochs. There is nothing to correct.
    return _NEVER


def _epoch(env: Environment, read: Range, *, last: bool = False) -> int | None:
    """The leader epoch plus one of the first record of a range, or of the last; None: there is no record."""
    epoch = None
    for block in env.ports.log.read(read) if read.start < read.stop else ():
        for message in block:
            epoch = stored_epoch(message.leader_epoch())
            if not last:
                return epoch
    return epoch


def _enter_in_middle(marks: PartitionMarks) -> None:
    """Excuse one gap on each lane: reading begins after messages that are not read."""
    marks.entered_in_middle = True
    for mark in marks.lanes.values():
        mark.excused = False


def _first_place(revision: Revision) -> bytes:
    """The first root place that a revision counts for in any partition."""
    if revision.since is None:
        return bytes(ROOT_LENGTH)
    named = [root_position(*place) for places in revision.since.values() for place in places.values()]
    return min(named, default=bytes(ROOT_LENGTH))
