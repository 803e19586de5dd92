"""What a receiver makes of messages in their order: written from "Receiving" in proto/README.md and docs/protocol.md."""

from __future__ import annotations

from dataclasses import dataclass

from tests.lab.fuzzing.reference import Content, Verdict, digest, lane_of

NEW, REPLAY = "new", "replay"


@dataclass
class Mark:
    """The last message of a lane."""

    position: bytes
    of: int
    offset: int
    path: int


class Receiver:
    """One partition that is read from its beginning.

    Args:
        topic: its topic.
        topic_id: of that.
        partition: its number.
        compacted: whether records may be missing.
    """

    def __init__(self, topic: bytes, topic_id: bytes, partition: int, *, compacted: bool) -> None:
        self._place = topic, topic_id, partition
        self._compacted = compacted
        self._undecodable = -1
        self.marks: dict[int, Mark] = {}

    def receive(self, verdict: Verdict, offset: int, epoch: int) -> frozenset[str]:
        """What becomes of a message: NEW, REPLAY, or names of errors; any of these would be right."""
        content = verdict.content
        if content is None:
            self._undecodable = offset
            return verdict.refusals
        found = self._decide(content, verdict, offset, epoch)
        if not found & {NEW, REPLAY, "GapError", "ChangedRepublisher", "RecreatedTopic"}:
            self._undecodable = offset
        return found

    def _decide(self, content: Content, verdict: Verdict, offset: int, epoch: int) -> frozenset[str]:
        position = content.position or epoch.to_bytes(4) + offset.to_bytes(8)
        mark = self.marks.get(content.lane)
        if mark is None:
            return self._first(content, verdict, position, offset)
        if len(position) != len(mark.position):
            return frozenset({"MalformedField"})
        if content.position and position[:-4] == mark.position[:-4] and content.of != mark.of:
            return frozenset({"ChangedRepublisher"})
        if position <= mark.position:
            return frozenset({REPLAY})
        if content.previous > mark.position and not self._excused(mark.offset):
            return frozenset({"GapError"})
        self.marks[content.lane] = Mark(position, content.of, offset, mark.path)
        return frozenset({NEW})

    def _first(self, content: Content, verdict: Verdict, position: bytes, offset: int) -> frozenset[str]:
        """The first message of a lane: its chain has to be as a strict reader wants it."""
        if verdict.strict:
            return verdict.strict
        topic, topic_id, partition = self._place
        written = lane_of(verdict.links, ids=False).to_bytes(8, "little")
        read_id = b"" if verdict.links else topic_id
        path = int.from_bytes(digest(8, written, topic, read_id, partition.to_bytes(4)), "little")
        counted = [mark.position for mark in self.marks.values() if mark.path == path]
        if counted and position[:12] <= max(counted)[:12]:
            return frozenset({"RecreatedTopic"})
        if content.previous and not self._excused(-1):
            return frozenset({"GapError"})
        self.marks[content.lane] = Mark(position, content.of, offset, path)
        return frozenset({NEW})

    def _excused(self, last: int) -> bool:
        """Whether something may be missing after the lane's last message."""
        return self._compacted or last < self._undecodable
