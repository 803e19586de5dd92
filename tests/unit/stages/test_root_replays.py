"""KUKA's rule compares the root of each key's messages alone, and knows a replay on any path."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.chain import root_position
from sqe_chain.errors import PoisonError, TooManyLanes
from sqe_chain.stages.record import Reason, Record, Spot
from sqe_chain.stages.root_replays import RootReplays
from sqe_chain.stages.table import MemoryTable
from tests.support.partial_writes import check_prefix, check_redo, run_batch, run_batch_with_partial_writes

RAW_ID = b"r" * 16
LINES = Record(topic="lines", topic_id=b"l" * 16, partition=1)


def made(
    root_offset: int,
    *ordinals: int,
    key: bytes = b"robot-7",
    partition: int = 0,
    topic_id: bytes = RAW_ID,
    epoch: int = 1,
    at: int = 0,
    path: int = 0,
    lane: int = 7,
) -> Record:
    """A message of a key, caused by a root; read at offset `at`."""
    root = root_position(epoch, root_offset)
    position = root + b"".join(ordinal.to_bytes(4, "big") for ordinal in ordinals)
    return replace(
        LINES,
        key=key,
        offset=at,
        root=("robot.raw", topic_id, partition),
        root_position=position,
        spot=Spot(lane, position + path.to_bytes(4, "big")),
    )


def passes(records: list[Record], **settings: Any) -> list[bool]:
    return run_batch_with_partial_writes(partial(RootReplays, **settings), {}, records).forwarded


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compat", [None, "kuka"])
def test_earlier_and_equal_positions_of_a_key_are_replays(compat: Literal["kuka"] | None) -> None:
    records = [made(offset, at=at) for at, offset in enumerate((5, 6, 5, 6, 7, 7))]
    batch = run_batch_with_partial_writes(partial(RootReplays, compat=compat), {}, records)
    assert batch.forwarded == [True, True, False, False, True, False]
    assert batch.verdicts[2].reason is Reason.REPLAY
    assert (batch.verdicts[2].original, batch.verdicts[5].original) == (None, records[4].spot)


def test_each_key_has_its_own_marks() -> None:
    assert passes([made(5), made(4, key=b"robot-8"), made(4), made(5, key=b"robot-8")]) == [
        True,
        True,
        False,
        True,
    ]


def test_the_path_does_not_matter() -> None:
    """A topic in between was filled again, under another id: other lanes, other offsets, the same roots."""
    first = [made(offset, at=offset) for offset in (5, 6)]
    refilled = [replace(made(offset, at=offset + 100, lane=99), topic_id=b"n" * 16) for offset in (5, 6, 7)]
    assert passes(first + refilled) == [True, True, False, False, True]


def test_a_one_to_one_republisher_more_or_less_changes_nothing() -> None:
    short, long = [made(offset, 1) for offset in (5, 6)], [made(offset, 1, 0, lane=8) for offset in (5, 6, 7)]
    assert passes(short + long) == [True, True, False, False, True]
    assert passes(long + short) == [True, True, True, False, False]
    longer = [made(offset, 1, 0, 0, lane=9) for offset in (5, 6, 7)]
    assert passes(short + longer) == passes(long[:2] + longer) == [True, True, False, False, True]


def test_outputs_of_a_fan_out_upstream_are_distinguished_by_their_ordinals() -> None:
    records = [made(5, 0), made(5, 1, at=1), made(5, 2, at=2), made(5, 1, at=3), made(6, 0, at=4)]
    assert passes(records) == [True, True, True, False, True]


def test_a_rewritten_root_is_beyond_what_was_cut_off() -> None:
    records = [made(9), made(7, epoch=2, at=1), made(8, at=2)]
    assert passes(records) == [True, True, False]
    assert passes(records, compat="kuka") == [True, False, False]


@pytest.mark.parametrize("compat", [None, "kuka"])
def test_siblings_of_one_message_pass_once_each(compat: Literal["kuka"] | None) -> None:
    collection = [made(5, path=path) for path in range(3)]
    again = [replace(record, offset=9) for record in collection]
    assert passes([*collection, *collection, *again], compat=compat) == [True] * 3 + [False] * 6


# --- several roots --------------------------------------------------------------------------------


def test_a_key_may_come_from_several_roots() -> None:
    records = [made(5), made(2, partition=1), made(5, at=1), made(2, partition=1, at=1), made(3, partition=1)]
    assert passes(records) == [True, True, False, False, True]


def test_kuka_keeps_the_last_root_only() -> None:
    records = [made(5), made(2, partition=1), made(2, partition=1, at=1), made(5, at=1), made(4, at=2)]
    assert passes(records, compat="kuka") == [True, True, False, True, False]
    other_topic = replace(made(1), root=("robot.other", RAW_ID, 0))
    assert passes([made(5), other_topic, made(5, at=1)], compat="kuka") == [True, True, True]


def test_a_root_created_again_starts_fresh_but_not_for_kuka() -> None:
    records = [made(5), made(0, topic_id=b"s" * 16), made(0, topic_id=b"s" * 16, at=1)]
    assert passes(records) == [True, True, False]
    assert passes(records, compat="kuka") == [True, False, False]


# --- what it refuses ------------------------------------------------------------------------------


def test_a_null_key_or_a_missing_root_is_poison() -> None:
    with pytest.raises(PoisonError, match=r"lines\[1\]@0: a null key"):
        run_batch(RootReplays, {}, [replace(made(5), key=None)])
    with pytest.raises(PoisonError, match="has no root"):
        run_batch(RootReplays, {}, [replace(made(5), root_position=b"")])


def test_too_many_roots_stop_and_change_nothing() -> None:
    replays = RootReplays(MemoryTable(), max_roots=2)
    assert [replays.accept(made(5, partition=partition)).forward for partition in (0, 1)] == [True, True]
    with pytest.raises(TooManyLanes, match=r"more than 2 roots, now also from robot\.raw\[2\]"):
        replays.accept(made(5, partition=2))
    assert not replays.accept(made(5, partition=1, at=1)).forward


# --- bounds ---------------------------------------------------------------------------------------


def test_state_is_one_row_for_each_key_however_many_messages() -> None:
    rows: dict[bytes, bytes] = {}
    for offset in range(0, 2000, 10):
        records = [
            made(number, key=b"robot-%d" % (number % 5), partition=number % 3, at=number)
            for number in range(offset, offset + 10)
        ]
        rows = run_batch(RootReplays, rows, records).rows
    assert len(rows) == 5
    mark = 60 + len("robot.raw") + 12 + len(made(0).spot.position)
    assert max(map(len, rows.values())) <= 3 * mark


def test_a_mark_is_as_large_as_documented() -> None:
    record = made(2**63 - 1, 2**32 - 1, partition=2**31 - 1, epoch=2**31, at=2**62, lane=2**64 - 1)
    (content,) = run_batch(RootReplays, {}, [record]).rows.values()
    assert len(content) <= 60 + len("robot.raw") + len(record.root_position) + len(record.spot.position)


# --- laws -----------------------------------------------------------------------------------------

SMALL = st.integers(0, 2)
messages = st.tuples(SMALL, SMALL, SMALL, SMALL, st.integers(1, 3))
"""Key, root partition, root offset, ordinal, siblings."""


def stream(messages: list[tuple[int, int, int, int, int]]) -> list[Record]:
    return [
        made(offset, ordinal, key=b"%d" % key, partition=partition, at=at, path=path)
        for at, (key, partition, offset, ordinal, siblings) in enumerate(messages)
        for path in range(siblings)
    ]


@given(st.lists(st.lists(messages, max_size=5), max_size=4), st.sampled_from([None, "kuka"]))
def test_a_batch_written_in_part_is_completed_by_its_redo(
    batches: list[list[tuple[int, int, int, int, int]]], compat: Any
) -> None:
    check_redo(partial(RootReplays, compat=compat), [(stream(batch), 0) for batch in batches])


@given(st.lists(messages, max_size=8), st.data())
def test_a_prefix_fed_again_changes_nothing(
    batch: list[tuple[int, int, int, int, int]], data: st.DataObject
) -> None:
    records = stream(batch)
    check_prefix(RootReplays, records, data.draw(st.integers(0, len(records))))


@given(st.lists(messages, max_size=10))
def test_a_message_passes_with_all_its_siblings_or_with_none(
    batch: list[tuple[int, int, int, int, int]],
) -> None:
    records = stream(batch)
    said: dict[int, set[bool]] = {}
    for record, passed in zip(records, run_batch(RootReplays, {}, records).forwarded, strict=True):
        said.setdefault(record.offset, set()).add(passed)
    assert all(len(verdicts) == 1 for verdicts in said.values())
