"""The order of event time: where inputs belong in it, and which of them a plan takes.

Here the reference model asks what it checks: where an input belongs is asked of `EventTimes`, and how far a plan goes in that
order is read from the plan.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.message import parse_chain
from sqe_chain.flow import Flow
from sqe_chain.logs.memory import MemoryMessage
from sqe_chain.partitioner import partition_of
from sqe_chain.ports import TopicPartition
from sqe_chain.protocol.event_times import KnownTimes
from sqe_chain.protocol.plan import Plan, at_name
from sqe_chain.segment.event_times import ORIGIN, WHOLE, EventTimes, guard_of
from sqe_chain.testing.simulator.expected import Coordinates, Input, PlacedInput
from sqe_chain.testing.simulator.facts import Unit
from sqe_chain.testing.simulator.world import World


class TimeOrder:
    """Finds the places of inputs in the order of times, and by the plan how far it goes in that order.

    Args:
        world: the world.
        flow: `totals`.
    """

    def __init__(self, world: World, flow: Flow) -> None:
        self._world = world
        self._guard = guard_of(flow)

    def place(
        self,
        waiting: Iterable[PlacedInput],
        sound: Iterable[tuple[MemoryMessage, Input]],
        undone: set[Coordinates],
        before: Plan,
        plan: Plan,
    ) -> list[PlacedInput]:
        """Inputs with their places in the order of times, which the times of those that are undone do not move."""
        found, times = list(waiting), dict[TopicPartition, EventTimes]()
        for message, one in sound:
            topic, partition, offset = message.coordinates
            tp = topic, partition
            if tp not in times:
                known = KnownTimes.after(before).at(tp, plan.caught_up, plan.clock_ms)
                times[tp] = known.copy(clock_ms=plan.clock_ms, guard=self._guard)
            at_ms = _observe(times[tp], message, raw=self._world.totals_read_raw)
            if message.coordinates in undone:
                times[tp].undo()
            found.append(((at_ms, topic, partition, offset), message, one))
        return sorted(found, key=lambda each: each[0])

    def part(
        self, placed: Iterable[PlacedInput], left_out: set[Coordinates], plan: Plan
    ) -> tuple[list[tuple[MemoryMessage, Input]], list[PlacedInput]]:
        """Those that the plan takes, and those that wait."""
        limits = {at_name(name)[1]: one.frontier for name, one in plan.waiting.items() if _holds(name)}
        due, waiting = list[tuple[MemoryMessage, Input]](), list[PlacedInput]()
        for place, message, one in placed:
            parts = {WHOLE, *map(self._part_of, one.units or ())} if plan.shuffled else {place[2]}
            ends = [limits[part] for part in parts if part in limits]
            # One that is left out failed when it was taken: in this plan.
            taken = not ends or message.coordinates in left_out
            taken |= any(end is not None and place[:3] <= end for end in ends)
            if taken:
                due.append((message, one))
            else:
                waiting.append((place, message, one))
        return due, waiting

    def _part_of(self, unit: Unit) -> int:
        """The state partition of a unit in the stage that goes by event time."""
        key = unit.same if self._world.picks else unit.key
        return partition_of(key.encode(), self._world.state_partitions)


def _observe(times: EventTimes, message: MemoryMessage, *, raw: bool) -> int:
    """Where an input belongs in the order of times."""
    times.begin()
    if raw:
        return times.observe(ORIGIN, 0, message.timestamp_ms)
    head = find_head(message.value(), message.headers())
    links = parse_chain(head.chain).links
    writer = "/".join(links[-1].output.split("/")[:2]) if links else ORIGIN
    return times.observe(writer, head.lane, head.timestamp_ms, head.watermark_ms or None)


def _holds(name: str) -> bool:
    """Whether a stage and state partition are those of the stage that goes by event time."""
    return at_name(name)[0] in {"once", "windows"}
