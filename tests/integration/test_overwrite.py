"""Goal: `sqe-chain load --overwrite`, typed as a user types it and killed with SIGKILL, shows readers all old rows or all new ones.

Method: real processes on a store in a file and a table of Delta Lake on disk. They are killed after each kind of event, and at random
moments; a reader in this process looks at the table all the time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from sqe_chain.ext.tables import open_table
from tests.support.overwrite_flows import Found, rows_of, write
from tests.support.service_processes import KILLED, ROOT, ServiceProcess
from tests.support.suites import some
from tests.support.waiting import PATIENCE_S

OLD = {f"old-{number}": rows_of(number, "1234", 10) for number in range(3)}
NEW = {f"new-{number}": rows_of(number + 10, "345", 10) for number in range(4)}


class Loads:
    """Commands that load a folder into a table."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.folder = directory, directory / "files"
        self.folder.mkdir()
        self.address = str(directory / "warehouse" / "readings")
        self.runs: list[ServiceProcess] = []

    def files(self, files: dict[str, Found]) -> Found:
        for path in self.folder.iterdir():
            path.unlink()
        found: Found = {}
        for name, rows in files.items():
            write(self.folder / f"{name}.csv", rows)
            found |= rows
        return found

    def start(self, *options: str, signal_at: str = "") -> ServiceProcess:
        environment = {
            "PYTHONPATH": str(ROOT),
            "LOAD_FOLDER": str(self.folder),
            "LOAD_TABLE": str(self.directory / "warehouse"),
        }
        if signal_at:
            environment["LOAD_SIGNAL"] = f"{signal_at}:SIGKILL"
        small = ("--max-records", "4", "--log-json", "--takeover")
        store = f"sqlite://{self.directory}/states.db"
        arguments = ("load", "tests.support.overwrite_loads:flow", "--store", store, *small, *options)
        log = self.directory / f"{len(self.runs):02}.log"
        self.runs.append(ServiceProcess(arguments, log, environment))
        return self.runs[-1]

    def load(self, *options: str) -> ServiceProcess:
        run = self.start(*options)
        assert run.wait() == 0, run.text
        return run

    @property
    def rows(self) -> Found:
        found = open_table(self.address).read().to_pylist()
        return {(row["robot"], row["at_ms"]): row["bar"] for row in found}

    @contextmanager
    def watched(self, old: Found, new: Found) -> Iterator[None]:
        """Read the table all the time: first the old rows alone, then the new ones alone."""
        ended, wrong = threading.Event(), list[str]()

        def watch() -> None:
            last = old
            while not ended.wait(0.05):  # else it takes the processor from those it watches
                rows = self.rows
                if rows not in (last, new):
                    wrong.append(f"{len(rows)} rows of neither: {sorted(rows.items())[:20]}")
                    return
                last = rows

        reader = threading.Thread(target=watch)
        reader.start()
        try:
            yield
        finally:
            ended.set()
            reader.join(PATIENCE_S)
        assert not wrong, wrong


@pytest.fixture
def loads(tmp_path: Path) -> Iterator[Loads]:
    made = Loads(tmp_path)
    yield made
    for run in made.runs:
        run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("option", ["--overwrite", "--overwrite-partitions"])
def test_killed_at_each_kind_of_event(loads: Loads, option: str) -> None:
    old = loads.files(OLD)
    loads.load()
    assert loads.rows == old
    new = loads.files(NEW)
    goal = new
    if option == "--overwrite-partitions":
        goal = {key: bar for key, bar in old.items() if key[0] not in ("r3", "r4", "r5")} | new
    points = ("claimed", "recovered", "sealed", "published", "persisted", "committed", "committed,persisted")
    with loads.watched(old, goal):
        for point in (
            *some("kills of an overwrite", points, 3),
            "caught_up,sealed",
        ):  # the last one: it is decided
            run = loads.start(option, signal_at=point)
            assert run.wait() == KILLED, run.text
            assert loads.rows == old
        run = loads.start(option, signal_at="replaced")
        assert run.wait() == KILLED, run.text
        assert loads.rows == goal
        loads.load(option)
    assert loads.rows == goal
    versions = DeltaTable(loads.address).version()
    again = loads.load(option)
    assert not again.all("committed")
    assert not again.all("replaced")
    assert loads.rows == goal
    assert DeltaTable(loads.address).version() == versions + 1  # its claim
    history = [str(commit.get("sqe-chain")) for commit in DeltaTable(loads.address).history()]
    assert len([what for what in history if what.startswith("overwrite by plan")]) == 1


@pytest.mark.release
def test_killed_at_random_moments(loads: Loads) -> None:
    old = loads.files(OLD)
    loads.load()
    new = loads.files(NEW)
    chosen = random.Random(11)
    with loads.watched(old, new):
        for _ in range(6):
            event = chosen.choice(("claimed", "sealed", "published", "persisted", "committed"))
            loads.start("--overwrite").kill_after(event)
        loads.load("--overwrite")
    assert loads.rows == new
    refused = loads.files(OLD)
    run = loads.start("--overwrite")
    run.wait_for("committed")
    run.kill()
    if loads.rows == new:  # it was not faster than the kill
        plain = loads.start()
        assert plain.wait() == 3, plain.text
        assert "OverwriteUnderWay" in plain.text
        loads.load("--drop-overwrite")
        assert loads.rows == new
    assert loads.load("--overwrite").all("replaced") or loads.rows == refused
    assert loads.rows == refused
