"""Goal: an overwrite that is begun is finished, begun again or given up; what was in between is never seen. What it may not do is refused.

Method: real commands one after the other on a flow of files into a table, in memory or of Delta Lake on disk. Some end in the middle.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from sqe_chain import Flow
from sqe_chain.errors import (
    ChangedFile,
    ConfigurationError,
    OverwriteUnderWay,
    ServiceStopped,
    TableAltered,
    TableInconsistent,
)
from sqe_chain.ext.tables.opening import storage_at
from sqe_chain.features.settings import settings_of
from sqe_chain.plans.plan import Plan
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing import Crash, Rehearsal
from tests.support.overwrite_flows import Found, LoadedTable, Measured, load_flow, rows_of

A, B, C, D = rows_of(1, "123"), rows_of(2, "14"), rows_of(4, "25"), rows_of(5, "6")


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedTable:
    """A table that holds two files."""
    found = LoadedTable(tmp_path / "files", f"memory://{tmp_path.name}")
    found.files(a=A, b=B)
    found.run(None)
    return found


@pytest.fixture
def on_disk(tmp_path: Path) -> LoadedTable:
    """The same of Delta Lake."""
    found = LoadedTable(tmp_path / "files", str(tmp_path / "warehouse"))
    found.files(a=A, b=B)
    found.run(None)
    return found


def begin(found: LoadedTable, overwrite: str, batches: int = 1, **rows: Found) -> Found:
    """An overwrite that ends in the middle; returns the rows of its files."""
    new = found.files(**rows)
    found.use(overwrite)
    for _ in range(batches):
        assert found.load.batch()
    return new


def notices(found: LoadedTable) -> str:
    return " ".join(str(event["text"]) for event in found.load.events("notice"))


def test_the_first_load_of_a_table_may_be_one(tmp_path: Path) -> None:
    found = LoadedTable(tmp_path / "files", f"memory://{tmp_path.name}")
    rows = begin(found, "table", a=A, b=B)
    assert found.rows == {}
    found.run("table")
    assert found.rows == rows


def test_the_same_command_again_replaces_nothing_and_after_another_load_it_does(loaded: LoadedTable) -> None:
    rows = loaded.files(c=C)
    loaded.run("table")
    loaded.run("table")
    assert (loaded.rows, loaded.replaced()) == (rows, 1)
    assert "nothing is replaced again" in notices(loaded)
    loaded.run("table", again=True)
    assert (loaded.rows, loaded.replaced()) == (rows, 2)
    more = loaded.add(d=D)
    loaded.run(None)
    assert loaded.rows == rows | more
    loaded.files(c=C)
    loaded.run("table")
    assert (loaded.rows, loaded.replaced()) == (rows, 3)


def test_some_of_what_the_last_one_has_read_is_another_overwrite(loaded: LoadedTable) -> None:
    both = loaded.files(c=C, d=D)
    loaded.run("table")
    assert loaded.rows == both
    fewer = loaded.files(c=C)
    loaded.run("table")
    assert (loaded.rows, loaded.replaced()) == (fewer, 2)


def test_a_file_that_was_replaced_is_loaded_again_by_a_plain_load(loaded: LoadedTable) -> None:
    """What is loaded is what the table holds: not what it once held."""
    rows = loaded.files(c=C)
    loaded.run("table")
    loaded.files(c=C, a=A)
    loaded.run(None)
    assert loaded.rows == rows | A


def test_after_partitions_were_replaced_all_files_count_as_loaded(loaded: LoadedTable) -> None:
    kept = {key: bar for key, bar in loaded.rows.items() if key[0] not in ("r2", "r5")}
    loaded.files(c=C)
    loaded.run("partitions")
    assert loaded.rows == kept | C
    loaded.files(a=A, b=B, c=C)
    loaded.run(None)
    assert loaded.rows == kept | C
    loaded.files(c=C)
    loaded.run("partitions")
    assert loaded.replaced() == 1


def test_another_load_of_the_flow_is_refused_until_it_is_finished(loaded: LoadedTable) -> None:
    old = loaded.rows
    rows = begin(loaded, "table", c=C, d=D)
    loaded.use(None)
    with pytest.raises(OverwriteUnderWay, match="--drop-overwrite"):
        loaded.load.start()
    assert loaded.rows == old
    loaded.run("table")
    assert (loaded.rows, loaded.replaced()) == (rows, 1)
    assert "goes on with the overwrite" in notices(loaded)


def test_one_that_is_given_up_leaves_what_was_there_and_what_was_loaded(loaded: LoadedTable) -> None:
    old = loaded.rows
    begin(loaded, "table", 3, c=C, d=D)
    loaded.use(None, drop_overwrite=True)
    service = loaded.load.start()
    assert isinstance(service, StagedService)
    assert service.ends
    loaded.use(None, drop_overwrite=True)
    loaded.load.start()
    assert "nothing to give up" in notices(loaded)
    assert not staged(loaded)
    loaded.files(a=A, b=B)
    loaded.run(None)
    assert (loaded.rows, loaded.replaced()) == (old, 0)
    loaded.add(c=C)
    loaded.run(None)
    assert loaded.rows == old | C


def test_one_that_began_twice_and_is_given_up_leaves_what_was_loaded_before_the_first(
    loaded: LoadedTable,
) -> None:
    old = loaded.rows
    begin(loaded, "table", 3, c=C, d=D)
    begin(loaded, "partitions", c=C, d=D)
    loaded.use(None, drop_overwrite=True)
    loaded.load.start()
    loaded.files(a=A, b=B, c=C)
    loaded.run(None)
    assert loaded.rows == old | C


def staged(found: LoadedTable) -> list[bytes]:
    """What the store knows of staged rows."""
    store = found.load.stores[""]
    parts = range(found.load.flow.state_partitions)
    rows = [key for part in parts for key, _ in store.scan("readings-of-files", "readings", part)]
    return [key for key in rows if key.startswith(b"staged/")]


def test_what_was_half_loaded_before_goes_on_after_it_was_given_up(loaded: LoadedTable) -> None:
    old = loaded.rows
    loaded.add(c=C)
    loaded.use(None)
    assert loaded.load.batch()
    assert loaded.rows != old | C
    begin(loaded, "table", 1, d=D)
    loaded.files(a=A, b=B, c=C)
    loaded.use(None, drop_overwrite=True)
    loaded.load.start()
    loaded.run(None)
    assert loaded.rows == old | C


def test_what_was_half_loaded_is_replaced_with_the_rest(loaded: LoadedTable) -> None:
    loaded.add(c=C)
    loaded.use(None)
    assert loaded.load.batch()
    rows = loaded.files(d=D)
    with pytest.raises(ConfigurationError, match="Finish that load first"):
        loaded.run("partitions")
    loaded.run("table")
    assert loaded.rows == rows
    loaded.files(c=C, d=D)
    loaded.run(None)
    assert loaded.rows == rows | C


def test_files_that_come_while_it_is_under_way_belong_to_it(loaded: LoadedTable) -> None:
    rows = begin(loaded, "table", c=C)
    rows |= loaded.add(d=D)
    loaded.run("table")
    assert (loaded.rows, loaded.replaced()) == (rows, 1)
    assert "begins again" not in notices(loaded)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_it_begins_again_without_a_file_that_is_gone(loaded: LoadedTable, batches: int) -> None:
    """Rows of that file are staged: they are never seen."""
    begin(loaded, "table", batches, c=C, d=D)
    rows = loaded.files(d=D)
    loaded.run("table")
    assert "begins again: 1 of the contents that it has read" in notices(loaded)
    assert (loaded.rows, loaded.replaced()) == (rows, 1)
    assert not staged(loaded)


def test_it_begins_again_with_another_option(loaded: LoadedTable) -> None:
    kept = {key: bar for key, bar in loaded.rows.items() if key[0] not in ("r2", "r5")}
    begin(loaded, "table", c=C)
    loaded.run("partitions")
    assert "begins again: it was begun with --overwrite" in notices(loaded)
    assert loaded.rows == kept | C


def test_a_file_that_changes_while_it_is_read_stops_and_the_next_one_begins_again(
    loaded: LoadedTable,
) -> None:
    old = loaded.rows
    begin(loaded, "table", c=C)
    changed = loaded.files(c=rows_of(7, "25", 9))
    with pytest.raises(ChangedFile):
        loaded.load.run_until_caught_up()
    assert loaded.rows == old
    loaded.run("table")
    assert loaded.rows == changed


def test_staged_rows_are_not_reported(loaded: LoadedTable) -> None:
    begin(loaded, "table", 1, c=C, d=D)
    flushed = len(loaded.load.events("flushed"))
    assert loaded.load.batch()
    loaded.load.restart()
    assert len(loaded.load.events("flushed")) == flushed
    loaded.run("table")
    assert loaded.load.events("replaced") == [
        {"plan": loaded.last.number, "table": "readings", "mode": "table", "files": 2}
    ]


def test_plans_are_read_as_they_were_written(loaded: LoadedTable) -> None:
    begin(loaded, "partitions", c=C)
    under_way = loaded.last
    loaded.run("partitions")
    for plan in (under_way, loaded.last):
        assert Plan.from_bytes(plan.to_bytes()).to_bytes() == plan.to_bytes()
        assert Plan.from_bytes(plan.to_bytes()) == plan


# ---------------------------------------------------------------------- others at work


def test_a_commit_of_another_program_stops_it_and_nothing_is_replaced(on_disk: LoadedTable) -> None:
    begin(on_disk, "table", c=C, d=D)
    theirs = on_disk.table.read().slice(0, 1)
    write_deltalake(on_disk.address, theirs, mode="append", schema_mode="merge")
    with pytest.raises(TableAltered, match="another program"):
        on_disk.run("table")
    assert not on_disk.replaced()


def test_a_vacuum_leaves_what_is_staged(on_disk: LoadedTable) -> None:
    old = on_disk.rows
    rows = begin(on_disk, "table", 3, c=C, d=D)
    unnamed = age(on_disk)
    assert unnamed
    on_disk.table.compact()
    age(on_disk)
    deleted = on_disk.table.vacuum(retain_hours=1)
    assert not unnamed & set(deleted)
    assert on_disk.rows == old
    on_disk.run("table")
    assert on_disk.rows == rows
    assert "begins again" not in notices(on_disk)


def age(found: LoadedTable) -> set[str]:
    """Let the files of the table be old; returns those that no version names."""
    named = {file.path for file in storage_at(found.address).snapshot().files()}
    all_files = [path for path in Path(found.address).glob("*/*.parquet") if "_delta_log" not in str(path)]
    for path in all_files:
        os.utime(path, (1, 1))
    return {str(path.relative_to(found.address)) for path in all_files} - named


def test_a_vacuum_deletes_what_was_staged_and_given_up_once_the_table_has_moved_on(
    on_disk: LoadedTable,
) -> None:
    begin(on_disk, "table", 2, c=C)
    on_disk.use(None, drop_overwrite=True)
    on_disk.load.start()
    on_disk.files(a=A, b=B, d=rows_of(5, "123456", 12))
    on_disk.run(None)
    left = age(on_disk)
    assert left
    assert set(on_disk.table.vacuum(retain_hours=1)) == left


def test_staged_files_that_another_program_has_deleted_are_read_again(on_disk: LoadedTable) -> None:
    old = on_disk.rows
    rows = begin(on_disk, "table", 3, c=C, d=D)
    for path in age(on_disk):
        (Path(on_disk.address) / path).unlink()
    with pytest.raises(TableInconsistent, match="Start the same command again"):
        on_disk.load.complete_overwrite()
    assert on_disk.rows == old
    on_disk.run("table")
    assert "staged files are gone" in notices(on_disk)
    assert on_disk.rows == rows


def test_staged_files_that_are_deleted_after_it_was_decided_stop_it(on_disk: LoadedTable) -> None:
    old = on_disk.rows
    begin(on_disk, "table", 3, c=C, d=D)
    while on_disk.load.batch():
        pass

    def delete() -> None:
        for path in age(on_disk):
            (Path(on_disk.address) / path).unlink()

    on_disk.load.crash(step=4, when="after")
    service = on_disk.load.service
    assert isinstance(service, StagedService)
    with pytest.raises(Crash, match="after step 4"):
        service.complete()
    on_disk.use("table")
    delete()
    with pytest.raises(TableInconsistent, match="Restore them"):
        on_disk.load.start()
    assert on_disk.rows == old


# ---------------------------------------------------------------------- what is refused


def refused(flow: Flow, text: str, **settings: Any) -> None:
    rehearsal = Rehearsal(flow)
    rehearsal.settings = settings_of(overwrite="table", allow_weak_durability=True, **settings)
    with pytest.raises((ConfigurationError, ServiceStopped), match=text):
        rehearsal.start()


def test_no_files_or_none_with_rows_leave_the_table_as_it_is(loaded: LoadedTable) -> None:
    old = loaded.rows
    none: dict[str, Found] = {}
    empty: dict[str, Found] = {"empty": {}}
    for rows in (none, empty):
        loaded.files(**rows)
        with pytest.raises(ConfigurationError, match="would leave an empty table"):
            loaded.run("table")
    assert loaded.rows == old


def test_flows_that_do_more_than_to_fill_tables_are_refused(tmp_path: Path) -> None:
    place = f"memory://{tmp_path.name}"
    flow = load_flow(tmp_path, place)
    flow.source("beside", Measured, codec="json", raw=True).ingest(
        "others", partition_key="robot", row_key="at_ms", at=place
    )
    refused(flow, "also reads the topic 'beside'")
    flow = load_flow(tmp_path, place)
    flow.files("more", Measured, tmp_path / "*.csv").to("published", key=lambda one: one.robot, partitions=1)
    refused(flow, "output 'published'")
    flow = load_flow(tmp_path, place)
    flow.files("more", Measured, tmp_path / "*.csv").aggregate(
        "totals", key=lambda one: one.robot, state=dict, fold=lambda total, one: total.update(last=one.bar)
    )
    refused(flow, "stage 'totals' keeps states")
    flow = Flow("no-table")
    flow.files("more", Measured, tmp_path / "*.csv").to("published", key=lambda one: one.robot, partitions=1)
    refused(flow, "needs files")
    refused(load_flow(tmp_path, place), "--abandon", abandon=("0" * 32,))


def test_a_table_in_cassandra_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.memory_chunks import use_memory  # noqa: PLC0415 - only here

    use_memory(monkeypatch)
    refused(load_flow(tmp_path, "cassandra://memory/keyspace"), "one commit for all state partitions")
