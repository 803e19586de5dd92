"""Where a record was read: the row of its input partition, its name in error texts, and its siblings.

A filter that compares numbers (offsets, sequence numbers) sees a number twice for two reasons. A replay carries it, and so do
the **siblings** that a flat-map makes of one message. A sibling has the same lane and
offset, and a later position or path. A replay does not: what is published again gets another offset, and what is
read again has its old position.
"""

from __future__ import annotations

from struct import Struct

from sqe_chain._proto.filters_pb2 import Passed
from sqe_chain.chain import ROOT_LENGTH
from sqe_chain.stages.record import Record, Spot

_INT32 = Struct(">i")


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
