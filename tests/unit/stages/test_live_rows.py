"""Rows change in memory first, and only those that were changed are written."""

from __future__ import annotations

from sqe_chain.stages.live_rows import LiveRows
from tests.support.partial_writes import StrictTable


def rows_on(table: StrictTable) -> LiveRows[list[int]]:
    """Rows that are lists of bytes; an empty list needs no row."""
    table.load([b"a", b"b", b"c"])
    return LiveRows(table, lambda content: list(content or b""), lambda live: bytes(live) or None)


def test_nothing_is_written_before_write_and_then_the_changed_rows_in_order() -> None:
    table = StrictTable({b"a": b"1", b"c": b"3"})
    rows = rows_on(table)
    for row in (b"c", b"b", b"a"):
        rows[row].append(50)
    for row in (b"c", b"b"):
        rows.changed(row)
    assert (table.changes, rows[b"c"]) == ({}, [51, 50])
    rows.write()
    assert list(table.changes.items()) == [(b"b", b"2"), (b"c", b"32")]


def test_a_row_that_is_not_needed_any_more_is_deleted() -> None:
    table = StrictTable({b"a": b"1"})
    rows = rows_on(table)
    rows[b"a"].clear()
    rows.changed(b"a")
    rows.write()
    assert (table.changes, table.rows()) == ({b"a": None}, {})


def test_behind_a_write_rows_are_read_again() -> None:
    table = StrictTable({b"a": b"1"})
    rows = rows_on(table)
    rows[b"a"].append(49)
    rows.changed(b"a")
    rows.write()
    table.put(b"a", b"2")
    assert rows[b"a"] == [50]
    table.changes.clear()
    rows.write()
    assert table.changes == {}
