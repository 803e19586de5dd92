"""Where a record was read: the row of its input partition, its name in error texts, and its siblings.

A filter that compares numbers (offsets, sequence numbers) sees a number twice for two reasons. A replay carries it, and so do
the **siblings** that a flat-map makes of one message. A sibling has the same lane and
offset, and a later position or path. A replay does not: what is published again gets another offset, and what is
read again has its old position.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from sqe_chain._proto.filters_pb2 import Passed
from sqe_chain.chain import ORDINAL_LENGTH, ROOT_LENGTH, Chain
from sqe_chain.stages.record import Record, Spot

_INT32 = Struct(">i")
_FIRST = bytes(ORDINAL_LENGTH)


def input_row(record: Record, *, topic_id: bool = True) -> bytes:
    """The name of a row for the input partition of a record.

    Args:
        record: any record that was read from it.
        topic_id: whether a topic created again is another input.

    >>> input_row(Record(topic="lines", topic_id=b"x" * 16, partition=1)).hex(" ", -8)
    '6c696e6573007878 7878787878787878 7878787878780000 0001'
    """
    named = record.topic_id if topic_id else b""
    return b"%b\0%b%b" % (record.topic.encode(), named, _INT32.pack(record.partition))


def remember(passed: Passed, record: Record) -> None:
    """Note that a record passed."""
    passed.lane = record.spot.lane
    passed.offset = record.offset
    passed.position = record.spot.position


def spot_of(passed: Passed) -> Spot:
    """Lane and position of a record that passed."""
    return Spot(passed.lane, passed.position)


def is_sibling(record: Record, passed: Passed) -> bool:
    """Whether a record was made from the same message as one that passed, and follows it.

    An element without a position of its own has no siblings.
    """
    position = record.spot.position
    return (
        record.spot.lane == passed.lane
        and record.offset == passed.offset
        and position[:ROOT_LENGTH] == passed.position[:ROOT_LENGTH]
        and position > passed.position
    )


def root_order(position: bytes, chain: Callable[[], Chain]) -> bytes:
    """A position as it compares along the root, whatever path the message took.

    Args:
        position: of an envelope.
        chain: returns its chain; called only where the position does not decide.

    Returns:
        It without the ordinals of links that made one envelope of one, and without trailing ordinals of 0.

    >>> from sqe_chain.chain import Link, root_position
    >>> short = root_position(1, 7) + bytes([0, 0, 0, 2])
    >>> longer = root_position(1, 7) + bytes(4) + bytes([0, 0, 0, 2])
    >>> links = Link("raw", bytes(16), 0, 7, 1), Link("clean", bytes(16), 0, 9, 1, ordinal=2, of=3)
    >>> root_order(longer, lambda: Chain(links)) == root_order(short, Chain) == short
    True
    """
    position = cut_position(position)
    ordinals = [
        position[begin : begin + ORDINAL_LENGTH]
        for begin in range(ROOT_LENGTH, len(position), ORDINAL_LENGTH)
    ]
    if _FIRST not in ordinals:
        return position
    several = (ordinal for ordinal, link in zip(ordinals, chain().links, strict=False) if link.of > 1)
    return position[:ROOT_LENGTH] + b"".join(several)


def cut_position(position: bytes) -> bytes:
    """A position without trailing ordinals of 0."""
    while len(position) > ROOT_LENGTH and position.endswith(_FIRST):
        position = position[:-ORDINAL_LENGTH]
    return position
