"""Plans as they are stored, read from their JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

TopicPartition = tuple[str, int]
Coordinates = tuple[str, int, int]
"""Topic, partition, offset."""


class StoredRange(NamedTuple):
    """What a plan reads of one partition: from `start` to before `stop`."""

    topic: str
    partition: int
    topic_id: str
    start: int
    stop: int

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition


class StoredPlan(NamedTuple):
    """The inputs of a plan.

    Attributes:
        number: of the plan.
        ranges: what it reads, by topic and partition.
        skipped: inputs that it skips.
        frontier: time, topic and partition up to which it takes inputs, by their times; None: it takes none by time.
        parked: inputs that wait after it.
        released: inputs that it processes, and that had waited.
        again: inputs that it has tried to release, and that have failed again.
    """

    number: int
    ranges: tuple[StoredRange, ...]
    skipped: frozenset[Coordinates]
    frontier: tuple[int, str, int] | None
    parked: frozenset[Coordinates] = frozenset()
    released: frozenset[Coordinates] = frozenset()
    again: frozenset[Coordinates] = frozenset()

    @classmethod
    def read(cls, data: bytes) -> StoredPlan:
        """Read what the store has."""
        raw = json.loads(data)
        ranges = (tuple(planned[name] for name in StoredRange._fields) for planned in raw["ranges"])
        skipped = ((one["topic"], one["partition"], one["offset"]) for one in raw["exclusions"])
        frontier = raw["sections"].get("event-time", {}).get("frontier")
        parked = raw["sections"].get("parked", {})
        waits = ((record[0], record[2], record[3]) for record in parked.get("records", ()))
        again = _places(parked.get("decided", {}).get("failed", ()))
        return cls(
            raw["number"],
            tuple(StoredRange(*planned) for planned in sorted(ranges)),
            frozenset(skipped),
            None if frontier is None else (frontier[0], frontier[1], frontier[2]),
            frozenset(waits),
            _places(parked.get("released", ())),
            again,
        )


def _places(listed: Iterable[tuple[str, str, int, list[int]]]) -> frozenset[Coordinates]:
    return frozenset(
        (topic, partition, offset) for topic, _, partition, offsets in listed for offset in offsets
    )
