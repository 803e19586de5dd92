"""Goal: units are taken once each, in one order, however batches are cut, and through crashes between any two writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.errors import StoreInconsistent, TooManyHeld
from sqe_chain.flow.context import Carried, Origin, TopicIdPartition
from sqe_chain.flow.stage_kind import CONTEXT
from sqe_chain.flow.units import Unit
from sqe_chain.ports import Headers
from sqe_chain.segment import held_units
from sqe_chain.segment.event_times import Frontier, WaitingUnits
from sqe_chain.segment.held_units import ROW, HeldUnits
from sqe_chain.stages.own_values import Stored
from tests.support.partial_writes import RecordingTable, Rows, apply_changes

LAST = Frontier(1 << 48, "\U0010ffff", 0)
Batches = list[list[tuple[int, int, int]]]
"""Batches of (partition, lane, time)."""


def encode(value: Any) -> tuple[str, bytes]:
    return value.DESCRIPTOR.full_name, value.SerializeToString()


def units_of(batches: Batches) -> list[list[Unit]]:
    """The batches as units, with offsets that rise in each partition, and places in time that never fall along a lane."""
    offsets, latest = dict[int, int](), dict[int, int]()
    found: list[list[Unit]] = []
    for batch in batches:
        units: list[Unit] = []
        for partition, lane, at_ms in batch:
            offset = offsets[partition] = offsets.get(partition, -1) + 1
            tp = TopicIdPartition("in", bytes(16), partition)
            own = partition * 10 + lane
            latest[own] = max(at_ms, latest.get(own, -1))
            origin = Origin(tp, offset, 1, own, bytes([offset]) * 12, None, None, None, latest[own]).at(at_ms)
            units.append((b"k%d" % lane, Int64Value(value=offset), "", bytes(4), origin))
        # Partition after partition, as tasks read them.
        found.append(sorted(units, key=lambda unit: unit[4].order))
    return found


def told(unit: Unit) -> tuple[Any, ...]:
    key, value, _, path, origin = unit
    return (
        key,
        Int64Value.FromString(value.data).value if isinstance(value, Stored) else value.value,
        path,
        origin.order,
        origin.lane,
        origin.position,
        origin.timestamp_ms,
        origin.epoch,
    )


def frontiers(batches: Batches, partitions: int) -> list[Frontier | None]:
    """After each batch: what a reader of all partitions knows, if times rise in each."""
    highest: dict[int, int] = {}
    found: list[Frontier | None] = []
    for batch in batches:
        for partition, _, at_ms in batch:
            highest[partition] = max(at_ms, highest.get(partition, -1))
        known = [Frontier(at_ms, "in", partition) for partition, at_ms in highest.items()]
        found.append(min(known) if len(known) == partitions else None)
    return found


def run(
    rows: Rows,
    units: Sequence[Unit],
    frontier: Frontier | None,
    known: WaitingUnits | None = None,
    cursor: bytes | None = None,
) -> Any:
    """One batch: what is taken, the rows' changes, and what waits then."""
    table = RecordingTable(rows, cursor)
    held = HeldUnits(table, CONTEXT, encode, 1_000, known)
    half = len(units) // 2
    held.add(units[:half])
    held.add(units[half:])
    taken = held.take(frontier)
    waits = held.finish("in[0]")
    return taken, {row: content for row, content in table.changes.items() if not table.settled(row)}, waits


@st.composite
def ordered_batches(draw: st.DrawFn) -> tuple[Batches, int]:
    """Partitions in time order, read in batches that take any part of each."""
    partitions, count = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    batches: Batches = [[] for _ in range(count)]
    for partition in range(partitions):
        log = sorted(draw(st.lists(st.integers(0, 12), min_size=1, max_size=8)))
        ends = sorted(draw(st.lists(st.integers(0, len(log)), min_size=count - 1, max_size=count - 1)))
        for batch, begin, end in zip(batches, [0, *ends], [*ends, len(log)], strict=True):
            batch += [(partition, at_ms % 2, at_ms) for at_ms in log[begin:end]]
    return batches, partitions


