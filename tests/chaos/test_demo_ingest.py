"""The demo of tables, small and without Spark: real Kafka, Redis and Cassandra, real kills; and what is wrong is found in both tables."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.reports import reports
from tests.support.row_mistakes import CHANGED, LOST, TWICE, kind

pytestmark = pytest.mark.release

KINDS = ["Delta Lake", "Cassandra"]
ROOT = Path(__file__).resolve().parents[2]


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo in this process's engine."""
    command = [sys.executable, "-m", "services.demo_ingest", "--engine", "inprocess", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)


@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_a_killed_service_and_a_killed_republisher_leave_each_row_once() -> None:
    run = demo("--messages", "6000", "--rate", "800", "--kills", "1", "--timeout", "1400")

    assert run.returncode == 0, run.stdout + run.stderr
    last = run.stdout.splitlines()[-1]
    match = re.fullmatch(r"exact: (\d+) rows, (\d+) chunks, (\d+) kills, 0 missing, 0 doubled", last)
    assert match, last
    kinds = re.findall(
        r"^(Delta Lake|Cassandra): (\d+) rows, (\d+) chunks, 0 missing, 0 doubled$", run.stdout, re.MULTILINE
    )
    assert [kind for kind, _, _ in kinds] == KINDS, run.stdout
    assert kinds[0][1] == kinds[1][1], "one service writes both"
    assert int(kinds[0][1]) > 2 * 6_000
    assert all(int(chunks) >= 240 for _, _, chunks in kinds), "a chunk for each robot at least"
    assert [int(match[number]) for number in (1, 2)] == [
        sum(int(one[number]) for one in kinds) for number in (1, 2)
    ]
    assert int(match[3]) >= 2
    assert run.stdout.count("kill -9 standardize") >= 1
    assert run.stdout.count("kill -9 rows") >= 1


@pytest.mark.timeout(1800)
def test_rows_that_are_lost_doubled_or_wrong_are_found(tmp_path: Path) -> None:
    flow = ("--flow", "tests.support.broken_rows:rows")
    run = demo(*flow, "--messages", "1000", "--kills", "0", "--directory", str(tmp_path / "data"))

    assert run.returncode == 1, run.stdout + run.stderr
    produced = re.search(r"(\d+) reports are produced", run.stdout.replace(",", ""))
    assert produced, run.stdout
    counts = {LOST: 0, TWICE: 0, CHANGED: 0}
    for report in reports(7, int(produced[1])):
        if kind(report.number) in counts:
            counts[kind(report.number)] += sum(len(robot.joints) for robot in report.robots)
    off = f"{counts[LOST]} rows missing, {counts[TWICE]} doubled, {counts[CHANGED]} with a wrong cell"
    assert run.stdout.count(off) == len(KINDS), run.stdout
    last = run.stdout.splitlines()[-1]
    assert re.fullmatch(
        rf"not exact: \d+ rows, \d+ chunks, 0 kills, {len(KINDS) * counts[LOST]} missing, {len(KINDS) * counts[TWICE]} doubled",
        last,
    ), last
