"""Marks: how far each lane of one input partition was accepted. A message that is not beyond its mark is a replay.

Pure: no clock, no driver. Two more fields of every envelope are compared, because they show what a
mark alone cannot. Each stops the service with an error of its own:

* `previous`, the position that the writer wrote before on the lane: if it is beyond the mark, messages
  are missing or out of order.
* `of`, how many envelopes were made from one input. If two of them differ, the writer gave other outputs
  in another attempt, and no position shows which of them were counted.

    >>> marks = PartitionMarks("robot.raw", bytes(16), 0)
    >>> [marks.accept_raw(offset) for offset in (0, 1, 0, 1, 2)]
    [True, True, False, False, True]
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Literal

from sqe_chain.chain import ORDINAL_LENGTH, ROOT_LENGTH, Chain, path_hash, root_position
from sqe_chain.envelope.mark import Mark, MarksRecord
from sqe_chain.envelope.message import EnvelopeHead, check_consistent, last_of
from sqe_chain.errors import (
    START_OVER,
    ChangedRepublisher,
    GapError,
    MalformedField,
    RecreatedTopic,
    TooManyLanes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEFAULT_MAX_LANES", "Mark", "MarksRecord", "PartitionMarks", "Recreated"]

Recreated = Literal["stop", "count", "skip"]
"""What to do with old roots that arrive again through a topic that was created again: see `PartitionMarks`."""

_NO_LANES: Final = '"lanes":[]'
"""In no text of a topic: a quote within one is written as \\"."""

DEFAULT_MAX_LANES: Final = 10_000
"""Lanes of one input partition. Each hop multiplies them by its partitions."""


