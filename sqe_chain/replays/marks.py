"""Marks: how far each lane of one input partition was accepted. What is not beyond is a replay.

Pure: no clock, no driver. Two witnesses in every envelope are compared on the way, because a mark
alone cannot see them (each stops the service, by name):

* `previous`, what the writer wrote before on the lane: if it lies beyond the mark, messages are
  missing, or two changed places.
* `of`, how many envelopes were made from one input: if it differs between two of them, the writer
  changed its mind between two attempts, and no position says which of its outputs were counted.

    >>> marks = PartitionMarks("robot.raw", bytes(16), 0)
    >>> [marks.accept_raw(offset) for offset in (0, 1, 0, 1, 2)]
    [True, True, False, False, True]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from sqe_chain.chain import ORDINAL_LENGTH, ROOT_LENGTH, Chain, path_hash, root_position
from sqe_chain.envelope.message import EnvelopeHead, check_consistent, last_of
from sqe_chain.errors import (
    START_OVER,
    ChangedRepublisher,
    GapError,
    MalformedField,
    RecreatedTopic,
    TooManyLanes,
)
from sqe_chain.replays.mark import Mark, MarksRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEFAULT_MAX_LANES", "Mark", "MarksRecord", "PartitionMarks", "Recreated"]

Recreated = Literal["stop", "count", "skip"]
"""What to do with old roots that come again through a topic that was created again: see DESIGN."""

DEFAULT_MAX_LANES: Final = 10_000
"""Lanes of one input partition. Every hop's partitions multiply them."""


