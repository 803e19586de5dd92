"""What a flow is bound to for life: partitions, stages, outputs, sources, and the types of what is stored and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.ports import TopicPartition

Marks = dict[TopicPartition, PartitionMarks]
"""Input partition -> what of it is counted."""
_Known = TypeVar("_Known")


def mark_name(topic: str, partition: int) -> str:
    """The name of a partition in what is stored and reported: "topic/partition"; also of a state partition: "stage/partition"."""
    return f"{topic}/{partition}"


def by_name(known: Mapping[TopicPartition, _Known]) -> dict[str, _Known]:
    """What is known of partitions, by their names."""
    return {mark_name(*at): value for at, value in known.items()}


def by_partition(known: Mapping[str, _Known]) -> dict[TopicPartition, _Known]:
    """What `by_name` was given.

    Raises:
        ValueError: a name is none of `mark_name`.
    """
    parts = {name: name.rpartition("/") for name in known}
    return {(first, int(number)): known[name] for name, (first, _, number) in parts.items()}


def plain_marks(marks: Marks) -> dict[str, Any]:
    """Marks for JSON; `marks_in` reads them."""
    return {name: own.to_json() for name, own in by_name(marks).items()}


def marks_in(plain: Mapping[str, Any]) -> Marks:
    """The marks that `plain_marks` was given."""
    return {tp: PartitionMarks.from_json(own) for tp, own in by_partition(plain).items()}


@dataclass(frozen=True, slots=True)
class StageLayout:
    """Where and how the states of a stage are stored.

    Attributes:
        birth: number of the stage's birth plan.
        buckets: buckets of each state partition; each has a header of its own.
        flow: name of the flow under which the store keeps them: another one after a rebuild.
    """

    birth: int
    buckets: int
    flow: str


@dataclass(frozen=True, slots=True)
class TypeLayout:
    """The type of what a stage stores, or of what is read from a topic, to be compared with later declarations.

    Attributes:
        kind: `aggregate`, or that of a filter or of windows; of a topic `raw` or `envelopes`.
        name: of the type, as envelopes name it: full protobuf name, or ``codec:Name``; empty where the library alone knows what is stored.
        shape: of that type: see `Codec.shape`.
    """

    kind: str
    name: str = ""
    shape: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a flow is bound to for life.

    Attributes:
        state_partitions: P.
        stages: stage name -> where and how its states are stored.
        outputs: output name -> [topic, partitions].
        sources: topic -> [topic id (hexadecimal), known partitions].
        starts: where the flow once began to read a partition, where that was not offset 0.
        gone: topics that were created again since something of them was read, which cannot be read again.
        ways: "stage/NAME" or "output/NAME" -> where its units come from.
        types: "stage/NAME" or "source/TOPIC" -> what is stored or read there.
    """

    state_partitions: int
    stages: dict[str, StageLayout] = field(default_factory=dict)
    outputs: dict[str, tuple[str, int]] = field(default_factory=dict)
    sources: dict[str, tuple[str, int]] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    ways: dict[str, str] = field(default_factory=dict)
    types: dict[str, TypeLayout] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The layout as JSON."""
        plain = _members(self, _LAYOUT)
        plain["stages"] = {name: _members(stage, _STAGE) for name, stage in self.stages.items()}
        plain["types"] = {name: _members(known, _TYPE) for name, known in self.types.items()}
        plain["starts"] = by_name(self.starts)
        return plain

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Layout:
        """A layout from what `to_json` gave."""
        return cls(
            raw["state_partitions"],
            {name: StageLayout(**stage) for name, stage in raw["stages"].items()},
            {name: (topic, number) for name, (topic, number) in raw["outputs"].items()},
            {topic: (topic_id, number) for topic, (topic_id, number) in raw["sources"].items()},
            by_partition(raw["starts"]),
            tuple(raw["gone"]),
            raw["ways"],
            {holder: TypeLayout(**known) for holder, known in raw["types"].items()},
        )

    def with_starts(self, starts: Mapping[TopicPartition, tuple[int, bool]]) -> Layout:
        """The layout, with the offsets at which partitions begin.

        Args:
            starts: of partitions: first offset, and whether it lies in the middle of the log.
        """
        begun = {tp: offset for tp, (offset, _) in starts.items() if offset > 0}
        return replace(self, starts=self.starts | begun) if begun else self

    def stored_in(self) -> dict[str, str]:
        """Stage name -> name of the flow under which the store keeps its states."""
        return {name: stage.flow for name, stage in self.stages.items()}

    def changes_since(self, before: Layout) -> list[str]:
        """What was added or removed since, in words: stages, outputs, topics, partitions; not topics created again."""
        changes = [f"stage {name!r}" for name in self.stages if name not in before.stages]
        changes += [f"stage {name!r} is gone" for name in before.stages if name not in self.stages]
        changes += [
            f"output {name!r} ({number} partitions of {topic!r})"
            for name, (topic, number) in self.outputs.items()
            if name not in before.outputs
        ]
        for topic, (topic_id, number) in self.sources.items():
            known_id, known = before.sources.get(topic, ("", 0))
            if not known_id:
                changes.append(f"input {topic!r} with {number} partitions" if number else f"files {topic!r}")
            elif known_id == topic_id and known != number:
                changes.append(f"partitions {known} to {number - 1} of input {topic!r}")
        return changes


_LAYOUT = tuple(field.name for field in fields(Layout))
_STAGE = tuple(field.name for field in fields(StageLayout))
_TYPE = tuple(field.name for field in fields(TypeLayout))


def _members(record: object, names: Sequence[str]) -> dict[str, Any]:
    """Fields as they are: `dataclasses.asdict` copies all they hold, which took most of a small batch's time."""
    return {name: getattr(record, name) for name in names}
