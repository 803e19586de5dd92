"""Goal: an overwrite shows readers the old rows or the new ones, never a mixture and never an empty table, and is done exactly once.

Method: a flow of files into a table of Delta Lake on disk, and into one in memory. The protocol is real, broker and store are in memory.
At each call of store and table in turn a reader looks, the process dies, or there is no answer. Or another run takes over, or the table
is compacted. The same command is then started again until it ends. The files alone decide what readers may see.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sqe_chain.ext.tables import compacting
from tests.support.overwrite_flows import (
    NEW,
    Again,
    Found,
    LoadedTable,
    begun_overwrite,
    goal_of,
    load_until_crash,
    rows_of,
)

MODES = ("table", "partitions")


@pytest.fixture(params=["delta", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    """Where tables are."""
    found: str = request.param
    return found


def seen_once_and_whole(loaded: LoadedTable, old: Found, new: Found) -> Callable[[], Any]:
    """A reader: it fails where it sees anything but one of both; and the old rows never come back."""
    seen: list[Found] = []

    def look() -> None:
        rows = loaded.rows
        assert rows in (old, new), sorted(rows)
        if seen and seen[-1] == new:
            assert rows == new, "the old rows came back"
        seen.append(rows)

    return look


@pytest.mark.parametrize("mode", MODES)
def test_readers_see_all_old_rows_or_all_new_ones(tmp_path: Path, kind: str, mode: str) -> None:
    """At each call of the table a reader looks."""
    found, new = begun_overwrite(tmp_path, kind)
    old = found.rows
    goal = goal_of(old, new, mode)
    look = seen_once_and_whole(found, old, goal)
    found.use(mode)
    for number in range(200):
        found.load.meanwhile(look, of="table", at=number)
    found.load.complete_overwrite()
    assert found.rows == goal
    assert found.replaced() == 1


@pytest.mark.parametrize("mode", MODES)
def test_each_row_of_the_files_is_read_once(tmp_path: Path, mode: str) -> None:
    """The plan that begins an overwrite lists the files that enter, so none of them enters again."""
    found, new = begun_overwrite(tmp_path, "memory")
    found.load.script.events.clear()
    found.use(mode)
    found.load.complete_overwrite()
    assert sum(int(str(event["inputs"])) for event in found.load.events("committed")) == len(new)


@pytest.mark.parametrize("mode", MODES)
def test_pairs_of_crashes(tmp_path: Path, mode: str) -> None:
    """The second one while the first is repaired: at calls of the table, where most is at stake."""
    again = Again(tmp_path)
    goal = goal_of(again.old, again.new, mode)
    for first in range(0, 40, 3):
        for second in range(0, 24, 4):
            found = again.start()
            found.use(mode)
            found.load.crash_at_call(first, "after", of="table")
            load_until_crash(found)
            found.load.crash_at_call(second, "before", of="table")
            found.run(mode)
            found.load.cancel()
            assert found.rows == goal, (first, second)


@pytest.mark.parametrize("mode", MODES)
def test_a_compaction_at_every_call_of_the_table(tmp_path: Path, kind: str, mode: str) -> None:
    for number in range(0, 60, 1 if kind == "memory" else 4):
        found, new = begun_overwrite(tmp_path / str(number), kind)
        found.run(None)
        goal = goal_of(found.rows | new, new, mode)  # a load before: several files
        found.files(**NEW, e=rows_of(3, "1", 2))
        goal = goal_of(goal, found.files(**NEW, e=rows_of(3, "1", 2)), mode)
        found.use(mode)
        found.load.meanwhile(found.table.compact, of="table", at=number, writes=True)
        found.load.complete_overwrite()
        assert found.rows == goal, number
        if found.load.script.injected:
            assert number >= 4
            return


@pytest.mark.parametrize("mode", MODES)
def test_a_compaction_that_began_before_ends_after_it_and_brings_nothing_back(
    tmp_path: Path, kind: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old rows are merged, the overwrite comes in between, and the compaction's commit is refused."""
    found, new = begun_overwrite(tmp_path, kind)
    found.files(**NEW)
    found.run(None)
    goal = goal_of(found.rows, new, mode)
    merged = compacting.put_merged
    calls = 0

    def slow(*arguments: Any) -> Any:
        nonlocal calls
        done = merged(*arguments)
        calls += 1
        if calls == 1:
            monkeypatch.setattr(compacting, "put_merged", merged)
            found.run(mode)
            assert found.rows == goal
        return done

    monkeypatch.setattr(compacting, "put_merged", slow)
    found.table.compact()
    assert calls == 1
    assert found.rows == goal
