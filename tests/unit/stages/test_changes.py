"""Goal: of a table's changes each is taken once, with the row before it, whatever Debezium emits again. Method: a naive database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from sqe_chain.codecs import codec_for
from sqe_chain.codecs.change import Change, change_of, deltas_of
from sqe_chain.codecs.debezium import EventDecoder
from sqe_chain.errors import ChangedType, PoisonError
from sqe_chain.stages import MemoryTable, Reason, Record
from sqe_chain.stages.changes import ChangedRows
from tests.support.databases import Database, net, record, world
from tests.support.docs_examples import ROOT

DECODER = EventDecoder(("id",))
LARGE = "__debezium_unavailable_value"


def taken(
    topic: list[tuple[bytes, bytes]], table: MemoryTable | None = None, batch: int = 5, row: type = dict
) -> tuple[list[Change[Any]], list[Reason | None]]:
    """What comes of the records of a topic, in batches; and a verdict for each."""
    table = MemoryTable() if table is None else table
    changes: list[Change[Any]] = []
    reasons: list[Reason | None] = []
    for begin in range(0, len(topic), batch):
        rows = ChangedRows(table, rows=codec_for(row))
        for key, value in topic[begin : begin + batch]:
            event = DECODER.decode(value, key)
            reasons.append(rows.accept(Record(key=event.key.encode(), value=event)).reason)
            changes += [change for _, change in rows.take_changes()]
        rows.finish(now_ms=0)
    return changes, reasons


def as_rows(changes: list[Change[Any]]) -> list[tuple[Any, Any]]:
    return [(change.before, change.after) for change in changes]


@pytest.mark.parametrize("seed", range(60))
def test_each_change_is_taken_once_with_the_row_before_it(seed: int) -> None:
    database, connector = world(seed)
    changes, reasons = taken(connector.topic)
    assert Reason.GAP not in reasons
    begun = [change for change in changes if change.op == "read"]
    # What the database had committed when the table was read is in the log, too; the rest must come change by change.
    streamed = database.log[len(database.log) - (len(changes) - len(begun)) :]
    assert [(change.position, change.after) for change in changes if change.op != "read"] == [
        ((logged.commit_before, logged.lsn), logged.after) for logged in streamed
    ]
    last: dict[str, Any] = {}
    for change in changes:
        assert change.row is not None
        key = str(change.row["id"])
        assert change.before == last.get(key)
        last[key] = change.after
    assert net(as_rows(changes)) == database.total() | dict.fromkeys(
        net(as_rows(changes)).keys() - database.total().keys(), 0
    )


@pytest.mark.parametrize("seed", range(60))
def test_snapshots_that_are_repeated_change_no_sum(seed: int) -> None:
    database, connector = world(seed, snapshots=3)
    sums = net(as_rows(taken(connector.topic)[0]))
    assert {customer: amount for customer, amount in sums.items() if amount} == database.total()


@pytest.mark.parametrize("seed", range(60))
def test_an_incremental_snapshot_brings_and_reports_what_a_slot_has_lost(seed: int) -> None:
    database, connector = world(seed)
    draw, before = connector.draw, dict(database.rows)
    database.live(draw, transactions=draw.randint(1, 3))
    connector.lose()
    lost, begin = dict(database.rows), len(connector.topic)
    connector.read_again()
    database.live(draw, transactions=draw.randint(0, 3))
    for _ in range(draw.randint(1, 4)):
        connector.emit(draw.randint(0, 20))
        connector.kill()
    connector.emit()
    vanished = before.keys() - database.rows.keys() & before.keys() - lost.keys()
    for row_id in vanished:
        # What repairs them: the row is written, and deleted, in the database.
        database.change(0, "c", row_id, {"id": row_id, "customer": "ann", "amount": 1})
        database.change(0, "d", row_id, None)
    database.commit(0)
    connector.emit()
    changes, reasons = taken(connector.topic)
    sums = net(as_rows(changes))
    assert {customer: amount for customer, amount in sums.items() if amount} == database.total()
    assert Reason.GAP not in reasons[:begin]
    if any(row_id in lost and lost[row_id] != before[row_id] for row_id in before):
        assert Reason.GAP in reasons[begin:]


def test_what_a_connector_emits_again_from_before_an_incremental_snapshot_is_dropped() -> None:
    old = record("u", 1, {"id": 1, "n": 1}, 20, 2, commit_before=10)
    read = record("r", 1, {"id": 1, "n": 2}, 50, 9, commit_before=50, snapshot="incremental")
    new = record("u", 1, {"id": 1, "n": 3}, 60, 7, commit_before=50)
    changes, reasons = taken([old, read, old, new, old, new], batch=1)
    assert as_rows(changes)[1:] == [
        ({"id": 1, "n": 1}, {"id": 1, "n": 2}),
        ({"id": 1, "n": 2}, {"id": 1, "n": 3}),
    ]
    assert reasons[1:] == [Reason.GAP, Reason.STALE, None, Reason.STALE, Reason.DUPLICATE]


def test_a_change_at_the_position_of_an_incremental_snapshot_counts_once() -> None:
    # Debezium 3.6.1 gives rows that position with `read.only`: its window has closed at a change, and not at a row of signals.
    read = record("r", 1, {"id": 1, "n": 2}, 50, 9, commit_before=50, snapshot="incremental")
    new = record("u", 1, {"id": 1, "n": 3}, 50, 7, commit_before=50)
    _, reasons = taken([read, new, new])
    assert reasons == [None, None, Reason.DUPLICATE]


def test_a_blocking_snapshot_has_the_position_of_the_last_change_and_its_row_counts() -> None:
    # Positions as Debezium 3.6.1 has written them: the rows were read later than the changes that follow.
    last = record("u", 1, {"id": 1, "n": 101}, 22063560, 1, commit_before=22063560)
    read = record("r", 1, {"id": 1, "n": 103}, 22063560, 9, snapshot="last")
    after = [
        record("u", 1, {"id": 1, "n": number}, lsn, number, commit_before=lsn)
        for number, lsn in ((102, 22063688), (103, 22063816))
    ]
    changes, _ = taken([last, read, *after, *after])
    assert [change.after and change.after["n"] for change in changes] == [101, 103, 102, 103]


def test_a_row_that_vanished_while_nobody_looked_is_not_noticed_by_a_second_snapshot() -> None:
    first = record("r", 1, {"id": 1}, 10, 1, snapshot="first")
    second = record("r", 2, {"id": 2}, 30, 3, snapshot="first")
    changes, _ = taken([first, second])
    assert as_rows(changes) == [(None, {"id": 1}), (None, {"id": 2})]


def test_rows_of_one_copy_share_a_position_and_all_count() -> None:
    database = Database()
    database.copy(database.begin(), [{"id": number} for number in range(5)])
    database.commit(0)
    topic = [logged.event() for logged in database.log]
    changes, reasons = taken(topic + topic)
    assert [change.after and change.after["id"] for change in changes] == [0, 1, 2, 3, 4]
    assert reasons[5:] == [Reason.DUPLICATE] * 5


def test_a_transaction_that_began_before_another_and_ended_after_it_is_no_repetition() -> None:
    database = Database()
    late, early = database.begin(), database.begin()
    database.change(late, "c", 2, {"id": 2, "n": 1})
    database.change(early, "c", 1, {"id": 1, "n": 1})
    database.commit(early)
    database.change(late, "u", 1, {"id": 1, "n": 2})  # after the commit it waited for
    database.commit(late)
    topic = [logged.event() for logged in database.log]
    changes, _ = taken(topic + topic[1:])
    assert as_rows(changes) == [
        (None, {"id": 1, "n": 1}),
        (None, {"id": 2, "n": 1}),
        ({"id": 1, "n": 1}, {"id": 1, "n": 2}),
    ]


def test_what_follows_a_snapshot_counts_although_it_was_written_before_it() -> None:
    read = record("r", 1, {"id": 1, "n": 1}, 500, 9, snapshot="last")
    running = record(
        "u", 1, {"id": 1, "n": 2}, 480, 10
    )  # its transaction was open, and no commit was seen yet
    assert as_rows(taken([read, running, running])[0]) == [
        (None, {"id": 1, "n": 1}),
        ({"id": 1, "n": 1}, {"id": 1, "n": 2}),
    ]


def test_a_snapshot_that_finds_a_row_as_it_was_gives_nothing_and_one_that_finds_another_reports_a_gap() -> (
    None
):
    inserted = record("c", 1, {"id": 1, "n": 1}, 20, 2, commit_before=10)
    same = record("r", 1, {"id": 1, "n": 1}, 40, 4, snapshot="last")
    other = record("r", 1, {"id": 1, "n": 3}, 60, 6, snapshot="last")
    changes, reasons = taken([inserted, same, other])
    assert [change.op for change in changes] == ["insert", "read"]
    assert reasons == [None, Reason.DUPLICATE, Reason.GAP]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (["u"], (None, {"id": 1})),
        (["d"], (None, None)),
        (["c", "c"], ({"id": 1}, {"id": 1})),
        (["c", "d", "u"], (None, {"id": 1})),
    ],
)
def test_changes_that_are_missing_are_reported_where_the_next_one_shows_it(
    events: list[str], expected: tuple[Any, Any]
) -> None:
    topic = [
        record(op, 1, None if op == "d" else {"id": 1}, lsn, lsn, commit_before=lsn - 5)
        for lsn, op in zip(range(20, 100, 10), events, strict=False)
    ]
    changes, reasons = taken(topic)
    assert as_rows(changes)[-1] == expected
    assert reasons[-1] == Reason.GAP
    assert Reason.GAP not in reasons[:-1]


def test_a_database_that_went_back_is_refused_and_not_taken_for_a_repetition() -> None:
    ahead = record("c", 1, {"id": 1}, 200, 2_000, commit_before=190)
    behind = record("u", 1, {"id": 1}, 120, 3_000, commit_before=110)
    with pytest.raises(PoisonError, match="the database has gone back"):
        taken([ahead, behind])


def test_large_columns_that_an_update_has_not_changed_are_those_seen_last() -> None:
    inserted = record("c", 1, {"id": 1, "text": "long", "tags": ["a", "b"]}, 20, 2, commit_before=10)
    updated = record("u", 1, {"id": 2, "text": LARGE, "tags": [LARGE]}, 30, 3, commit_before=10)
    changes, _ = taken([inserted, updated])
    assert changes[-1].after == {"id": 2, "text": "long", "tags": ["a", "b"]}


@dataclass
class Short:
    id: int


def test_large_columns_that_nobody_has_seen_are_refused_by_name_unless_nobody_wants_them() -> None:
    updated = record("u", 1, {"id": 1, "text": LARGE}, 30, 3, commit_before=10)
    with pytest.raises(PoisonError, match=r"lacks the column text.*REPLICA IDENTITY FULL"):
        taken([updated])
    assert taken([updated], row=Short)[0][0].after == Short(1)


def test_rows_of_another_type_are_refused_by_name() -> None:
    with pytest.raises(PoisonError, match="the row of key '1' after the change is no Short"):
        taken([record("c", 1, {"id": "x"}, 20, 2, commit_before=10)], row=Short)
    table = MemoryTable()
    taken([record("c", 1, {"no": 1}, 20, 2, commit_before=10)], table)
    with pytest.raises(ChangedType, match="a row of json:Short"):
        taken([record("d", 1, None, 30, 3, commit_before=10)], table, row=Short)


class Settled(MemoryTable):
    """A table whose rows an earlier attempt at the batch has written."""

    def settled(self, row: bytes) -> bool:
        del row
        return True


def test_a_batch_that_is_redone_gives_nothing_for_rows_that_it_has_written() -> None:
    updated = record("u", 1, {"id": 1, "n": 2}, 30, 3, commit_before=10)
    read = record("r", 1, {"id": 1, "n": 3}, 50, 5, snapshot="last")
    table = MemoryTable()
    taken([updated, read], table)
    # After the read any position counts, so the rows themselves do not show that the update is in them.
    changes, reasons = taken([updated, read], Settled(table.rows()))
    assert (changes, reasons) == ([], [None, None])


def test_deltas_take_away_the_row_before_and_add_the_row_now() -> None:
    moved = change_of(dict)("update", {"n": 1}, {"n": 2}, (1,), 0)
    assert [(part.op, part.sign, part.row) for part in deltas_of(moved)] == [
        ("delete", -1, {"n": 1}), ("insert", 1, {"n": 2})
    ]  # fmt: skip
    assert deltas_of(change_of(dict)("delete", None, None, (1,), 0)) == []


def recorded(name: str = "debezium-3.6.1") -> list[tuple[int, bytes, bytes | None]]:
    """What Debezium has published: two transactions that overlapped, a changed key, a COPY, a large column, a TRUNCATE."""
    lines = (ROOT / f"tests/unit/codecs/{name}.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    records = map(json.loads, lines)
    return [(part, key and key.encode(), value and value.encode()) for part, key, value in records]


def test_events_that_debezium_has_written_are_taken_and_a_repetition_gives_nothing() -> None:
    *topic, truncated = [(key, value) for _, key, value in recorded() if value is not None]
    changes, reasons = taken(topic)
    rows = {key: change.after for change in changes for key in [json.dumps(change.row and change.row["id"])]}
    assert {row["id"]: row["amount"] for row in rows.values() if row} == {
        3: 2, 4: 9, 20: 8, 30: 30, 31: 31, 32: 32, 33: 33, 50: 1
    }  # fmt: skip
    assert reasons == [None] * len(topic)
    updates = [(change.before, change.after) for change in changes if change.op == "update"]
    ((before, after),) = [rows for rows in updates if rows[1] and rows[1]["amount"] == 2]
    assert before is not None
    assert after == {**before, "amount": 2}, "it has the large text, which the event lacks"
    deleted = [change.before for change in changes if change.op == "delete"]
    assert [row and row["customer"] for row in deleted] == ["ann", "bob"], "the events have empty texts there"
    # From any of them on: each offset may be the one that was stored.
    for begin in range(len(topic)):
        assert len(taken(topic + topic[begin:])[0]) == len(changes)
    with pytest.raises(PoisonError, match="the table was truncated"):
        taken([truncated])


def test_events_of_the_mysql_connector_are_taken_and_a_repetition_gives_nothing() -> None:
    topic = [(key, value) for _, key, value in recorded("debezium-mysql-3.6.1") if value is not None]
    changes, reasons = taken(topic)
    rows = {change.row["id"]: change.after for change in changes if change.row}
    assert {row_id: row["amount"] for row_id, row in rows.items() if row} == {1: 400, 2: 7, 5: 8}
    assert reasons == [None] * len(topic)
    assert {change.position[0] for change in changes} == {3, 4}, "a restart, and another file of the log"
    for begin in range(2, len(topic)):  # what a snapshot has read is not emitted again
        assert len(taken(topic + topic[begin:])[0]) == len(changes)
