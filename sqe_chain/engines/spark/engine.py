"""Which Spark jobs a batch takes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sqe_chain.engines.spark import tasks
from sqe_chain.engines.spark.rows import FAILURE, ORDER, OUTPUTS, RESULT, SCHEMA, STATES, UNITS, Result
from sqe_chain.engines.spark.session import gist, own_session
from sqe_chain.engines.spark.shipping import PackedFlow, ship
from sqe_chain.engines.spark.tasks import Applied, Work
from sqe_chain.errors import ChainError, ConfigurationError, Unavailable, from_record
from sqe_chain.flow import Flow
from sqe_chain.ports import Header, Log, Output, StateStore
from sqe_chain.segment.level import levels
from sqe_chain.segment.results import Job, Portion, Report, spread

RECORDS_PER_TASK = 10_000
INLINE_BYTES = 64 * 1024

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class SparkEngine:
    """Runs the tasks of a batch on Spark. Implements `protocol.surroundings.Engine`.

    Results of a task that are small come back with its report, and are published and written from here: an
    almost empty batch is one job. Larger ones stay cached where they were made. When a cached result is
    lost with its worker, Spark makes it again from the same ranges, marks and states; a state partition
    that was written meanwhile says so by its header, and gives nothing.

    Args:
        flow: the flow.
        log: where to read and publish; it is pickled, secrets included, with each job.
        stores: store name -> store, "" the default one; pickled like the log, so not one in memory.
        session: a Spark session; it stays the caller's, who stops it.
        shipped: send the user's modules to the workers; False where they are installed.
        records_per_task: behind a shuffle, a task is added for so many records read, up to one for each
            state partition.
        inline_bytes: outputs or states of one task up to so many bytes come back with its report.

    Raises:
        ConfigurationError: Spark is too old, or the flow cannot be sent.
    """

    def __init__(
        self,
        flow: Flow,
        log: Log,
        stores: Mapping[str, StateStore],
        session: SparkSession,
        *,
        shipped: bool = True,
        records_per_task: int = RECORDS_PER_TASK,
        inline_bytes: int = INLINE_BYTES,
    ) -> None:
        self._flow = flow
        self._log = log
        names = {stage.store or "" for stage in flow.stages()}
        self._stores = {name: store for name, store in stores.items() if name in names}
        self._packed = PackedFlow.of(flow)
        self._session = own_session(session)
        if shipped:
            ship(self._session)
        self._records_per_task = records_per_task
        self._inline_bytes = inline_bytes
        self._job: Job | None = None
        self._frames: dict[int, DataFrame] = {}
        self._kept: list[tuple[int, Result]] = []

    def process(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Run all levels in one job; see `Engine.process`."""
        self.release()
        self._job, work = job, self._work(job)
        report = Report()
        if not portions:
            return report
        above = self._reading(partial(tasks.read, work), spread(job, portions)).persist(
            StorageLevel.MEMORY_AND_DISK
        )
        self._frames[0] = above
        width = self._width(portions)
        for level in range(2 if job.in_place else 1, min(levels(self._flow), job.top_level) + 1):
            units = above.filter(sf.col("tag").isin(UNITS, FAILURE)).repartitionById(
                width, sf.col("part") % width
            )
            above = self._mapped(
                units.sortWithinPartitions(*ORDER), partial(tasks.fold, work, level)
            ).persist(StorageLevel.MEMORY_AND_DISK)
            self._frames[level] = above
        found = [
            frame.filter(sf.col("tag") == RESULT).select(sf.lit(level).alias("level"), "blob")
            for level, frame in self._frames.items()
        ]
        try:
            self._kept = self._collected(reduce(DataFrame.union, found))
        except BaseException:
            self.release()
            raise
        for _, result in self._kept:
            if result.report is not None:
                report.add(result.report)
        return report

    def publish(self) -> None:
        """Publish what is cached by one job, and what is here."""
        cached = [
            frame.filter(sf.col("tag").isin(OUTPUTS, FAILURE))
            for level, frame in self._frames.items()
            if any(result.kept_outputs for at, result in self._kept if at == level)
        ]
        if cached and self._job is not None:
            union = reduce(DataFrame.union, cached)
            self._collected(self._mapped(union, partial(tasks.publish, self._work(self._job))))
        self._write([output for _, result in self._kept for output in result.outputs])

    def persist(self, level: int, plan_id: str, before: Mapping[tuple[int, int], Header]) -> int:
        """Write what is cached by one job, and what is here."""
        job = self._job
        if job is None:
            return 0
        applied, rows = Applied(plan_id, before), 0
        at = 0 if level == 1 and job.in_place else level
        results = [result for place, result in self._kept if place == at]
        if any(result.kept_states for result in results):
            cached = self._frames[at].filter(sf.col("tag").isin(STATES, FAILURE))
            task = partial(tasks.write_states, self._work(job), applied)
            rows += sum(result.rows for _, result in self._collected(self._mapped(cached, task)))
        for states in (states for result in results for states in result.states):
            store = self._stores[self._flow.nodes[states.stage].store or ""]
            rows += tasks.apply(self._flow, job, store, states, applied)
        return rows

    def republish(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Read, transform and publish in one job that keeps nothing."""
        report = Report()
        if portions:
            frame = self._reading(partial(tasks.republish, self._work(job)), spread(job, portions))
            for _, result in self._collected(frame):
                if result.report is not None:
                    report.add(result.report)
        return report

    def release(self) -> None:
        """Forget what is cached, without waiting for it."""
        frames, self._frames = self._frames, {}
        self._job, self._kept = None, []
        for level in sorted(frames, reverse=True):
            frames[level].unpersist(blocking=False)

    def _work(self, job: Job) -> Work:
        return Work(
            self._packed, self._log, self._stores, job, self._flow.state_partitions, self._inline_bytes
        )

    def _width(self, portions: Sequence[Portion]) -> int:
        """How many tasks run behind a shuffle. It has no effect on what they compute."""
        records = sum(portion.read.stop - portion.read.start for portion in portions)
        return min(self._flow.state_partitions, 1 + records // self._records_per_task)

    def _reading(self, task: Task, assignments: Sequence[Sequence[Portion]]) -> DataFrame:
        """One Spark task for each list of portions, which it gets as its one row."""
        blobs = [pickle.dumps(portions) for portions in assignments]
        table = pa.table({"blob": pa.array(blobs, pa.binary())})
        return self._mapped(self._session.createDataFrame(table), task)

    def _mapped(self, frame: DataFrame, task: Task) -> DataFrame:
        return frame.mapInArrow(task, SCHEMA)

    def _collected(self, frame: DataFrame) -> list[tuple[int, Result]]:
        """Run a job; gives the level and the result of each task, without the rows it cached.

        Raises:
            ChainError: a task raised it; or Spark gave up.
        """
        named = "level" in frame.columns
        with _spark_errors():
            rows = frame.select("level" if named else sf.lit(0), "blob").collect()
        results = [(level, Result.unpacked(bytes(blob))) for level, blob in rows]
        failures = [from_record(*result.failure) for _, result in results if result.failure is not None]
        for error in failures:
            if not isinstance(error, Unavailable):  # which would only be tried again
                raise error
        if failures:
            raise failures[0]
        return results

    def _write(self, outputs: Sequence[Output]) -> None:
        if not outputs:
            return
        writer = self._log.writer()
        try:
            writer.write(outputs)
            writer.flush()
        finally:
            writer.close()


@contextmanager
def _spark_errors() -> Iterator[None]:
    """What Spark raises is final: it has tried again itself.

    Raises:
        ChainError: Spark gave up on the job, or is gone.
        ConfigurationError: sqe_chain is missing on the workers.
    """
    try:
        yield
    except Exception as error:
        text = gist(error)
        if "No module named 'sqe_chain'" in text:
            raise ConfigurationError(
                "Spark's workers cannot import sqe_chain: install it in their Python, in the driver's version (which "
                "Python they run: spark.pyspark.python, or PYSPARK_PYTHON)"
            ) from error
        raise ChainError(
            f"Spark gave up on a job: {text}. Nothing is lost: start the service again when the cause is mended"
        ) from error
