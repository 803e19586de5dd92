"""What a failover notes in plans: in which cluster the flow goes on, what its topics are called there, and where reading goes on.

What is bound to lanes survives: marks, states, and what the flow publishes. What is bound to offsets ends at the failover; see
`sqe_chain.adapters.mirror`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from sqe_chain.adapters.mirror import MirroredTopic, MirrorLog
from sqe_chain.errors import ServiceStopped
from sqe_chain.plans.plan import Plan, PlannedRange, Section
from sqe_chain.ports import Log, TopicPartition


@dataclass(frozen=True, slots=True)
class Mirrors(Section):
    """Where the inputs are read since the last failover.

    Attributes:
        cluster: id of the cluster; empty: there was no failover.
        topics: input or output topic as the flow declares it -> the topic that holds it.
        unfinished: partition -> where the inputs of the plan before end that was unfinished at the failover. They begin where reading
            goes on, among replays. None: it was finished, and so in all plans but that of a failover.
    """

    name: ClassVar[str] = "mirrors"
    cluster: str = ""
    topics: Mapping[str, MirroredTopic] = field(default_factory=dict)
    unfinished: Mapping[TopicPartition, int] | None = None

    def carried(self, last: Plan, plan: Plan) -> Mirrors:  # noqa: ARG002 - see `Section`
        """All of it until the next failover, without what only the plan before needs."""
        return replace(self, unfinished=None)

    def ranges_of(self, plan: Plan) -> tuple[PlannedRange, ...] | None:
        """What the plan before the failover has read, as it is read in the cluster of now; None: it needs no redo there."""
        if self.unfinished is None:
            return None
        ends = self.unfinished
        return tuple(
            replace(planned, start=planned.stop, stop=ends.get(planned.tp, planned.stop))
            for planned in plan.ranges
        )

    def to_json(self) -> dict[str, Any] | None:
        if not self.cluster:
            return None
        known: dict[str, Any] = {
            "cluster": self.cluster,
            "topics": {
                name: [
                    topic.name,
                    topic.topic_id.hex(),
                    topic.known_id.hex(),
                    {str(partition): list(begin) for partition, begin in sorted(topic.begins.items())},
                ]
                for name, topic in self.topics.items()
            },
        }
        if self.unfinished is not None:
            known["unfinished"] = [[*tp, end] for tp, end in sorted(self.unfinished.items())]
        return known

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        topics = {
            str(name): MirroredTopic(
                str(there),
                bytes.fromhex(topic_id),
                bytes.fromhex(known_id),
                {int(partition): (int(counted), int(at)) for partition, (counted, at) in begins.items()},
            )
            for name, (there, topic_id, known_id, begins) in raw["topics"].items()
        }
        ends = raw.get("unfinished")
        unfinished = (
            None if ends is None else {(str(topic), int(part)): int(end) for topic, part, end in ends}
        )
        return cls(str(raw["cluster"]), topics, unfinished)


def follow_mirrors(log: Log, last: Plan | None) -> Log:
    """The log as the flow reads it since its last failover; the same if there was none.

    Args:
        log: the cluster's.
        last: the flow's last plan; None: it has none.
    """
    mirrors = Mirrors() if last is None else Mirrors.of(last)
    return MirrorLog(log, mirrors.cluster, mirrors.topics) if mirrors.cluster else log


def check_lanes(flow: str, plan: Plan) -> None:
    """Check that nothing was read without a chain since a failover: the place of such a record is its offset, which a mirror changes.

    Raises:
        ServiceStopped: a record has none.
    """
    for topic in Mirrors.of(plan).topics:
        for tp, marks in plan.marks.items():
            if tp[0] == topic and 0 in marks.lanes:
                raise ServiceStopped(
                    f"flow {flow!r}: {topic}[{tp[1]}]@{marks[0].offset} has no chain, so only its offset shows that it is no replay, and the "
                    "mirror has other offsets. Expected envelopes that a flow has published. Nothing of this batch was counted. Let a flow "
                    "without stages publish them, and mirror what it publishes"
                )
