"""Blocks packed into rows are unpacked completely and in order, however they were shuffled; no Spark runs here."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.engines import units as module
from sqe_chain.engines.shared_outputs import SharedFile, SharedOutputs
from sqe_chain.engines.spark.rows import (
    FAILURE,
    ORDER,
    OUTPUTS,
    RESULT,
    STATES,
    Packer,
    TaskResult,
    blobs_of,
    units_of,
)
from sqe_chain.engines.units import cut
from sqe_chain.errors import GapError
from sqe_chain.ports import Output
from sqe_chain.task.results import ChangedStates, Outputs, Report, Units
from tests.support.unit_rows import UnitRow, blocks_of, rows_of


def unit(part: int, stage: int, topic: str, partition: int, offset: int, path: bytes) -> UnitRow:
    return (
        part,
        stage,
        topic,
        partition,
        offset,
        path,
        b"key",
        "type",
        b"value" * 3,
        "a window" if offset % 2 else None,
        (),
    )


def shuffled(tasks: list[list[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The input of one task after a shuffle, from all upstream tasks: one sorted stream, in batches."""
    table = pa.Table.from_batches([batch for batches in tasks for batch in batches])
    wanted = [tag not in (OUTPUTS, STATES) for tag in table.column("tag").to_pylist()]
    ordered = table.filter(pa.array(wanted)).sort_by([(name, "ascending") for name in ORDER])
    yield from ordered.to_batches(max_chunksize=7)


def packed(packer: Packer, blocks: list[Outputs | Units | ChangedStates | Report]) -> list[pa.RecordBatch]:
    batches = [batch for block in blocks for batch in packer.add(block)]
    return batches + list(packer.finish())


def result_of(batches: list[pa.RecordBatch]) -> TaskResult:
    (blob,) = (
        blob
        for batch in batches
        for tag, blob in zip(batch.column("tag").to_pylist(), batch.column("blob").to_pylist(), strict=True)
        if tag == RESULT
    )
    return TaskResult.unpack(blob)


places = st.tuples(
    st.integers(0, 1),
    st.integers(1, 2),
    st.sampled_from(["a", "a.b"]),
    st.sampled_from([0, 12]),
    st.integers(0, 9) | st.integers(0, 1 << 40),
    st.binary(min_size=4, max_size=12),
)


@settings(deadline=None)
@given(st.lists(st.sets(places, max_size=60), max_size=5), st.integers(1, 9))
def test_units_of_many_tasks_come_in_the_order_of_tuples(
    tasks: list[set[tuple[int, ...]]], size: int
) -> None:
    """The runs of several tasks may overlap in any way; the result equals sorting everything."""
    seen: set[tuple[int, ...]] = set()
    runs = []
    for task in tasks:
        runs.append(sorted(unit(*place) for place in task - seen))  # type: ignore[arg-type] # no unit is in two tasks
        seen |= task
    rows = []
    for run in runs:
        blocks: list[Outputs | Units | ChangedStates | Report] = [
            Units(1, blocks_of(run[start : start + size])) for start in range(0, len(run), size)
        ]
        with mock.patch.object(module, "ROWS", size):  # many small blobs
            rows.append(packed(Packer(4, 0, 0), blocks))
    results: list[bytes] = []
    expected = sorted(row for run in runs for row in run)
    assert rows_of(units_of(shuffled(rows), results) if rows else []) == expected
    assert len(results) == len(tasks), "one result of each task goes through"


def test_units_beyond_what_is_held_are_given_at_once() -> None:
    packer = Packer(1, 0, 0)
    rows = [unit(0, 1, "t", 0, offset, b"\0\0\0\0") for offset in range(25_000)]
    given_early = [
        batch
        for start in range(0, 25_000, 500)
        for batch in packer.add(Units(1, blocks_of(rows[start : start + 500])))
    ]
    assert sum(batch.num_rows for batch in given_early) >= 20
    assert rows_of(units_of(shuffled([given_early + list(packer.finish())]), [])) == rows


