"""Sequence numbers: what is not greater than the last is dropped; windows, epochs, holes and policies around it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.chain import root_position
from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.flow.filtering import MAX_WINDOW
from sqe_chain.stages.received import from_header, from_key, from_value, number_in_text
from sqe_chain.stages.record import Reason, Record, Spot
from sqe_chain.stages.sequences import StaleSequences
from sqe_chain.stages.table import MemoryTable
from tests.support.partial_writes import (
    check_prefix,
    check_redo,
    run_batch,
    run_batch_with_partial_writes,
    run_batches,
)

RAW = Record(topic="raw", topic_id=b"r" * 16)
FIRST = (("A", 1), ("B", 2), ("C", 3), ("C", 4), ("B", 5), ("A", 6), ("A", 7))
REPEATED = (("C", 4), ("B", 5), ("A", 6), ("A", 7), ("A", 8), ("B", 9), ("C", 10), ("B", 11))
INCIDENTS = FIRST + REPEATED
"""juplo's example, before and after the failure: incident and number."""


def numbered(sequence: object, *, at: int = 0, path: int = 0, **fields: Any) -> Record:
    position = root_position(1, at) + path.to_bytes(4, "big")
    spot = Spot(fields.pop("lane", 7), position)
    return replace(RAW, value=sequence, offset=at, spot=spot, **fields)


def value_of(record: Record) -> Any:
    return record.value


def stage(**settings: Any) -> Any:
    return partial(StaleSequences, **{"sequence": value_of, **settings})


def verdicts_of(records: list[Record], **settings: Any) -> list[tuple[bool, Reason | None]]:
    batch = run_batch_with_partial_writes(stage(**settings), {}, records)
    return [(verdict.forward, verdict.reason) for verdict in batch.verdicts]


def numbers(sequences: list[int], **settings: Any) -> list[int]:
    """The numbers that go on, of messages one behind the other."""
    records = [numbered(sequence, at=at) for at, sequence in enumerate(sequences)]
    forwarded = run_batch_with_partial_writes(stage(**settings), {}, records).forwarded
    return [sequence for sequence, passed in zip(sequences, forwarded, strict=True) if passed]


# --- juplo ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"compat": "juplo"}, {"scope": "lane"}, {"scope": "key"}, {"window": 64}]
)
@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_juplo_s_incidents_15_in_11_out_in_order(partitions: int, settings: dict[str, Any]) -> None:
    records = [
        replace(
            numbered(sequence, at=at, lane=ord(incident) % partitions + 1),
            key=incident.encode(),
            partition=ord(incident) % partitions,
        )
        for at, (incident, sequence) in enumerate(INCIDENTS)
    ]
    assert len(records) == 15
    batch = run_batch_with_partial_writes(stage(**settings), {}, records)
    forwarded = [record.value for record, passed in zip(records, batch.forwarded, strict=True) if passed]
    assert forwarded == list(range(1, 12))


def test_juplo_knows_a_partition_by_its_number_alone() -> None:
    records = [
        numbered(5),
        numbered(5, topic_id=b"s" * 16),
        numbered(4, topic="other"),
        numbered(4, partition=1),
    ]
    assert [passed for passed, _ in verdicts_of(records, compat="juplo")] == [True, False, False, True]
    assert [passed for passed, _ in verdicts_of(records)] == [True, True, True, True]


def test_juplo_reports_no_holes_and_drops_siblings() -> None:
    records = [numbered(1), numbered(5, at=1), numbered(5, at=1, path=1)]
    assert verdicts_of(records, compat="juplo") == [(True, None), (True, None), (False, Reason.STALE)]
    assert verdicts_of(records) == [(True, None), (True, Reason.GAP), (True, None)]


@pytest.mark.parametrize(
    "settings",
    [{"scope": "key"}, {"window": 2}, {"malformed": "drop"}, {"epoch": value_of}, {"producer": value_of}],
)
def test_juplo_has_no_other_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(FlowError, match="juplo"):
        stage(compat="juplo", **settings)(MemoryTable())