class PartitionMarks:
    """The marks of one input partition, and the decision about each of its messages.

    Lanes are identified as their writers state them. What `chain.read_lane` adds (topic, id and partition
    they are read from) is the same for all lanes here.

    Attributes:
        topic: the input topic.
        topic_id: its UUID, 16 bytes.
        partition: the input partition.
        entered_in_middle: reading did not begin at the partition's first record, so the first message seen
            of a lane may have predecessors.
        undecodable_offset: offset of the last record that was not a valid envelope; -1 for none.
        compacted: compaction removes records, so `previous` is not checked.
        max_lanes: limit of lanes.
        recreated: policy for old roots through a topic created again. `stop`; `count` them again;
            or `skip` what is not beyond the highest position that was counted on the path.
        notices: warnings (a root topic created again); the code that reports them clears the list.
    """

    __slots__ = (
        "_marks",
        "_paths",
        "_roots",
        "compacted",
        "entered_in_middle",
        "max_lanes",
        "notices",
        "partition",
        "recreated",
        "topic",
        "topic_id",
        "undecodable_offset",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        *,
        entered_in_middle: bool = False,
        undecodable_offset: int = -1,
        compacted: bool = False,
        max_lanes: int = DEFAULT_MAX_LANES,
        recreated: Recreated = "stop",
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.entered_in_middle = entered_in_middle
        self.undecodable_offset = undecodable_offset
        self.compacted = compacted
        self.max_lanes = max_lanes
        self.recreated: Recreated = recreated
        self.notices: list[str] = []
        self._marks: dict[int, Mark] = {}
        self._paths: dict[int, list[Mark]] | None = None  # made when the first lane is met: see `_path_marks`
        self._roots: dict[tuple[str, int], tuple[bytes, ...]] = {}

    def accept(self, head: EnvelopeHead, offset: int, leader_epoch: int = 0) -> bool:
        """Whether an enveloped message is new; if so the mark of its lane moves to it.

        A message that could be decoded is accepted even if it is skipped later (poison): the mark moves.
        When an error is raised, no mark has moved.

        Args:
            head: from `envelope.parse_head`.
            offset: where the message was read.
            leader_epoch: of its batch, plus one; 0 for none.

        Returns:
            False for a replay.

        Raises:
            ChangedRepublisher, GapError: `of` or `previous` disagrees; GapError on new messages only.
            TooManyLanes, RecreatedTopic: on the first message of a lane.
            EnvelopeError: the first message of a lane states a lane or position that does not match its chain.
        """
        mark = self._marks.get(head.lane)
        position = head.position
        if mark is None:
            return self._accept_first(head, position or root_position(leader_epoch, offset), offset)
        # The bytes of two positions compare like their numbers only if they have the same length.
        if len(position) != len(mark.position):
            if head.lane or position:
                raise self._wrong_length(mark, head, offset)
            return self.accept_raw(offset, leader_epoch)
        # Before the positions are compared. A republisher may give more outputs in its second attempt. The additional
        # ones would be accepted, and nobody knows whether those of the first attempt were the same.
        siblings = position[:-ORDINAL_LENGTH] == mark.position[:-ORDINAL_LENGTH]
        if siblings and mark.of and last_of(head.chain) != mark.of:
            raise self._changed(mark, head, offset)
        if position <= mark.position:
            return False
        previous = head.previous
        if previous > mark.position:
            self._check_gap(mark, head, offset)
        mark.position = position
        mark.offset = offset
        mark.head = head  # instead of `of`, which would have to be parsed from it now, and is seldom needed
        return True

    def accept_raw(self, offset: int, leader_epoch: int = 0) -> bool:
        """Whether a message without an envelope is new; if so the mark moves to it. See `accept`."""
        position = root_position(leader_epoch, offset)
        mark = self._marks.get(0)
        if mark is None:
            self._add(0, position, 0, offset, Chain())
            return True
        if position <= mark.position:
            return False
        mark.position = position
        mark.offset = offset
        return True

    def has(self, head: EnvelopeHead | None, offset: int, leader_epoch: int = 0) -> bool:
        """Whether a message is not beyond the mark of its lane; nothing is checked, and no mark moves. See `accept`.

        Args:
            head: None: it has no envelope.
            offset: where it was read.
            leader_epoch: of its batch, plus one; 0 for none.
        """
        lane, position = (0, b"") if head is None else (head.lane, head.position)
        mark = self._marks.get(lane)
        return mark is not None and (position or root_position(leader_epoch, offset)) <= mark.position

    def pass_over(self, head: EnvelopeHead, offset: int) -> None:
        """Take for counted what is missing before a message: if it comes later, it is a replay.

        Args:
            head: of the message, which names a predecessor beyond the mark.
            offset: where it was read.
        """
        mark = self._marks.get(head.lane)
        if mark is None:
            self._add(head.lane, head.previous, 0, offset, check_consistent(head))
        else:
            mark.move_to(head.previous, offset)

    def undecodable(self, offset: int) -> None:
        """Note a record that is not a valid envelope: it may have belonged to any lane."""
        self.undecodable_offset = max(self.undecodable_offset, offset)

    @property
    def root_topics(self) -> dict[bytes, str]:
        """The topics that the roots of all lanes were in: id -> name."""
        return {topic_id: topic for (topic, _), ids in self._roots.items() for topic_id in ids}

    def __len__(self) -> int:
        return len(self._marks)

    def __iter__(self) -> Iterator[tuple[int, Mark]]:
        """Lanes, as their writers state them, with their marks."""
        return iter(self._marks.items())

    @property
    def lanes(self) -> dict[int, Mark]:
        """Lane as its writers state it -> mark. Code that moves a mark must check all that `accept` checks."""
        return self._marks

    def __getitem__(self, lane: int) -> Mark:
        """The mark of a lane as its writer states it; 0 for raw messages and those wrapped at the origin."""
        return self._marks[lane]

    def __eq__(self, other: object) -> bool:
        """Whether the same messages would be accepted."""
        return isinstance(other, PartitionMarks) and self.to_text() == other.to_text()

    def __repr__(self) -> str:
        return f"PartitionMarks.from_json({self.to_json()})"

    __hash__ = None  # type: ignore[assignment] # marks move

    def copy(self) -> PartitionMarks:
        """An independent copy, with the same settings, without notices; it holds no envelope, so it may be kept and sent."""
        copied = PartitionMarks(
            self.topic,
            self.topic_id,
            self.partition,
            entered_in_middle=self.entered_in_middle,
            undecodable_offset=self.undecodable_offset,
            compacted=self.compacted,
            max_lanes=self.max_lanes,
            recreated=self.recreated,
        )
        # In the order of stored marks, so that a redo, which begins with those, decides the same. Each batch copies all lanes.
        copied._marks = {lane: mark.settled() for lane, mark in sorted(self._marks.items())}
        copied._roots = self._roots.copy()
        return copied

    def merged(self, other: PartitionMarks) -> PartitionMarks:
        """The marks of a reader that has seen what both have seen: of each lane the higher one, with the settings of these."""
        lower, both = other.copy(), self.copy()
        for lane, mark in lower.lanes.items():
            own = both.lanes.get(lane)
            if own is None or (len(mark.position), mark.position) > (len(own.position), own.position):
                both.lanes[lane] = mark
        for root, ids in lower._roots.items():  # noqa: SLF001 - of the same class
            known = both._roots.get(root, ())  # noqa: SLF001
            both._roots[root] = tuple(dict.fromkeys((*known, *ids)))  # noqa: SLF001
        both.undecodable_offset = max(self.undecodable_offset, other.undecodable_offset)
        return both

    def to_text(self) -> str:
        """The marks as canonical JSON: names in order, no spaces. Equal marks give equal texts (lanes are sorted).

        Settings (compacted, max_lanes, recreated) and notices are not included.
        """
        rest = json.dumps(self._without_lanes(), sort_keys=True, separators=(",", ":"))
        lanes = ",".join([mark.to_text(lane) for lane, mark in sorted(self._marks.items())])
        return rest.replace(_NO_LANES, f'"lanes":[{lanes}]', 1)

    def to_json(self) -> MarksRecord:
        """The same for json.dumps."""
        lanes = [mark.to_json(lane) for lane, mark in sorted(self._marks.items())]
        return {**self._without_lanes(), "lanes": lanes}

    def counts_the_same(self, other: PartitionMarks) -> bool:
        """Whether the same messages were accepted, though perhaps at other offsets, as in a mirror."""
        return self._without_offsets() == other._without_offsets()

    def _without_offsets(self) -> tuple[MarksRecord, dict[int, tuple[bytes, int, int]]]:
        lanes = {lane: (mark.position, mark.of, mark.path) for lane, mark in self._marks.items()}
        return {**self._without_lanes(), "undecodable_offset": -1}, lanes

    def _without_lanes(self) -> MarksRecord:
        record: MarksRecord = {
            "topic": self.topic,
            "topic_id": self.topic_id.hex(),
            "partition": self.partition,
            "entered_in_middle": self.entered_in_middle,
            "undecodable_offset": self.undecodable_offset,
            "lanes": [],
            "roots": [
                (topic, partition, topic_id.hex())
                for (topic, partition), topic_ids in sorted(self._roots.items())
                for topic_id in topic_ids
            ],
        }
        if excused := [f"{lane:016x}" for lane, mark in sorted(self._marks.items()) if mark.excused]:
            record["excused"] = excused
        return record

    @classmethod
    def from_json(
        cls,
        record: MarksRecord,
        *,
        compacted: bool = False,
        max_lanes: int = DEFAULT_MAX_LANES,
        recreated: Recreated = "stop",
    ) -> PartitionMarks:
        """The marks that `to_json` wrote, with these settings.

        Raises:
            KeyError, ValueError: the record was not written by `to_json`.
        """
        marks = cls(
            record["topic"],
            bytes.fromhex(record["topic_id"]),
            record["partition"],
            entered_in_middle=record["entered_in_middle"],
            undecodable_offset=record["undecodable_offset"],
            compacted=compacted,
            max_lanes=max_lanes,
            recreated=recreated,
        )
        marks._marks = {int(lane["lane"], 16): Mark.from_json(lane) for lane in record["lanes"]}
        for known in record.get("excused", ()):
            marks._marks[int(known, 16)].excused = True
        for topic, partition, topic_id in record["roots"]:
            marks._roots[topic, partition] = (
                *marks._roots.get((topic, partition), ()),
                bytes.fromhex(topic_id),
            )
        return marks

    def _path_marks(self) -> dict[int, list[Mark]]:
        """Path -> the marks of its lanes, in the order in which they were met. Most batches meet no lane, and need none."""
        if self._paths is None:
            self._paths = {}
            for mark in self._marks.values():
                self._paths.setdefault(mark.path, []).append(mark)
        return self._paths

    def _accept_first(self, head: EnvelopeHead, position: bytes, offset: int) -> bool:
        """Accept the first message of a lane: the only one whose chain is parsed and checked."""
        chain = check_consistent(head)
        of = last_of(head.chain) if chain else 0
        path = path_hash(chain, self.topic, self.topic_id, self.partition)
        counted = max(self._path_marks().get(path, ()), key=lambda mark: mark.position, default=None)
        # Another lane of the same path: a topic on the way was created again, and what it brings may have been counted.
        if counted is not None and self.recreated != "count":
            if self.recreated == "skip":
                return self._accept_again(head, position, offset, chain, counted)
            if position[:ROOT_LENGTH] <= counted.position[:ROOT_LENGTH]:
                raise self._recreated(chain, position, counted.position[:ROOT_LENGTH], offset)
        if head.previous:
            self._check_gap(None, head, offset)
        self._add(head.lane, position, of, offset, chain)
        return True

    def _accept_again(
        self, head: EnvelopeHead, position: bytes, offset: int, chain: Chain, counted: Mark
    ) -> bool:
        """Accept the first message of a lane that continues another lane of the same path.

        Positions mean the same on all lanes of a path, so the highest that was counted is the mark. What is
        beyond it was not counted, even if it was made from the same root.
        """
        of = last_of(head.chain) if chain else 0
        if position[:-ORDINAL_LENGTH] == counted.position[:-ORDINAL_LENGTH] and of != counted.of:
            raise self._changed(counted, head, offset)
        if position <= counted.position:
            self._add(head.lane, counted.position, counted.of, offset, chain)
            return False
        excused = head.previous > counted.position and self._check_gap(None, head, offset)
        # The excuse is remembered where the lane is: it has only one.
        self._add(head.lane, position, of, offset, chain).excused = excused
        return True

    def _add(self, lane: int, position: bytes, of: int, offset: int, chain: Chain) -> Mark:
        if len(self._marks) >= self.max_lanes:
            raise TooManyLanes(
                f"{self._where(offset)}: another lane, but {len(self._marks)} are known and {self.max_lanes} "
                "allowed. Each hop multiplies lanes by its partitions, a shuffle by its state partitions. Each release of "
                "parked records and each republication of states upstream adds lanes; release many records at once. "
                f"Raise the limit, or find out why the path {chain} is new"
            ).at(self.topic, self.partition, offset)
        mark = Mark(position, of, offset, path_hash(chain, self.topic, self.topic_id, self.partition))
        root = chain.root
        topic, partition, topic_id = (
            (root.topic, root.partition, root.topic_id)
            if root
            else (self.topic, self.partition, self.topic_id)
        )
        known = self._roots.get((topic, partition), ())
        if topic_id not in known:
            if known:
                self.notices.append(
                    f"{self._where(offset)}: root {topic}[{partition}] has id {topic_id.hex()}, known was "
                    f"{known[-1].hex()}: the topic was created again; its messages count as new"
                )
            self._roots[topic, partition] = (*known, topic_id)
        self._path_marks().setdefault(mark.path, []).append(mark)
        self._marks[lane] = mark
        return mark

    def _check_gap(self, mark: Mark | None, head: EnvelopeHead, offset: int) -> bool:
        """Stop when `previous` is beyond the mark, unless something excuses the gap.

        Where a partition was entered in the middle, a lane's first message may have predecessors before the entry.
        And the batch that was being written at that moment may continue after other batches, so each lane has one
        excuse later, and only one.

        Returns:
            Whether the lane's one excuse was used.
        """
        if self.compacted or (mark.offset if mark else -1) < self.undecodable_offset:
            return False
        if self.entered_in_middle and not (mark and mark.excused):
            if mark:
                mark.excused = True
            return True
        known = f"position {mark.position.hex()} (offset {mark.offset})" if mark else "nothing of this lane"
        raise GapError(
            f"{self._where(offset)}: position {head.position.hex()} follows {head.previous.hex()}, but the last record read of its "
            f"lane has {known}. Expected no gap: records of {self.topic}[{self.partition}] before offset {offset} are missing or out "
            "of order (a loss upstream, a producer without idempotence, two runs of a republisher). Remove the cause. Then "
            f"{START_OVER} with --start latest; earliest reads the same gap again"
        ).at(self.topic, self.partition, offset)

    def _wrong_length(self, mark: Mark, head: EnvelopeHead, offset: int) -> MalformedField:
        return MalformedField(
            f"{self._where(offset)}: the position has {len(head.position)} bytes, all others of its lane have "
            f"{len(mark.position)}: the service that writes {self.topic} does not follow the format"
        ).at(self.topic, self.partition, offset)

    def _changed(self, mark: Mark, head: EnvelopeHead, offset: int) -> ChangedRepublisher:
        return ChangedRepublisher(
            f"{self._where(offset)}: position {head.position.hex()} is one of {last_of(head.chain)} envelopes made from its input, "
            f"but at offset {mark.offset} they were {mark.of}: the service that writes {self.topic} gave other "
            "outputs when it processed the same input again (its code changed before it had finished, or is not "
            f"deterministic). Run its old code until it has finished; if that is too late, {START_OVER}"
        ).at(self.topic, self.partition, offset)

    def _recreated(self, chain: Chain, position: bytes, highest: bytes, offset: int) -> RecreatedTopic:
        between = ", ".join(link.topic for link in chain.links[1:]) or self.topic
        return RecreatedTopic(
            f"{self._where(offset)}: root position {position[:ROOT_LENGTH].hex()} was counted already (up to "
            f"{highest.hex()}) on the same path, but with other topic ids: one of {between} was deleted and "
            f"created again. The path is {chain}. Declare Flow(recreated='skip') to ignore what was counted, "
            "or recreated='count' if these messages are new"
        ).at(self.topic, self.partition, offset)

    def _where(self, offset: int) -> str:
        return f"{self.topic}[{self.partition}]@{offset}"
