"""The order of event time: which inputs a plan takes, by the frontiers that it and the plan before have sealed.

It knows nothing of how a frontier is found. A plan takes the inputs whose places lie up to its frontier. The place of an input
is its time, but not before the one before it on its lane. A late input lies just before the frontier of the plan before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.lab.reference.expected import Input, Record
from tests.lab.reference.plans import StoredPlan


class Waiting(NamedTuple):
    """A record that was read, and may wait.

    Attributes:
        topic_id: id of its topic, hexadecimal.
        message: the record.
    """

    topic_id: str
    message: Record


Placed = tuple[tuple[int, str, int, int], Waiting]
"""A record, and where it belongs: time, topic, partition, offset."""


def split(
    found: Iterable[Waiting], input_of: Callable[[Record], Input], before: StoredPlan, plan: StoredPlan
) -> tuple[list[Placed], list[Waiting]]:
    """The records that a plan takes, in the order of times, and those that wait after it.

    Args:
        found: all that were read and not taken before.
        input_of: decodes a record.
        before: the plan before.
        plan: the plan.
    """
    lanes: dict[tuple[object, ...], int] = {}
    begun, frontier = before.frontier, plan.frontier
    least_ms = -(1 << 63) if begun is None else begun[0] - 1
    taken, waiting = list[Placed](), list[Waiting]()
    for one in sorted(found, key=lambda one: one.message.coordinates):
        topic, partition, offset = one.message.coordinates
        decoded = input_of(one.message)
        if decoded.units is None:  # its time is not known
            taken.append(((least_ms, topic, partition, offset), one))
            continue
        lane = topic, partition, *decoded.lane_position.lane
        at_ms = one.message.timestamp_ms if decoded.timestamp_ms == -1 else decoded.timestamp_ms
        place_ms = lanes[lane] = max(at_ms, lanes.get(lane, least_ms))
        if frontier is not None and (place_ms, topic, partition) <= frontier:
            taken.append(((place_ms, topic, partition, offset), one))
        else:
            waiting.append(one)
    return sorted(taken), waiting
