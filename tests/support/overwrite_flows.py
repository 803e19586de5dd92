"""Flows that load files into a table, and what readers of the table see at each moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from sqe_chain import Flow
from sqe_chain.ext.tables.memory import MemoryStorage
from sqe_chain.ext.tables.opening import storage_at
from sqe_chain.ext.tables.reading import Table, open_table
from sqe_chain.features.settings import settings_of
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing import Crash, Rehearsal

Found = dict[tuple[str, int], float]


class Measured(msgspec.Struct):
    """A row of a file, and of the table."""

    robot: str
    at_ms: int
    bar: float


def load_flow(folder: Path, at: str, **declared: Any) -> Flow:
    """Files of a folder into the table `readings`."""
    flow = Flow("readings-of-files", state_partitions=2, **declared)
    files = flow.files("readings", Measured, folder / "*.csv")
    files.ingest("readings", partition_key="robot", row_key="at_ms", at=at)
    return flow


def rows_of(number: int, robots: str, count: int = 5) -> Found:
    """Rows of one file: of these robots, and like those of no other file."""
    return {
        (f"r{robots[row % len(robots)]}", row + 10 * (number % 3)): number + row / 100 for row in range(count)
    }


def write(path: Path, rows: Mapping[tuple[str, int], float]) -> None:
    lines = [f"{robot},{at_ms},{bar}\n" for (robot, at_ms), bar in rows.items()]
    path.write_text("robot,at_ms,bar\n" + "".join(lines))


class LoadedTable:
    """A folder of files, a flow that loads them, and a table.

    Args:
        folder: of the files; empty.
        at: where the table lives.
        settings: of its loads.
    """

    def __init__(self, folder: Path, at: str, settings: Settings | None = None, **declared: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.address = f"{at}/readings"
        small = settings_of(
            takeover=True, allow_weak_durability=True, open_files=2, max_records=4, back_off_ms=10
        )
        self.load = Rehearsal(load_flow(folder, at, **declared), settings=settings or small)
        self._settings = self.load.settings

    def files(self, **rows: Found) -> Found:
        """Let the folder have these files alone; returns their rows, a later file over an earlier one."""
        for path in self.folder.iterdir():
            path.unlink()
        return self.add(**rows)

    def add(self, **rows: Found) -> Found:
        """Write further files."""
        found: Found = {}
        for name, own in rows.items():
            write(self.folder / f"{name}.csv", own)
            found |= own
        return found

    def use(self, overwrite: str | None, **settings: Any) -> None:
        """How the next runs load: as who starts another command."""
        self.load.service = None
        asked = settings_of(overwrite=overwrite, **settings).groups
        self.load.settings = replace(self._settings, groups=(*asked, *self._settings.groups))

    def run(self, overwrite: str | None, **settings: Any) -> None:
        """A whole command, with restarts after crashes."""
        self.use(overwrite, **settings)
        if overwrite is None:
            self.load.run_until_caught_up()
        else:
            self.load.complete_overwrite()

    @property
    def table(self) -> Table:
        return open_table(self.address)

    @property
    def rows(self) -> Found:
        """What a reader sees now."""
        found = self.table.read().to_pylist()
        rows = {(row["robot"], row["at_ms"]): row["bar"] for row in found}
        assert len(rows) == len(found)
        return rows

    @property
    def last(self) -> Plan:
        service = self.load.service
        assert isinstance(service, StagedService)
        assert service.last is not None
        return service.last

    def replaced(self) -> int:
        """How often the service reported that the table was replaced."""
        return len(self.load.events("replaced"))


OLD = {"a": rows_of(1, "123", 3), "b": rows_of(2, "14", 4)}
NEW = {"b": rows_of(2, "14", 4), "c": rows_of(4, "2", 3)}  # one file that was loaded before, and another one


def begun_overwrite(at: Path, kind: str) -> tuple[LoadedTable, Found]:
    """A table that holds the rows of the old files, and a folder with the new ones; and the rows of these."""
    place = str(at / "warehouse") if kind == "delta" else f"memory://{at.as_posix().replace('/', '-')}"
    loaded = LoadedTable(at / "files", place)
    loaded.files(**OLD)
    loaded.run(None)
    loaded.table.compact()  # so that partition keys share files
    return loaded, loaded.files(**NEW)


class Again:
    """The same beginning again and again, in memory."""

    def __init__(self, at: Path) -> None:
        self._found, self.new = begun_overwrite(at, "memory")
        self.old = self._found.rows
        self._stores, self._table = self._found.load.copy_stores(), MemoryStorage(self._found.address)
        self._copy = self._table.copy_all()

    def start(self) -> LoadedTable:
        """As it was in the beginning."""
        self._found.load.cancel()
        self._found.load.roll_back(self._stores)
        self._found.load.script.events.clear()
        self._table.restore_all(self._copy)
        return self._found


def goal_of(old: Found, new: Found, mode: str) -> Found:
    """What the table holds in the end."""
    if mode == "table":
        return new
    replaced = {robot for robot, _ in new}
    return {key: bar for key, bar in old.items() if key[0] not in replaced} | new


def load_until_crash(loaded: LoadedTable) -> None:
    """One process: to its end, or to the crash."""
    try:
        service = loaded.load.start()
        while loaded.load.batch():
            pass
        assert isinstance(service, StagedService)
        service.complete()
    except Crash:
        pass
    loaded.load.service = None


def check_once(loaded: LoadedTable, mode: str, goal: Found) -> None:
    """The same command again replaces nothing and reads nothing; a plain load adds nothing."""
    table = storage_at(loaded.address)
    plan, files = loaded.last.number, table.snapshot().files()
    loaded.run(mode)
    loaded.run(None)
    assert (loaded.rows, loaded.last.number, table.snapshot().files()) == (goal, plan, files)
