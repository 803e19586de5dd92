"""What plans keep of the time before a flow had stages, and its commits alone knew how far it had read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.plans.layout import by_name, by_partition
from sqe_chain.plans.plan import Plan, Section, left_by
from sqe_chain.ports import TopicPartition


@dataclass(frozen=True, slots=True)
class Begun(Section):
    """What a flow had read before its first stage. Its states begin after that, and a rebuild needs to know what comes again.

    Attributes:
        marks: of each partition, in its last commit without stages.
    """

    name: ClassVar[str] = "begun"
    marks: Mapping[TopicPartition, PartitionMarks] = field(default_factory=dict)

    def carried(self, last: Plan, plan: Plan) -> Begun:
        """All of it, for life, without partitions that another topic has now."""
        gone = left_by(plan, last)
        return Begun({tp: marks for tp, marks in self.marks.items() if tp not in gone})

    def to_json(self) -> dict[str, Any]:
        return {name: marks.to_json() for name, marks in by_name(self.marks).items()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        return cls({tp: PartitionMarks.from_json(marks) for tp, marks in by_partition(raw).items()})