# --- scopes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "same", "other"),
    [
        ("partition", {"key": b"x", "lane": 9}, {"partition": 1}),
        ("partition", {"key": b"x", "lane": 9}, {"topic_id": b"s" * 16}),
        ("lane", {"key": b"x", "partition": 1}, {"lane": 8}),
        ("key", {"partition": 1, "lane": 8}, {"key": b"other"}),
    ],
)
def test_each_scope_has_its_own_numbers(scope: str, same: dict[str, Any], other: dict[str, Any]) -> None:
    first = numbered(5, key=b"k")
    again = numbered(5, at=1, **{"key": b"x" if scope != "key" else b"k", **same})
    elsewhere = numbered(5, at=2, **{"key": b"k", **other})
    assert [passed for passed, _ in verdicts_of([first, again, elsewhere], scope=scope)] == [
        True,
        False,
        True,
    ]


def producer_of(record: Record) -> Any:
    return (record.headers or [("", None)])[0][1]


def of(name: object, sequence: int, epoch: int = 0, **fields: Any) -> Record:
    headers: Any = [("producer", name), ("epoch", epoch)]
    return numbered(sequence, headers=headers, **fields)


@pytest.mark.parametrize("scope", ["partition", "lane", "key"])
def test_each_producer_has_its_own_numbers_within_a_scope(scope: str) -> None:
    records = [of(name, number, key=b"k") for number in (1, 2, 2, 1, 3) for name in (b"a", "b", b"")]
    assert [forward for forward, _ in verdicts_of(records, scope=scope, producer=producer_of)] == [
        forward for forward in (True, True, False, False, True) for _ in range(3)
    ]


def test_a_producers_epoch_is_its_own() -> None:
    def epoch_of(record: Record) -> Any:
        return (record.headers or [])[1][1]

    records = [of("a", 5, 2), of("b", 5, 1), of("a", 1, 1), of("b", 1, 2), of("b", 6, 1), of("a", 6, 2)]
    assert [forward for forward, _ in verdicts_of(records, producer=producer_of, epoch=epoch_of)] == [
        True, True, False, True, False, True,
    ]  # fmt: skip


def test_names_of_producers_and_scopes_are_not_mixed_up() -> None:
    names = (b"a", b"bc"), (b"ab", b"c"), (b"", b"abc"), (b"a", b"bkey/c"), (b"akey/b", b"c")
    records = [of(name, 1, key=key) for name, key in names]
    assert [forward for forward, _ in verdicts_of(records, scope="key", producer=producer_of)] == [True] * 5


@pytest.mark.parametrize("name", [None, 7, b"x" * 256])
def test_a_record_without_a_producer_is_malformed(name: object) -> None:
    with pytest.raises(PoisonError, match="producer"):
        verdicts_of([of(name, 1)], producer=producer_of)
    assert verdicts_of([of(name, 1)], producer=producer_of, malformed="drop") == [(False, Reason.MALFORMED)]


def test_a_record_without_the_scope_is_poison_under_every_policy() -> None:
    for scope, record in (("key", numbered(1, key=None)), ("lane", numbered(1, lane=0))):
        with pytest.raises(PoisonError, match="use another scope"):
            run_batch(stage(scope=scope, malformed="drop"), {}, [record])


# --- holes and restarts ---------------------------------------------------------------------------


def test_a_hole_is_reported_with_its_size_and_the_record_goes_on() -> None:
    records = [numbered(sequence, at=at) for at, sequence in enumerate((1, 2, 5, 6))]
    verdicts = run_batch(stage(), {}, records).verdicts
    assert [verdict.reason for verdict in verdicts] == [None, None, Reason.GAP, None]
    assert (verdicts[2].forward, verdicts[2].detail) == (True, "2 missing between 2 and 5")
    assert verdicts_of(records, gaps=False) == [(True, None)] * 4
    one_missing = [numbered(sequence, at=at) for at, sequence in enumerate((1, 3))]
    assert run_batch(stage(), {}, one_missing).verdicts[1].detail == "1 missing between 1 and 3"


