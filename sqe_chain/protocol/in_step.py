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

from sqe_chain.ports import Bounds, Range, TopicPartition
from sqe_chain.protocol.cutting import Part
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.plan import PlannedRange

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
    untimed = {topic for source in env.flow.sources() if source.timestamp for topic in source.topics}
    ranges = [planned for planned in part.ranges if env.flow.declared_topic(planned.topic) not in untimed]
    behind = [planned for planned in ranges if planned.start < planned.stop < bounds[planned.tp].stable_end]
    if not behind or len(ranges) == 1:
        return part
    times = dict(_last_times(env, behind))
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


def _last_times(env: Environment, ranges: Sequence[PlannedRange]) -> Iterable[tuple[TopicPartition, int]]:
    """The time of the last record of each range, as far as one is found."""
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
    for planned, found in zip(ranges, env.log.read_all(ends), strict=True):
        if found:
            yield planned.tp, found[-1].timestamp()[1]
