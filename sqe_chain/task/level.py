"""The stages of one level, in one state partition: units in, outputs, deeper units and states out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeGuard, cast

from sqe_chain.codecs.registry import codec_of_tag
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS
from sqe_chain.errors import PoisonError, RepeatedPosition, text_of
from sqe_chain.errors.outage import raise_outage
from sqe_chain.flow.compiled import CompiledFlow, takes_times
from sqe_chain.flow.context import Origin
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stage_kind import EventTimeSpan, StageTask
from sqe_chain.flow.units import UnitRun
from sqe_chain.ports import Output, StateStore
from sqe_chain.stages.user_code import UserCodeError
from sqe_chain.task.collector import Collector
from sqe_chain.task.compiler import Compiler, got
from sqe_chain.task.digest import of_cell, rows_digest
from sqe_chain.task.event_times import Taking
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.inputs import Given, Inputs, stretches
from sqe_chain.task.noted import take_notes
from sqe_chain.task.outputs import Gatherer
from sqe_chain.task.poison import exclusion_of, place_of
from sqe_chain.task.results import Behind, Block, ChangedStates, Job, Report, Stores, Units, taken
from sqe_chain.task.roots import (
    DUE,
    MISSED,
    TIMERS,
    Closing,
    Moments,
    Ticks,
    closing_origin,
    moment_origin,
    tick_origin,
)
from sqe_chain.task.routes import Header, routes_header
from sqe_chain.task.shuffling import WAKES, DueInputs, Shuffle, ShuffledInputs, ShuffledUnits, wake
from sqe_chain.task.stage_part import PartitionTable, StagePart
from sqe_chain.task.trace_links import BlockTraces, CountedTraces

_NO_UNITS: Final = UnitRun.of(())
BLOCK = 1_000
"""Units folded at a time after a shuffle: as many as Kafka's reader gives at once, so both paths fold blocks of one size."""
Named = Origin | int
"""What a stage names as the input of what it gives: its origin, or after `Level._apply` the number of a unit in that run. Numbers
save making an origin for each unit, because columns mostly know what is asked of inputs. `Level._origin` finds that of either."""


