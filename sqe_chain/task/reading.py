"""Level 0: read inputs, drop replays, run the operators before any stage; without a shuffle, level 1 too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sqe_chain.errors import START_OVER, RecreatedTopic
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Message, Output, Range, StateStore
from sqe_chain.task.collector import Collector
from sqe_chain.task.compiler import Compiler
from sqe_chain.task.level import Level, run_level
from sqe_chain.task.noted import take_notes
from sqe_chain.task.outputs import Gatherer
from sqe_chain.task.results import Block, Job, Outputs, Portion, Report, Stores, Units, spread, taken
from sqe_chain.task.shuffling import Shuffle, ShuffledUnits, in_order, wake
from sqe_chain.task.source_partition import SourcePartition
from sqe_chain.task.trace_links import BlockTraces


def check_read_id(topic: str, known: bytes, now: bytes | None) -> None:
    """Check that a topic is still the one that was read, for a flow without stages: its place is in its group's commits.

    Args:
        topic: an input.
        known: id of the topic that was read.
        now: its id now; None: it is gone.

    Raises:
        RecreatedTopic: it has another id, or is gone.
    """
    if now == known:
        return
    current = "no topic" if now is None else now.hex()
    raise RecreatedTopic(
        f"input {topic!r} was {known.hex()}, now it is {current}: it was deleted or created again. Reset the "
        "group's offsets to read it from its beginning; what comes through it again is then decided about by its "
        f"readers, Flow(recreated=...). Or {START_OVER}"
    ).at(topic)


class Reading:
    """Level 0 of one task: its input partitions, one after the other; without a shuffle, level 1 too."""

    def __init__(self, flow: CompiledFlow, job: Job, stores: Stores) -> None:
        take_notes(flow, job)
        self.report = Report()
        self._flow = flow
        self._job = job
        self._stores = stores
        self._collector = Collector(flow)
        self._gatherer = Gatherer(
            flow, None, job.topics, job.clock_ms, job.suffix, job.watermarks, job.revisions
        )
        self._shuffle = Shuffle(flow)
        self._first = [stage.index for level in flow.levels[:1] for stage in level]
        shuffled = frozenset[int]() if job.in_place else frozenset(self._first)
        self._compiler = Compiler(flow, self._collector, job.clock_ms, shuffled)
        self._level: Level | None = None
        self._traces = BlockTraces() if flow.traces else None

    def read(self, portion: Portion, messages: Iterable[Sequence[Message]]) -> Iterator[Block]:
        """Work on one input partition. Portions come in the order of their topics' names.

        Raises:
            PoisonError: an input cannot be processed and the policy is `stop`.
            ServiceStopped: something is missing, or has changed, as an envelope proves.
        """
        if self._job.in_place and self._level is None:
            part = portion.read.partition
            self._level = Level(self._flow, self._job, 1, part, self._stores, self.report, self._traces)
        inputs = SourcePartition(
            self._flow, self._job, portion, self._compiler, self._collector, self._gatherer
        )
        for records in inputs.due([portion.parked] if portion.parked else messages):
            inputs.feed(records)
            if self._traces is not None:
                self._traces.read(records, inputs.tp)
            yield from self._drain(inputs)
        # Also raises where too much would be skipped, before any dead-letter record is given to be published.
        self.report.ends.append(inputs.finish())
        codec = self._flow.codec_of[portion.read.topic]
        if codec is not None and codec.wants_registry:
            self.report.met.update(codec.met())
        # A reader that has an output of a later input never counts the skipped one on this lane. So its record comes first.
        if inputs.letters:
            yield taken(inputs.letters, self.report, first=True, sealed=self._flow.seals_outputs)
        if inputs.outputs:
            yield taken(inputs.outputs, self.report, sealed=self._flow.seals_outputs)
        self.report.excluded += inputs.excluded
        self.report.notices += inputs.marks.notices

    def finish(self) -> Iterator[Block]:
        """After the last portion: changed states if there is no shuffle, and the report, last of all."""
        if self._level is not None:
            yield from self._level.finish()
        self.report.add_ends(self._gatherer.ends())
        if self._traces is not None:
            self.report.traces.append(self._traces.report)
        first = 1 if self._level is None else 2
        woken = self._job.woken(self._flow.state_partitions)
        if woken and first <= min(len(self._flow.levels), self._job.top_level):
            yield Units(first, wake(woken))
        yield self.report

    def _drain(self, inputs: SourcePartition) -> Iterator[Block]:
        if inputs.outputs and not inputs.letters:
            yield taken(inputs.outputs, self.report, sealed=self._flow.seals_outputs)
        for stage in self._first:
            if self._level is not None:
                run = inputs.run_of(stage)
                if run is not None:
                    self._level.fold(stage, run)
            elif self._job.top_level >= 1 and (blocks := inputs.blocks_of(stage, self._shuffle)):
                yield Units(1, blocks)
        if self._level is not None:
            yield from self._level.blocks()


def run_serially(
    flow: CompiledFlow,
    job: Job,
    portions: Sequence[Portion],
    read: Callable[[Range], Iterable[Sequence[Message]]],
    stores: Stores,
) -> Iterator[Block]:
    """Run levels 0 to `job.top_level`.

    Returns:
        Blocks of all tasks, with several reports. Units are kept here until their level begins; they are
        given only so that they can be counted.
    """
    units: dict[int, list[ShuffledUnits]] = {}
    for blocks in _tasks(flow, job, portions, read, stores, units):
        for block in blocks:
            if isinstance(block, Units):
                units.setdefault(block.level, []).extend(block.blocks)
            yield block


@dataclass(slots=True)
class Made:
    """What portions give to receivers.

    Attributes:
        outputs: records to publish, in order.
        letters: dead-letter records, which must be acknowledged before them.
        report: of all tasks.
    """

    outputs: list[Output] = field(default_factory=list)
    letters: list[Output] = field(default_factory=list)
    report: Report = field(default_factory=Report)

    def add(self, other: Made) -> None:
        """Take in what other portions give."""
        self.outputs += other.outputs
        self.letters += other.letters
        self.report.add(other.report)


def run_without_stages(
    flow: CompiledFlow,
    job: Job,
    portions: Sequence[Portion],
    read: Callable[[Range], Iterable[Sequence[Message]]],
) -> Made:
    """What a flow without stages makes of portions; nothing is published. Other arguments as `run_serially`."""
    made = Made()
    for block in run_serially(flow, job, portions, read, _no_store):
        if isinstance(block, Outputs):
            (made.letters if block.first else made.outputs).extend(block.records)
        elif isinstance(block, Report):
            made.report.add(block)
    return made


def _no_store(stage: StageNode) -> StateStore:
    raise AssertionError(f"a flow without stages has {stage.name!r}")


def _tasks(
    flow: CompiledFlow,
    job: Job,
    portions: Sequence[Portion],
    read: Callable[[Range], Iterable[Sequence[Message]]],
    stores: Stores,
    units: dict[int, list[ShuffledUnits]],
) -> Iterator[Iterable[Block]]:
    """The blocks of each task; those of a level are asked for when all units of it are there."""
    for task in spread(job, portions):
        reading = Reading(flow, job, stores)
        for portion in task:
            yield reading.read(portion, read(portion.read))
        yield reading.finish()
    for level in range(1, min(len(flow.levels), job.top_level) + 1):
        given = units.pop(level, [])
        if given:
            yield run_level(flow, job, level, in_order(given), stores)
