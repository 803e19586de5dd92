"""What goes into a task and what comes out of it, as data: jobs, portions, blocks, reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from sqe_chain.chain import stored_epoch
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Message, Output, Range, StateStore, TopicInfo
from sqe_chain.task.digest import Digests, add_digests, dead_letters_digests, outputs_digests
from sqe_chain.task.event_times import EventTimes, Taking
from sqe_chain.task.exclusion import Exclusion, record_crc
from sqe_chain.task.parking import ParkedRecord, Releasing
from sqe_chain.task.revised import Newer
from sqe_chain.task.revisions import OutputRevisions
from sqe_chain.task.roots import Closing, Moments, Ticks
from sqe_chain.task.shuffling import ShuffledUnits
from sqe_chain.task.states import Transition
from sqe_chain.task.trace_report import TraceReport

Found = TypeVar("Found")
LaneEnds = dict[tuple[str, int], dict[int, bytes]]
"""Output topic and partition -> lane -> the last position that was written there."""


class Sections(dict[type, object]):
    """What tasks get for features, by its class."""

    @classmethod
    def of(cls, *items: object) -> Self:
        """These; None is none."""
        return cls({type(item): item for item in items if item is not None})

    def find(self, kind: type[Found]) -> Found | None:
        """What tasks get for a feature; None: nothing."""
        section = self.get(kind)
        return section if isinstance(section, kind) else None


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of one attempt at a batch have in common.

    In a *trial* the inputs that failed before are candidates: each is processed and then taken back, in every
    stage that it reaches. So the other inputs are processed as if it were not there. And the trial shows
    whether it fails by itself, or failed because of another one.

    Attributes:
        transition: which plan follows which, and who applies it.
        clock_ms: the batch's clock.
        in_place: level 1 runs within the reading tasks.
        top_level: higher levels are not run: a redo has nothing left to do there.
        topics: output topic -> what it accepts; a topic that is absent is not checked.
        compacted: input topics that are compacted.
        candidates: topic, partition and offset of the inputs that are retried alone; empty: exclusions are skipped at once.
        with_care: folds are taken back for an input that fails, which is slow. Without it, the first input that fails
            ends the attempt.
        sections: what tasks get for features, by its class: `Taking`, `Moments`, `Ticks`, `Closing`, `SkipLimit`, `Behind`, `ParkedKeys`,
            `Releasing`, `Followed`, `OutputRevisions`, `Noted`.
    """

    transition: Transition
    clock_ms: int
    in_place: bool = False
    top_level: int = 1 << 30
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    candidates: frozenset[tuple[str, int, int]] = frozenset()
    with_care: bool = False
    sections: Sections = field(default_factory=Sections)

    @property
    def watermarks(self) -> Mapping[str, int]:
        """Output -> what it promises: whatever it writes from now on has this time or a later one."""
        taking = self.sections.find(Taking)
        return {} if taking is None else taking.watermarks

    @property
    def revisions(self) -> OutputRevisions | None:
        """Of outputs that were corrected; None: none was."""
        return self.sections.find(OutputRevisions)

    @property
    def suffix(self) -> str:
        """What the names of outputs have at their ends."""
        releasing = self.sections.find(Releasing)
        return "" if releasing is None else releasing.suffix

    def woken(self, partitions: int) -> Sequence[int]:
        """The state partitions in which stages may have something to do, though they get nothing.

        Args:
            partitions: how many state partitions there are.
        """
        if not WAKING.isdisjoint(self.sections):
            return range(partitions)
        moments = self.sections.find(Moments)
        return () if moments is None else moments.parts


@dataclass(frozen=True, slots=True)
class Behind:
    """Receivers have newer states: what follows `changes()` is not published."""


WAKING: Final = frozenset({Closing, Ticks, Releasing})
"""Sections of jobs for which stages in all state partitions may have something to do, though they get nothing."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What one task reads of one input partition.

    Attributes:
        read: the range.
        marks: its marks at the start; nobody changes them.
        exclusions: inputs of the range that are skipped.
        times: event time at the start; None: the flow does not ask for it. Nobody changes them.
        since: first offset that was not read before; None: that of the range.
        at_end: the range ends where the partition does.
        parked: what is processed instead of the range: records that have waited.
        published: offsets below it were published or skipped before: what fails there now stops the flow. 0: none were.
        failed: inputs of the partition that were skipped before; -1: dead-letter records bear no numbers, since plans list them.
        unsure: what was read before is not known.
        after: where the partition of its dead-letter records ended before the batch was begun, or earlier; -1: its plans list them.
    """

    read: Range
    marks: PartitionMarks
    exclusions: tuple[Exclusion, ...] = ()
    times: EventTimes | None = None
    since: int | None = None
    at_end: bool = False
    parked: tuple[ParkedRecord, ...] = ()
    published: int = 0
    failed: int = -1
    unsure: bool = False
    after: int = -1


