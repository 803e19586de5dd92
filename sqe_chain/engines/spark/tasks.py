"""The code of tasks on workers: functions from Arrow batches to Arrow batches, called once for each Spark task.

A task returns an error as a row instead of raising it, so that Spark does not retry what cannot succeed.
Spark only retries tasks whose worker died.
"""

from __future__ import annotations

import gc
import marshal
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from sqe_chain.engines.spark.rows import Packer, Result, blobs_of, results_on, size_of, units_of
from sqe_chain.engines.spark.shipping import PackedFlow
from sqe_chain.errors import ChainError, ErrorRecord
from sqe_chain.flow import Flow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Header, Log, Message, Range, StateStore
from sqe_chain.segment.level import run_level
from sqe_chain.segment.reading import Reading
from sqe_chain.segment.results import Block, Job, Outputs, Portion, Report, States
from sqe_chain.segment.serial import run_serially
from sqe_chain.segment.states import persist
from sqe_chain.segment.views import view_of

Batches = Iterator[pa.RecordBatch]
Blocks = Iterator[Sequence[Message]]

_TRACE_LINES = 12
_GC_THRESHOLDS = 50_000, 20, 50  # a task makes many small objects, which mostly hold no others

_READERS = 8

_settled: set[str] = set()


@dataclass(frozen=True, slots=True)
class Work:
    """The arguments of all tasks of an attempt at a batch.

    Attributes:
        packed: the flow.
        log: where to read and publish.
        stores: store name -> store, for the flow's stages.
        job: the attempt.
        parts: number of state partitions.
        inline: at most this many bytes of a task's outputs, or of its states, go with its result.
    """

    packed: PackedFlow
    log: Log
    stores: Mapping[str, StateStore]
    job: Job
    parts: int
    inline: int

    @property
    def flow(self) -> Flow:
        """The flow; unpacked once per process."""
        return self.packed.unpack()

    def store(self, stage: StageNode) -> StateStore:
        """The store of a stage."""
        return self.stores[stage.store or ""]


@dataclass(frozen=True, slots=True)
class Applied:
    """The plan to apply, for writing changed states.

    Attributes:
        plan_id: the plan being applied.
        before: (stage index, cell) -> header before the plan.
    """

    plan_id: str
    before: Mapping[tuple[int, int], Header]


def portions_of(batches: Batches) -> Sequence[Portion]:
    """The portions in this task's only input row."""
    (blob,) = (blob for batch in batches for blob in batch.column("blob").to_pylist())
    portions: Sequence[Portion] = pickle.loads(blob)  # noqa: S301 - made by the driver
    return portions


def read(work: Work, batches: Batches) -> Batches:
    """Run level 0, and level 1 if in place. Consumes one row of portions."""
    results: list[bytes] = []

    def blocks() -> Iterator[Block]:
        reading = Reading(work.flow, work.job, work.store)
        for portion in portions_of(batches):
            yield from reading.read(portion, work.log.read(portion.read))
        yield from reading.finish()

    return _pack(blocks, work, 0, results)


def fold(work: Work, level: int, batches: Batches) -> Batches:
    """Run a level after a shuffle. Consumes sorted rows of units, and passes results on."""
    results: list[bytes] = []

    def blocks() -> Iterator[Block]:
        return run_level(work.flow, work.job, level, units_of(batches, results), work.store)

    return _pack(blocks, work, level, results)


def together(work: Work, most: int, batches: Batches) -> Batches:
    """Run all levels of a small batch in one task. Consumes one row of portions, returns one row.

    Args:
        work: the arguments of all tasks.
        most: limit for results and units together, in bytes; beyond it the task gives up.
        batches: one row with all portions.
    """

    def run() -> Result:
        portions = portions_of(batches)
        result, report, size = Result(), Report(), 0
        for block in run_serially(work.flow, work.job, portions, _ahead(work.log, portions), work.store):
            size += size_of(block)
            if size > most:
                return Result(swollen=True)
            if isinstance(block, Outputs):
                result.outputs += block.records
            elif isinstance(block, States):
                result.states.append(block)
            elif isinstance(block, Report):
                report.add(block)
        result.report = report
        return result

    return _single(run, work)


