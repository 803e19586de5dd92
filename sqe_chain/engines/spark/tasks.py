"""The code of tasks on workers: functions from Arrow batches to Arrow batches, called once for each Spark task.

A task returns an error as a row instead of raising it, so that Spark does not retry what cannot succeed.
Spark only retries tasks whose worker died.
"""

from __future__ import annotations

import marshal
import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext

from sqe_chain.engines import task
from sqe_chain.engines.ahead import ahead
from sqe_chain.engines.packing import Setup
from sqe_chain.engines.shared_outputs import SharedFile
from sqe_chain.engines.spark.rows import Packer, TaskResult, blobs_of, results_on, size_of, units_of
from sqe_chain.engines.warming import warm_up
from sqe_chain.errors import ChainError
from sqe_chain.task.level import run_level
from sqe_chain.task.reading import run_serially
from sqe_chain.task.results import Block, ChangedStates, Job, Outputs, Portion, Report

Batches = Iterator[pa.RecordBatch]
_settled: set[str] = set()


@dataclass(frozen=True, slots=True)
class Work(Setup):
    """The arguments of all tasks of an attempt at a batch.

    Attributes:
        inline: at most this many bytes of a task's outputs, or of its states, go with its result.
        shared_file: where tasks put more outputs, if they can; None: nowhere.
    """

    job: Job
    parts: int
    inline: int
    shared_file: SharedFile | None = None


def portions_of(batches: Batches) -> Sequence[Portion]:
    """The portions in this task's only input row."""
    (blob,) = (blob for batch in batches for blob in batch.column("blob").to_pylist())
    portions: Sequence[Portion] = pickle.loads(blob)  # noqa: S301 - made by the driver
    return portions


def read(work: Work, batches: Batches) -> Batches:
    """Run level 0, and level 1 if it needs no shuffle. Consumes one row of portions."""
    results: list[bytes] = []

    def blocks() -> Iterator[Block]:
        return task.blocks_of(work.flow, work.job, portions_of(batches), work.log.read, work.store)

    return _pack(blocks, work, 0, results)


def fold(work: Work, level: int, batches: Batches) -> Batches:
    """Run a level after a shuffle. Consumes sorted rows of units, and passes results on."""
    results: list[bytes] = []

    def blocks() -> Iterator[Block]:
        return run_level(work.flow, work.job, level, units_of(batches, results), work.store)

    return _pack(blocks, work, level, results)


def warm(work: Work, batches: Batches) -> Batches:
    """Warm up this worker. Consumes any row, returns one."""

    def run() -> TaskResult:
        for _ in batches:
            pass
        warm_up(work.flow, work.log, work.store)
        return TaskResult()

    return _single(run, work)


def nothing(work: Work, portions: Sequence[Portion]) -> TaskResult:
    """Do nothing."""
    del work, portions
    return TaskResult()


def pass_on(batches: Batches) -> Batches:
    """Consume rows, and return them."""
    yield from batches


SmallTask = Callable[[Work, Sequence[Portion]], TaskResult]
"""A task that does a small batch alone."""

ARGUMENTS = "sqe-chain.arguments"
"""Local property of a job that holds what its only task works with."""


def small(work: Work, batches: Batches) -> Batches:
    """Do a small batch. Consumes a row without content, returns one row; what to do is in the job's local property `ARGUMENTS`.

    So all small batches are one and the same plan, which Spark makes once: that takes longer than running it.
    """

    def run() -> TaskResult:
        for _ in batches:
            pass
        context = TaskContext.get()
        text = context and context.getLocalProperty(ARGUMENTS)
        if not text:
            raise ChainError(f"the job of a small batch has come without its local property {ARGUMENTS!r}")
        do, job, portions = _unpack_arguments(text)
        return do(replace(work, job=job), portions)

    return _single(run, work)


def pack_arguments(do: SmallTask, job: Job, portions: Sequence[Portion]) -> str:
    """What `small` shall do, as text."""
    return b64encode(pickle.dumps((do, job, portions))).decode("ascii")


