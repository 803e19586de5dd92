"""Rows between tasks: blocks packed into few large rows of one fixed schema, and unpacked again.

A row per message would cost several microseconds in the JVM. So outputs and states are packed as units are
(`engines.units`), about a thousand per row, into one blob.
"""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from sqe_chain.engines.shared_outputs import Place, SharedFile
from sqe_chain.engines.units import BYTES, RECORD_BYTES, ROWS, Key, Packed, UnitPacker, cut, merged
from sqe_chain.errors import ErrorRecord, from_record
from sqe_chain.ports import Output
from sqe_chain.task.results import Block, ChangedStates, Outputs, Report, Units
from sqe_chain.task.shuffling import ShuffledUnits

UNITS, OUTPUTS, STATES, RESULT, FAILURE = range(5)
"""Values of the column `tag`: what a row holds. A failure is sent to all tasks that expect blocks of the failed one."""

SCHEMA = (
    "tag tinyint, part int, stage int, topic string, partition int, offset bigint, path binary, blob binary"
)
"""Columns in Spark's DDL. For units, `part` to `path` are those of the first unit in the blob."""

ORDER = ("part", "stage", "topic", "partition", "offset", "path")
"""The order of units, and of blobs of them."""

_ARROW = pa.schema(
    [
        ("tag", pa.int8()),
        ("part", pa.int32()),
        ("stage", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("path", pa.binary()),
        ("blob", pa.binary()),
    ]
)


@dataclass(slots=True)
class TaskResult:
    """What one task sends to the driver.

    Attributes:
        level: 0 for a reading task, else the level after a shuffle.
        report: the report of its work; None if the task failed, or had none to do.
        outputs: all outputs of the task, if they are few.
        shared: where its outputs are in the service's `SharedOutputs`; they come before the others.
        states: all changed states of the task, if they are few.
        kept_outputs: the cached rows contain outputs.
        kept_states: the cached rows contain changed states.
        rows: number of states written.
        swollen: the task gave up: the batch was too large for one task.
    """

    level: int = 0
    report: Report | None = None
    failure: ErrorRecord | None = None
    outputs: list[Output] = field(default_factory=list)
    shared: list[Place] = field(default_factory=list)
    states: list[ChangedStates] = field(default_factory=list)
    kept_outputs: bool = False
    kept_states: bool = False
    rows: int = 0
    swollen: bool = False

    def pack(self) -> pa.RecordBatch:
        """This result as a row."""
        return results_on([pickle.dumps(self)])

    @staticmethod
    def unpack(blob: bytes) -> TaskResult:
        """The result in a row."""
        result: TaskResult = pickle.loads(blob)  # noqa: S301 - made by `pack`, in this application
        return result


class Packer:
    """Packs the blocks of one task into Arrow batches as they come; buffers a bounded number.

    Up to `inline` bytes of the task's outputs, or of its states, go with its result. More outputs are put at `shared_file`, if there is
    one that takes them. A failure is sent to all state partitions.
    """

    def __init__(self, parts: int, inline: int, level: int, shared_file: SharedFile | None = None) -> None:
        self._parts = parts
        self._inline = inline
        self._level = level
        self._shared_file = shared_file
        self._result = TaskResult(level, Report())
        self._outputs: list[Output] = []
        self._output_size = 0
        self._states: list[ChangedStates] = []
        self._states_size = 0
        self._units = UnitPacker()

    def add(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Take a block; gives what is full."""
        if isinstance(block, Outputs):
            self._outputs += block.records
            self._output_size += size_of(block)
            if len(self._outputs) >= ROWS or self._output_size >= BYTES:
                yield from self._flush_outputs()
        elif isinstance(block, Units):
            yield from _unit_rows(self._units.add(block.blocks))
        elif isinstance(block, ChangedStates):
            self._states.append(block)
            self._states_size += size_of(block)
            if self._result.kept_states or self._states_size > self._inline:
                yield from self._flush_states()
        elif self._result.report is not None:
            self._result.report.add(block)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Call after the last block: the rest, and the result."""
        yield from _unit_rows(self._units.finish())
        if self._result.shared or self._result.kept_outputs or self._output_size > self._inline:
            yield from self._flush_outputs()
        self._result.outputs = self._outputs
        self._result.states = self._states
        yield self._result.pack()

    def fail(self, failure: ErrorRecord) -> Iterator[pa.RecordBatch]:
        """Report a failure to the driver, and to every task that expects blocks of this one."""
        yield TaskResult(self._level, failure=failure).pack()
        blob = pickle.dumps(failure)
        yield _batch([(FAILURE, part, -1, "", -1, -1, b"", blob) for part in range(self._parts)])

    def _flush_outputs(self) -> Iterator[pa.RecordBatch]:
        records, self._outputs, self._output_size = self._outputs, [], 0
        if records and self._shared_file is not None:
            place = self._shared_file.put(records)
            if place is not None:
                self._result.shared.append(place)
                return
            self._shared_file = None  # else the order would be lost
        self._result.kept_outputs |= bool(records)
        sizes = [len(record[3] or b"") + RECORD_BYTES for record in records]
        for piece in cut(records, sizes):
            yield _batch([(OUTPUTS, -1, -1, "", -1, -1, b"", marshal.dumps(piece))])

    def _flush_states(self) -> Iterator[pa.RecordBatch]:
        blocks, self._states = self._states, []
        self._result.kept_states |= bool(blocks)
        for block in blocks:
            sizes = [len(key) + len(state or b"") + RECORD_BYTES for key, state in block.rows]
            for number, piece in enumerate(cut(block.rows, sizes)):
                yield _batch([(STATES, block.part, block.stage, "", -1, number, b"", marshal.dumps(piece))])


def _unit_rows(packed: Iterable[Packed]) -> Iterator[pa.RecordBatch]:
    rows = [(UNITS, *key, blob) for key, blob in packed]
    if rows:
        yield _batch(rows)


def results_on(blobs: Sequence[bytes]) -> pa.RecordBatch:
    """Results as rows that pass through every shuffle, sorted before all units: one job then returns all of them."""
    return _batch([(RESULT, 0, -2, "", -1, -1, b"", blob) for blob in blobs])


def units_of(batches: Iterable[pa.RecordBatch], results: list[bytes]) -> Iterator[ShuffledUnits]:
    """All units of a task after a shuffle, in order.

    Args:
        batches: rows of results, failures and units, sorted by `ORDER`, hence in this order.
        results: the results of upstream tasks are appended here, to be passed on.

    Raises:
        ChainError: an upstream task failed.
    """
    return merged(_packed_units(batches, results))


def _packed_units(batches: Iterable[pa.RecordBatch], results: list[bytes]) -> Iterator[Packed]:
    for tag, first, blob in _blobs(batches):
        if tag == FAILURE:
            raise from_record(*pickle.loads(blob))  # noqa: S301 - made by `fail`, in this application
        if tag == RESULT:
            results.append(blob)
        else:
            yield first, blob


def _blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Key, bytes]]:
    for batch in batches:
        tag, *key, blob = (column.to_pylist() for column in batch.columns)
        yield from zip(tag, zip(*key, strict=True), blob, strict=True)


