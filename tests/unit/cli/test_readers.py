"""Goal: readers are run, shown, changed and forgotten by commands. Method: the command in this process, all but the table in memory."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import Result

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.ext.tables import open_table

Command = Callable[..., Result]

FLOW = """
import msgspec

from sqe_chain.flow import Flow


class Reading(msgspec.Struct):
    robot: str
    at_ms: int


readings = Flow("cli-readings", state_partitions=2)
source = readings.source("readings", Reading, codec="json", raw=True)
source.ingest("table", partition_key="robot", row_key="at_ms", at="warehouse")

counts = Flow("cli-counted")
counts.source("readings", Reading, codec="json", raw=True).aggregate(
    "per-robot", key=lambda one: one.robot, state=dict, fold=lambda state, one: None
)

copies = Flow("cli-passed-on")
copies.source("readings", Reading, codec="json", raw=True).to("copies", key=lambda one: one.robot, partitions=1)
"""


@pytest.fixture
def where(
    flows: ModuleType, log: MemoryLog, tmp_path: Path, request: pytest.FixtureRequest
) -> tuple[str, ...]:
    sys.modules.pop("cli_readers", None)  # its table lies where the test runs
    (tmp_path / "cli_readers.py").write_text(FLOW, encoding="utf-8")
    log.create_topic("readings", 4)
    log.create_topic("copies", 1)
    for number in range(40):
        log.append("readings", number % 4, json.dumps({"robot": f"r{number % 4}", "at_ms": number}).encode())
    store = f"memory://{re.sub('[^a-z]', '-', request.node.name)}"
    return "--kafka", "broker:9092", "--store", store, "--allow-weak-durability"


def run(command: Command, where: tuple[str, ...], *more: str, flow: str = "readings") -> Result:
    return command("run", f"cli_readers:{flow}", *where, "--engine", "inprocess", "--once", *more)


def test_readers_are_run_shown_changed_and_forgotten(command: Command, where: tuple[str, ...]) -> None:
    store = where[2:4]
    assert "has not run with --partitions" in command("readers", "cli_readers:readings", *store).stderr
    for partitions in ("0-1", "2-"):
        found = run(command, where, "--partitions", partitions)
        assert found.exit_code == 0, found.stderr
    assert open_table("warehouse/table").read().num_rows == 40

    refused = run(command, where, "--partitions", "1-2")
    assert refused.exit_code == 3
    assert "ReadersOverlap" in refused.stderr
    assert run(command, where).exit_code == 3

    shown = command("readers", "cli_readers:readings", *store, "--json").stdout
    lines = [json.loads(line) for line in shown.splitlines()]
    assert [(line["partitions"], line["name"]) for line in lines] == [
        ("0-1", "cli-readings.reader-0-1"),
        ("2-", "cli-readings.reader-2-"),
    ]
    assert lines[1]["offsets"] == {"readings[2]": 10, "readings[3]": 10}

    change = ("readers", "cli_readers:readings", *where)
    changed = command(*change, "--to", "0-1", "--to", "2", "--to", "3-")
    assert changed.exit_code == 0, changed.stderr
    assert "2- became 2; 3-; start a reader for each" in changed.stderr
    assert (
        "these are its readers already" in command(*change, "--to", "0-1", "--to", "2", "--to", "3-").stderr
    )
    assert run(command, where, "--partitions", "3-").exit_code == 0
    shown = command("readers", "cli_readers:readings", *store, "--json").stdout
    assert "cli-readings.reader-3-.1" in shown
    assert "partitions" in command("readers", "cli_readers:readings", *store).stdout

    listed = command("flows", "list", *store, "--json").stdout
    assert "cli-readings.reader-0-1" in listed
    assert "cli-readings.readers" not in listed
    forgotten = command("flows", "forget", "cli-readings", "--kafka", "broker:9092", *store, "--yes")
    assert forgotten.exit_code == 0, forgotten.stderr
    assert "there are no flows" in command("flows", "list", *store).stderr


def test_what_cannot_be_read_apart_is_refused_with_the_reason(
    command: Command, where: tuple[str, ...]
) -> None:
    refused = run(command, where, "--partitions", "0", flow="counts")
    assert refused.exit_code == 2, refused.stderr
    assert "stage 'per-robot' (aggregate) keeps states" in refused.stderr
    assert run(command, where, "--partitions", "0-x").exit_code == 2
    change = command("readers", "cli_readers:copies", *where, "--to", "0-1", "--to", "2-")
    assert change.exit_code == 2
    assert "Stop its readers, and start others with any sets" in change.stderr


def test_readers_that_only_publish_keep_their_place_in_the_group(
    command: Command, where: tuple[str, ...], log: MemoryLog
) -> None:
    for partitions in ("0-1", "2-3", "0-2", "3"):
        assert run(command, where, "--partitions", partitions, flow="copies").exit_code == 0
    assert len(log.records("copies")) == 40
