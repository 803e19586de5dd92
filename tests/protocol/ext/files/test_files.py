"""Files as inputs, in memory: each row of each content counts once, through crashes at every call, and what is not exact stops."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sqe_chain import Flow
from sqe_chain.errors import (
    ChangedFile,
    ConfigurationError,
    PlanMismatch,
    PoisonError,
    ServiceStopped,
    Superseded,
    UnreadableFile,
)
from sqe_chain.features.file_inputs import LoadedFiles
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Csv
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.stages import Tumbling, Window
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.file_flows import (
    Fastening,
    Total,
    add,
    expected,
    published_once,
    rows_flow,
    rows_of,
    some_files,
    totals_flow,
    write,
)

FEW = settings_of(open_files=2, max_records=7)
SUFFIXES = ("csv", "jsonl", "parquet", "csv.gz", "jsonl.zst")


def last_plan(rehearsal: Rehearsal) -> Plan:
    service = rehearsal.service
    assert isinstance(service, StagedService)
    assert service.last is not None
    return service.last


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_each_row_counts_once_and_a_second_load_adds_nothing(tmp_path: Path, suffix: str) -> None:
    rows = some_files(tmp_path, suffix)
    load = Rehearsal(totals_flow(tmp_path, suffix), settings=FEW)
    load.run_until_caught_up()
    assert load.states("per-robot") == expected(rows)
    count, plan = len(load.log.records("totals")), last_plan(load).number
    load.restart()
    load.run_until_caught_up()
    assert load.states("per-robot") == expected(rows)
    assert (len(load.log.records("totals")), last_plan(load).number) == (count, plan)


def test_new_files_are_added_and_the_same_content_under_another_name_is_not(tmp_path: Path) -> None:
    rows = some_files(tmp_path)
    load = Rehearsal(totals_flow(tmp_path), settings=FEW)
    load.run_until_caught_up()
    write(tmp_path / "a-copy.csv", rows[0])
    (tmp_path / "f1.csv").rename(tmp_path / "renamed.csv")
    new = rows_of(7, 4)
    write(tmp_path / "a-new.csv", new)
    load.restart()
    load.run_until_caught_up()
    assert load.states("per-robot") == expected([*rows, new])


def test_a_changed_file_is_another_root(tmp_path: Path) -> None:
    rows = some_files(tmp_path)
    load = Rehearsal(totals_flow(tmp_path), settings=FEW)
    load.run_until_caught_up()
    changed = rows_of(8, 3)
    write(tmp_path / "f0.csv", changed)
    load.run_until_caught_up()
    assert load.states("per-robot") == expected([*rows, changed])


def test_a_finished_file_may_vanish_before_anything_else_happens(tmp_path: Path) -> None:
    rows = some_files(tmp_path, sizes=(4,))
    load = Rehearsal(totals_flow(tmp_path), settings=FEW)
    load.run_until_caught_up()
    (tmp_path / "f0.csv").unlink()
    load.restart()
    load.run_until_caught_up()
    new = rows_of(5, 2)
    write(tmp_path / "f5.csv", new)
    load.run_until_caught_up()
    assert load.states("per-robot") == expected([*rows, new])


@pytest.mark.parametrize("how", ["removed", "changed"])
def test_a_file_that_is_gone_half_read_stops_by_its_name_and_can_be_put_back_or_abandoned(
    tmp_path: Path, how: str
) -> None:
    (rows,) = some_files(tmp_path, sizes=(20,))
    path = tmp_path / "f0.csv"
    load = Rehearsal(totals_flow(tmp_path), settings=FEW)
    load.batch()
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes(content.replace(b"r1", b"r9"))
    for _ in range(2):
        with pytest.raises(ChangedFile, match=r"f0\.csv, of which 7 of 20 rows are read"):
            load.batch()
        with pytest.raises(ChangedFile, match=r"f0\.csv"):
            load.restart()
    path.write_bytes(content)
    put_back = Rehearsal(load.flow, log=load.log, store=load.stores, settings=FEW)
    put_back.run_until_caught_up()
    assert put_back.states("per-robot") == expected([rows])


@pytest.mark.parametrize("restarted", [True, False])
def test_a_file_that_is_gone_before_a_row_of_it_was_read_is_not_missed_and_may_come_back(
    tmp_path: Path, restarted: bool
) -> None:
    rows = some_files(tmp_path, sizes=(9, 5))
    load = Rehearsal(totals_flow(tmp_path), settings=settings_of(max_records=2, open_files=2))
    load.start()
    assert len(LoadedFiles.of(last_plan(load)).entered) == 2
    path = tmp_path / "f1.csv"
    content = path.read_bytes()
    path.unlink()
    if restarted:
        load.restart()
    load.run_until_caught_up()
    assert load.states("per-robot") == expected(rows[:1])
    path.write_bytes(content)
    load.run_until_caught_up()
    assert load.states("per-robot") == expected(rows)


def test_the_rest_of_a_file_can_be_abandoned(tmp_path: Path) -> None:
    (rows,) = some_files(tmp_path, sizes=(20,))
    path = tmp_path / "f0.csv"
    load = Rehearsal(totals_flow(tmp_path), settings=FEW)
    load.batch()
    digits = next(iter(LoadedFiles.of(last_plan(load)).entered)).rpartition(".")[2]
    content = path.read_bytes()
    other = rows_of(3, 2)
    write(path, other)
    load.settings = settings_of(
        open_files=2, max_records=7, allow_weak_durability=True, abandon=(digits[:8],)
    )
    load.service = None
    load.run_until_caught_up()
    assert load.states("per-robot") == expected([rows[:7], other])
    assert any("abandoned" in str(event["text"]) for event in load.events("notice"))
    write(tmp_path / "f1.csv", rows)
    assert (tmp_path / "f1.csv").read_bytes() == content
    load.settings = Settings(allow_weak_durability=True)
    load.restart()
    load.run_until_caught_up()
    assert load.states("per-robot") == expected([rows[:7], other]), "for good"


def test_a_file_that_changes_while_a_batch_reads_it_stops_before_the_seal(tmp_path: Path) -> None:
    some_files(tmp_path, sizes=(400,))
    path = tmp_path / "f0.csv"
    load = Rehearsal(totals_flow(tmp_path), settings=Settings(max_records=7))
    load.batch()  # a change of a file that was not read yet does not count
    sealed = len(load.events("sealed"))
    pauses = noticed = 0

    def append() -> None:
        nonlocal pauses
        pauses += 1
        with path.open("a") as file:
            file.write("r1,5\n")

    # Somewhere among the calls of a batch; where it is noticed differs, but never is anything half done.
    for call in range(3, 30):
        content = path.read_bytes()
        before = load.states("per-robot"), len(load.events("sealed"))
        load.meanwhile(append, at=call)
        try:
            load.batch()
        except ChangedFile:
            noticed += 1
            assert len(load.events("sealed")) == before[1]
            assert load.states("per-robot") == before[0]
        load.cancel()
        path.write_bytes(content)
        load.service = None
    assert pauses > 10
    assert noticed > 10
    assert len(load.events("sealed")) >= sealed
    load.run_until_caught_up()
    assert load.states("per-robot") == expected([rows_of(0, 400)])


def test_a_truncated_file_stops_by_its_name_and_nothing_is_done(tmp_path: Path) -> None:
    some_files(tmp_path, "parquet")
    path = tmp_path / "f1.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    load = Rehearsal(totals_flow(tmp_path, "parquet"), settings=FEW)
    with pytest.raises(UnreadableFile, match=r"f1\.parquet: no Parquet, or cut off"):
        load.start()
    assert load.script.written == []
    path.write_bytes(content)
    load.run_until_caught_up()
    assert load.states("per-robot") == expected([rows_of(0, 9), rows_of(1, 5), rows_of(3, 6)])


@pytest.mark.parametrize("poison", ["skip", "dead_letter"])
def test_a_truncated_file_is_skipped_by_other_policies_until_it_is_whole(
    tmp_path: Path, poison: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = some_files(tmp_path, "parquet")
    path = tmp_path / "f1.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    load = Rehearsal(totals_flow(tmp_path, "parquet", poison=poison), settings=FEW)  # type: ignore[arg-type]
    load.run_until_caught_up()
    assert load.states("per-robot") == expected([rows[0], rows[3]])
    assert "f1.parquet" in caplog.text
    path.write_bytes(content)
    load.run_until_caught_up()
    assert load.states("per-robot") == expected(rows)


def test_damaged_rows_go_to_the_poison_policy_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b'robot,screws\nr1,1\nr1\nr2,two\nr\xff3,4\n\nr1,8\n"r\n1",16\n')
    load = Rehearsal(totals_flow(tmp_path, poison="dead_letter"))
    load.run_until_caught_up()
    assert {key: state.screws for key, state in load.states("per-robot").items()} == {b"r1": 9, b"r\n1": 16}
    dead_letters = load.log.records("load.dead-letters")
    assert [record.value() for record in dead_letters] == [
        b'["r1"]',
        b'{"robot":"r2","screws":"two"}',
        b"r\xff3,4",
    ]
    assert [dict(record.headers() or [])["sqe-offset"] for record in dead_letters] == [b"1", b"2", b"3"]
    result = FailedInPlans(environment_of(load)).release()
    assert (result.released, result.left) == (0, 3)
    assert "put what is right into another file" in result.reasons[0][1]
    stopped = Rehearsal(totals_flow(tmp_path))
    with pytest.raises(PoisonError, match=r"f\.csv, row 1\b"):
        stopped.run_until_caught_up()
    assert stopped.events("sealed") == [
        event for event in stopped.events("sealed") if event["plan"] in (0, 1)
    ]


def test_another_declaration_of_csv_is_noticed_before_anything_is_read_with_it(tmp_path: Path) -> None:
    some_files(tmp_path, sizes=(20,))
    load = Rehearsal(totals_flow(tmp_path), settings=FEW)
    load.batch()
    os.utime(tmp_path / "f0.csv")
    load.restart()  # the time of the last change alone proves nothing
    load.batch()
    other = Flow("load", state_partitions=2)
    totals = other.files(
        "fastenings", Fastening, tmp_path / "*.csv", csv=Csv(columns=("robot", "screws"))
    ).aggregate("per-robot", key=lambda one: one.robot, state=Total, fold=add)
    totals.changes().to("totals", partitions=1)
    again = Rehearsal(other, log=load.log, store=load.stores, settings=FEW)
    with pytest.raises(ServiceStopped, match=r"f0\.csv"):
        again.start()


HOUR_MS = 3_600_000


class Measured(Fastening):
    at_ms: int = 0


def hourly(folder: Path, state_partitions: int = 2) -> Flow:
    """Sums of each hour, by the times in a column; with one state partition without a shuffle."""
    flow = Flow("hours", state_partitions=state_partitions)
    hours = flow.files("rows", Measured, folder / "*.jsonl", timestamp=lambda one: one.at_ms).windowed(
        "per-hour", Tumbling(HOUR_MS), key=lambda one: one.robot, state=Total, fold=add
    )
    hours.to("hours", partitions=1)
    return flow


@pytest.mark.parametrize("state_partitions", [1, 2])
@pytest.mark.parametrize("crash", range(0, 90, 6))
def test_windows_take_rows_of_all_files_in_the_order_of_their_times(
    tmp_path: Path, crash: int, state_partitions: int
) -> None:
    """Each file is in the order of its times; one is far ahead of the other, and one is short."""
    wanted: dict[tuple[bytes, int], int] = {}
    for number, count in enumerate((30, 9, 2)):
        rows = [
            {**row, "at_ms": HOUR_MS * (2 + place // (2 + number)) + place}
            for place, row in enumerate(rows_of(number, count))
        ]
        write(tmp_path / f"{number}.jsonl", rows)
        for row in rows:
            at = (row["robot"].encode(), row["at_ms"] // HOUR_MS)
            wanted[at] = wanted.get(at, 0) + row["screws"]
    load = Rehearsal(hourly(tmp_path, state_partitions), settings=settings_of(max_records=6, open_files=1))
    load.crash_at_call(crash)
    load.run_until_caught_up()
    load.close_windows()
    assert closed_hours(load) == wanted


def closed_hours(load: Rehearsal) -> dict[tuple[bytes, int], int]:
    """Robot and hour -> screws, of what was published, without replays; each hour is final once."""
    found: dict[tuple[bytes, int], int] = {}
    seen = set()
    for envelope in load.published("hours"):
        if (envelope.lane, envelope.position) not in seen:
            seen.add((envelope.lane, envelope.position))
            hour = envelope.payload_as(Window[Total])
            at = (hour.key.encode(), hour.start_ms // HOUR_MS)
            assert at not in found
            found[at] = hour.state.screws
    return found


def test_days_are_loaded_one_after_the_other_and_the_files_of_the_days_before_may_be_gone(
    tmp_path: Path,
) -> None:
    load = Rehearsal(hourly(tmp_path), settings=settings_of(max_records=6, open_files=1))
    wanted: dict[tuple[bytes, int], int] = {}
    for day in range(3):
        rows = [
            {**row, "at_ms": HOUR_MS * (24 * day + place // 3) + place}
            for place, row in enumerate(rows_of(day, 20))
        ]
        path = write(tmp_path / f"{day}.jsonl", rows)
        for row in rows:
            at = (row["robot"].encode(), row["at_ms"] // HOUR_MS)
            wanted[at] = wanted.get(at, 0) + row["screws"]
        load.restart()
        load.run_until_caught_up()
        path.unlink()
    load.close_windows()
    assert closed_hours(load) == wanted


@pytest.mark.parametrize("flow_of", [totals_flow, rows_flow])
def test_a_run_that_was_paused_adds_nothing_when_it_wakes_up(
    tmp_path: Path, flow_of: Callable[[Path], Flow]
) -> None:
    rows = some_files(tmp_path)
    load = Rehearsal(flow_of(tmp_path), settings=FEW)
    load.batch()
    paused = load.zombie()
    load.batch()
    with pytest.raises(Superseded):
        paused.wake()
    load.run_until_caught_up()
    with pytest.raises(Superseded):
        paused.wake()
    load.run_until_caught_up()
    if load.flow.stages:
        assert load.states("per-robot") == expected(rows)
    else:
        assert published_once(load) == Counter(row["screws"] for one in rows for row in one)


def test_what_needs_rows_from_before_is_refused(tmp_path: Path) -> None:
    some_files(tmp_path)
    for flow in (totals_flow(tmp_path), rows_flow(tmp_path)):
        load = Rehearsal(flow)
        load.run_until_caught_up()
        with pytest.raises(ConfigurationError, match="reads files"):
            load.rebuild()
        with pytest.raises(ConfigurationError, match="reads files"):
            load.rewind(0)


def test_files_and_topics_are_read_together(tmp_path: Path) -> None:
    rows = some_files(tmp_path)
    flow = Flow("both", state_partitions=2)
    flow.files("fastenings", Fastening, tmp_path / "*.csv").merge(flow.source("live", Fastening)).aggregate(
        "per-robot", key=lambda one: one.robot, state=Total, fold=add
    )
    live = rows_of(9, 11)
    for crash in range(0, 80, 9):
        load = Rehearsal(flow, settings=FEW)
        for row in live:
            load.feed("live", Fastening(**row))
        load.crash_at_call(crash)
        load.run_until_caught_up()
        assert load.states("per-robot") == expected([*rows, live])
        assert [commit.offset for commit in load.commits().values()] == [11]


def test_a_source_of_files_stays_declared(tmp_path: Path) -> None:
    some_files(tmp_path)
    load = Rehearsal(totals_flow(tmp_path))
    load.run_until_caught_up()
    other = Flow("load", state_partitions=2)
    other.source("live", Fastening).aggregate("per-robot", key=lambda one: one.robot, state=Total, fold=add)
    with pytest.raises(ServiceStopped, match="has read 'fastenings' so far"):
        Rehearsal(other, log=load.log, store=load.stores).start()


def test_a_redo_of_a_flow_without_stages_that_gives_something_else_stops(tmp_path: Path) -> None:
    """Its plans have digests, too: they keep how far files are read."""
    some_files(tmp_path, "csv", (5,))
    more = [0]
    flow = Flow("publish")
    rows = flow.files("fastenings", Fastening, tmp_path / "*.csv")
    rows.map(lambda row: Fastening(row.robot, row.screws + more[0])).to(
        "rows", key=lambda one: one.robot, partitions=2
    )
    load = Rehearsal(flow, settings=FEW)
    load.crash(step=5, after_passes=1)  # the first plan lists the files
    load.run_until_crash()
    more[0] = 1
    with pytest.raises(PlanMismatch, match="gives something else"):
        load.start()
    assert load.log.records("rows") == []
