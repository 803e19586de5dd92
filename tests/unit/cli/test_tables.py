"""Goal: a table is shown, compacted and vacuumed by commands. Method: the command in this process, a table in a directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.support.table_flows import TablePipeline

Command = Callable[..., Result]


@pytest.fixture
def address(tmp_path: Path) -> str:
    pipeline = TablePipeline(tmp_path)
    for _ in range(3):
        pipeline.feed()
        pipeline.service.run_until_caught_up()
    return str(tmp_path / "readings")


def test_a_table_is_shown(command: Command, address: str) -> None:
    found = command("tables", "show", address)
    assert found.exit_code == 0, found.stderr
    assert "stage 'readings' of flow 'readings-to-table', version 0" in found.stdout
    assert "partition key robot; row key at_ms" in found.stdout
    shown = json.loads(command("tables", "show", address, "--json").stdout)
    assert (shown["files"], shown["columns"]["bar"]) == (6, "float64")
    assert shown["rows"] == sum(one["rows"] for one in shown["state_partitions"].values())


def test_a_table_is_compacted_and_vacuumed(command: Command, address: str) -> None:
    done = json.loads(command("tables", "compact", address, "--json").stdout)
    assert (done["files_before"], done["files_after"]) == (6, 2)
    assert "2 files became 2; 0 replaced rows" in command("tables", "compact", address).stdout
    assert "0 files deleted" in command("tables", "vacuum", address).stdout
    assert command("tables", "vacuum", address, "--retain-hours", "0").exit_code == 2


def test_what_is_no_table_is_refused(command: Command, tmp_path: Path) -> None:
    found = command("tables", "show", str(tmp_path / "nothing"))
    assert found.exit_code == 2
    assert "there is no table" in found.stderr
