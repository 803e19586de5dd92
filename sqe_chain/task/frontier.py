"""The frontier: the place up to which a flow has taken its inputs, in the order of their times.

It is one for the whole flow, is fixed before a batch reads anything, and is sealed with it (`EventTime.frontier`). What lies
beyond it waits where it is, in Kafka (`sqe_chain.task.gate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Frontier(NamedTuple):
    """The last place in the order of times that is complete: nothing comes any more that belongs before it.

    Attributes:
        at_ms: time.
        topic: at that time, up to this topic,
        partition: and this partition.
    """

    at_ms: int
    topic: str
    partition: int

    def limit_ms(self, topic: str, partition: int) -> int:
        """The last time of a partition's inputs that are not beyond it."""
        return self.at_ms if (topic, partition) <= self[1:] else self.at_ms - 1


@dataclass(frozen=True, slots=True)
class Taking:
    """Which inputs a batch takes, where the flow goes by event time, and what its outputs promise.

    Attributes:
        watermarks: output -> what it promises: whatever it writes from now on has this time or a later one.
        frontier: the place in the order of times up to which inputs are taken; None: none are.
        before: that of the batch before.
        last: no input that an earlier batch has taken has its place after this one; None: none was taken.
    """

    watermarks: Mapping[str, int] = field(default_factory=dict)
    frontier: Frontier | None = None
    before: Frontier | None = None
    last: Frontier | None = None


class PartitionProgress(NamedTuple):
    """How far event time has come in one input partition.

    Attributes:
        topic: topic.
        partition: partition.
        waited_for: whether anything more is expected of it.
        watermark_ms: what comes has this time or a later one; None: not known yet.
        latest_ms: the latest time read or stated by a writer: nothing that was read belongs after it; None: none is known.
    """

    topic: str
    partition: int
    waited_for: bool
    watermark_ms: int | None
    latest_ms: int | None


def frontier_of(progress: Sequence[PartitionProgress]) -> Frontier | None:
    """Up to where the order of times is complete over several partitions; None: nowhere.

    It is the watermark of the partition that is behind. If none is waited for, it is beyond all that was read.
    """
    waited_for = [partition for partition in progress if partition.waited_for]
    if not waited_for:
        latest_ms = latest_of(progress)
        return None if latest_ms is None else Frontier(latest_ms + 1, "", 0)
    known = [
        Frontier(partition.watermark_ms, partition.topic, partition.partition)
        for partition in waited_for
        if partition.watermark_ms is not None
    ]
    return min(known) if len(known) == len(waited_for) else None


def furthest(*frontiers: Frontier | None) -> Frontier | None:
    """The last of several frontiers; None if none of them is known."""
    return max((frontier for frontier in frontiers if frontier is not None), default=None)


def last_of(progress: Iterable[PartitionProgress], frontier: Frontier | None) -> Frontier | None:
    """The last place that an input up to a frontier may have; None: none was taken."""
    if frontier is None:
        return None
    read = [
        Frontier(partition.latest_ms, partition.topic, partition.partition)
        for partition in progress
        if partition.latest_ms is not None
    ]
    return min(frontier, max(read, default=frontier))


def latest_of(progress: Iterable[PartitionProgress]) -> int | None:
    """The latest time read or stated in several partitions."""
    return max(
        [partition.latest_ms for partition in progress if partition.latest_ms is not None], default=None
    )


class WaitingRange(NamedTuple):
    """The inputs of one partition that were read and wait for event time.

    Attributes:
        offset: of the first.
        least_ms: the least of their places in the order of times.
        inputs: how many.
    """

    offset: int
    least_ms: int
    inputs: int

    def may_be_due(self, topic: str, partition: int, frontier: Frontier | None) -> bool:
        """Whether any of them may lie up to a frontier, so that they have to be read again."""
        return frontier is not None and self.least_ms <= frontier.limit_ms(topic, partition)
