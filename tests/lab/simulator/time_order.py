"""The order of event time: which inputs a plan takes, by the frontiers that it and the plan before have sealed.

It knows nothing of how a frontier is found. What it decides is the rule alone: a plan takes the inputs whose places lie up to its
frontier; the place of an input is its time, but not before the one before it on its lane, and just before the frontier of the plan
before if it is late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from sqe_chain.adapters.memory import MemoryMessage
from sqe_chain.features.event_times import EventTime
from sqe_chain.protocol.plan import Plan
from tests.lab.simulator.expected import Input


class Waiting(NamedTuple):
    """A record that was read, and may wait.

    Attributes:
        topic_id: id of its topic, hexadecimal.
        message: the record.
    """

    topic_id: str
    message: MemoryMessage


Placed = tuple[tuple[int, str, int, int], Waiting]
"""A record, and where it belongs: time, topic, partition, offset."""


def split(
    found: Iterable[Waiting], input_of: Callable[[MemoryMessage], Input], before: Plan, plan: Plan
) -> tuple[list[Placed], list[Waiting]]:
    """The records that a plan takes, in the order of times, and those that wait after it.

    Args:
        found: all that were read and not taken before.
        input_of: decodes a record.
        before: the plan before.
        plan: the plan.
    """
    lanes: dict[tuple[object, ...], int] = {}
    begun, frontier = EventTime.of(before).frontier, EventTime.of(plan).frontier
    least_ms = -(1 << 63) if begun is None else begun.at_ms - 1
    taken, waiting = list[Placed](), list[Waiting]()
    for one in sorted(found, key=lambda one: one.message.coordinates):
        topic, partition, offset = one.message.coordinates
        decoded = input_of(one.message)
        if decoded.units is None:  # nobody can say where it belongs
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
