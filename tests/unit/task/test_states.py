"""Goal: headers and cursors decide what of a batch is still to be read and written, and nothing else is believed.

Method: by hand, a store in memory gets every content that a crash, a lost reply, another run or a rollback can leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.partitioner import cell_of
from sqe_chain.errors import StoreInconsistent, Superseded, Unavailable
from sqe_chain.ports import Header, Rows, StateStore, Views
from sqe_chain.task.states import (
    CellStates,
    Claim,
    PartitionStates,
    Transition,
    View,
    check_owner,
    chunk_size,
    persist,
)
from sqe_chain.testing.faults import FaultScript, InjectedFault, PortCall
from sqe_chain.testing.faulty_ports import faulty_store

CLAIM = Claim(4, "mine")
BEFORE = Header(4, "mine", 7, "plan-7")
BEGUN = replace(BEFORE, begun_id="plan-8", cursor=b"c")
DONE = replace(BEFORE, number=8, plan_id="plan-8")
TRANSITION = Transition("flow", CLAIM, 7, "plan-7")
KEYS = [b"a", b"b", b"c", b"d", b"e"]
NEW: Rows = [(key, b"new") for key in KEYS]


def store_at(header: Header, rows: Rows = (), *, max_rows: int = 2, cell: int = 0) -> MemoryStore:
    store = MemoryStore(f"states-{object()!r}", max_rows=max_rows)
    store.restore_all()
    for at in range(0, len(rows), max_rows):
        store.write("flow", "stage", cell, BEFORE if at else None, BEFORE, rows[at : at + max_rows])
    store.write("flow", "stage", cell, BEFORE if rows else None, header, ())
    return store


def written(store: StateStore, before: Header = BEFORE, rows: Rows = NEW) -> int:
    return persist(store, TRANSITION, "plan-8", "stage", 0, rows, before)


def content(store: MemoryStore) -> tuple[Header | None, dict[bytes, bytes]]:
    part = store.copy_part("flow", "stage", 0)
    return part.header, part.states


# --- reading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "settled"),
    [(BEFORE, b""), (BEGUN, b"abc"), (DONE, b"abcde"), (replace(BEGUN, cursor=b"bb"), b"ab")],
)
def test_a_key_is_settled_up_to_the_cursor_and_with_it(header: Header, settled: bytes) -> None:
    cell = CellStates(store_at(header), TRANSITION, "stage", 0)
    cell.rows(())
    assert b"".join(key for key in KEYS if cell.settled(key)) == settled
    assert cell.done == (header == DONE)
    assert cell.settled(b"c\0") == (header == DONE), "it comes after the cursor"


@pytest.mark.parametrize(
    "header",
    [
        replace(BEFORE, number=6, plan_id="plan-6"),
        replace(BEFORE, plan_id="another"),
        replace(BEGUN, plan_id="another"),
        replace(BEFORE, epoch=3),
    ],
)
def test_what_the_plan_before_has_not_left_is_not_read(header: Header) -> None:
    with pytest.raises(StoreInconsistent):
        CellStates(store_at(header), TRANSITION, "stage", 0).rows((b"a",))


@pytest.mark.parametrize(
    "header", [replace(BEFORE, epoch=5, run_id="other"), replace(BEFORE, run_id="other")]
)
def test_what_another_run_has_stamped_is_not_read(header: Header) -> None:
    """Also with the same epoch: a store that went back gives it out a second time."""
    with pytest.raises(Superseded):
        CellStates(store_at(header), TRANSITION, "stage", 0).rows((b"a",))


def test_a_header_that_is_gone_is_no_new_state_partition() -> None:
    with pytest.raises(StoreInconsistent, match="is gone"):
        check_owner(None, CLAIM, "here")


@pytest.mark.parametrize("moved", [BEGUN, DONE])
def test_a_header_that_moves_between_two_reads_is_noticed(moved: Header) -> None:
    store = store_at(BEFORE)
    cell = CellStates(store, TRANSITION, "stage", 0)
    cell.rows((b"a",))
    store.write("flow", "stage", 0, BEFORE, moved, ())
    with pytest.raises(StoreInconsistent, match="moved while it was read"):
        cell.rows((b"b",))


# --- writing --------------------------------------------------------------------------------------------


def test_only_the_last_chunk_moves_the_header_to_the_plan() -> None:
    store = store_at(BEFORE)
    seen: list[tuple[int, str, bytes | None]] = []

    def watch(call: PortCall, _: object) -> None:
        after: Header = call.args[4]
        seen.append((after.number, after.begun_id, after.cursor))

    watched = faulty_store(MemoryStore(store.name, max_rows=2), FaultScript(watch=watch))
    assert written(watched) == 5
    assert seen == [(7, "plan-8", b"b"), (7, "plan-8", b"d"), (8, "", None)]
    assert content(store) == (DONE, dict(NEW))


def no_answer() -> None:
    raise Unavailable("lost")


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("further", [False, True])
def test_whatever_reply_is_lost_the_same_call_again_writes_the_rest_and_no_row_twice(
    lost: int, *, further: bool
) -> None:
    """Also where another attempt has come further than this one knows; rows that are there already stay as they are."""
    store = store_at(BEFORE)
    lose = InjectedFault(no_answer, when="after", passes=lost)
    lossy = faulty_store(MemoryStore(store.name, max_rows=2), FaultScript(injected=[lose]))
    with pytest.raises(Unavailable):
        written(lossy)
    if further:
        written(lossy)
    there = content(store)[1]
    second: Rows = [(key, b"again") for key in KEYS]
    written(lossy, rows=second)
    assert content(store) == (DONE, dict(second) | there)


@pytest.mark.parametrize(
    "header",
    [
        replace(BEFORE, number=8, plan_id="another"),
        replace(BEFORE, begun_id="another", cursor=b"z"),
        replace(BEFORE, number=6, plan_id="plan-6"),
        replace(BEFORE, number=6, plan_id="plan-6", begun_id="plan-8", cursor=b"z"),
        replace(BEFORE, epoch=3),
    ],
)
def test_a_header_that_is_neither_as_expected_nor_further_on_stops(header: Header) -> None:
    store = store_at(header)
    with pytest.raises(StoreInconsistent, match="went back in time"):
        written(store)
    assert content(store) == (header, {})


def test_a_cursor_that_went_back_stops() -> None:
    """This run has skipped the rows up to the cursor that it knows of."""
    store = store_at(BEGUN)
    with pytest.raises(StoreInconsistent, match="went back in time"):
        written(store, replace(BEGUN, cursor=b"d"), [(b"e", b"new")])
    assert content(store) == (BEGUN, {})


def test_a_newer_run_is_not_written_over() -> None:
    newer = replace(BEFORE, epoch=5, run_id="other")
    store = store_at(newer)
    with pytest.raises(Superseded):
        written(store)
    assert content(store) == (newer, {})


@pytest.mark.parametrize(("bytes_", "size"), [(8, 2), (7, 1), (3, 1), (100, 3)])
def test_a_chunk_is_as_large_as_the_store_takes_and_has_one_row_at_least(bytes_: int, size: int) -> None:
    store = MemoryStore("chunks", max_rows=3, max_bytes=bytes_)
    assert chunk_size(store, [(key, b"new") for key in KEYS]) == size


def test_views_count_for_the_size_of_a_chunk() -> None:
    store = MemoryStore("chunks", max_rows=5, max_bytes=30)
    views = Views("json", dict.fromkeys(KEYS, "x" * 11))
    assert chunk_size(store, NEW) == 5
    assert chunk_size(store, NEW, views) == 2


def test_a_state_that_cannot_be_shown_is_shown_as_the_reason() -> None:
    """Views are written after the seal, where nothing may fail on data."""

    def show(row: bytes, _: bytes) -> str:
        raise TypeError(f"no form of {row.decode()}")

    assert View("json", show).of([(b"a", b"1"), (b"b", None)]).shown == {
        b"a": '{"error": "this state cannot be shown: TypeError: no form of a"}'
    }
    shown = View("hash", show).of([(b"a", b"1")]).shown[b"a"]
    assert shown == {"error": "this state cannot be shown: TypeError: no form of a"}


# --- buckets --------------------------------------------------------------------------------------------

BUCKETS = 3
IN_CELL = {
    cell: [key for key in map(str.encode, "abcdefghijklmnop") if cell_of(key, 1, BUCKETS) == cell]
    for cell in range(3)
}


def bucket_store(headers: Sequence[Header]) -> MemoryStore:
    store = MemoryStore(f"buckets-{object()!r}")
    store.restore_all()
    for cell, header in enumerate(headers):
        store.write("flow", "stage", cell, None, header, [(key, b"1") for key in IN_CELL[cell]])
    return store


@pytest.mark.parametrize("done", [(), (0,), (1, 2), (0, 1, 2)])
def test_a_state_partition_is_done_when_all_of_its_buckets_are(done: tuple[int, ...]) -> None:
    store = bucket_store([DONE if cell in done else BEFORE for cell in range(3)])
    states = PartitionStates(store, TRANSITION, "stage", 0, (1, BUCKETS))
    states.rows(())
    assert states.done == (len(done) == 3)
    assert states.untouched == (not done)
    for cell, keys in IN_CELL.items():
        assert {states.settled(key) for key in keys} == {cell in done}


def test_a_state_partition_with_a_begun_bucket_is_not_untouched() -> None:
    first = IN_CELL[1][0]
    store = bucket_store([BEFORE, replace(BEGUN, cursor=first), BEFORE])
    states = PartitionStates(store, TRANSITION, "stage", 0, (1, BUCKETS))
    states.rows(())
    assert not states.untouched
    assert not states.done
    assert [key for keys in IN_CELL.values() for key in keys if states.settled(key)] == [first]


def test_of_a_bucket_that_is_done_no_state_is_read() -> None:
    """It is that of after the batch; nothing of it is folded, and what it was before nobody knows any more."""
    store = bucket_store([BEFORE, DONE, BEFORE])
    states = PartitionStates(store, TRANSITION, "stage", 0, (1, BUCKETS))
    states.rows(())
    keys = [own[0] for own in IN_CELL.values()]
    assert states.rows(keys) == {keys[0]: b"1", keys[1]: None, keys[2]: b"1"}