def test_a_failure_reaches_every_task_behind_the_shuffle_before_any_unit() -> None:
    packer = Packer(3, 0, 0)
    early = list(packer.add(Units(1, blocks_of(unit(2, 1, "t", 0, n, b"\0\0\0\0") for n in range(1_000)))))
    failed = list(packer.fail(("GapError", "a hole", None, None, None)))
    assert early
    for part in range(3):
        batches = [
            batch.filter(pa.array([row == part for row in batch.column("part").to_pylist()]))
            for batch in early + failed
        ]
        units = units_of(shuffled([batches]), [])
        with pytest.raises(GapError, match="a hole"):
            next(units)
    with pytest.raises(GapError, match="a hole"):
        list(blobs_of(batch for batch in failed if set(batch.column("tag").to_pylist()) == {FAILURE}))


def record(size: int) -> Output:
    return "t", 0, b"k", b"v" * size, None, 1


def test_small_results_come_with_the_report_and_large_ones_as_rows() -> None:
    small = packed(
        Packer(1, 10_000, 0),
        [Outputs([record(5)]), ChangedStates(1, 3, 0, [(b"k", b"s")]), Report(mispartitioned=1)],
    )
    assert len(small) == 1
    result = result_of(small)
    assert result.outputs == [record(5)]
    assert result.states == [ChangedStates(1, 3, 0, [(b"k", b"s")])]
    assert result.report == Report(mispartitioned=1)
    assert not result.kept_outputs
    assert not result.kept_states

    states = [(b"%06d" % n, b"s" * 50 if n % 3 else None) for n in range(5_000)]
    large = packed(
        Packer(1, 10_000, 0),
        [*(Outputs([record(100)] * 700) for _ in range(4)), ChangedStates(1, 3, 2, states)],
    )
    result = result_of(large)
    assert (result.outputs, result.states) == ([], [])
    assert result.kept_outputs
    assert result.kept_states
    assert sum(batch.num_rows for batch in large) >= 8


def test_large_outputs_are_handed_over_in_order_and_need_no_rows() -> None:
    shared = SharedOutputs(wanted=True)
    shared.begin()
    outputs = [record(number) for number in range(3_500)]
    found = packed(Packer(1, 0, 0, shared.file), [Outputs(outputs[:1_700]), Outputs(outputs[1_700:])])
    assert len(found) == 1
    result = result_of(found)
    shared.places = result.shared
    assert [output for block in shared.blocks() for output in block] == outputs
    assert not result.outputs
    assert not result.kept_outputs


def test_once_outputs_cannot_be_handed_over_the_others_of_the_task_are_not_either() -> None:
    """What is handed over is published before all rows, so it must be the first that the task has made."""
    shared = SharedOutputs(wanted=True)
    shared.begin()
    elsewhere = iter([False, True, False])

    class Sometimes(SharedFile):
        def put(self, outputs: list[Output]) -> tuple[int, int] | None:
            return None if next(elsewhere) else super().put(outputs)

    assert shared.file is not None
    shared_file = Sometimes(shared.file.path, shared.file.label)
    blocks = [Outputs([record(number)] * 1_000) for number in range(3)]
    found = packed(Packer(1, 0, 0, shared_file), [*blocks])
    result = result_of(found)
    shared.places = result.shared
    assert list(shared.blocks()) == [blocks[0].records]
    assert result.kept_outputs
    # Not their bytes: whether an object is marked as one that may come again depends on who holds it, and on the Python.
    rows = [marshal.loads(blob) for _, _, blob in blobs_of(batch for batch in found if _is_output(batch))]  # noqa: S302 - made here
    assert rows == [block.records for block in blocks[1:]]


def _is_output(batch: pa.RecordBatch) -> bool:
    return set(batch.column("tag").to_pylist()) == {OUTPUTS}


def test_rows_are_bounded_in_number_and_bytes_and_a_large_record_stands_alone() -> None:
    assert [len(piece) for piece in cut(list(range(2_500)), [1] * 2_500)] == [1_000, 1_000, 500]
    assert [len(piece) for piece in cut(list(range(5)), [400_000] * 5)] == [2, 2, 1]
    assert [len(piece) for piece in cut(list(range(3)), [1, 5_000_000, 1])] == [1, 1, 1]
    assert list(cut([], [])) == []
