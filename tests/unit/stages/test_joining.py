"""Goal: a join follows its definition, however records are divided into batches, and through writes cut off anywhere.

Method: naive definitions over all records, compared with Hypothesis; rows written in part and the batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.errors import PoisonError
from sqe_chain.flow.table import RowTable
from sqe_chain.stages import JumpGuard, MemoryTable, Reason, Record
from sqe_chain.stages.joining import StreamJoin
from sqe_chain.stages.table_join import TableJoin
from tests.support.partial_writes import RecordingTable, Rows, run_with_partial_writes

Join = TableJoin | StreamJoin
Make = Callable[[RowTable], Join]
Pairs = list[tuple[str, str | None]]
GONE = "gone"


def pair(first: StringValue, second: StringValue | None) -> StringValue:
    return StringValue(value=f"{first.value} {second.value if second else '-'}")


def is_second(record: Record) -> bool:
    return record.topic == "second"


def text_of(value: object) -> str:
    assert isinstance(value, StringValue)
    return value.value


def is_gone(value: object) -> bool:
    return text_of(value).startswith(GONE)


def record_of(topic: str, at_ms: int, text: str, key: str | None = "k") -> Record:
    own = None if key is None else key.encode()
    return Record(key=own, value=StringValue(value=text), timestamp_ms=at_ms, topic=topic)


def table_join(**settings: Any) -> Make:
    return lambda table: TableJoin(table, combine=pair, is_second=is_second, deleted=is_gone, **settings)


def stream_join(**settings: Any) -> Make:
    return lambda table: StreamJoin(table, combine=pair, is_second=is_second, **settings)


def run(
    make: Make, batches: Sequence[Sequence[Record]], *, torn: bool = False
) -> tuple[Pairs, list[Record], Rows]:
    """Outputs, late records and rows at the end."""
    rows: Rows = {}
    found: Pairs = []
    late: list[Record] = []
    for batch in batches:

        def whole(table: Any, batch: Sequence[Record] = batch) -> tuple[Pairs, list[Record]]:
            join, own, lost = make(table), Pairs(), list[Record]()
            table.load(join.rows_for(batch))
            for record in batch:
                if join.accept(record).reason is Reason.LATE:
                    lost.append(record)
                for _, value in join.take_results():
                    first, second = text_of(value).split(" ")
                    own.append((first, None if second == "-" else second))
            join.finish(0)
            return own, lost

        table = MemoryTable(rows)
        own, lost = whole(table)
        if torn:
            assert run_with_partial_writes(rows, whole) == dict(table.rows())
        found, late, rows = found + own, late + lost, dict(table.rows())
    return found, late, rows


@st.composite
def batches_in_order(draw: st.DrawFn) -> list[list[Record]]:
    """Records of two keys in the order of their times, no two at the same, in batches."""
    times = sorted(draw(st.sets(st.integers(0, 60), max_size=14)))
    records = [
        record_of(
            draw(st.sampled_from(["first", "second"])),
            at_ms,
            draw(st.sampled_from(["v", "v", GONE])) + str(at_ms),
            draw(st.sampled_from(["k", "l"])),
        )
        for at_ms in times
    ]
    ends = sorted(draw(st.lists(st.integers(0, len(records)), max_size=3)))
    return [records[begin:end] for begin, end in zip([0, *ends], [*ends, len(records)], strict=True)]


@given(batches_in_order(), st.sampled_from(["inner", "left"]), st.sampled_from([0, 7]))
def test_a_value_joins_the_version_of_the_table_at_its_time(
    batches: list[list[Record]], how: str, history_ms: int
) -> None:
    found, late, _ = run(table_join(how=how, history_ms=history_ms), batches, torn=True)
    records = [record for batch in batches for record in batch]
    wanted: Pairs = []
    for record in records:
        if record.topic == "first":
            changes = [
                one
                for one in records
                if one.topic == "second" and one.key == record.key and one.timestamp_ms < record.timestamp_ms
            ]
            valid = text_of(changes[-1].value) if changes and not is_gone(changes[-1].value) else None
            if valid is not None or how == "left":
                wanted.append((text_of(record.value), valid))
    assert (found, late) == (wanted, [])


@given(batches_in_order(), st.sampled_from(["inner", "left"]), st.integers(0, 9), st.integers(0, 9))
def test_each_pair_that_is_close_is_joined_once(
    batches: list[list[Record]], how: str, before_ms: int, after_ms: int
) -> None:
    end = [record_of("first", 1_000, "end", "m")]
    make = stream_join(how=how, before_ms=before_ms, after_ms=after_ms)
    found, late, rows = run(make, [*batches, end], torn=True)
    records = [record for batch in batches for record in batch]
    wanted: Pairs = []
    for one in (record for record in records if record.topic == "first"):
        close = [
            other
            for other in records
            if other.topic == "second"
            and other.key == one.key
            and -before_ms <= other.timestamp_ms - one.timestamp_ms <= after_ms
        ]
        wanted += [(text_of(one.value), text_of(other.value)) for other in close]
        if not close and how == "left":
            wanted.append((text_of(one.value), None))
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert late == []
    assert [row for row in rows if row.startswith(b"j")] == [b"jm"], "nobody waits for a partner any more"


def test_older_versions_are_kept_for_late_values_and_no_longer() -> None:
    records = [
        record_of("second", 10, "ten"),
        record_of("second", 20, "twenty"),
        record_of("second", 30, "thirty"),
        record_of("first", 31, "a"),
        record_of("first", 25, "b"),
        record_of("first", 21, "c"),
        record_of("first", 20, "d"),
    ]
    found, late, rows = run(table_join(history_ms=10), [records])
    assert found == [("a", "thirty"), ("b", "twenty"), ("c", "twenty")]
    assert [text_of(one.value) for one in late] == ["d"]
    assert b"ten" not in rows[b"jk"]
    assert b"twenty" in rows[b"jk"]
    _, _, rows = run(table_join(history_ms=10), [records, [record_of("first", 41, "e", "other")]])
    assert b"twenty" not in rows[b"jk"], "it is looked at when its time is over"
    assert b"thirty" in rows[b"jk"]


def test_a_late_change_takes_its_place_among_the_versions() -> None:
    records = [
        record_of("second", 10, "ten"),
        record_of("second", 30, "thirty"),
        record_of("second", 20, "twenty"),
        record_of("first", 30, "a"),
        record_of("first", 29, "b"),
    ]
    assert run(table_join(history_ms=50), [records])[0] == [("a", "thirty"), ("b", "twenty")]


@pytest.mark.parametrize("cuts", [(), (2,), (2, 3), (1, 2, 3)])
def test_a_change_that_is_too_late_is_dropped_wherever_batches_end(cuts: tuple[int, ...]) -> None:
    """A batch that ends forgets what is older than `history_ms`, so the late change would bring back a deleted key."""
    records = [
        record_of("second", 10, "ten"),
        record_of("second", 30, GONE),
        record_of("second", 20, "late"),
        record_of("first", 31, "a"),
    ]
    batches = [records[begin:end] for begin, end in pairwise((0, *cuts, len(records)))]
    found, late, _ = run(table_join(history_ms=5, how="left"), batches)
    assert (found, [text_of(one.value) for one in late]) == ([("a", None)], ["late"])


def test_a_deletion_is_kept_for_as_long_as_a_change_before_it_may_come() -> None:
    """Else what comes late would hold again from then on, though it was deleted."""
    batches = [
        [record_of("second", 100, GONE)],
        [record_of("second", 90, "a")],
        [record_of("first", 95, "x"), record_of("first", 105, "y")],
    ]
    found, late, _ = run(table_join(history_ms=50, how="left"), batches, torn=True)
    assert (found, late) == ([("x", "a"), ("y", None)], [])


@pytest.mark.parametrize("history_ms", [0, 10])
def test_a_deleted_key_leaves_nothing(history_ms: int) -> None:
    records = [record_of("second", 10, "ten"), record_of("second", 20, GONE), record_of("first", 21, "a")]
    found, _, rows = run(table_join(history_ms=history_ms), [records])
    assert found == []
    assert (b"jk" in rows) == (history_ms > 0)
    _, _, rows = run(table_join(history_ms=history_ms), [records, [record_of("first", 31, "b", "other")]])
    assert b"jk" not in rows


def test_a_late_value_is_dropped_and_one_that_is_allowed_for_is_joined() -> None:
    records = [
        record_of("second", 10, "x"),
        record_of("second", 20, "y", "other"),
        record_of("first", 12, "a"),
    ]
    assert run(stream_join(before_ms=5, after_ms=5), [records])[0] == []
    assert len(run(stream_join(before_ms=5, after_ms=5), [records])[1]) == 1
    found, late, _ = run(stream_join(before_ms=5, after_ms=5, lateness_ms=8), [records])
    assert (found, late) == ([("a", "x")], [])


@pytest.mark.parametrize(("before_ms", "now_ms", "key"), [(100, 0, "k"), (0, 50, "l")], ids=["less", "more"])
def test_with_another_lateness_values_of_before_are_joined_with_none_all_the_same(
    before_ms: int, now_ms: int, key: str
) -> None:
    """The stored timetable lists them at the moment at which they would have been."""
    rows: Rows = {}
    found: list[str] = []
    for lateness_ms, times in ((before_ms, {0: "k"}), (now_ms, {20: key, 120: key}), (now_ms, {500: "k"})):
        table = MemoryTable(rows)
        join = stream_join(before_ms=5, after_ms=5, how="left", lateness_ms=lateness_ms)(table)
        for at_ms, own in times.items():
            join.accept(record_of("first", at_ms, str(at_ms), own))
            found += [text_of(value) for _, value in join.take_results()]
        join.finish(0)
        rows = dict(table.rows())
    assert found == ["0 -", "20 -", "120 -"]


def test_one_whose_function_fails_has_joined_nobody() -> None:
    def refuse(first: StringValue, second: StringValue | None) -> StringValue:
        if second is not None and second.value == "bad":
            raise ValueError("no")
        return pair(first, second)

    join = StreamJoin(MemoryTable(), combine=refuse, is_second=is_second, before_ms=5, after_ms=5, how="left")
    join.accept(record_of("first", 1, "a"))
    with pytest.raises(ValueError, match="no"):
        join.accept(record_of("second", 2, "bad"))
    join.accept(record_of("second", 3, "good"))
    join.accept(record_of("first", 100, "end", "other"))
    assert [text_of(value) for _, value in join.take_results()] == ["a good"]


@pytest.mark.parametrize("make", [table_join(), stream_join(before_ms=1, after_ms=1)])
def test_a_record_without_a_key_is_poison_and_one_from_a_wrong_clock_is_refused(make: Make) -> None:
    join = make(MemoryTable())
    with pytest.raises(PoisonError, match="has no key, and joins go by keys"):
        join.accept(record_of("first", 1, "a", None))
    join.accept(record_of("first", 1, "a"))
    assert join.accept(record_of("first", 10**13, "b")).reason is None
    assert join.stream_time_ms == 1, "it waits until others confirm it"
    drops = TableJoin(MemoryTable(), combine=pair, is_second=is_second, guard=JumpGuard(1, policy="drop"))
    drops.accept(record_of("first", 1, "a"))
    assert drops.accept(record_of("first", 10**13, "b")).reason is Reason.AHEAD
    with pytest.raises(PoisonError, match="ms ahead of the service's clock"):
        TableJoin(
            MemoryTable(), combine=pair, is_second=is_second, guard=JumpGuard(1, policy="stop"), clock_ms=0
        ).accept(record_of("first", 10, "c"))


def test_a_value_does_not_join_what_an_earlier_attempt_has_written() -> None:
    """That is a table of later: a function might refuse it, though the batch is sealed."""

    def refuse(first: StringValue, second: StringValue | None) -> StringValue:
        raise ValueError(f"{first.value} with {second}")

    join = TableJoin(RecordingTable({}, b"jk"), combine=refuse, is_second=is_second, how="left")
    assert join.accept(record_of("first", 1, "a")).forward
    assert not join.has_results
    with pytest.raises(ValueError, match="b with None"):
        join.accept(record_of("first", 1, "b", "l"))
