"""The demo itself, small and without Spark: real Kafka, real Redis, real kills; and a failing demo reports why."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.release

ROOT = Path(__file__).resolve().parents[2]


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo in this process's engine."""
    command = [sys.executable, "-m", "services.demo", "--engine", "inprocess", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)


@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_killed_services_end_exact() -> None:
    run = demo("--messages", "20000", "--kills", "2", "--timeout", "1400")

    assert run.returncode == 0, run.stdout + run.stderr
    last = run.stdout.splitlines()[-1]
    match = re.fullmatch(r"exact: 249 keys, (\d+) events, (\d+) replays ignored, 0 missing, 0 doubled", last)
    assert match, last
    assert int(match[1]) > 2 * 20_000
    assert int(match[2]) > 0
    assert run.stdout.count("kill -9 standardize") >= 2
    assert run.stdout.count("kill -9 totals") >= 2


@pytest.mark.timeout(1800)
def test_a_demo_that_cannot_finish_fails_and_shows_why(tmp_path: Path) -> None:
    run = demo("--messages", "20000", "--timeout", "5", "--directory", str(tmp_path / "data"))

    assert run.returncode == 1
    assert "not done within 5 s" in run.stdout
    assert f"end of {tmp_path}/data/totals.log" in run.stdout
    assert "the demo failed" in run.stdout.splitlines()[-1]
    assert (tmp_path / "data" / "standardize.log").exists()
