"""The contract of `tables.storage.Storage`: Delta Lake on disk and in memory, chunks in memory, chunks in a real Cassandra.

Goal: a place adds each flush once, from its owner only, shows it as a whole, and keeps it through compactions and crashes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sqe_chain.adapters.cassandra.client import CassandraClient
from sqe_chain.errors import ConfigurationError, Superseded, TableAltered, TableInconsistent, Unavailable
from sqe_chain.ext.tables import compacting
from sqe_chain.ext.tables.opening import storage_at
from sqe_chain.ext.tables.storage import Conflict, Storage, TableChange
from sqe_chain.plans.events import When
from sqe_chain.ports import Replacement, SinkState
from sqe_chain.testing.faults import Crash, FaultScript, InjectedFault
from sqe_chain.testing.faulty_ports import faulty_sink
from tests.support.memory_chunks import use_memory
from tests.support.written_tables import Narrower, Row, Wider, WrittenTable, as_dict, claim_of

Make = Callable[[], Storage]


@pytest.fixture(params=["delta", "memory", "chunks", "cassandra"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes the place of a table that nobody else uses."""
    base = str(tmp_path)
    if request.param == "memory":
        base = f"memory://{tmp_path.name}"
    elif request.param == "chunks":
        use_memory(monkeypatch)
        base = "cassandra://memory/keyspace"
    elif request.param == "cassandra":
        base = request.getfixturevalue("cassandra_url")
    return lambda: storage_at(f"{base}/t-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def written(make: Make) -> WrittenTable:
    return WrittenTable(make()).claim()


def some(random: Random, count: int = 12, first: int = 0) -> list[Row]:
    return [
        Row(f"r{random.randrange(5)}", random.randrange(first, first + 20), random.random())
        for _ in range(count)
    ]


def test_weak_durability_is_reported(make: Make) -> None:
    """The servers of tests are durable; memory is not."""
    place = make()
    weak = place.check()
    assert WrittenTable(place).sink.check() == weak
    assert [one.startswith(place.address) for one in weak] == [True] * place.address.startswith("memory://")
    assert WrittenTable(place).sink.remarks() == place.remarks() == []


def test_a_flush_is_added_once_and_found_again(written: WrittenTable) -> None:
    rows = [Row(f"r{number % 5}", number, 1.0) for number in range(20)]
    flushes = written.flushes(rows, 3)
    assert [written.sink.flush(flush)[0] for flush in flushes] == [
        len([row for row in rows if row.robot in robots]) for robots in robots_of(flushes)
    ]
    assert [written.sink.flush(flush)[0] for flush in flushes] == [0, 0]
    assert written.sink.look("f", "t", range(2)) == SinkState(1, frozenset({3}))
    assert written.table.read().num_rows == 20


def robots_of(flushes: list[Any]) -> list[set[str]]:
    from sqe_chain.ext.tables.files import TableFile  # noqa: PLC0415 - only here

    return [
        {
            chunk.name.partition_key.decode()
            for _, content in flush.rows
            for chunk in TableFile.unpacked(content).chunks
        }
        for flush in flushes
    ]


def test_an_older_run_adds_nothing(written: WrittenTable) -> None:
    (late,) = written.flushes([Row("r1", 1)], 3)
    WrittenTable(written.storage).claim(2)
    with pytest.raises(Superseded):
        written.sink.flush(late)
    for claim in (claim_of(1), claim_of(2, run_id="another")):
        with pytest.raises(Superseded):
            written.sink.claim(claim)
    assert written.rows() == {}


def test_an_older_run_that_looked_before_the_claim_adds_nothing(written: WrittenTable) -> None:
    """The window between look and commit: the place itself refuses."""
    snapshot = written.storage.snapshot()
    before = snapshot.heads("f", "t", [0])
    WrittenTable(written.storage).claim(2)
    with pytest.raises(Conflict):
        written.storage.commit(
            snapshot, TableChange("late", "f", "t", before, {0: replace(before[0], number=3)})
        )


def test_other_state_partitions_do_not_get_in_each_others_way(written: WrittenTable) -> None:
    snapshot = written.storage.snapshot()
    before = snapshot.heads("f", "t", [0])
    written.flush(Row(next(f"r{n}" for n in range(9) if part_of(f"r{n}") == 1), 1))
    written.storage.commit(
        snapshot, TableChange("beside", "f", "t", before, {0: replace(before[0], number=1)})
    )
    latest = written.storage.snapshot().heads("f", "t", range(2))
    assert [latest[part].number for part in (0, 1)] == [1, 1]


def part_of(robot: str) -> int:
    from sqe_chain.envelope.partitioner import partition_of  # noqa: PLC0415 - only here

    return partition_of(robot.encode(), 2)


def test_another_plan_of_the_same_number_stops(written: WrittenTable) -> None:
    (first,) = written.flushes([Row("r1", 1)], 3)
    written.sink.flush(first)
    with pytest.raises(TableInconsistent, match="two histories"):
        written.sink.flush(replace(first, plan_id="f" * 32))


def test_a_store_that_went_back_in_time_stops(written: WrittenTable) -> None:
    written.flush(Row("r1", 1))
    known = dict(written.known)
    written.flush(Row("r1", 2))
    for plans in ({}, {2: "f" * 32}):
        with pytest.raises(TableInconsistent, match="does not know"):
            written.sink.claim(claim_of(2, known=known, plans=plans))
    written.sink.claim(claim_of(2, known=known, plans={2: f"{2:032x}"}))  # a crash between table and header


def test_a_table_that_went_back_in_time_or_is_another_one_stops(make: Make, written: WrittenTable) -> None:
    written.flush(Row("r1", 1), Row("r3", 1), Row("r2", 1), Row("r4", 1))
    other = WrittenTable(make())
    with pytest.raises(TableInconsistent, match="there is no table"):
        other.sink.claim(claim_of(2, known=written.known))
    other.claim(2)
    with pytest.raises(TableInconsistent, match="another table"):
        other.sink.claim(claim_of(3, known=written.known))
    ahead = {
        part: (known or b"").replace(b'"plan": 1', b'"plan": 7') for part, known in written.known.items()
    }
    with pytest.raises(TableInconsistent, match="went back in time"):
        written.sink.claim(claim_of(2, known=ahead))


def test_columns_can_be_added_and_are_not_taken_away(written: WrittenTable) -> None:
    written.flush(Row("r1", 1, 1.0))
    wider = WrittenTable(written.storage, Wider)
    wider.known, wider.number = written.known, written.number
    wider.claim(2)
    wider.flush(Wider("r1", 2, 2.0, "new"))
    table = written.table
    assert table.schema().names == ["robot", "at", "bar", "note"]
    assert table.read(columns=["at", "note"]).to_pylist() == [
        {"at": 1, "note": None},
        {"at": 2, "note": "new"},
    ]
    table.compact()
    assert table.read(columns=["note"])["note"].to_pylist() == [None, "new"]
    with pytest.raises(TableAltered, match="does not declare"):
        WrittenTable(written.storage, Narrower).claim(3)


def test_readers_find_the_latest_rows_also_after_compactions(written: WrittenTable) -> None:
    random = Random(3)
    for number in range(6):
        written.flush(*some(random, 20, 10 * number))
    written.check()
    before = len(written.storage.snapshot().files())
    done = written.table.compact()
    assert (done.files_before, done.files_after) == (before, 2)
    assert before > 6
    assert done.rows_left_out > 0
    written.check()
    assert {chunk.compacted is not None for chunk in written.table.chunks()} == {True}
    written.flush(Row("r1", 0, 9.0))
    written.check()
    written.table.compact()
    written.check()
    assert sum(chunk.rows for chunk in written.table.chunks()) == len(written.expected)


def test_a_scan_gives_what_was_asked_and_reports_what_it_skipped(written: WrittenTable) -> None:
    random = Random(4)
    for number in range(6):
        written.flush(*some(random, 30, 20 * number))
    for compacted in (False, True):
        scan = written.table.scan("r3", row_key=(45, 70), columns=["robot", "at", "bar"])
        wanted = {key: bar for key, bar in written.expected.items() if key[0] == "r3" and 45 <= key[1] <= 70}
        assert as_dict(scan.rows) == wanted
        assert wanted
        assert scan.files + scan.files_left_out == len(written.storage.snapshot().files())
        if not compacted:
            assert scan.files <= 2 < scan.files_left_out
            written.table.compact()
    some_bars = written.table.read(where={"bar": (0.5, None)})
    assert as_dict(some_bars) == {key: bar for key, bar in written.expected.items() if bar >= 0.5}


def test_an_older_version_of_a_row_is_never_found_by_its_value(written: WrittenTable) -> None:
    written.flush(Row("r1", 1, 1.0), Row("r2", 1, 1.0), Row("r2", 7, 1.5))
    written.flush(Row("r1", 1, 5.0))
    assert as_dict(written.table.read(where={"bar": (None, 2.0)})) == {("r2", 1): 1.0, ("r2", 7): 1.5}
    assert as_dict(written.table.read(where={"bar": (2.0, None), "at": (1, 1)})) == {("r1", 1): 5.0}


def test_bounds_of_one_column_given_twice_hold_both(written: WrittenTable) -> None:
    written.flush(*(Row(f"r{number % 5}", number, 1.0) for number in range(40)))
    robots = written.table.read("r1", where={"robot": ("r0", "r9")})
    assert set(robots["robot"].to_pylist()) == {"r1"}
    some = written.table.read(row_key=(None, 20), where={"at": (11, None)})
    assert sorted(some["at"].to_pylist()) == list(range(11, 21))
    assert written.table.read("r1", where={"robot": ("r2", None)}).num_rows == 0


def test_of_two_compactions_at_once_one_begins_again(
    written: WrittenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(5)
    for _ in range(3):
        written.flush(*some(random))

    def flush_and_compact() -> None:
        written.flush(*some(random))
        written.table.compact()

    between(monkeypatch, flush_and_compact)
    written.table.compact()
    written.check()
    assert sum(file.rows for file in written.storage.snapshot().files()) == len(written.expected)


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do it once, after a compaction has written its first files and before it commits them."""
    put = compacting.put_merged

    def put_then_act(*arguments: Any) -> Any:
        found = put(*arguments)
        monkeypatch.setattr(compacting, "put_merged", put)
        act()
        return found

    monkeypatch.setattr(compacting, "put_merged", put_then_act)


def test_a_flush_during_a_compaction_is_kept(written: WrittenTable, monkeypatch: pytest.MonkeyPatch) -> None:
    written.flush(Row("r1", 1, 1.0), Row("r2", 1, 1.0))
    written.flush(Row("r1", 2, 2.0), Row("r2", 2, 2.0))
    between(monkeypatch, lambda: written.flush(Row("r1", 1, 8.0), Row("r2", 1, 9.0)))
    written.table.compact()
    written.check()
    assert written.rows()["r1", 1] == 8.0


def test_a_compaction_that_crashes_changes_nothing(
    written: WrittenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(8)
    for _ in range(3):
        written.flush(*some(random))
    files = written.storage.snapshot().files()

    def crash() -> None:
        raise KeyboardInterrupt

    between(monkeypatch, crash)
    with pytest.raises(KeyboardInterrupt):
        written.table.compact()
    assert written.storage.snapshot().files() == files
    written.check()
    assert written.table.compact().files_after == 2
    written.check()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_every_write_is_repaired_by_the_redo(make: Make, when: When) -> None:
    """Also between one chunk and the next: what a crash leaves is seen by nobody."""
    random = Random(6)
    first, second = some(random, 8), some(random, 8)
    storage = make()
    written = WrittenTable(storage).claim()
    written.flush(*first)
    number = 0
    while True:
        script = FaultScript()
        crash_at(script, number, when)
        dying = faulty_sink(written.sink, script)
        expected = written.expected | {(row.robot, row.at): row.bar for row in second}
        try:
            for one in written.flushes(second, written.number + 1):
                _, known = dying.flush(one)
                written.known[one.part] = known
        except Crash:
            seen = written.rows()
            for part in (0, 1):  # each state partition: as before, or as after
                mine = {key for key in expected if part_of(key[0]) == part}
                assert {key: seen[key] for key in mine & seen.keys()} in (
                    {key: written.expected[key] for key in mine & written.expected.keys()},
                    {key: expected[key] for key in mine},
                )
        else:
            break
        finally:
            written.number += 1
        written.expected = expected
        for one in written.flushes(second, written.number):
            _, written.known[one.part] = written.sink.flush(one)
        written.check()
        second = some(random, 8)
        number += 1
    assert number >= (6 if "cassandra" in storage.address else 4)
    assert sum(file.rows for file in storage.snapshot().files()) == sum(
        chunk.rows for chunk in written.table.chunks()
    )


def crash_at(script: FaultScript, number: int, when: When) -> None:
    """Die at a write to the table."""

    def die() -> None:
        raise Crash(f"{when} write {number}")

    script.injected.append(InjectedFault(die, "table", when, writes=True, passes=number))


# Delta Lake's own vacuum goes by the times of files.
@pytest.mark.parametrize("make", ["chunks", "cassandra"], indirect=True)
def test_a_vacuum_deletes_what_a_compaction_has_replaced(
    written: WrittenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(7)
    for _ in range(3):
        written.flush(*some(random))
    old = written.storage.snapshot()
    files = old.files()
    written.table.compact()
    assert written.table.vacuum(retain_hours=1) == []
    assert written.storage.read(old, files, wanted()).tables, "a reader of before goes on"
    later(monkeypatch, hours=2)
    gone = written.table.vacuum(retain_hours=1)
    assert sorted(gone) == sorted(file.path for file in files)
    assert written.table.vacuum(retain_hours=1) == []
    with pytest.raises(Conflict):
        written.storage.read(old, files, wanted())
    written.check()


def wanted() -> Any:
    from sqe_chain.ext.tables.storage import Wanted  # noqa: PLC0415 - only here

    return Wanted(["robot", "at", "bar"])


def later(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    now = time.time()
    monkeypatch.setattr("sqe_chain.ext.tables.chunk_table.time.time", lambda: now + hours * 3_600)


def test_no_answer_is_unavailable(cassandra_url: str) -> None:
    host, _, _ = cassandra_url.rpartition(":")
    storage = storage_at(f"{host}:1/sqe_chain/t?connect_timeout_s=0.5&timeout_s=0.5")
    with pytest.raises(Unavailable):
        storage.snapshot()
    CassandraClient.forget(storage.rows.settings)  # type: ignore[attr-defined]


def staged(written: WrittenTable, rows: list[Row], number: int, since: int) -> Replacement:
    """The rows of a plan that are staged for an overwrite, as the store knows them."""
    known: dict[int, bytes | None] = {part: written.known.get(part) for part in range(2)}
    copies: dict[int, list[bytes]] = {part: [] for part in range(2)}
    for flush in written.flushes(rows, number):
        found = written.sink.stage(flush, since)
        known[flush.part] = found.known
        copies[flush.part].append(found.told)
    return Replacement("f", "t", 1, claim_of(1).run_id, number + 1, "e" * 32, since, True, known, copies)  # noqa: FBT003 - whole


def by_keys(rows: list[Row]) -> dict[tuple[str, int], float]:
    return {(row.robot, row.at): row.bar for row in rows}


def test_an_overwrite_replaces_all_state_partitions_at_once_and_only_once(written: WrittenTable) -> None:
    old = [Row(f"r{number}", 1, 1.0) for number in range(6)]
    written.flush(*old)
    if not written.storage.one_log:
        with pytest.raises(ConfigurationError, match="one commit for all state partitions"):
            written.sink.check_replaces()
        return
    written.sink.check_replaces()
    new = [Row(f"r{number}", 2, 2.0) for number in range(3)]
    replacement = staged(written, new, 8, 7)
    assert written.rows() == by_keys(old)
    assert written.sink.check_staged(replacement) == []
    before = written.storage.snapshot()
    written.sink.replace(replacement)
    assert written.rows() == by_keys(new)
    after = written.storage.snapshot()
    assert after.version == before.version + 1
    assert {head.number for head in after.heads("f", "t", range(2)).values()} == {9}
    written.sink.replace(replacement)
    assert written.storage.snapshot().version == after.version


def test_an_overwrite_of_an_older_run_or_of_what_is_not_all_there_replaces_nothing(
    written: WrittenTable,
) -> None:
    old = [Row("r1", 1, 1.0)]
    written.flush(*old)
    if not written.storage.one_log:
        return
    replacement = staged(written, [Row("r2", 2, 2.0)], 8, 7)
    lost = replace(replacement, staged={part: [] for part in range(2)})
    with pytest.raises(TableInconsistent, match="lost what it had acknowledged"):
        written.sink.replace(lost)
    WrittenTable(written.storage).claim(2, known=written.known)
    with pytest.raises(Superseded):
        written.sink.replace(replacement)
    assert written.rows() == by_keys(old)
