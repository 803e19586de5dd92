"""Input and output of a filter: one record, one verdict. Plain objects, without engine or store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sqe_chain.ports import Headers


class Reason(StrEnum):
    """Why a record was dropped.

    `LATE`: its time had passed; `AHEAD`: it came from a clock that ran ahead. Two are also given for forwarded records. `GAP`:
    records before it are missing. `MALFORMED`: the filter could not judge it, and its policy forwards such records.
    """

    REPLAY = "replay"
    DUPLICATE = "duplicate"
    STALE = "stale"
    LATE = "late"
    AHEAD = "ahead"
    GAP = "gap"
    MALFORMED = "malformed"


class Spot(NamedTuple):
    """Lane and position of a record; comparable for equality only.

    Attributes:
        lane: its lane (`sqe_chain.chain`); 0 for an element without a position of its own.
        position: its position on the lane, followed by its path within the input; b"" for an element
            without one (from `changes()` or a window).
    """

    lane: int = 0
    position: bytes = b""


NOWHERE = Spot()
"""Of an element without a position of its own."""


@dataclass(slots=True)  # not frozen: one is made for every element, and freezing costs more than filtering
class Record:
    """One element as a filter sees it. Treated as immutable.

    Attributes:
        value: the payload.
        key: its key.
        timestamp_ms: event time, milliseconds since 1970.
        topic: topic it was read from.
        topic_id: the topic's id, 16 bytes; b"" where it is not known.
        partition: partition it was read from.
        offset: its offset there.
        spot: its lane and position.
        headers: its Kafka headers.
        root: root topic, root topic id, root partition: where the event was first written.
        root_position: its position, for comparison along the root alone: leader epoch and offset of the root, then
            the ordinal of every link that made several envelopes. Comparable within one root.
        place_ms: its place in the order of times, which the flow has decided; None: nobody has, so stages do.
        own_time: whether its event time is its own, and not that of its input: then its place alone moves stream time.
    """

    value: object = None
    key: bytes | None = None
    timestamp_ms: int = 0
    topic: str = ""
    topic_id: bytes = b""
    partition: int = 0
    offset: int = -1
    spot: Spot = NOWHERE
    headers: Headers | None = None
    root: tuple[str, bytes, int] = ("", b"", 0)
    root_position: bytes = b""
    place_ms: int | None = None
    own_time: bool = False

    def __str__(self) -> str:
        """As error texts name it.

        >>> str(Record(topic="lines", partition=1, offset=7))
        'lines[1]@7'
        """
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A filter's decision on a record.

    Attributes:
        forward: whether it is forwarded.
        reason: why it is dropped; `GAP` and `MALFORMED` also for a forwarded one; None: nothing to report.
        original: lane and position of the record that this one repeats; None where the filter does not know it.
        detail: for people: what was compared with what.
        dead_letter: its message becomes a dead-letter record; only for dropped records.
    """

    forward: bool
    reason: Reason | None = None
    original: Spot | None = None
    detail: str = ""
    dead_letter: bool = False


def dropped(reason: Reason, detail: str, original: Spot | None = None) -> Verdict:
    """The verdict on a record that is dropped; an original without a position of its own is not known."""
    known = None if original == NOWHERE else original
    return Verdict(forward=False, reason=reason, original=known, detail=detail)


FORWARD = Verdict(forward=True)
"""It is forwarded, and there is nothing to report."""
