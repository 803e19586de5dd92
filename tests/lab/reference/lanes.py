"""Lane and position of a message, by the links of its chain alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqe_chain.chain import Link


class LanePosition(NamedTuple):
    """Lane and position of a message, by its chain alone.

    Attributes:
        lane: the links without the fields that differ between messages.
        path: the same without topic ids.
        position: root's leader epoch and offset, then each link's ordinal; () for an origin's message.
        of: number of siblings, by the last link.
    """

    lane: tuple[object, ...]
    path: tuple[object, ...]
    position: tuple[int, ...]
    of: int


def lane_position_of(links: Iterable[Link]) -> LanePosition:
    """Lane and position, from the links of a chain."""
    found: list[tuple[object, ...]] = []
    path: list[tuple[object, ...]] = []
    position: list[int] = []
    of = 0
    for link in links:
        topic, topic_id, partition = link.topic, link.topic_id, link.partition
        wrote = (partition, link.output, link.shard)
        found.append((topic, topic_id, *wrote))
        path.append((topic, b"" if position else topic_id, *wrote))
        if not position:
            position += [link.leader_epoch, link.offset]
        position.append(link.ordinal)
        of = link.of
    return LanePosition(tuple(found), tuple(path), tuple(position), of)


def is_new(marks: dict[Any, tuple[int, ...]], lane: object, position: tuple[int, ...]) -> bool:
    """Whether a message is no replay: its position is beyond the mark of its lane, which moves there."""
    if position <= marks.get(lane, ()):
        return False
    marks[lane] = position
    return True
