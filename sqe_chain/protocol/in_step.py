"""Input partitions are kept in step by time while a backlog is worked off, for stages that go by event time.

A batch takes about as many records from each partition, whatever times they have. Where one partition has fewer records an
hour than another, it would be days ahead after some batches, and what the other one then brings would be late. So no
partition is read beyond the time at which a partition with more to come ends in this batch. Partitions whose records are
in the order of their times are then in step wherever batches end.

Source: Kafka Streams takes the next record from the partition whose next one is the earliest; this does it for batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import TopicIdPartition
from sqe_chain.ports import Bounds, Message, Range, TopicPartition
from sqe_chain.protocol.cutting import Part
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.event_times import EventTime
from sqe_chain.protocol.plan import Plan, PlannedRange
from sqe_chain.task.event_times import EventTimes, guard_of
from sqe_chain.task.records import Records
from sqe_chain.task.source_times import SourceTimes

_LOOK_BACK = 10
"""Offsets read to find a range's last record: the very last ones may be markers of transactions."""


def keep_in_step(env: Environment, part: Part, bounds: Mapping[TopicPartition, Bounds]) -> Part:
    """The batch, shortened where a partition would get ahead of one that has more to come.

    At least one partition that has something keeps all of its range. Times are those of the records in Kafka.

    Args:
        env: the flow and its ports.
        part: what the batch reads; not one that was sealed before.
        bounds: of its partitions, as far as they may be read.

    Raises:
        Unavailable: asked to stop while waiting for the broker.
    """
    if not env.flow.by_time:
        return part
    untimed = {topic for source in env.flow.sources if source.timestamp for topic in source.topics}
    ranges = [planned for planned in part.ranges if env.flow.declared_topic[planned.topic] not in untimed]
    behind = [planned for planned in ranges if planned.start < planned.stop < bounds[planned.tp].stable_end]
    if not behind or len(ranges) == 1:
        return part
    times = {planned.tp: found[-1].timestamp()[1] for planned, found in last_records(env, behind)}
    if not times:
        return part
    last = min(times, key=lambda tp: (times[tp], tp))
    limits = env.log.offsets_at([planned.tp for planned in ranges], times[last] + 1)
    stops = part.stops | {
        planned.tp: max(planned.start, min(planned.stop, limits[planned.tp]))
        for planned in ranges
        if planned.tp != last  # else nothing might be left to read where its own records are not in order
    }
    shorter = tuple(replace(planned, stop=stops[planned.tp]) for planned in part.ranges)
    return replace(part, ranges=shorter, stops=stops)


def without_far_ahead(
    flow: CompiledFlow, last: Plan, part: Part, bounds: Mapping[TopicPartition, Bounds], limit: int
) -> Part:
    """The batch without more of partitions of which a whole batch waits already, as long as others have more to come.

    Args:
        flow: the flow.
        last: the plan before.
        part: what the batch reads; not one that was sealed before.
        bounds: of its partitions, as far as they may be read.
        limit: records of a batch.
    """
    far = {
        tp
        for tp, times in EventTime.of(last).times.items()
        if times.waiting is not None and times.waiting.inputs >= limit
    }
    others = [
        planned
        for planned in part.ranges
        if flow.declared_topic[planned.topic] in flow.gated and planned.tp not in far
    ]
    if not far or not any(planned.start < bounds[planned.tp].stable_end for planned in others):
        return part
    stops = part.stops | {planned.tp: planned.start for planned in part.ranges if planned.tp in far}
    return replace(
        part, ranges=tuple(replace(planned, stop=stops[planned.tp]) for planned in part.ranges), stops=stops
    )


def last_records(
    env: Environment, ranges: Sequence[PlannedRange]
) -> Iterable[tuple[PlannedRange, Sequence[Message]]]:
    """The last records of each range, as far as any are found."""
    ends = [
        Range(
            one.topic,
            bytes.fromhex(one.topic_id),
            one.partition,
            max(one.start, one.stop - _LOOK_BACK),
            one.stop,
        )
        for one in ranges
    ]
    return ((planned, found) for planned, found in zip(ranges, env.log.read_all(ends), strict=True) if found)


def look_ahead(
    env: Environment,
    part: Part,
    times: dict[TopicPartition, EventTimes],
    bounds: Mapping[TopicPartition, Bounds],
) -> None:
    """Move event time by the last records of what a batch reads, so that it takes what lies before them at once.

    Without that, a batch takes what was read by the batch before it, which is right, too, but later. Where the source's function
    gives the times, that stays so.

    Args:
        env: the flow and its ports.
        part: what the batch reads; not one that was sealed before.
        times: event time as it begins, which moves.
        bounds: of the partitions.
    """
    flow, guard = env.flow, guard_of(env.flow)
    nodes = {topic: one for one in flow.sources if one.timestamp is None for topic in one.topics}
    gated = [one for one in part.ranges if one.topic in nodes and nodes[one.topic].name in flow.gated]
    for planned, messages in last_records(env, [one for one in gated if one.start < one.stop]):
        at_end = planned.stop >= bounds[planned.tp].stable_end
        found = SourceTimes(times[planned.tp], nodes[planned.topic], guard, planned.start, at_end=at_end)
        tp = TopicIdPartition(planned.topic, bytes.fromhex(planned.topic_id), planned.partition)
        found.observe(found.facts(Records(tp, messages, None, int), None))