def _ahead(log: Log, portions: Sequence[Portion]) -> Callable[[Range], Blocks]:
    """A function like `log.read`, but the first block of every range is read at once, in parallel.

    A small batch spends most of its time waiting for brokers.
    """
    if len(portions) == 1:
        return log.read

    def begin(wanted: Range) -> tuple[Sequence[Message], Blocks]:
        blocks = log.read(wanted)
        return next(blocks, ()), blocks

    with ThreadPoolExecutor(_READERS) as pool:
        begun = {portion.read: pool.submit(begin, portion.read) for portion in portions}

    def read(wanted: Range) -> Blocks:
        first, rest = begun.pop(wanted).result()
        yield first
        yield from rest

    return read


def republish(work: Work, batches: Batches) -> Batches:
    """Read, transform and publish at once. Returns one row when everything is acknowledged."""

    def run() -> Result:
        portions = portions_of(batches)
        read = _ahead(work.log, portions)
        reading, report, writer = Reading(work.flow, work.job, work.store), Report(), work.log.writer()
        try:
            for portion in portions:
                for block in reading.read(portion, read(portion.read)):
                    if isinstance(block, Outputs):
                        writer.write(block.records)
            for block in reading.finish():
                if isinstance(block, Outputs):
                    writer.write(block.records)
                elif isinstance(block, Report):
                    report.add(block)
            writer.flush()
        finally:
            writer.close()
        return Result(report=report)

    return _single(run, work)


def publish(work: Work, batches: Batches) -> Batches:
    """Publish cached outputs, in row order. Returns one row when everything is acknowledged."""

    def run() -> Result:
        writer = work.log.writer()
        try:
            for _, _, blob in blobs_of(batches):
                writer.write(marshal.loads(blob))  # noqa: S302 - made by a task of this application
            writer.flush()
        finally:
            writer.close()
        return Result()

    return _single(run, work)


def write_states(work: Work, applied: Applied, batches: Batches) -> Batches:
    """Write cached states. Returns one row when everything is acknowledged."""

    def run() -> Result:
        rows = 0
        for states in _states_of(batches):
            rows += apply(work.flow, work.job, work.store(work.flow.stage_at(states.stage)), states, applied)
        return Result(rows=rows)

    return _single(run, work)


def apply(flow: Flow, job: Job, store: StateStore, states: States, applied: Applied) -> int:
    """Write the changed states of one (stage, state partition); returns the rows written."""
    before = applied.before[states.stage, states.part]
    stage = flow.stage_at(states.stage)
    return persist(
        store, job.transition, applied.plan_id, stage.name, states.part, states.rows, before, view_of(stage)
    )


def _states_of(batches: Batches) -> Iterator[States]:
    """Join the pieces of cut blocks; the rows of one (stage, state partition) are adjacent."""
    current: States | None = None
    for part, stage, blob in blobs_of(batches):
        if current is None or (current.part, current.stage) != (part, stage):
            if current is not None:
                yield current
            current = States(0, stage, part, [])
        current.rows.extend(marshal.loads(blob))  # noqa: S302 - made by a task of this application
    if current is not None:
        yield current


def _pack(blocks: Callable[[], Iterable[Block]], work: Work, level: int, results: Sequence[bytes]) -> Batches:
    """Run a segment; yield its blocks as rows as they come, then the results of upstream tasks."""
    packer = Packer(work.parts, work.inline, level)
    try:
        for block in blocks():
            yield from packer.add(block)
        yield from packer.finish()
    except Exception as error:  # noqa: BLE001 - sent to the driver as a row
        yield from packer.fail(failure_of(error))
    if results:
        yield results_on(results)
    _settle(work)


def _single(run: Callable[[], Result], work: Work) -> Batches:
    """Run a function; yield its result as a row."""
    try:
        result = run()
    except Exception as error:  # noqa: BLE001 - sent to the driver as a row
        result = Result(failure=failure_of(error))
    yield result.pack()
    _settle(work)


def _settle(work: Work) -> None:
    """Exclude the objects that stay (modules, the flow) from garbage collection; once per process and flow.

    Spark's worker runs a full collection after each task. With all loaded modules that takes tens of milliseconds,
    half the time of a small task.
    """
    if work.packed.digest not in _settled:
        _settled.add(work.packed.digest)
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.collect()
        gc.freeze()


def failure_of(error: Exception) -> ErrorRecord:
    """An error as a record for the driver; an unexpected one with the end of its traceback."""
    if isinstance(error, ChainError):
        return error.to_record()
    trace = traceback.format_exception(error)
    text = "".join(trace).strip().splitlines()[-_TRACE_LINES:]
    said = f"a task failed unexpectedly: {type(error).__name__}: {error}\n" + "\n".join(text)
    return ChainError(said).to_record()
