"""Goal: each row has both carriers, and what it compares with is what git has. Method: made-up rounds, a small repository, no servers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.carriers import CARRIERS, Row, sources_of, table_of
from benchmarks.peers.running import Measured
from benchmarks.peers.workloads import Workload
from sqe_chain.errors import ConfigurationError


def row_of(versions: dict[str, float]) -> Row:
    """Three rounds: processor seconds differ by version, and envelopes take twice as long as JSON."""
    row = Row(Workload.FLAT_MAP, "in process")
    for version, cpu_s in versions.items():
        for factor, carrier in enumerate(CARRIERS, 1):
            seconds = (0.25 * factor, 0.5 * factor, 8.0)
            row.runs[carrier, version] = [Measured(1_000, one, cpu_s * factor) for one in seconds]
    return row


def test_a_row_has_rates_and_processor_times_of_both_carriers() -> None:
    assert row_of({"": 0.5}).cells("") == ["W1, in process", "2", "500.00", "1", "1000.00", "0.50"]


def test_with_a_base_a_row_has_the_ratios_of_processor_times_to_its() -> None:
    row = row_of({"": 0.5, "0.1": 0.4})
    assert row.cells("0.1") == ["W1, in process", "2", "500.00", "1.25", "1", "1000.00", "1.25", "0.50"]
    console = Console(record=True, width=150)
    console.print(table_of([row], "0.1"))
    assert console.export_text().count("to 0.1") == 3  # in the title, and for each carrier


def test_the_files_of_a_base_are_those_of_its_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for version in ("1", "2"):
        (tmp_path / "version").write_text(version, "utf-8")
        git("add", "version")
        git("commit", "-m", version)
        git("tag", f"v0.{version}")
    for base, version in (("0.1", "1"), ("v0.2", "2"), ("HEAD~1", "1")):
        with sources_of(base, tmp_path) as sources:
            assert (sources / "version").read_text("utf-8") == version
    with (
        pytest.raises(ConfigurationError, match="no version to compare with: '0\\.3'"),
        sources_of("0.3", tmp_path),
    ):
        pass
