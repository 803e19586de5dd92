"""Loads as real processes: killed with SIGKILL at every kind of moment, on real stores, they end exact; and they report what they do."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from sqe_chain import Flow, run, running
from sqe_chain.errors import ConfigurationError
from sqe_chain.runtime.states import states
from tests.support import load_flows
from tests.support.file_flows import Fastening, Rows, Total, add, expected, rows_of, write
from tests.support.loaded_command import COMMAND
from tests.support.service_processes import KILLED, ROOT, ServiceProcess
from tests.support.suites import some

FILES = ("a.csv", "b.parquet", "c.jsonl.gz", "d.csv", "e.parquet")
ROWS = 300


class Load:
    """Files in a folder, and processes that load them into a store."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory, self.url = directory, url
        self.folder = directory / "files"
        self.folder.mkdir()
        self.name = f"load-{uuid4().hex[:8]}"
        self.runs: list[ServiceProcess] = []
        self.rows: list[Rows] = []

    def add(self, *names: str) -> None:
        for name in names:
            self.rows.append(rows_of(len(self.rows), ROWS))
            write(self.folder / name, self.rows[-1])

    def start(self, *more: str, signal_at: str = "") -> ServiceProcess:
        environment = {"PYTHONPATH": str(ROOT), "LOAD_NAME": self.name, "LOAD_FOLDER": str(self.folder)}
        if signal_at:
            environment["LOAD_SIGNAL"] = f"{signal_at}:SIGKILL"
        small = ("--max-records", "60", "--log-json")
        arguments = ("load", "tests.support.load_flows:totals", "--store", self.url, *small, *more)
        self.runs.append(ServiceProcess(arguments, self.directory / f"{len(self.runs):02}.log", environment))
        return self.runs[-1]

    def check(self) -> None:
        flow = load_flows.totals.compile().renamed(self.name)
        with states(flow, "per-robot", store=self.url) as found:
            assert found.to_dict() == by_text(self.rows)


@pytest.fixture(params=["sqlite", "redis"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Load]:
    url = (
        f"sqlite://{tmp_path}/states.db"
        if request.param == "sqlite"
        else request.getfixturevalue("redis_url")
    )
    made = Load(tmp_path, url)
    yield made
    for one in made.runs:
        one.close()


@pytest.mark.few(1)
def test_a_load_that_is_killed_at_each_kind_of_event_ends_exact(load: Load) -> None:
    """Each run kills itself, by the kernel's SIGKILL, right after an event; the last one finishes."""
    load.add(*FILES)
    batch = ("sealed", "published", "persisted", "committed")
    # Of a run's events the first plans bring in files; so kills come after several of them, too.
    points = ["claimed", "recovered", "files", *batch, *(f"committed,{one}" for one in batch)]
    for point in some("kills of a load", points, 3):
        run = load.start(signal_at=point)
        assert run.wait() == KILLED, run.text
    last = load.start()
    assert last.wait() == 0, last.text
    load.check()
    again = load.start()
    assert again.wait() == 0, again.text
    assert not again.all("committed")
    load.check()


@pytest.mark.release
def test_a_load_that_is_killed_at_random_moments_ends_exact_and_new_files_are_added(load: Load) -> None:
    load.add(*FILES[:3])
    chosen = random.Random(7)
    for _ in range(4):
        load.start().kill_after(chosen.choice(("claimed", "sealed", "published", "committed")))
    load.add(*FILES[3:])
    last = load.start()
    assert last.wait() == 0, last.text
    load.check()


def loaded(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOAD_FOLDER": str(tmp_path)}
    command = [str(COMMAND), "load", "tests.support.load_flows:totals", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_reports_what_it_did_and_needs_no_kafka(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", rows_of(0, 5))
    store = f"sqlite://{tmp_path}/states.db"
    done = loaded(tmp_path, "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"files": 1, "rows": 5, "read": 5, "left_out": 0, "left": 0}
    again = loaded(tmp_path, "--store", store)
    assert again.stdout == "0 rows read, 0 of them skipped; 1 files hold 5 rows, 0 of them still to be read\n"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere / "x.csv", rows_of(1, 2))
    moved = loaded(tmp_path, "--store", store, "--files", f"csv={elsewhere}/*.csv", "--json")
    assert json.loads(moved.stdout)["read"] == 2
    for arguments, text in (
        ((), "--store"),
        (("--store", store, "--files", "csv=x.jsonl"), "reads there"),
        (
            ("--store", store, "--files", "none=x.csv"),
            "has no such source of files. Expected one of: csv, parquet, lines",
        ),
    ):
        refused = loaded(tmp_path, *arguments)
        assert refused.returncode == 2
        assert text in refused.stderr


@pytest.mark.parametrize(
    "engine",
    [
        ("--workers", "2"),
        pytest.param(("--engine", "spark", "--master", "local[2]"), marks=pytest.mark.release),
    ],
)
def test_other_processes_read_files(tmp_path: Path, engine: tuple[str, ...]) -> None:
    rows = [rows_of(number, 50) for number in range(3)]
    for number, row in enumerate(rows):
        write(tmp_path / f"{number}.parquet", row)
    store = f"sqlite://{tmp_path}/states.db"
    done = loaded(tmp_path, "--store", store, *engine, "--max-records", "40")
    assert done.returncode == 0, done.stderr
    with states(load_flows.totals, "per-robot", store=store) as found:
        assert found.to_dict() == by_text(rows)


def test_a_service_takes_files_as_they_come(tmp_path: Path) -> None:
    flow = Flow("watch", state_partitions=2)
    flow.files("rows", Fastening, tmp_path / "*.csv").aggregate(
        "per-robot", key=lambda one: one.robot, state=Total, fold=add
    )
    store = f"sqlite://{tmp_path}/states.db"
    rows = [rows_of(0, 20)]
    write(tmp_path / "0.csv", rows[0])
    with running(flow, store=store, engine="inprocess", interval="50ms") as service:
        service.wait_until_caught_up()
        assert service.state("per-robot").to_dict() == by_text(rows)
        rows.append(rows_of(1, 7))
        write(tmp_path / "1.csv.part", rows[1]).rename(tmp_path / "1.csv")
        service.wait_until_caught_up()
        assert service.state("per-robot").to_dict() == by_text(rows)


def test_kafka_is_asked_for_where_it_is_needed(tmp_path: Path) -> None:
    flow = Flow("publish")
    flow.files("rows", Fastening, tmp_path / "*.csv").to("rows", key=lambda one: one.robot, partitions=1)
    with pytest.raises(ConfigurationError, match=r"reads or writes rows. Expected brokers"):
        run(flow, store=f"sqlite://{tmp_path}/states.db", engine="inprocess", once=True)


def by_text(rows: list[Rows]) -> dict[str, Total]:
    return {key.decode(): one for key, one in expected(rows).items()}
