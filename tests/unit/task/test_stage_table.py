"""The rows of a filter in a cell whose batch was written in part."""

from __future__ import annotations

from dataclasses import replace

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.ports import Header
from sqe_chain.task.stage_part import PartitionTable
from sqe_chain.task.states import Claim, Transition

BORN = Header(1, "run", 0, "plan-0")
TRANSITION = Transition("flow", Claim(1, "run"), 0, "plan-0")


def test_rows_up_to_the_cursor_are_read_as_they_are_and_not_written_again() -> None:
    """The rows that an earlier attempt wrote are kept; what a redo computes for them may differ, and is dropped."""
    store = MemoryStore("table")
    store.restore_all()
    store.write("flow", "s", 0, None, BORN, [(b"a", b"old"), (b"m", b"old"), (b"z", b"old")])
    begun = replace(BORN, begun_id="plan-1", cursor=b"m")
    store.write("flow", "s", 0, BORN, begun, [(b"a", b"new"), (b"m", b"new")])
    table = PartitionTable(store, TRANSITION, "s", 0, (1, 1))
    assert [table.get(row) for row in (b"a", b"m", b"z", b"none")] == [b"new", b"new", b"old", None]
    for row in (b"a", b"m", b"n", b"z"):
        table.put(row, b"other")
    table.delete(b"z")
    assert table.changes() == {0: [(b"n", b"other"), (b"z", None)]}


def test_without_a_cursor_every_change_is_written_in_the_order_of_names() -> None:
    store = MemoryStore("table-whole")
    store.restore_all()
    store.write("flow", "s", 0, None, BORN, [(b"b", b"1")])
    table = PartitionTable(store, TRANSITION, "s", 0, (1, 1))
    table.load([b"b", b"c"])
    table.put(b"c", b"2")
    table.delete(b"b")
    assert table.changes() == {0: [(b"b", None), (b"c", b"2")]}