class Level:
    """The stages of one level, in one state partition, in one attempt. Without a shuffle all of a task, else one after the other."""

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
        take_notes(flow, job)
        self._flow = flow
        self._level = level  # 1 or more
        self._part = part
        self._report = report  # of the task: several levels may add to it
        self._job = job
        # Inputs that this attempt takes back: whatever they give is dropped, in outputs here, in states by the stages.
        self._candidates = job.candidates
        # None in most batches. What either causes has no input to blame. A batch that closes windows reads nothing.
        self._closing, self._ticks = job.sections.find(Closing), job.sections.find(Ticks)
        # None in a batch that closes windows, and in the redo of one that an older version has sealed: inputs cause what is due.
        self._moments = None if self._closing is not None else job.sections.find(Moments)
        # What stages gave and nothing took yet. Its `made_of` and the fifth part of its units are `Named`.
        # Invariant: a number among them is of `_run`, since `_apply` makes origins of those of the run before.
        self._collector = Collector(flow)
        self._gatherer = Gatherer(
            flow,
            part,
            job.topics,
            job.clock_ms,
            job.suffix,
            job.watermarks,
            job.revisions,
            _routes(job),
        )
        self._shuffle = Shuffle(flow)
        # Until `blocks` gives them: outputs of inputs that are through; and units for the next level, if it is wanted.
        self._ready: list[Output] = []
        self._leaving: list[ShuffledUnits] = []
        self._compiler = Compiler(
            flow, self._collector, job.clock_ms, frozenset([stage.index for stage in flow.stages])
        )
        self._deeper = [stage.index for stage in flow.stages if flow.depths[stage.index] == level + 1]
        self._wanted = level < job.top_level  # a redo does not run stages that have the plan already
        # Not None: then no stage gets `_apply`, because traces follow origins.
        self._traces = CountedTraces(self._collector.made, block, job.candidates) if flow.traces else None
        self._stages: dict[int, StagePart] = {}
        self._failures: dict[
            tuple[str, int, int], Exclusion
        ] = {}  # by `Origin.order`: the first one of an input is reported
        # The stage whose units came last (-1: none did), and the input of the last one, which may go on in the next run. So its
        # outputs wait until another input comes: all that it gives to one output belongs in one collection.
        self._folding = -1
        self._current: Origin | None = None
        self._run = _NO_UNITS
        self._run_is_due = False  # windows, timers or ends of batches have caused some of its units
        self._changing = False  # what comes now is of changes(): no single input is to blame
        for stage in (stage for stages in flow.levels[level - 1 : level] for stage in stages):
            self._stages[stage.index] = self._part_of(stage, job, stores(stage))

    def _part_of(self, stage: StageNode, job: Job, store: StateStore) -> StagePart:
        flow, partitions = self._flow, self._flow.state_partitions
        layout = partitions, stage.buckets
        table = PartitionTable(store, job.transition, stage.name, self._part, layout)
        emit = self._compiler.after(stage, "", self._origin)
        drop = self._compiler.after(stage, "dropped", self._origin)
        if self._traces is not None:
            emit = emit and self._traces.noting(stage, emit)
            drop = drop and self._traces.noting(stage, drop)
        task = StageTask(
            name=stage.name,
            declared_at=stage.declared_at,
            table=table,
            now_ms=job.clock_ms,
            applies=self._apply if self._traces is None else None,
            emit=emit,
            drop=drop,
            failed=partial(self._fail, stage),
            broken=partial(self._break, stage),
            counts=self._report.dropped,
            changes=any(child.side == "changes" for child in flow.children[stage.index]),
            number=job.transition.before_number + 1,
            reversible=job.with_care,
            candidates=job.candidates,
            closing=None if self._closing is None else closing_origin(stage.name, self._part, self._closing),
            event_time=self._event_time(stage),
        )
        return StagePart(stage, store, table, (self._part, partitions), task, by_places=self.by_places(stage))

    def by_places(self, stage: StageNode) -> bool:
        """Whether a stage gets the units of a batch in the order of their places.

        What follows a stage in which something falls due does: moments and inputs are of different topics, and one causes another.
        """
        return takes_times(stage) or (self._moments is not None and stage.index in self._flow.after_falling)

    def _event_time(self, stage: StageNode) -> EventTimeSpan | None:
        """How far event time comes in the batch, for a stage that goes by it; None: inputs cause what is due."""
        moments = self._moments
        if moments is None or not stage.traits.falls_due:
            return None
        begun_ms, until_ms = moments.begun_ms, moments.until_ms
        # At the end of all input the frontier may be one beyond.
        return EventTimeSpan(
            None if begun_ms is None else min(begun_ms, MAX_TIMESTAMP_MS),
            None if until_ms is None else min(until_ms, MAX_TIMESTAMP_MS),
            moments.late_ms,
            partial(moment_origin, stage.name, self._part),
        )

    def fold(self, stage: int, run: UnitRun) -> None:
        """Fold units of one stage, in the order of units.

        Without a shuffle, a key may belong to another state partition. Such mis-partitioned keys are counted, and the
        attempt is discarded. A redo counts them too: this state partition may have nothing left to do, but theirs may have.
        """
        work = self._stages[stage]
        # Another input begins, so no more of the one before can come: its outputs are complete.
        if stage != self._folding or not run.origin(0).same_input(self._current):
            self._gather()
        self._folding, self._current = stage, run.origin(-1)
        if self._traces is not None:
            self._traces.count(stage, run)
        self._report.mispartitioned += work.take(run)
        if self._collector.made:
            self._gather(self._current)
        self._leave()

    def refuse(self, stage: int, tag: str, key: bytes, origin: Origin, error: Exception) -> None:
        """An input has a unit that its codec does not read: it has failed, as it does where that is read before it comes here."""
        kind = tag.rpartition(":")[2].rpartition(".")[2]
        node = self._flow.stage_at(stage)
        error.add_note(got(self._flow, node, kind, ", which got"))
        self._fail(node, origin, error, key)

    def blocks(self) -> Iterator[Block]:
        """What is ready so far."""
        if self._ready:
            yield taken(self._ready, self._report, sealed=self._flow.seals_outputs)
        if self._leaving:
            yield Units(self._level + 1, self._leaving)
            self._leaving = []

    def _leave(self) -> None:
        """Make blocks of the units that go on to the next level."""
        for stage in self._deeper if self._wanted else ():
            units = self._collector.units[stage]
            if not units:
                continue
            given = [unit[4] for unit in units]
            causes = self._causes_of(given)
            for begin, end, numbers, inputs in self._inputs_of(given):
                own = causes and causes[begin:end]
                self._leaving += self._shuffle.blocks(stage, units[begin:end], numbers, inputs, own)
            units.clear()

    def _causes_of(self, given: Sequence[Named]) -> list[str | None] | None:
        """What has caused each unit, where no input has; None: inputs have caused all of them."""
        if self._run_is_due or not _all_numbers(given):
            return [self._origin(named).cause for named in given]
        return None

    def finish(self) -> Iterator[Block]:
        """After the last unit: changed states, and the outputs of `changes()`."""
        for index, work in self._stages.items():
            self._gather()
            stage = self._flow.stage_at(index)
            closes = self._closing is not None and stage.traits.windowed
            clocks = [clock for clock in (self._ticks, self._moments) if clock is not None]
            if closes or any(clock.is_due(stage.name, self._part) for clock in clocks):
                work.resume()
            rows = work.changed(self._tick(stage))
            for name, known in ((TIMERS, work.timer_ms), (DUE, work.due_ms), (MISSED, work.missed or None)):
                if known is not None:
                    self._report.sections.setdefault(name, {})[stage.name, self._part] = known
            self._gather()
            self._push_changes(stage, work)
            for cell, changed in sorted(rows.items()):
                self._report.touched.append((index, cell))
                if text := work.too_large(changed):
                    self._report.broken.append(f"flow {self._flow.name!r}: {text}")
                self._report.gives[of_cell(stage.name, cell)] = rows_digest(changed)
                yield ChangedStates(self._level, index, cell, changed)
        self._report.failed += self._failures.values()
        self._report.add_ends(self._gatherer.ends())
        if self._traces is not None:
            self._report.traces.append(self._traces.report)
        if self._collector.made:
            raise AssertionError(
                f"level {self._level}, state partition {self._part}: outputs were left behind"
            )
        self._leave()
        yield from self.blocks()
        # The next level may get no unit here, and still have timers or windows that are due in this state partition.
        if self._part in self._job.woken(self._flow.state_partitions) and self._wanted and self._deeper:
            yield Units(self._level + 1, wake((self._part,)))

    def _tick(self, stage: StageNode) -> tuple[Origin, int] | None:
        if self._ticks is None or not stage.traits.ticks:
            return None
        tick_ms = self._ticks.tick_ms
        return tick_origin(stage.name, self._part, tick_ms, self._job.sections.find(Taking)), tick_ms

    def _push_changes(self, stage: StageNode, work: StagePart) -> None:
        """Give changed states to the operators after `changes()`.

        A failure is reported, not raised: the attempt may have failed inputs, and then runs again without them,
        where these operators may succeed.
        """
        push = self._compiler.after(stage, "changes", self._origin)
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

    def _report_broken(
        self, what: str, error: Exception, stage: StageNode | None = None, key: bytes | None = None
    ) -> None:
        """Report a failure that no single input is to blame for; the first one is enough."""
        raise_outage(error, what)
        if self._report.broken:
            return
        where = place_of(self._flow, error, stage, key, named=what)
        self._report.broken.append(
            f"flow {self._flow.name!r}: {what} failed: "
            f"{type(error).__name__}: {text_of(error)}{where}; no single input is to blame: fix "
            "the code, start again"
        )

    def _apply(self, run: UnitRun) -> None:
        """From now on a stage names, by their numbers, units of this run as inputs."""
        # Before `_run` changes: what is not taken yet names units of the run before by their numbers.
        self._leave()
        if self._collector.made:
            self._gather(run.origin(0))
        given = self._collector.made_of
        given[:] = map(self._origin, given)
        self._run = run
        self._run_is_due = any(issubclass(kind, DueInputs) for kind in set(map(type, run.sources)))

    def _origin(self, given: Named) -> Origin:
        """What a stage has named as the input of what it gives."""
        return given if isinstance(given, Origin) else self._run.origin(given)

    def _inputs_of(self, given: Sequence[Named]) -> Given:
        """The inputs of what stages have given, side by side if all of it comes from one block; see `Records.inputs_of`."""
        if given and _all_numbers(given):
            run = self._run
            source = run.sources[given[0]]
            # All of the run is of one block: then the numbers of its records are enough, and no origin is made.
            if run.sources.count(source) == len(run):
                return cast("Given", source.inputs_of(list(map(run.numbers.__getitem__, given))))
        return [(0, len(given), *Inputs.of(map(self._origin, given)))] if given else []

    def _gather(self, current: Origin | None = None) -> None:
        """Gather outputs, but those of the current input, which may give more; those of candidates are dropped."""
        made, given = self._collector.made, self._collector.made_of
        end = len(made)
        if not made:
            return
        while end and self._origin(given[end - 1]).same_input(current):
            end -= 1
        # These stay until the next run, in which their numbers would mean other units.
        given[end:] = map(self._origin, given[end:])
        traced = []
        for begin, _, numbers, inputs in self._inputs_of(given[:end]):
            tried = frozenset[int]()
            if self._candidates and not self._changing:
                tried = frozenset(
                    number for number in numbers if inputs.origin(number).order in self._candidates
                )
            for first, stop, drop in stretches(numbers, tried):
                own = slice(begin + first, begin + stop)
                failed = partial(self._refused, begin + first, numbers[first:stop], inputs)
                if self._traces is not None and not drop:
                    inputs.traces = self._traces.rows(own, numbers[first:stop])
                    traced.append(inputs.traces)
                self._gatherer.gather(
                    made[own], numbers[first:stop], inputs, self._ready, failed, keep=not drop
                )
        if self._traces is not None:
            self._traces.gathered(end, traced)
        del made[:end], given[:end]

    def _refused(
        self, begin: int, numbers: Sequence[int], inputs: Inputs, row: int, error: Exception
    ) -> bool:
        """Outputs under an input, from a row on, cannot be published: it is to blame if its own cannot be published alone."""
        if self._changing:
            raise error
        made, end = self._collector.made, row + 1
        # All that this input gave: it is published as a whole or not at all.
        while end < len(numbers) and numbers[end] == numbers[row]:
            end += 1
        rows = slice(begin + row, begin + end)
        origins = list(map(self._origin, self._collector.made_of[rows]))
        origin = next((origin for origin in origins if origin.cause is not None), origins[0])
        # An input and a window may both have given something here. The input is to blame only if its own part is
        # refused alone.
        own = [at for at, of in enumerate(origins) if of.cause is None]
        if own and origin.cause is not None:
            why = self._gatherer.refusal([made[rows][at] for at in own], numbers[row], inputs)
            origin, error = (origin, error) if why is None else (origins[own[0]], why)
        self._fail(None, origin, error, None)
        return False

    def _fail(self, stage: StageNode | None, origin: Origin, error: Exception, key: bytes | None) -> None:
        """A unit of a stage has failed, or (None) an output: its input is skipped, or the service stops if it is not to blame."""
        if stage is not None:
            self._gather(origin)  # what inputs before it gave may have failed, and is reported first
        raised = error.raised if isinstance(error, UserCodeError) else error
        raise_outage(raised, str(origin))
        if self._closing is not None:
            where = place_of(self._flow, raised, stage, key)
            raise PoisonError(
                f"flow {self._flow.name!r}: results of windows that close at the end of the input ({origin}) cannot be "
                f"processed: {type(raised).__name__}: {text_of(raised)}{where}. Nothing was closed. Fix the code, "
                "then start again"
            ) from error
        if origin.cause is not None:
            self._report_broken(f"what came of {origin.cause}", raised, stage, key)
            if self._flow.poison == "stop":  # the first failure is named, of whatever
                raise PoisonError(self._report.broken[0]) from raised
            return
        exclusion = exclusion_of(self._flow, origin, error, stage, key)
        if not self._job.with_care:
            raise PoisonError(
                f"flow {self._flow.name!r}: {exclusion}: this batch has to be repeated with care"
            ) from error
        self._failures.setdefault(origin.order, exclusion)


