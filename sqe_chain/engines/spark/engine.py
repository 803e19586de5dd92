"""The engine on Spark: the jobs of a batch."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sqe_chain.engines.packing import Setup
from sqe_chain.engines.shared_outputs import SharedOutputs
from sqe_chain.engines.spark import tasks
from sqe_chain.engines.spark.rows import (
    FAILURE,
    ORDER,
    OUTPUTS,
    RESULT,
    SCHEMA,
    STATES,
    UNITS,
    TaskResult,
    outputs_in,
)
from sqe_chain.engines.spark.session import gist, is_connect, is_gone, own_session, tasks_at_once
from sqe_chain.engines.spark.shipping import ship
from sqe_chain.engines.spark.tasks import SmallTask, Work
from sqe_chain.engines.task import Applied, apply_all, publish, raise_first, records_in
from sqe_chain.engines.warming import connect
from sqe_chain.errors import ChainError, ConfigurationError, EngineLost
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Header, Log, Output, StateStore
from sqe_chain.task.results import Job, Portion, Report, spread
from sqe_chain.task.states import Claim, Transition

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Tuning:
    """Numbers that change how fast the engine is, not what it does.

    Attributes:
        inline_bytes: at most this many bytes of a task's outputs, or of its states, are returned with its report.
        records_per_task: after a shuffle there is one task for each this many records read, at most one for
            each state partition.
        small_records: a batch of at most this many records is small: one task does it all. A spread batch costs 0.2 s more before
            its first record, which more cores win back only beyond this.
        small_bytes: the same limit in bytes, for the values read and for the results.
        property_bytes: at most this many bytes of arguments go with a small batch's job as a local property.
    """

    inline_bytes: int = 256 * 1024
    records_per_task: int = 10_000
    small_records: int = 20_000
    small_bytes: int = 16 << 20
    property_bytes: int = 1 << 20


_DEFAULTS = Tuning()
_NO_JOB = Job(Transition("", Claim(0, ""), 0, ""), 0)
_WARM_TASKS = 64
_STORED = StorageLevel.MEMORY_AND_DISK


class SparkEngine:
    """Runs the tasks of a batch on Spark. Implements `plans.environment.Engine`.

    A small batch is one task: it waits for all partitions at the same time, needs no shuffle, and returns all
    results with the report. The driver publishes and writes them. A larger batch is spread over tasks. Then only
    small results are returned, the others stay cached on their workers. If a cached result is lost with its
    worker, Spark computes it again from the same ranges, marks and states. A state partition that was written
    since then has a newer header, and is skipped.

    Args:
        flow: the flow.
        log: where to read and publish; it is pickled, secrets included, with each job.
        stores: store name -> store, "" the default one; pickled like the log, so not one in memory.
        session: a Spark session; the caller stops it, on Spark Connect by `close_session`.
        shipped: send the user's modules to the workers; False if they are installed there.

    Raises:
        ConfigurationError: Spark is too old, or the flow cannot be sent.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        log: Log,
        stores: Mapping[str, StateStore],
        session: SparkSession,
        *,
        shipped: bool = True,
        tuning: Tuning = _DEFAULTS,
    ) -> None:
        self._flow = flow
        self._log = log
        self._setup = Setup.of(flow, log, stores)
        with _spark_errors():
            self._session = own_session(session)
            if shipped:
                ship(self._session)
        self._tuning = tuning
        # Of the batch that is under way; without one `_job` is None and the others are empty. Level -> its cached tasks, and what
        # these have returned to the driver.
        self._job: Job | None = None
        self._frames: dict[int, DataFrame] = {}
        self._results: list[TaskResult] = []
        self._shared = SharedOutputs(wanted=flow.transactional)
        # Learned: the limit falls when a batch that seemed small was not, and the size of a record is that of the
        # last batch.
        self._small_records = tuning.small_records
        self._record_bytes = 0.0
        self._small_frame: DataFrame | None = None  # one plan for all small batches; see docs/non-obvious.md

    def warm_up(self) -> None:
        # As many workers as run at the same time, and the plans of small and of large batches
        connect(self._flow, self._log, self._setup.store)
        work = self._work(_NO_JOB)
        with _spark_errors():
            at_once = min(tasks_at_once(self._session), _WARM_TASKS)
            frame = self._reading(partial(tasks.warm, work), [()] * at_once).persist(_STORED)
            passed_on = _ordered(frame, 1).mapInArrow(tasks.pass_on, SCHEMA).persist(_STORED)
            try:
                _collect(_tagged(passed_on, RESULT).select("blob"))
            finally:
                passed_on.unpersist(blocking=False)
                frame.unpersist(blocking=False)
            self._alone(tasks.nothing, work, ())

    def process(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Run all levels in one job; see `Engine.process`."""
        self.release()
        self._shared.begin()
        self._job, work = job, self._work(job)
        if not portions:
            return Report()
        try:
            with _spark_errors():
                if self._small(portions):
                    self._results = self._together(work, portions)
                if not self._results:
                    self._results = self._spread(work, portions)
        except BaseException as error:
            if not isinstance(error, EngineLost):  # without Spark there is nothing to release
                self.release()
            raise
        self._shared.places = [place for result in self._results for place in result.shared]
        return self._report(self._results)

    def publish(self) -> None:
        """Publish cached outputs by one job, and those on the driver from here."""
        if self._job is None:
            return
        kept = {result.level for result in self._results if result.kept_outputs}
        if kept:
            task = partial(tasks.publish, self._work(self._job))
            with _spark_errors():
                cached = [_tagged(self._frames[level], OUTPUTS, FAILURE) for level in sorted(kept)]
                _collect(reduce(DataFrame.union, cached).mapInArrow(task, SCHEMA))
        outputs = [output for result in self._results for output in result.outputs]
        if outputs:
            publish(self._log, [outputs])

    def outputs(self) -> Iterator[Sequence[Output]]:
        """Outputs come to the driver, a task's at a time: one producer writes a transaction."""
        yield from self._shared.blocks()
        for level in sorted({result.level for result in self._results if result.kept_outputs}):
            frame = _tagged(self._frames[level], OUTPUTS, FAILURE).select("tag", "blob")
            with _spark_errors():
                for row in frame.toLocalIterator():
                    yield outputs_in(row.tag, bytes(row.blob))
        for result in self._results:
            if result.outputs:
                yield result.outputs

    def persist(self, level: int, plan_id: str, before: Mapping[tuple[int, int], Header]) -> int:
        """Write cached states by one job, and those on the driver from here."""
        job = self._job
        if job is None:
            return 0
        applied, rows = Applied(plan_id, before), 0
        at = 0 if level == 1 and job.in_place else level
        if any(result.kept_states for result in self._results if result.level == at):
            task = partial(tasks.write_states, self._work(job), applied)
            with _spark_errors():
                cached = _tagged(self._frames[at], STATES, FAILURE)
                rows += sum(result.rows for result in _collect(cached.mapInArrow(task, SCHEMA)))
        states = [changed for result in self._results for changed in result.states if changed.level == level]
        return rows + apply_all(self._flow, job, self._setup.store, states, applied)

    def republish(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Read, transform and publish in one job that keeps nothing."""
        if not portions:
            return Report()
        work = self._work(job)
        with _spark_errors():
            if self._small(portions):
                return self._report(self._alone(tasks.republish_portions, work, portions))
            frame = self._reading(partial(tasks.republish, work), spread(job, portions))
            return self._report(_collect(frame))

    def release(self) -> None:
        """Drop cached results, without waiting for Spark to do it."""
        frames, self._frames = self._frames, {}
        self._job, self._results = None, []
        self._shared.release()
        with _spark_errors():
            for level in sorted(frames, reverse=True):
                frames[level].unpersist(blocking=False)

    def _report(self, results: Sequence[TaskResult]) -> Report:
        report = Report()
        for result in results:
            report.add(result.report or Report())
        if report.inputs:
            self._record_bytes = sum(end.size for end in report.ends) / report.inputs
        return report

    def _small(self, portions: Sequence[Portion]) -> bool:
        """Whether one task is enough. After a batch that was larger than expected, the limit is lower."""
        records = records_in(portions)
        return records <= self._small_records and records * self._record_bytes <= self._tuning.small_bytes

    def _together(self, work: Work, portions: Sequence[Portion]) -> list[TaskResult]:
        """Run one task for everything; [] if it gave up because there was too much."""
        ordered = [portion for task in spread(work.job, portions) for portion in task]
        results = self._alone(partial(tasks.together, self._tuning.small_bytes), work, ordered)
        if any(result.swollen for result in results):
            self._small_records = records_in(portions) // 2
            return []
        return results

    def _alone(self, do: SmallTask, work: Work, portions: Sequence[Portion]) -> list[TaskResult]:
        """Run one task for a small batch. Spark makes its plan once: what to do goes with the job, as a local property."""
        arguments = tasks.pack_arguments(do, work.job, portions)
        if len(arguments) > self._tuning.property_bytes or not _pinned() or is_connect(self._session):
            return _collect(self._reading(partial(tasks.alone, do, work), [portions]))
        if self._small_frame is None:
            self._small_frame = self._reading(partial(tasks.small, replace(work, job=_NO_JOB)), [()])
        context: Any = self._session.sparkContext  # its stubs do not know that None removes a property
        context.setLocalProperty(tasks.ARGUMENTS, arguments)
        try:
            return _collect(self._small_frame)
        finally:
            context.setLocalProperty(tasks.ARGUMENTS, None)

    def _spread(self, work: Work, portions: Sequence[Portion]) -> list[TaskResult]:
        """Run a task for each input partition, and tasks after each shuffle; cache their results."""
        width = min(self._flow.state_partitions, 1 + records_in(portions) // self._tuning.records_per_task)
        frame = self._reading(partial(tasks.read, work), spread(work.job, portions)).persist(_STORED)
        self._frames[0] = frame
        top = min(len(self._flow.levels), work.job.top_level)
        for level in range(2 if work.job.in_place else 1, top + 1):
            task = partial(tasks.fold, work, level)
            frame = _ordered(frame, width).mapInArrow(task, SCHEMA).persist(_STORED)
            self._frames[level] = frame
        return _collect(_tagged(frame, RESULT).select("blob"))

    def _work(self, job: Job) -> Work:
        own = self._setup
        parts, inline = self._flow.state_partitions, self._tuning.inline_bytes
        return Work(own.packed, own.log, own.stores, job, parts, inline, self._shared.file)

    def _reading(self, task: Task, assignments: Sequence[Sequence[Portion]]) -> DataFrame:
        """A frame with one Spark task for each list of portions; a task gets its list as its only row."""
        blobs = [pickle.dumps(portions) for portions in assignments]
        table = pa.table({"blob": pa.array(blobs, pa.binary())})
        return self._session.createDataFrame(table).mapInArrow(task, SCHEMA)


def _pinned() -> bool:
    """Whether each thread of this process has its own in Java: local properties belong to that."""
    return os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"


def _tagged(frame: DataFrame, *tags: int) -> DataFrame:
    return frame.where(f"tag in ({', '.join(map(str, tags))})")


def _ordered(frame: DataFrame, width: int) -> DataFrame:
    """Units for the next level, by state partition and in their order, over `width` tasks."""
    rows = _tagged(frame, UNITS, RESULT, FAILURE).repartitionById(width, sf.expr(f"part % {width}"))
    return rows.sortWithinPartitions(*ORDER)


def _collect(frame: DataFrame) -> list[TaskResult]:
    """Run a job whose rows are results; raises what a task raised."""
    with _spark_errors():
        rows = frame.collect()
    results = [TaskResult.unpack(bytes(row.blob)) for row in rows]
    raise_first(result.failure for result in results if result.failure is not None)
    return results


@contextmanager
def _spark_errors() -> Iterator[None]:
    """Translate Spark's errors. They are final: Spark has retried already."""
    try:
        yield
    except ChainError:
        raise
    except Exception as error:
        if is_gone(error):
            raise EngineLost(
                "Spark's Java process is gone: it was killed, or ran out of memory. Nothing is lost: start the service again, "
                "it continues where this run ended"
            ) from error
        text = gist(error)
        if "No module named 'sqe_chain'" in text:
            raise ConfigurationError(
                "Spark's workers cannot import sqe_chain: install it in their Python, in the driver's version (which "
                "Python they run: spark.pyspark.python, or PYSPARK_PYTHON)"
            ) from error
        raise ChainError(
            f"Spark gave up on a job: {text}. Nothing is lost: fix the cause and start the service again"
        ) from error