def blobs_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, bytes]]:
    """State partition, stage and blob of every row that holds outputs or states, in row order.

    Raises:
        ChainError: the task that made these rows failed, so they are incomplete.
    """
    for tag, (part, stage, *_), blob in _blobs(batches):
        if tag == FAILURE:
            raise from_record(*pickle.loads(blob))  # noqa: S301 - made by `fail`, in this application
        yield part, stage, blob


def outputs_in(tag: int, blob: bytes) -> list[Output]:
    """The outputs of a row, as the driver gets it.

    Raises:
        ChainError: the task that made this row failed.
    """
    if tag == FAILURE:
        raise from_record(*pickle.loads(blob))  # noqa: S301 - made by `fail`, in this application
    outputs: list[Output] = marshal.loads(blob)  # noqa: S302 - made by a task of this application
    return outputs


def size_of(block: Block) -> int:
    """Approximate size of a block in bytes."""
    if isinstance(block, Outputs):
        return sum(len(record[3] or b"") + RECORD_BYTES for record in block.records)
    if isinstance(block, ChangedStates):
        return sum(len(key) + len(state or b"") + RECORD_BYTES for key, state in block.rows)
    if isinstance(block, Units):
        return sum(sum(units.sizes) for units in block.blocks)
    return 0


def _batch(rows: list[tuple[int, int, int, str, int, int, bytes, bytes]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