def _routes(job: Job) -> Header | None:
    """The header of records whose chains name no topics, with what the flow knew as the batch began: the same in a redo."""
    taking = job.sections.find(Taking)
    return None if taking is None or taking.routes is None else routes_header(taking.routes)


def _all_numbers(given: Sequence[Named]) -> TypeGuard[Sequence[int]]:
    """Whether units of `Level._run` have given all of it; then none needs an origin."""
    return set(map(type, given)) == {int}


def run_level(
    flow: CompiledFlow, job: Job, level: int, units: Iterable[ShuffledUnits], stores: Stores
) -> Iterator[Block]:
    """One task after a shuffle: fold the units of one or more state partitions.

    Args:
        flow: the flow.
        job: what all tasks of the attempt have in common.
        level: 1 or more.
        units: those of whole state partitions, sorted by state partition, stage, topic, partition, offset, path.
        stores: the store of a stage.

    Returns:
        Blocks; the report is the last one.
    """
    report, decoders = Report(), dict[str, Callable[[bytes], Any]]()
    for part, of_part in groupby(units, key=lambda block: block.place[0]):
        current = Level(flow, job, level, part, stores, report)
        for stage, own in groupby(of_part, key=lambda block: block.place[1]):
            if stage != WAKES:
                for run in _runs(flow.stage_at(stage), own, current, decoders):
                    current.fold(stage, run)
                    yield from current.blocks()
        yield from current.finish()
    yield report