def _unpack_arguments(text: str) -> tuple[SmallTask, Job, Sequence[Portion]]:
    arguments: tuple[SmallTask, Job, Sequence[Portion]] = pickle.loads(b64decode(text))  # noqa: S301 - made by the driver
    return arguments


def alone(do: SmallTask, work: Work, batches: Batches) -> Batches:
    """Do a small batch whose arguments are too large for a property. Consumes one row of portions, returns one row."""
    return _single(lambda: do(work, portions_of(batches)), work)


def together(most: int, work: Work, portions: Sequence[Portion]) -> TaskResult:
    """Run all levels of a small batch; with more than `most` bytes of results and units together, the task gives up."""
    result, report, size = TaskResult(), Report(), 0
    for block in run_serially(work.flow, work.job, portions, ahead(work.log, portions), work.store):
        size += size_of(block)
        if size > most:
            return TaskResult(swollen=True)
        if isinstance(block, Outputs):
            result.outputs += block.records
        elif isinstance(block, ChangedStates):
            result.states.append(block)
        elif isinstance(block, Report):
            report.add(block)
    result.report = report
    return result


def republish(work: Work, batches: Batches) -> Batches:
    """Read, transform and publish at once. Consumes one row of portions, returns one when everything is acknowledged."""
    return _single(lambda: republish_portions(work, portions_of(batches)), work)


def republish_portions(work: Work, portions: Sequence[Portion]) -> TaskResult:
    """Read, transform and publish; everything is acknowledged when this returns."""
    return TaskResult(report=task.republish(work.flow, work.job, portions, work.log, work.store))


def publish(work: Work, batches: Batches) -> Batches:
    """Publish cached outputs, in row order. Returns one row when everything is acknowledged."""

    def run() -> TaskResult:
        blobs = (blob for _, _, blob in blobs_of(batches))
        task.publish(work.log, map(marshal.loads, blobs))  # made by a task of this application
        return TaskResult()

    return _single(run, work)


def write_states(work: Work, applied: task.Applied, batches: Batches) -> Batches:
    """Write cached states. Returns one row when everything is acknowledged."""

    def run() -> TaskResult:
        rows = 0
        for states in _states_of(batches):
            rows += task.apply(
                work.flow, work.job, work.store(work.flow.stage_at(states.stage)), states, applied
            )
        return TaskResult(rows=rows)

    return _single(run, work)


def _states_of(batches: Batches) -> Iterator[ChangedStates]:
    """Join the pieces of cut blocks; the rows of one (stage, state partition) are adjacent."""
    current: ChangedStates | None = None
    for part, stage, blob in blobs_of(batches):
        if current is None or (current.part, current.stage) != (part, stage):
            if current is not None:
                yield current
            current = ChangedStates(0, stage, part, [])
        current.rows.extend(marshal.loads(blob))  # noqa: S302 - made by a task of this application
    if current is not None:
        yield current


def _pack(blocks: Callable[[], Iterable[Block]], work: Work, level: int, results: Sequence[bytes]) -> Batches:
    """Run a task; yield its blocks as rows as they come, then the results of upstream tasks."""
    packer = Packer(work.parts, work.inline, level, work.shared_file)
    try:
        each = iter(blocks())
        while True:  # until the task has given its last block
            with task.not_ending():  # not around a yield
                block = next(each, None)
            if block is None:
                break
            yield from packer.add(block)
        yield from packer.finish()
    except Exception as error:  # noqa: BLE001 - sent to the driver as a row
        yield from packer.fail(task.failure_of(error))
    if results:
        yield results_on(results)
    _settle(work)


def _single(run: Callable[[], TaskResult], work: Work) -> Batches:
    """Run a function; yield its result as a row."""
    try:
        with task.not_ending():
            result = run()
    except Exception as error:  # noqa: BLE001 - sent to the driver as a row
        result = TaskResult(failure=task.failure_of(error))
    yield result.pack()
    _settle(work)


def _settle(work: Work) -> None:
    """Make garbage collection rare, once per process and flow: Spark's worker runs a full one after each task."""
    if work.packed.digest not in _settled:
        _settled.add(work.packed.digest)
        task.collect_rarely()
