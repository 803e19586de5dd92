"""KUKA's rule: keep for each key the last root position applied, whatever path the message took.

A record passes if its key has no mark for its root (topic, topic id, partition), or a position on the root beyond the mark.
A position is leader epoch and offset of the root, then the ordinals of every link.

    >>> from sqe_chain.stages.record import Record
    >>> from sqe_chain.stages.table import MemoryTable
    >>> def robot(offset, partition=0):
    ...     root = ("robot.raw", b"r" * 16, partition)
    ...     return Record(key=b"robot-7", root=root, root_position=root_position(1, offset))
    >>> replays = RootReplays(MemoryTable())
    >>> [replays.accept(robot(offset)).forward for offset in (5, 6, 5, 6, 7)]
    [True, True, False, False, True]
    >>> replays.accept(robot(0, partition=1)).forward
    True

The engine's marks compare along a lane, the path with every topic id on it. This rule compares roots alone, so it also knows
what reaches a service on another path. Then a topic in between was deleted and filled again, or a republisher was renamed, added
or removed. The ordinal of a link that made one envelope of one does not count (`sqe_chain.stages.provenance.root_order`). So a republisher
that makes one of one changes nothing, wherever it is on the path.

**Correct only where each key's events keep their root's order**, on whatever paths they come:

* all services in between keep the order of each key (they need not keep that of partitions);
* all events of one root message and key take the same path, in the order of their ordinals. Two outputs that both reach this
  filter make the same positions, and the second would be dropped. So would a part of a fan-out that another topic overtakes;
* all paths carry several values of one input in the same way: in one envelope, or with `carrier="headers"` in several records.

Elsewhere, rely on the lanes. Values that come from one message (a collection, a flat-map in this flow) have one
position on the root; each of these siblings passes once.

`compat="kuka"` keeps one root for each key, the last, and forgets it as soon as another topic or partition
comes: a key that alternates between two roots is not filtered at all. It compares topics by name, not by id, and
ignores leader epochs. (The article drops "earlier" offsets; an equal one is dropped here too, for it is the last
message again.)

Source: KUKA Connect's source topic chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqe_chain._proto.filters_pb2 import RootMark, RootMarks
from sqe_chain.chain import root_position
from sqe_chain.errors import PoisonError, TooManyLanes
from sqe_chain.flow.declaration import check_choice, check_int
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.live_rows import LiveRows
from sqe_chain.stages.provenance import cut_position, is_sibling, remember, spot_of
from sqe_chain.stages.record import FORWARD, Reason, Record, Verdict, dropped
from sqe_chain.stages.record_work import FORWARDING
from sqe_chain.stages.timed_stage import RuleKind

_MAX_ROOTS: Final = 64
"""Roots of one key."""

_KEY: Final = b"key/"
_EPOCH_LENGTH: Final = len(root_position(0, 0)) - 8


class RootReplays:
    """The filter, for all keys of one state partition.

    State: one row for each key ever seen, with one mark for each root of the key (with `compat`, one in all). A mark takes the
    topic's name, a root position, the position of the last record, and at most 60 bytes more. Marks do not expire.

    Args:
        table: where marks are kept.
        compat: "kuka" for KUKA's own rule.
        max_roots: limit for one key. Every partition of a root topic that the key was in is one, and counts again
            each time the topic is recreated.

    Raises:
        FlowError: a setting is out of its bounds.
    """

    def __init__(
        self, table: RowTable, *, compat: Literal["kuka"] | None = None, max_roots: int = _MAX_ROOTS
    ) -> None:
        check_choice("compat", compat, ("kuka", None), type(self).__name__)
        check_int("max_roots", max_roots, 1, 10_000_000, type(self).__name__)
        self._exact = compat == "kuka"
        self._max_roots = max_roots
        self._rows: LiveRows[RootMarks] = LiveRows(table, _read, RootMarks.SerializeToString)

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """The rows that `accept` will ask for: one for each key."""
        return list(dict.fromkeys(_KEY + record.key for record in records if record.key is not None))

    def accept(self, record: Record) -> Verdict:
        """Decide one record.

        Returns:
            REPLAY for one that is dropped; `original` is the last record of this key and root that passed, if it has
            the same position.

        Raises:
            PoisonError: the key is null, or the record has no root (a window's result): put the filter before
                the window.
            TooManyLanes: the key has too many roots; nothing was changed.
        """
        if record.key is None:
            raise PoisonError(
                f"{record}: a null key at drop_replays(by='key'): set a key before it, with key_by()"
            )
        if not record.root_position:
            raise PoisonError(
                f"{record} has no root to compare: put drop_replays(by='key') before the window"
            )
        row = _KEY + record.key
        marks = self._rows[row]
        mark = self._find(marks, record)
        position = self._position(record)
        if mark is None:
            mark = self._add(marks, record)
        elif position <= mark.position and not is_sibling(record, mark.passed):
            original = spot_of(mark.passed) if position == mark.position else None
            detail = f"root position {position.hex()}, but {mark.position.hex()} has been applied"
            return dropped(Reason.REPLAY, detail, original)
        mark.position = position
        remember(mark.passed, record)
        self._rows.changed(row)
        return FORWARD

    def finish(self, now_ms: int) -> None:  # noqa: ARG002 - nothing expires
        """Write the rows of the keys that moved; marks do not expire."""
        self._rows.write()

    def _find(self, marks: RootMarks, record: Record) -> RootMark | None:
        topic, topic_id, partition = record.root
        for mark in marks.marks:
            same = mark.partition == partition and mark.topic == topic
            if same and (self._exact or mark.topic_id == topic_id):
                return mark
        return None

    def _add(self, marks: RootMarks, record: Record) -> RootMark:
        topic, topic_id, partition = record.root
        if self._exact:
            del marks.marks[:]
        elif len(marks.marks) >= self._max_roots:
            raise TooManyLanes(
                f"{record}: its key comes from more than {self._max_roots} roots, now also "
                f"from {topic}[{partition}]. Raise max_roots, or find out why one key has them"
            )
        return marks.marks.add(topic=topic, topic_id=topic_id, partition=partition)

    def _position(self, record: Record) -> bytes:
        position = cut_position(record.root_position)
        return position[_EPOCH_LENGTH:] if self._exact else position


def _read(content: bytes | None) -> RootMarks:
    return RootMarks.FromString(content or b"")


@dataclass(frozen=True)
class RootsKind(RuleKind[RootReplays]):
    """The kind of ``drop_replays(by="key")``."""

    name = "roots"
    rule = RootReplays
    traits = replace(FORWARDING, method="drop_replays", order="times", needs_root=True)

    compat: Any = None