def _runs(
    stage: StageNode,
    blocks: Iterable[ShuffledUnits],
    level: Level,
    decoders: dict[str, Callable[[bytes], Any]],
) -> Iterator[UnitRun]:
    """The units of a stage, about `BLOCK` together; if a codec does not read one, its input has failed in the stage."""
    pending: list[UnitRun] = []
    for whole in blocks:
        for start in range(0, len(whole.keys), BLOCK):
            units = whole if len(whole.keys) <= BLOCK else whole.only(slice(start, start + BLOCK))
            values, failures = _read(units, decoders)
            run, begin = ShuffledInputs(units).run(values, timed=level.by_places(stage)), 0
            for index, error in failures.items():
                # Failures are reported in the order of inputs, so what lies before this one is folded first.
                if begin < index or pending:
                    yield UnitRun.joined([*pending, run[begin:index]])
                pending.clear()
                level.refuse(stage.index, units.tags[index], units.keys[index], run.origin(index), error)
                begin = index + 1
            if begin < len(run):
                pending.append(run[begin:] if begin else run)
            if sum(map(len, pending)) >= BLOCK:
                yield UnitRun.joined(pending)
                pending.clear()
    if pending:
        yield UnitRun.joined(pending)


def _read(
    units: ShuffledUnits, decoders: dict[str, Callable[[bytes], Any]]
) -> tuple[list[Any], dict[int, Exception]]:
    """The values of units, None of a heartbeat; and index -> why a value cannot be read."""
    values, failures = list[Any](), dict[int, Exception]()
    last, decode = "", cast("Callable[[bytes], Any]", _nothing)
    for index, (tag, data) in enumerate(zip(units.tags, units.values, strict=True)):
        # Tags of a block are mostly one object, so identity saves the lookup. Another object of the same text only
        # looks again.
        if tag is not last:
            last = tag
            decode = _nothing
            if tag:
                decode = decoders.get(tag) or decoders.setdefault(tag, codec_of_tag(tag).decode_own)
        try:
            values.append(decode(data))
        except Exception as error:  # noqa: BLE001 - whatever a codec raises
            values.append(None)
            failures[index] = error
    return values, failures


def _nothing(data: bytes) -> None:
    del data