def test_a_greater_epoch_begins_again_and_a_smaller_one_is_stale() -> None:
    records = [
        numbered((epoch, number), at=at)
        for at, (epoch, number) in enumerate(((1, 8), (2, 3), (1, 9), (2, 4)))
    ]
    make = stage(sequence=lambda record: record.value[1], epoch=lambda record: record.value[0])
    batch = run_batch_with_partial_writes(make, {}, records)
    assert [verdict.reason for verdict in batch.verdicts] == [None, None, Reason.STALE, None]
    assert batch.verdicts[2].detail == "epoch 1, but 2 has begun"
    assert run_batch(make, batch.rows, records).forwarded == [False] * 4


def test_numbers_that_go_on_in_a_greater_epoch_and_skip_some_are_a_gap() -> None:
    records = [
        numbered((epoch, number), at=at)
        for at, (epoch, number) in enumerate(((1, 8), (2, 9), (3, 12), (4, 1), (5, 0), (6, 2), (6, 3)))
    ]
    make = stage(sequence=lambda record: record.value[1], epoch=lambda record: record.value[0])
    verdicts = run_batch_with_partial_writes(make, {}, records).verdicts
    assert all(verdict.forward for verdict in verdicts)
    assert [verdict.detail for verdict in verdicts if verdict.reason is Reason.GAP] == [
        "2 missing between 9 and 12", "1 missing between 0 and 2",
    ]  # fmt: skip


def test_without_an_epoch_a_restart_is_silenced() -> None:
    assert numbers([8, 1, 2, 9]) == [8, 9]


# --- the window -----------------------------------------------------------------------------------


def test_a_window_lets_late_first_arrivals_go_on_once() -> None:
    assert numbers([1, 2, 5, 3, 3, 4, 4, 6]) == [1, 2, 5, 6]
    assert numbers([1, 2, 5, 3, 3, 4, 4, 6], window=3) == [1, 2, 5, 3, 4, 6]


def test_a_window_ends_below_its_width() -> None:
    assert numbers([10, 7, 6], window=4) == [10, 7]
    assert numbers([10, 9], window=1) == [10]


def test_what_is_in_the_window_is_a_duplicate_and_below_it_is_stale() -> None:
    records = [numbered(sequence, at=at) for at, sequence in enumerate((9, 8, 8, 9, 4))]
    verdicts = run_batch(stage(window=4), {}, records).verdicts
    assert [verdict.reason for verdict in verdicts] == [
        None,
        None,
        Reason.DUPLICATE,
        Reason.DUPLICATE,
        Reason.STALE,
    ]
    assert [verdict.original for verdict in verdicts[2:]] == [records[1].spot, None, None]


def test_jumps_over_all_64_bits_are_taken() -> None:
    ends = [-(2**63), 2**63 - 1]
    assert numbers([*ends, ends[0], ends[1], ends[1] - 1], window=8) == [*ends, ends[1] - 1]


@pytest.mark.parametrize(("before", "after"), [(0, 4), (2, 4), (4, 2), (4, 0), (0, 0), (4, 4)])
def test_a_window_changed_between_runs_lets_nothing_go_on_twice(before: int, after: int) -> None:
    sequences = (5, 8, 7, 9)
    first = run_batch(stage(window=before), {}, [numbered(number, at=number) for number in sequences])
    again = [numbered(number, at=number + 100) for number in range(10)]
    late = run_batch_with_partial_writes(stage(window=after), first.rows, again)
    went_on = {number for number, passed in zip(sequences, first.forwarded, strict=True) if passed}
    late_ones = {record.value for record, passed in zip(again, late.forwarded, strict=True) if passed}
    assert not went_on & late_ones
    assert late_ones <= {number for number in range(10) if 9 - number < min(before, after)}
    if before == after == 4:
        assert late_ones == {6}


@pytest.mark.parametrize("step", [1, 3])
def test_a_window_does_not_grow_with_what_it_has_seen(step: int) -> None:
    sequences = list(range(0, 300, step))
    assert numbers(sequences, window=4) == sequences