class PartitionMarks:
    """The marks of one input partition, and the decision about each of its messages.

    Lanes are told apart as their writers state them: topic, id and partition of the place of reading,
    which `chain.read_lane` adds, are the same for all of them here.

    Attributes:
        topic: the input topic.
        topic_id: its UUID, 16 bytes.
        partition: the input partition.
        entered_in_middle: reading did not begin at the partition's first record, so lanes may come up
            that have a history.
        undecodable_offset: offset of the last record that was no valid envelope; -1 for none.
        compacted: records may be missing by intent, so `previous` is not looked at.
        max_lanes: limit of lanes.
        recreated: policy for old roots through a topic created again: `stop`; `count` them once more;
            or `skip` what is not beyond the highest position that was counted on the path.
        notices: texts worth a warning (a root topic created again); whoever reads them clears them.
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
        self._paths: dict[int, list[Mark]] = {}
        self._roots: dict[tuple[str, int], list[bytes]] = {}

    def accept(self, head: EnvelopeHead, offset: int, leader_epoch: int = 0) -> bool:
        """Whether an enveloped message is new; if so the mark of its lane moves to it.

        A message that is excluded later (poison) but could be decoded is accepted all the same: its
        mark moves. When an error is raised nothing has moved.

        Args:
            head: from `envelope.parse_head`.
            offset: where the message was read.
            leader_epoch: of its batch, plus one; 0 for none.

        Returns:
            False for a replay.

        Raises:
            ChangedRepublisher, GapError: by the witnesses; the latter on new messages only.
            TooManyLanes, RecreatedTopic: on the first message of a lane.
            EnvelopeError: the first message of a lane states a lane or position that its chain denies.
        """
        mark = self._marks.get(head.lane)
        position = head.position
        if mark is None:
            return self._accept_first(head, position or root_position(leader_epoch, offset), offset)
        if len(position) != len(mark.position):
            if head.lane or position:
                raise self._wrong_length(mark, head, offset)
            return self.accept_raw(offset, leader_epoch)
        siblings = position[:-ORDINAL_LENGTH] == mark.position[:-ORDINAL_LENGTH]
        if siblings and last_of(head.chain) != mark.of:
            raise self._changed(mark, head, offset)
        if position <= mark.position:
            return False
        previous = head.previous
        if previous > mark.position:
            self._check_gap(mark, head, offset)
        mark.position = position
        mark.offset = offset
        mark.head = head
        return True

    def accept_raw(self, offset: int, leader_epoch: int = 0) -> bool:
        """Whether a message without envelope is new; if so the mark moves to it. See `accept`."""
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

    def undecodable(self, offset: int) -> None:
        """Note a record that is no valid envelope: what it was on which lane cannot be known."""
        self.undecodable_offset = max(self.undecodable_offset, offset)

    def __len__(self) -> int:
        """Number of lanes."""
        return len(self._marks)

    def __iter__(self) -> Iterator[tuple[int, Mark]]:
        """Lanes, as their writers state them, with their marks."""
        return iter(self._marks.items())

    @property
    def lanes(self) -> dict[int, Mark]:
        """Lane as its writers state it -> mark. Who moves a mark must do all that `accept` does."""
        return self._marks

    def __getitem__(self, lane: int) -> Mark:
        """The mark of a lane as its writer states it; 0 for raw messages and those of the origin."""
        return self._marks[lane]

    def __eq__(self, other: object) -> bool:
        """Whether the same messages would be accepted."""
        return isinstance(other, PartitionMarks) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment] # marks move

    def copy(self) -> PartitionMarks:
        """Marks that move on their own, with the same settings."""
        return PartitionMarks.from_json(
            self.to_json(), compacted=self.compacted, max_lanes=self.max_lanes, recreated=self.recreated
        )

    def to_json(self) -> MarksRecord:
        """What the marks say, ready for json.dumps; the same for the same marks (lanes are sorted).

        Settings (compacted, max_lanes, recreated) and notices are no part of it.
        """
        record: MarksRecord = {
            "topic": self.topic,
            "topic_id": self.topic_id.hex(),
            "partition": self.partition,
            "entered_in_middle": self.entered_in_middle,
            "undecodable_offset": self.undecodable_offset,
            "lanes": [
                {
                    "lane": f"{lane:016x}",
                    "position": mark.position.hex(),
                    "of": mark.of,
                    "offset": mark.offset,
                    "path": f"{mark.path:016x}",
                }
                for lane, mark in sorted(self._marks.items())
            ],
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
        """The marks that `to_json` wrote, under these settings.

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
        for lane in record["lanes"]:
            mark = Mark(bytes.fromhex(lane["position"]), lane["of"], lane["offset"], int(lane["path"], 16))
            marks._marks[int(lane["lane"], 16)] = mark
            marks._paths.setdefault(mark.path, []).append(mark)
        for known in record.get("excused", ()):
            marks._marks[int(known, 16)].excused = True
        for topic, partition, topic_id in record["roots"]:
            marks._roots.setdefault((topic, partition), []).append(bytes.fromhex(topic_id))
        return marks

    def _accept_first(self, head: EnvelopeHead, position: bytes, offset: int) -> bool:
        """The first message of a lane: the only one whose chain is walked."""
        chain = check_consistent(head)
        of = last_of(head.chain) if chain else 0
        path = path_hash(chain, self.topic, self.topic_id, self.partition)
        counted = max(self._paths.get(path, ()), key=lambda mark: mark.position, default=None)
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
        """The first message of a lane that goes on where another one of its path has ended.

        A position says the same on all lanes of a path, so the highest that was counted is the mark; what is
        beyond it was not counted, be it made from the same root.
        """
        of = last_of(head.chain) if chain else 0
        if position[:-ORDINAL_LENGTH] == counted.position[:-ORDINAL_LENGTH] and of != counted.of:
            raise self._changed(counted, head, offset)
        if position <= counted.position:
            self._add(head.lane, counted.position, counted.of, offset, chain)
            return False
        excused = head.previous > counted.position and self._check_gap(None, head, offset)
        self._add(head.lane, position, of, offset, chain).excused = excused
        return True

    def _add(self, lane: int, position: bytes, of: int, offset: int, chain: Chain) -> Mark:
        if len(self._marks) >= self.max_lanes:
            raise TooManyLanes(
                f"{self._place(offset)}: another lane, but {len(self._marks)} are known and {self.max_lanes} "
                "allowed. Each hop multiplies lanes by its partitions, a shuffle by its state partitions. "
                f"Raise the limit, or see why the way {chain} is new"
            ).at(self.topic, self.partition, offset)
        mark = Mark(position, of, offset, path_hash(chain, self.topic, self.topic_id, self.partition))
        root = chain.root
        topic, partition, topic_id = (
            (root.topic, root.partition, root.topic_id)
            if root
            else (self.topic, self.partition, self.topic_id)
        )
        known = self._roots.setdefault((topic, partition), [])
        if topic_id not in known:
            if known:
                self.notices.append(
                    f"{self._place(offset)}: root {topic}[{partition}] has id {topic_id.hex()}, known was "
                    f"{known[-1].hex()}: the topic was created again; its messages count as new"
                )
            known.append(topic_id)
        self._marks[lane] = mark
        self._paths.setdefault(mark.path, []).append(mark)
        return mark

    def _check_gap(self, mark: Mark | None, head: EnvelopeHead, offset: int) -> bool:
        """Stop when the writer's witness lies beyond the mark, unless something excuses the hole.

        Where a partition was entered in the middle, what is before a lane's first message stands before the entry. And
        the batch that was being written then may go on after others: so each lane has one excuse later, and only one.

        Returns:
            Whether it was that one.
        """
        if self.compacted or (mark.offset if mark else -1) < self.undecodable_offset:
            return False
        if self.entered_in_middle and not (mark and mark.excused):
            if mark:
                mark.excused = True
            return True
        known = f"position {mark.position.hex()} (offset {mark.offset})" if mark else "nothing of this lane"
        raise GapError(
            f"{self._place(offset)}: position {head.position.hex()} says that {head.previous.hex()} was written before "
            f"it, but read was {known}: records are missing, or changed places. Look for them in "
            f"{self.topic}[{self.partition}] before offset {offset} (retention, a writer without idempotence); "
            f"when they are lost for good, {START_OVER} with --start earliest"
        ).at(self.topic, self.partition, offset)

    def _wrong_length(self, mark: Mark, head: EnvelopeHead, offset: int) -> MalformedField:
        return MalformedField(
            f"{self._place(offset)}: the position has {len(head.position)} bytes, all others of its lane have "
            f"{len(mark.position)}: the service that writes {self.topic} does not follow the format"
        ).at(self.topic, self.partition, offset)

    def _changed(self, mark: Mark, head: EnvelopeHead, offset: int) -> ChangedRepublisher:
        return ChangedRepublisher(
            f"{self._place(offset)}: position {head.position.hex()} is one of {last_of(head.chain)} envelopes made from its input, "
            f"but at offset {mark.offset} they were {mark.of}: the service that writes {self.topic} gave other "
            "outputs when it did the same input again (its code changed before it had finished, or is not "
            f"deterministic). Run its old code until it has finished; if that is too late, {START_OVER}"
        ).at(self.topic, self.partition, offset)

    def _recreated(self, chain: Chain, position: bytes, highest: bytes, offset: int) -> RecreatedTopic:
        between = ", ".join(link.topic for link in chain.links[1:]) or self.topic
        return RecreatedTopic(
            f"{self._place(offset)}: root position {position[:ROOT_LENGTH].hex()} was counted already (up to "
            f"{highest.hex()}) on the same way, but with other topic ids: one of {between} was deleted and "
            f"created again. The way is {chain}. Declare Flow(recreated='skip') to ignore what was counted, "
            "or recreated='count' if these are other facts"
        ).at(self.topic, self.partition, offset)

    def _place(self, offset: int) -> str:
        return f"{self.topic}[{self.partition}]@{offset}"
