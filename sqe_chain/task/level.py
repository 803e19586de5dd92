"""The stages of one level, in one state partition: units in, outputs, deeper units and states out."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

from sqe_chain.codecs.registry import codec_of_tag
from sqe_chain.errors import PoisonError, RepeatedPosition, text_of
from sqe_chain.flow.compiled import CompiledFlow, takes_times
from sqe_chain.flow.context import Origin
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stage_kind import CONTEXT, ENVELOPE, StageTask
from sqe_chain.flow.units import Unit
from sqe_chain.ports import Output, StateStore
from sqe_chain.stages.user_code import UserCodeError
from sqe_chain.task.closing import Closing, closing_origin
from sqe_chain.task.collector import Collector
from sqe_chain.task.compiler import Compiler, got
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.fitting import Fitting
from sqe_chain.task.frontier import Taking
from sqe_chain.task.inputs import Inputs
from sqe_chain.task.outputs import Gatherer
from sqe_chain.task.poison import exclusion_of, place_of
from sqe_chain.task.results import Behind, Block, ChangedStates, Job, Report, Stores, UnitRow, Units, taken
from sqe_chain.task.stage_part import StagePart, addressing
from sqe_chain.task.stage_table import PartitionTable
from sqe_chain.task.states import PartitionStates
from sqe_chain.task.ticks import TIMERS, Ticks, is_tick, tick_origin
from sqe_chain.task.trace_links import BlockTraces, CountedTraces

BLOCK = 1_000
"""Units folded at a time after a shuffle."""
_KNOWN_ADDRESSES: Final = 200_000
_WAKES: Final = -1
"""In rows, instead of a stage: the state partition has something to do, though it may get no units."""


class Shuffle:
    """Makes rows of the units that leave a level."""

    def __init__(self, flow: CompiledFlow) -> None:
        self._flow = flow
        self._ways: dict[int, tuple[int, Callable[[Unit], Any], dict[Any, int], Callable[[Any], int]]] = {}

    def _way(self, stage: int) -> tuple[int, Callable[[Unit], Any], dict[Any, int], Callable[[Any], int]]:
        """What units of a stage carry, their addresses, and the state partitions of these: those known, and how to find others.

        Found on demand: most tasks in place need none of it.
        """
        node = self._flow.stage_at(stage)
        address, part_of = addressing(node.traits.spread, self._flow.state_partitions)
        return self._ways.setdefault(stage, (carried_need(self._flow, node), address, {}, part_of))

    def rows(self, stage: int, units: Sequence[Unit]) -> list[UnitRow]:
        """Rows of serialized units, in the same order."""
        need, address, parts, part_of = self._ways.get(stage) or self._way(stage)
        if len(parts) >= _KNOWN_ADDRESSES:
            parts.clear()
        last: Origin | None = None
        carried, topic, partition, offset = b"", "", 0, 0
        rows: list[UnitRow] = []
        for unit in units:
            key, value, tag, path, origin = unit
            if origin is not last:  # units of one input follow each other: pack it once
                carried, last = marshal.dumps(origin.pack(need)), origin  # type: ignore[arg-type]
                (topic, _, partition), offset = origin.tp, origin.offset
            at = address(unit)
            part = parts.get(at, -1)
            if part < 0:
                part = parts[at] = part_of(at)
            rows.append((part, stage, topic, partition, offset, path, key, tag, value, carried))
        return rows


def carried_need(flow: CompiledFlow, stage: StageNode) -> int:
    """What units of a stage must carry of their input through its shuffle; see `Node.needs`."""
    need = CONTEXT if flow.traces else stage.traits.needs
    if stage.traits.order == "times":
        need = max(need, ENVELOPE)
    pending = [*flow.children[stage.index]]
    while pending:
        node = pending.pop()
        need = max(need, node.needs)
        pending += flow.children[node.index]
    return need


class Level:
    """The stages of one level, in one state partition."""

    def __init__(
        self,
        flow: CompiledFlow,
        job: Job,
        level: int,
        part: int,
        stores: Stores,
        report: Report,
        block: BlockTraces | None = None,
    ) -> None:
        self._flow = flow
        self._level = level
        self._part = part
        self._report = report
        self._job = job
        self._suspects = job.suspects
        self._closing, self._ticks = job.sections.find(Closing), job.sections.find(Ticks)
        self._collector = Collector(flow)
        self._gatherer = Gatherer(flow, part, job.topics, job.clock_ms, job.suffix, job.watermarks)
        self._shuffle = Shuffle(flow)
        self._ready: list[Output] = []
        self._compiler = Compiler(
            flow, self._collector, job.clock_ms, frozenset(stage.index for stage in flow.stages)
        )
        self._deeper = [stage.index for stage in flow.stages if flow.depths[stage.index] == level + 1]
        self._wanted = level < job.top_level
        self._traces = CountedTraces(self._collector.made, block, job.suspects) if flow.traces else None
        self._stages: dict[int, StagePart] = {}
        self._fitting: dict[int, Fitting] = {}
        self._failures: dict[tuple[str, int, int], Exclusion] = {}
        self._folding = -1
        self._changing = False  # what comes now is of changes(): no single input is to blame
        for stage in (stage for stages in flow.levels[level - 1 : level] for stage in stages):
            self._stages[stage.index] = self._part_of(stage, job, stores(stage))

    def _part_of(self, stage: StageNode, job: Job, store: StateStore) -> StagePart:
        flow, partitions = self._flow, self._flow.state_partitions
        states = PartitionStates(store, job.transition, stage.name, self._part, (partitions, stage.buckets))
        table = PartitionTable(states)
        emit, drop = self._compiler.after(stage), self._compiler.after(stage, "dropped")
        if self._traces is not None:
            emit = emit and self._traces.noting(stage, emit)
            drop = drop and self._traces.noting(stage, drop)
        task = StageTask(
            name=stage.name,
            declared_at=stage.declared_at,
            table=table,
            now_ms=job.clock_ms,
            emit=emit,
            drop=drop,
            failed=partial(self._fail, stage),
            broken=partial(self._break, stage),
            counts=self._report.dropped,
            changes=any(child.side == "changes" for child in flow.children[stage.index]),
            number=job.transition.before_number + 1,
            reversible=job.with_care,
            suspects=job.suspects,
            closing=None if self._closing is None else closing_origin(stage.name, self._part, self._closing),
        )
        fitting = self._fitting[stage.index] = Fitting(stage, store)
        ordered = takes_times(stage)
        return StagePart(stage, states, table, (self._part, partitions), task, fitting, ordered=ordered)

    def fold(self, stage: int, units: Sequence[Unit]) -> None:
        """Fold units of one stage, in the order of units.

        In place, a key may belong to another state partition: such misplaced keys are counted, and the attempt is
        worth nothing. In a redo too, where this state partition may have nothing left to
        do: theirs may have.
        """
        work = self._stages[stage]
        if stage != self._folding:
            self._gather()
            self._folding = stage
        if self._traces is not None:
            self._traces.count(stage, units)
        self._report.misplaced += work.take(units)
        if self._collector.made:
            self._gather(units[-1][4])

    def refuse(self, stage: int, tag: str, key: bytes, origin: Origin, error: Exception) -> None:
        """An input has a unit that its codec does not read: it has failed, as it does where that is read before it comes here."""
        kind = tag.rpartition(":")[2].rpartition(".")[2]
        node = self._flow.stage_at(stage)
        error.add_note(got(self._flow, node, kind, ", which got"))
        self._fail(node, origin, error, key)

    def blocks(self) -> Iterator[Block]:
        """What is ready so far."""
        if self._ready:
            yield taken(self._ready, self._report)
        if self._wanted:
            for stage in self._deeper:
                units = self._collector.units[stage]
                if units:
                    yield Units(self._level + 1, self._shuffle.rows(stage, units))
                    units.clear()

    def finish(self) -> Iterator[Block]:
        """After the last unit: changed states, and the outputs of `changes()`."""
        for index, work in self._stages.items():
            self._gather()
            stage = self._flow.stage_at(index)
            closes = self._closing is not None and stage.traits.windowed
            if closes or (self._ticks is not None and self._ticks.is_due(stage.name, self._part)):
                work.resume()
            rows = work.changed(self._tick(stage))
            if work.timer_ms is not None:
                self._report.sections.setdefault(TIMERS, {})[stage.name, self._part] = work.timer_ms
            self._gather()
            self._push_changes(stage, work)
            for cell, changed in sorted(rows.items()):
                self._report.touched.append((index, cell))
                if text := self._fitting[index].too_large(changed):
                    self._report.broken.append(f"flow {self._flow.name!r}: {text}")
                yield ChangedStates(self._level, index, cell, changed)
        self._report.failed += self._failures.values()
        if self._traces is not None:
            self._report.traces.append(self._traces.report)
        yield from self.blocks()
        if self._job.wakes and self._wanted and self._deeper:
            yield Units(self._level + 1, wake_rows((self._part,)))

    def _tick(self, stage: StageNode) -> tuple[Origin, int] | None:
        if self._ticks is None or not stage.traits.ticks:
            return None
        tick_ms = self._ticks.tick_ms
        return tick_origin(stage, self._part, tick_ms, self._job.sections.find(Taking)), tick_ms

    def _push_changes(self, stage: StageNode, work: StagePart) -> None:
        """Give changed states to the operators after `changes()`.

        A failure is reported, not raised: the attempt may have failed inputs, and then runs again without them,
        where these operators may succeed.
        """
        push = self._compiler.after(stage, "changes")
        if push is None or Behind in self._job.sections:
            return
        if self._traces is not None:
            push = self._traces.noting(stage, push, of_batch=True)
        self._changing = True
        try:
            work.push_changes(push)
            self._gather()
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            self._break(stage, "the operators after changes()", error)
            self._collector.forget()
        self._changing = False

    def _break(self, stage: StageNode, what: str, error: Exception) -> None:
        if isinstance(error, RepeatedPosition):
            raise error
        self._report_broken(f"{what} of stage {stage.name!r}", error)

    def _report_broken(self, what: str, error: Exception) -> None:
        """Report a failure that no single input is to blame for."""
        where = place_of(self._flow, error)
        self._report.broken.append(
            f"flow {self._flow.name!r}: {what} failed: "
            f"{type(error).__name__}: {text_of(error)}{where}; no single input is to blame: fix "
            "the code, start again"
        )

    def _gather(self, current: Origin | None = None) -> None:
        """Gather outputs, but those of the current input, which may give more; those of suspects are dropped."""
        made, origins = self._collector.made, self._collector.made_of
        end = len(made)
        while end and origins[end - 1].same_input(current):
            end -= 1
        tried = [
            bool(self._suspects) and not self._changing and one.order in self._suspects
            for one in origins[:end]
        ]
        begin, traced = 0, []
        for drop, same in groupby(tried):
            own = slice(begin, begin + len(list(same)))
            numbers, inputs = Inputs.of(origins[own])
            if self._traces is not None and not drop:
                inputs.traces = self._traces.rows(own, numbers)
                traced.append(inputs.traces)
            self._gatherer.gather(
                made[own], numbers, inputs, self._ready, partial(self._refused, begin), keep=not drop
            )
            begin = own.stop
        if self._traces is not None:
            self._traces.gathered(end, traced)
        del made[:end], origins[:end]

    def _refused(self, begin: int, row: int, error: Exception) -> bool:
        """What an input gave cannot be published."""
        if self._changing:
            raise error
        self._fail(None, self._collector.made_of[begin + row], error, None)
        return False

    def _fail(self, stage: StageNode | None, origin: Origin, error: Exception, key: bytes | None) -> None:
        """A unit of a stage has failed, or (None) what was gathered for outputs: its input is left out, or the service stops."""
        if stage is not None:
            self._gather(origin)  # what inputs before it gave may have failed, and is said first
        if is_tick(origin.tp.topic):
            self._report_broken(f"what timers of the batch's clock gave ({origin})", error)
            return
        if self._closing is not None:
            raised = error.raised if isinstance(error, UserCodeError) else error
            where = place_of(self._flow, raised, stage, key)
            raise PoisonError(
                f"flow {self._flow.name!r}: what windows give that are closed at the end of the input ({origin}) cannot be "
                f"processed: {type(raised).__name__}: {text_of(raised)}{where}; nothing was closed: fix the code, "
                "start again"
            ) from error
        exclusion = exclusion_of(self._flow, origin, error, stage, key)
        if not self._job.with_care:
            raise PoisonError(
                f"flow {self._flow.name!r}: {exclusion}: this batch has to be done again with care"
            ) from error
        self._failures.setdefault(origin.order, exclusion)


def wake_rows(parts: Iterable[int]) -> list[UnitRow]:
    """Rows that make state partitions run; they come before all units."""
    return [(part, _WAKES, "", -1, -1, b"", b"", "", b"", b"") for part in parts]


def run_level(
    flow: CompiledFlow, job: Job, level: int, rows: Iterable[UnitRow], stores: Stores
) -> Iterator[Block]:
    """One task after a shuffle: fold the units of one or more state partitions.

    Args:
        flow: the flow.
        job: what all tasks of the attempt have in common.
        level: 1 or more.
        rows: units of whole state partitions, sorted as tuples: by state partition, stage, topic,
            partition, offset, path.
        stores: the store of a stage.

    Returns:
        Blocks; the report is the last one.
    """
    report = Report()
    current: Level | None = None
    part = -1
    pending: list[Unit] = []
    stage = -1
    decode = _Decoder()
    for row in rows:
        # Rows are sorted: a state partition is finished when the next one begins.
        if row[0] != part or row[1] != stage or len(pending) >= BLOCK:
            if current is not None and pending:
                current.fold(stage, pending)
                yield from current.blocks()
                pending = []
            if row[0] != part:
                if current is not None:
                    yield from current.finish()
                part, current = row[0], Level(flow, job, level, row[0], stores, report)
            stage = row[1]
        if stage != _WAKES:
            decode.add(row, pending, current)
    if current is not None:
        if pending:
            current.fold(stage, pending)
        yield from current.finish()
    yield report


class _Decoder:
    """Makes units of rows; units of one input share their origin, within a stage.

    Not across stages: what is carried for one stage may be too little for another.
    """

    def __init__(self) -> None:
        self._origin: Origin | None = None
        self._input: tuple[int, str, int, int] | None = None
        self._decoders: dict[str, Callable[[bytes], Any]] = {}

    def add(self, row: UnitRow, pending: list[Unit], level: Level | None) -> None:
        """Add the unit of a row to others of its stage; if its codec does not read it, its input has failed there."""
        _, stage, topic, partition, offset, path, key, tag, value, carried = row
        source = stage, topic, partition, offset
        if self._origin is None or source != self._input:
            self._origin = Origin.unpack(topic, partition, offset, marshal.loads(carried))  # noqa: S302 - our own rows
            self._input = source
        found = None
        if tag:  # otherwise it is a heartbeat
            decode = self._decoders.get(tag)
            if decode is None:
                decode = self._decoders[tag] = codec_of_tag(tag).decode_own
            try:
                found = decode(value)
            except Exception as error:
                if level is None:
                    raise
                level.fold(stage, pending[:])
                pending.clear()
                level.refuse(stage, tag, key, self._origin, error)
                return
        pending.append((key, found, "", path, self._origin))
