"""What a filter is given, and what it says: one record, one verdict. Plain objects, without engine or store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sqe_chain.ports import Headers


class Reason(StrEnum):
    """Why a record was dropped.

    Two are also said of records that go on: `GAP`, some before it are missing; `MALFORMED`, the filter could
    not judge it and was told to let such records pass.
    """

    REPLAY = "replay"
    DUPLICATE = "duplicate"
    STALE = "stale"
    LATE = "late"
    GAP = "gap"
    MALFORMED = "malformed"


class Spot(NamedTuple):
    """Where a record stands on its way: comparable for equality only.

    Attributes:
        lane: its lane (`sqe_chain.chain`); 0 for an element without a position of its own.
        position: its position on the lane, and behind it its path within the input; b"" for an element
            without one (what `changes()` or a window gives).
    """

    lane: int = 0
    position: bytes = b""


NOWHERE = Spot()
"""Of an element without a position of its own."""


@dataclass(slots=True)  # not frozen: one is made for every element, and freezing costs more than filtering
class Record:
    """One element as a filter sees it. Nobody changes it.

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
        root: root topic, root topic id, root partition: where the fact was first written.
        root_position: position on the root alone: leader epoch and offset of the root, then the ordinals of
            every link. Comparable within one root, trailing ordinals of 0 apart.
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a filter says of a record.

    Attributes:
        forward: whether it goes on.
        reason: why it does not; `GAP` and `MALFORMED` also for one that does; None: nothing to say.
        original: where the record stood that this one repeats; None where the filter does not know it.
        detail: for people: what was compared with what.
        dead_letter: the message it was made from is to become a dead letter; only of records dropped.
    """

    forward: bool
    reason: Reason | None = None
    original: Spot | None = None
    detail: str = ""
    dead_letter: bool = False


FORWARD = Verdict(forward=True)
"""It goes on, and there is nothing to say."""
