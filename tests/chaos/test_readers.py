"""Goal: readers as real processes, killed with SIGKILL, write each row once. Method: Kafka, Redis, a Delta table in a directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sqe_chain import TableFlushed, run
from sqe_chain.ext.tables import open_table
from tests.support.reader_flows import flow_into
from tests.support.service_processes import ROOT, Deployment, ServiceProcess

PARTITIONS = 4


class Readers(Deployment):
    """Readers of one flow."""

    fed = 0

    def feed(self, rows: int = 80) -> None:
        numbers = range(self.fed, self.fed + rows)
        records = [
            (number % PARTITIONS, json.dumps({"robot": f"r{number % PARTITIONS}", "number": number}).encode())
            for number in numbers
        ]
        self.produce("measured", records)
        self.fed += rows

    def command(self, *arguments: str) -> ServiceProcess:
        environment = {"PYTHONPATH": str(ROOT), "CHAOS_PREFIX": self.name}
        where = ("--kafka", self.kafka, "--store", self.store)
        log = self.directory / f"{len(self.runs):02}-command.log"
        self.runs.append(ServiceProcess([*arguments, *where, "--log-json"], log, environment))
        return self.runs[-1]

    def check(self) -> None:
        table = open_table(str(self.directory / "tables" / "measured"))
        assert sorted(table.read()["number"].to_pylist()) == list(range(self.fed))
        written = [
            number
            for file in table.files()
            for number in pq.read_table(file, columns=["number"])["number"].to_pylist()
        ]
        assert sorted(written) == list(range(self.fed))  # each row was added once


@pytest.fixture
def readers(kafka: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Readers]:
    monkeypatch.setenv("SQE_CHAIN_TABLES", str(tmp_path / "tables"))
    made = Readers("tests.support.reader_flows", kafka, redis_url, tmp_path, {"measured": PARTITIONS})
    yield made
    made.close()


def test_readers_that_are_killed_and_change_their_sets_end_exact(readers: Readers) -> None:
    readers.feed()
    small = ("--max-records", "8", "--interval", "20ms")
    other = readers.start("readings", "--partitions", "2-", *small)
    for at in ("sealed", "sealed,sealed,persisted", "sealed,flushed"):
        readers.run_until_killed("readings", "--partitions", "0-1", *small, at=at)
    first = readers.start("readings", "--partitions", "0-1", *small)
    first.wait_for("caught_up")
    other.wait_for("caught_up")
    assert other.names().count("claimed") == 1
    readers.check()

    overlapping = readers.start("readings", "--partitions", "1-2")
    assert "partition 1 belongs to the reader of 0-1" in overlapping.stopped_by("ReadersOverlap")
    as_one = readers.start("readings")
    assert "sqe-chain readers" in as_one.stopped_by("ReadersOverlap")

    readers.feed()
    first.kill()
    change = (
        "readers",
        "tests.support.reader_flows:readings",
        "--to",
        "0",
        "--to",
        "1",
        "--to",
        "2-",
    )
    assert readers.command(*change).wait() == 0
    readers.start("readings", "--partitions", "0-1").stopped_by("ReadersOverlap")
    heard: list[TableFlushed] = []
    flow = flow_into(readers.name, str(readers.directory / "tables"))
    where = {"kafka": readers.kafka, "store": readers.store}
    run(flow, partitions="0", once=True, on_flush=heard.append, engine="inprocess", log=None, **where)  # type: ignore[arg-type]
    readers.run_once("readings", "--partitions", "1")
    assert other.terminate() == 0
    readers.run_once("readings", "--partitions", "2-")
    readers.check()
    assert heard[-1].offsets == {f"{readers.name}.measured/0": readers.fed // PARTITIONS}