@given(ordered_batches(), st.integers(1, 3))
def test_units_are_taken_in_one_order_wherever_batches_end(
    found: tuple[Batches, int], row_units: int
) -> None:
    batches, partitions = found
    units, known = units_of(batches), frontiers(batches, partitions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_units, "ROW_UNITS", row_units)
        rows: Rows = {}
        taken: list[Unit] = []
        before: WaitingUnits | None = None
        for batch, frontier in zip([*units, []], [*known, LAST], strict=True):
            part, changes, waits = run(rows, batch, frontier, before)
            for cut in range(len(changes) + 1):  # a crash between any two writes, and the batch again
                ordered = sorted(changes.items())
                torn = apply_changes(rows, ordered[:cut])
                _, again, _ = run(torn, batch, frontier, before, ordered[cut - 1][0] if cut else None)
                assert apply_changes(torn, again.items()) == apply_changes(rows, ordered)
            rows, before = apply_changes(rows, changes.items()), waits
            taken += part
    everything = [unit for batch in units for unit in batch]
    naive = sorted(everything, key=lambda unit: (unit[4].timestamp_ms, *unit[4].order))
    assert [told(unit) for unit in taken] == [told(unit) for unit in naive]
    assert rows == {}, "nothing is left"
    assert before == WaitingUnits(0, LAST)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 9)), max_size=6), max_size=5
    )
)
def test_in_whatever_order_times_come_a_lane_keeps_its_order_and_each_unit_is_taken_once(
    batches: Batches,
) -> None:
    units, known = units_of(batches), frontiers(batches, 2)
    rows: Rows = {}
    taken: list[Unit] = []
    before: WaitingUnits | None = None
    for batch, frontier in zip([*units, []], [*known, LAST], strict=True):
        part, changes, before = run(rows, batch, frontier, before)
        rows = apply_changes(rows, changes.items())
        taken += part
    assert sorted(told(unit) for unit in taken) == sorted(told(unit) for batch in units for unit in batch)
    for lane in {unit[4].lane for unit in taken}:
        positions = [unit[4].position for unit in taken if unit[4].lane == lane]
        assert positions == sorted(positions)


def test_a_frontier_never_goes_back() -> None:
    batches: Batches = [[(0, 0, 5), (1, 0, 7)], [(0, 0, 6)]]
    first, second = units_of(batches)
    taken, changes, waits = run({}, first, Frontier(6, "in", 0))
    assert [unit[4].timestamp_ms for unit in taken] == [5]
    assert waits == WaitingUnits(1, Frontier(6, "in", 0))
    taken, _, _ = run(apply_changes({}, changes.items()), second, Frontier(1, "in", 0), waits)
    assert [unit[4].timestamp_ms for unit in taken] == [6]


def test_what_is_held_has_a_limit() -> None:
    table = RecordingTable({})
    held = HeldUnits(table, CONTEXT, encode, 2, None)
    held.add(units_of([[(0, 0, at_ms) for at_ms in range(3)]])[0])
    assert not held.take(None)
    with pytest.raises(
        TooManyHeld,
        match=r"3 records of one state partition wait for event time, allowed are 2: in\[1\] holds them back",
    ):
        held.finish("in[1]")
    assert table.changes == {}


def test_a_row_that_is_gone_is_noticed() -> None:
    _, changes, waits = run({}, units_of([[(0, 0, 5)]])[0], None)
    rows = {
        row: content for row, content in apply_changes({}, changes.items()).items() if not row.startswith(ROW)
    }
    with pytest.raises(StoreInconsistent, match="missing"):
        run(rows, [], LAST, waits)


@pytest.mark.parametrize(
    "headers", [None, [("full", b"1"), ("null", None), ("empty", b"")]], ids=["none", "some"]
)
@pytest.mark.parametrize("key", [None, b"", b"k"])
def test_an_input_is_the_same_after_it_has_waited(key: bytes | None, headers: Headers | None) -> None:
    """All that a context may tell of it is kept; an empty key is another one than none, as with the content of a header."""
    tp = TopicIdPartition("in", b"t" * 16, 2)
    carried = Carried(7, b"chain", 5, key, headers, b"i" * 16)
    origin = Origin(tp, 3, 4, 9, bytes(12), None, None, carried, 6)
    _, changes, waits = run({}, [(b"k", Int64Value(value=1), "", bytes(4), origin)], None)
    (found,), _, _ = run(apply_changes({}, changes.items()), [], LAST, waits)
    assert tuple(found[4]) == tuple(origin)
