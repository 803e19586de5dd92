"""Where the lanes of a flow's outputs end, as plans note it. By this a failover finds out whether a mirror has all of them.

Of each output partition the ends are those of the last plan that published there. All that plans before it have published comes
before that, and a mirror keeps the order of a partition. So a mirror that has these ends has everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from sqe_chain.ports import TopicPartition
from sqe_chain.task.results import LaneEnds

MAX_ENDS: Final = 4_000
"""Lanes of all output partitions that plans note; each takes some 70 bytes of every plan. With more of them nothing is noted."""


@dataclass(frozen=True, slots=True)
class PublishedLanes:
    """What was published last.

    Attributes:
        since: number of the plan since which ends are noted: of what was published before it, nothing is known. 0: all are.
        ends: output partition -> lane -> the last position on it, of the last plan that has published there.
    """

    since: int = 0
    ends: Mapping[TopicPartition, Mapping[int, bytes]] = field(default_factory=dict)

    def after(self, ends: LaneEnds, number: int) -> PublishedLanes:
        """The same after a batch that was published.

        Args:
            ends: where the lanes end that the batch has written.
            number: of its plan.
        """
        if not ends:
            return self
        known = {**self.ends, **ends}
        if sum(map(len, known.values())) > MAX_ENDS:
            return PublishedLanes(number)
        return replace(self, ends=known)

    def without(self, lanes: Collection[str]) -> PublishedLanes:
        """The same without some lanes, 16 hexadecimal digits each, in a cluster that has all else: nothing older is looked for there."""
        kept = {
            tp: {lane: position for lane, position in ends.items() if f"{lane:016x}" not in lanes}
            for tp, ends in self.ends.items()
        }
        return PublishedLanes(0, {tp: ends for tp, ends in kept.items() if ends})

    def to_json(self) -> dict[str, Any]:
        """For json.dumps: lanes and positions are hexadecimal."""
        topics: dict[str, dict[str, dict[str, str]]] = {}
        for (topic, partition), ends in self.ends.items():
            own = {f"{lane:016x}": position.hex() for lane, position in ends.items()}
            topics.setdefault(topic, {})[str(partition)] = own
        return {"since": self.since, "ends": topics}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(
            raw["since"],
            {
                (topic, int(partition)): {int(lane, 16): bytes.fromhex(place) for lane, place in ends.items()}
                for topic, partitions in raw["ends"].items()
                for partition, ends in partitions.items()
            },
        )