def test_a_window_made_smaller_forgets_what_is_below_it() -> None:
    wide = run_batch(stage(window=64), {}, [numbered(number, at=number) for number in (0, 20)])
    narrow = run_batch_with_partial_writes(
        stage(window=4), wide.rows, [numbered(number, at=number) for number in (18, 10)]
    )
    assert narrow.forwarded == [True, False]


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(0, 12))
def test_the_window_is_a_set_of_recent_numbers(sequences: list[int], window: int) -> None:
    seen: set[int] = set()
    expected = []
    for sequence in sequences:
        highest = max(seen, default=sequence - 1)
        if sequence > highest or (highest - sequence < window and sequence not in seen):
            expected.append(sequence)
            seen.add(sequence)
    assert numbers(sequences, window=window) == expected


# --- siblings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 8])
def test_siblings_with_one_number_go_on_once_each(window: int) -> None:
    siblings = [numbered(5, at=3, path=path) for path in range(3)]
    elsewhere = [replace(record, offset=4) for record in siblings]
    records = [*siblings, *siblings, *elsewhere]
    assert [passed for passed, _ in verdicts_of(records, window=window)] == [True] * 3 + [False] * 6


def test_siblings_of_a_late_first_arrival_go_on_too() -> None:
    records = [numbered(5), *(numbered(3, at=1, path=path) for path in range(2)), numbered(6, at=2)]
    assert [passed for passed, _ in verdicts_of(records, window=8)] == [True] * 4


def test_siblings_of_a_late_first_arrival_go_on_in_a_later_batch_too() -> None:
    """The number that they repeat is not the highest, and is kept beside it."""
    batches = [([numbered(5), numbered(3, at=1)], 0), ([numbered(3, at=1, path=1)], 0)]
    assert run_batches(stage(window=8), batches)[0] == [True] * 3


def test_siblings_with_numbers_of_their_own_are_judged_by_them() -> None:
    records = [numbered(sequence, path=path) for path, sequence in enumerate((5, 6, 5, 7))]
    assert [passed for passed, _ in verdicts_of(records)] == [True, True, False, True]


# --- malformed ------------------------------------------------------------------------------------


MALFORMED: list[Any] = [None, "7", 1.0, True, 2**63, -(2**63) - 1]


@pytest.mark.parametrize("sequence", MALFORMED)
def test_a_malformed_sequence_stops_by_default(sequence: object) -> None:
    with pytest.raises(PoisonError, match=r"raw\[0\]@4: malformed"):
        run_batch(stage(), {}, [numbered(sequence, at=4)])


@pytest.mark.parametrize("sequence", MALFORMED)
@pytest.mark.parametrize(
    ("policy", "forward", "dead_letter"),
    [("drop", False, False), ("pass", True, False), ("dead_letter", False, True)],
)
def test_policies_for_malformed_sequences(
    policy: str, sequence: object, *, forward: bool, dead_letter: bool
) -> None:
    batch = run_batch_with_partial_writes(
        stage(malformed=policy), {}, [numbered(1), numbered(sequence, at=1), numbered(2, at=2)]
    )
    verdict = batch.verdicts[1]
    assert (verdict.forward, verdict.reason, verdict.dead_letter) == (forward, Reason.MALFORMED, dead_letter)
    assert batch.verdicts[2].reason is None


def test_an_extractor_that_raises_or_a_missing_epoch_is_malformed() -> None:
    record = numbered({"number": 1})
    make = stage(sequence=lambda record: record.value["no such field"], malformed="drop")
    assert run_batch(make, {}, [record]).verdicts[0].reason is Reason.MALFORMED
    make = stage(sequence=lambda record: 1, epoch=lambda record: None, malformed="drop")
    assert run_batch(make, {}, [record]).verdicts[0].reason is Reason.MALFORMED


# --- extractors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "number"), [(b"7", 7), ("-7", -7), (b"+07", 7), ("0", 0)])
def test_numbers_in_text(text: bytes | str, number: int) -> None:
    assert number_in_text(text) == number