@dataclass(slots=True)
class PartitionEnd:
    """What became of one input partition.

    Attributes:
        topic: topic name.
        partition: partition number.
        marks: marks at the end.
        records: records taken, or replays.
        replays: of them, those that were replays.
        size: bytes of values read.
        last_offset: offset of the last record; -1 when there was none.
        last_epoch: its leader epoch plus one.
        last_timestamp_ms: its timestamp.
        last_crc: checksum of its key and value (`task.exclusion.record_crc`).
        times: event time at the end, if the portion had any.
        parked: records that wait from now on.
        late: whether any input was taken late; see `sqe_chain.task.gate.Gate.are_late`.
        failed: dead-letter records.
        superseded: records without effect, because a newer revision counts for their roots; they are not among `records`.
        newer: the same of revisions that the flow does not follow.
    """

    topic: str
    partition: int
    marks: PartitionMarks
    records: int = 0
    replays: int = 0
    size: int = 0
    last_offset: int = -1
    last_epoch: int = 0
    last_timestamp_ms: int = -1
    last_crc: int = -1
    times: EventTimes | None = None
    parked: list[ParkedRecord] = field(default_factory=list)
    late: bool = False
    failed: int = 0
    superseded: int = 0
    newer: Counter[Newer] = field(default_factory=Counter)

    def see(self, messages: Sequence[Message], size: int) -> None:
        """Note a block that was read, whether its records are taken or wait."""
        last = messages[-1]
        self.size += size
        self.last_offset, self.last_epoch = last.offset(), stored_epoch(last.leader_epoch())
        self.last_timestamp_ms = last.timestamp()[1]
        self.last_crc = record_crc(last.key(), last.value())


@dataclass(slots=True)
class Report:
    """What a task, or all tasks of an attempt together, report to the driver.

    Attributes:
        ends: one for each input partition.
        excluded: inputs newly skipped: they could not be decoded, or failed before the first stage.
        failed: inputs on which a stage failed; the attempt is worth nothing, do it again without them.
        touched: (stage index, cell) whose changed states are among the results.
        outputs: records to publish.
        output_size: their bytes.
        broken: how the operators after `changes()`, a timer, or what follows a window or timer failed; no single input is to blame.
        mispartitioned: keys that belong to another state partition, met without a shuffle.
        placed: whether it is known that there are none; set once all tasks have reported.
        dropped: (stage, reason) -> records that filters have dropped, or counted.
        notices: texts worth a warning.
        sections: name of a feature -> what its stages report, by their names and state partitions.
        traces: of the records and outputs, in flows that follow traces.
        gives: digests of outputs, dead-letter records and changed states, for plans.
        lane_ends: where the lanes of outputs end; nothing unless `CompiledFlow.notes_lanes`.
        met: what codecs of sources have met, see `Codec.met`; nothing unless they ask a registry.
    """

    ends: list[PartitionEnd] = field(default_factory=list)
    excluded: list[Exclusion] = field(default_factory=list)
    failed: list[Exclusion] = field(default_factory=list)
    touched: list[tuple[int, int]] = field(default_factory=list)
    outputs: int = 0
    output_size: int = 0
    broken: list[str] = field(default_factory=list)
    mispartitioned: int = 0
    placed: bool = False
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    notices: list[str] = field(default_factory=list)
    sections: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    traces: list[TraceReport] = field(default_factory=list)
    gives: Digests = field(default_factory=dict)
    lane_ends: LaneEnds = field(default_factory=dict)
    met: dict[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """Records read."""
        return sum([end.records for end in self.ends])

    @property
    def fresh(self) -> int:
        """Records taken that were no replays."""
        return sum([end.records - end.replays for end in self.ends])

    def add(self, other: Report) -> None:
        """Take in what another task reports."""
        self.ends += other.ends
        self.excluded += other.excluded
        self.failed += other.failed
        self.touched += other.touched
        self.outputs += other.outputs
        self.output_size += other.output_size
        self.broken += other.broken
        self.mispartitioned += other.mispartitioned
        self.dropped += other.dropped
        self.notices += other.notices
        self.traces += other.traces
        self.met |= other.met
        add_digests(self.gives, other.gives)
        self.add_ends(other.lane_ends)
        for name, known in other.sections.items():
            self.sections.setdefault(name, {}).update(known)

    def add_ends(self, ends: LaneEnds) -> None:
        """Take in where lanes end that others have written."""
        for place, known in ends.items():
            self.lane_ends.setdefault(place, {}).update(known)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Records to publish, in order.

    Attributes:
        first: they must be acknowledged before anything that follows is sent.
    """

    records: list[Output]
    first: bool = False


@dataclass(frozen=True, slots=True)
class Units:
    """Units for the stages of a level."""

    level: int
    blocks: list[ShuffledUnits]


@dataclass(frozen=True, slots=True)
class ChangedStates:
    """Changed states of one stage in one cell, in key order."""

    level: int
    stage: int
    part: int
    rows: list[tuple[bytes, bytes | None]]


Block = Outputs | Units | ChangedStates | Report
Stores = Callable[[StageNode], StateStore]
"""Gives the store of a stage."""


def taken(records: list[Output], report: Report, *, first: bool = False, sealed: bool = True) -> Outputs:
    """Records that are ready, counted in the report; the list is empty afterwards.

    Args:
        records: the records.
        report: counts them.
        first: see `Outputs`.
        sealed: a plan has their digests; see `CompiledFlow.seals_outputs`. Without plans a redo compares with what receivers have.
    """
    ready = Outputs(records.copy(), first)
    records.clear()
    if sealed:
        add_digests(report.gives, (dead_letters_digests if first else outputs_digests)(ready.records))
    report.outputs += len(ready.records)
    report.output_size += sum([len(record[3]) for record in ready.records if record[3]])
    return ready


def spread(job: Job, portions: Sequence[Portion]) -> list[list[Portion]]:
    """How portions are spread: one task for each, or without a shuffle one for each partition number.

    Within a task portions go by topic name, which is the order of units.
    """
    ordered = sorted(portions, key=lambda portion: (portion.read.topic, portion.read.partition))
    if not job.in_place:
        return [[portion] for portion in ordered]
    grouped: dict[int, list[Portion]] = {}
    for portion in ordered:
        grouped.setdefault(portion.read.partition, []).append(portion)
    return [grouped[partition] for partition in sorted(grouped)]
