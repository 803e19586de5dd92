"""The mark of one lane, and the form in which plans and commits store marks."""

from __future__ import annotations

import json
from typing import NotRequired, TypedDict

from sqe_chain.envelope.message import EnvelopeHead, last_of


class MarkRecord(TypedDict):
    """One lane in `PartitionMarks.to_json`."""

    lane: str
    position: str
    of: int
    offset: int
    path: str


class MarksRecord(TypedDict):
    """What `PartitionMarks.to_json` returns; integers beyond 2^53 and bytes are hexadecimal.

    `excused`: the lanes that have used their one excuse for a gap; absent when there are none.
    """

    topic: str
    topic_id: str
    partition: int
    entered_in_middle: bool
    undecodable_offset: int
    lanes: list[MarkRecord]
    roots: list[tuple[str, int, str]]
    excused: NotRequired[list[str]]


class Mark:
    """The last message accepted on one lane.

    Attributes:
        position: its position.
        offset: its offset in the input partition.
        head: its envelope; None when the mark was loaded.
        path: the lane without the ids of the topics after the root (`chain.path_hash`).
        excused: one gap was already accepted on this lane, because the partition was entered in the middle.
    """

    __slots__ = ("_of", "excused", "head", "offset", "path", "position")

    def __init__(self, position: bytes, of: int, offset: int, path: int) -> None:
        self.position = position
        self.offset = offset
        self.path = path
        self._of = of
        self.excused = False
        self.head: EnvelopeHead | None = None

    @property
    def of(self) -> int:
        """How many envelopes the last republisher made from the same input; 0 at the origin, and where it is not known."""
        if self.head is not None:  # computed on demand: seldom needed, and it would cost a third of the time
            self._of = last_of(self.head.chain) if self.head.chain else 0
        return self._of

    def move_to(self, position: bytes, offset: int) -> None:
        """Go to a place at which no message need have been. How many messages its input gave is not known then: `of` is 0."""
        self.position, self.offset, self.head, self._of = position, offset, None, 0

    def to_text(self, lane: int) -> str:
        """The mark of a lane as canonical JSON, without `excused`. Plans have it of all lanes, and an encoder takes twice as long."""
        own = f'"of":{self.of},"offset":{self.offset},"path":"{self.path:016x}","position":"{self.position.hex()}"'
        return f'{{"lane":"{lane:016x}",{own}}}'

    def to_json(self, lane: int) -> MarkRecord:
        """The mark of a lane for json.dumps; without `excused`."""
        record: MarkRecord = json.loads(self.to_text(lane))
        return record

    @classmethod
    def from_json(cls, record: MarkRecord) -> Mark:
        """The mark that `to_json` wrote."""
        return cls(bytes.fromhex(record["position"]), record["of"], record["offset"], int(record["path"], 16))

    def settled(self) -> Mark:
        """An independent copy that holds no envelope."""
        copied = Mark(self.position, self.of, self.offset, self.path)
        copied.excused = self.excused
        return copied

    def __repr__(self) -> str:
        return f"Mark({self.position.hex()}, of={self.of}, offset={self.offset})"