@pytest.mark.parametrize("text", [b"", b" 7", b"7\n", "1_000", "7.0", b"0x7", "\u0667", b"9" * 65, "--7"])
def test_other_texts_are_no_numbers(text: bytes | str) -> None:
    with pytest.raises(ValueError, match="not a decimal number"):
        number_in_text(text)


@pytest.mark.parametrize("text", [str(2**63), str(-(2**63) - 1), "9" * 64])
def test_numbers_of_more_than_64_bits_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        number_in_text(text)
    assert number_in_text(str(2**63 - 1)) == 2**63 - 1


def test_the_last_number_again_names_its_original() -> None:
    records = [numbered(1), numbered(2, at=1), numbered(2, at=2), numbered(1, at=3)]
    verdicts = run_batch_with_partial_writes(stage(), {}, records).verdicts
    assert [verdict.forward for verdict in verdicts] == [True, True, False, False]
    assert [verdict.original for verdict in verdicts[2:]] == [records[1].spot, None]


def test_a_number_is_found_in_value_key_or_header() -> None:
    record = replace(
        RAW, value="12", key=b"13", headers=[("n", b"1"), ("other", b"5"), ("n", b"14"), ("null", None)]
    )
    assert from_value(number_in_text)(record) == 12
    assert from_key()(record) == 13
    assert from_header("n")(record) == 14
    assert (from_header("null")(record), from_header("none")(record)) == (None, None)
    assert (from_key()(RAW), from_header("n")(RAW)) == (None, None)


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["partition", "lane", "key"])
def test_state_is_one_small_row_for_each_scope_however_many_records(scope: str) -> None:
    window = 128
    rows: dict[bytes, bytes] = {}
    for start in range(0, 3000, 10):
        records = [
            numbered(at * 2**40, at=at, partition=at % 3, lane=at % 3 + 1, key=b"%d" % (at % 3))
            for at in range(start, start + 10)
        ]
        rows = run_batch(stage(scope=scope, window=window), rows, records).rows
    assert len(rows) == 3
    assert max(map(len, rows.values())) <= 75 + len(numbered(0).spot.position) + window // 8


def test_a_row_is_as_large_as_documented() -> None:
    record = numbered(-(2**63), at=2**62, lane=2**64 - 1)
    make = stage(window=MAX_WINDOW, epoch=lambda record: -(2**63))
    (content,) = run_batch(make, {}, [record]).rows.values()
    assert len(content) <= 75 + len(record.spot.position) + MAX_WINDOW // 8


# --- laws -----------------------------------------------------------------------------------------

messages = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 6), st.integers(1, 2))
"""Partition (lane, key), epoch, number, siblings."""
settings_of = st.fixed_dictionaries(
    {"window": st.sampled_from([0, 1, 4]), "scope": st.sampled_from(["partition", "lane", "key"])}
)


def stream(messages: list[tuple[int, int, int, int]]) -> list[Record]:
    return [
        numbered((epoch, number), at=at, path=path, partition=scope, lane=scope + 1, key=b"%d" % scope)
        for at, (scope, epoch, number, siblings) in enumerate(messages)
        for path in range(siblings)
    ]


def with_epoch(settings: dict[str, Any]) -> Any:
    return stage(sequence=lambda record: record.value[1], epoch=lambda record: record.value[0], **settings)


@given(st.lists(st.lists(messages, max_size=6), max_size=4), settings_of)
def test_a_batch_written_in_part_is_completed_by_its_redo(
    batches: list[list[tuple[int, int, int, int]]], settings: dict[str, Any]
) -> None:
    check_redo(with_epoch(settings), [(stream(messages), 0) for messages in batches])


@given(st.lists(messages, max_size=12), settings_of, st.data())
def test_a_prefix_fed_again_changes_nothing(
    batch: list[tuple[int, int, int, int]], settings: dict[str, Any], data: st.DataObject
) -> None:
    records = stream(batch)
    check_prefix(with_epoch(settings), records, data.draw(st.integers(0, len(records))))
