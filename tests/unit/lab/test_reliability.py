"""The page gives recorded runs as the ledger does, and adds up only what belongs together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.mutants.ledger import PAGE, page_with
from tests.reliability.__main__ import MODULES, main, record
from tests.reliability.ledger import Run, read_ledger, tree
from tests.reliability.report import current, table

RUN = Run(
    "simulator", "python -m tests.lab.simulator", "abc", clean=True, code="c0de", date="2026-01-01 00:00",
    machine="a machine", versions={"python": "3.11"}, counts={"schedules": 10}, seed=0, seconds=60, violations=0,
)  # fmt: skip


def test_the_page_has_the_table_of_the_ledger() -> None:
    page = PAGE.read_text()
    assert page_with(page, {"recorded runs": table(read_ledger())}) == page, "run make reliability-report"


def test_what_a_recorded_run_has_found_is_on_the_page() -> None:
    """A campaign ends with the first violation: its seed is the last one."""
    found = [one for own in current(read_ledger()).values() for one in own if one.violations]
    several = [one for one in found if one.tool == "simulator"]
    single = [one for one in found if one.tool == "soak"]
    assert len(several) + len(single) == len(found), "state here where the page names it"
    seeds = [int(one.seed + one.counts["schedules"] - 1) for one in several] + [one.seed for one in single]
    assert [seed for seed in seeds if f"Seed {seed}" not in PAGE.read_text()] == []


def test_parts_of_a_run_are_added_up_whatever_else_they_count() -> None:
    runs = [
        RUN,
        replace(
            RUN, seed=10, counts={"schedules": 5, "faults": 1_000, "step: run": 7}, commit="d", clean=False
        ),
    ]
    (row,) = table(runs).splitlines()[2:]
    assert (
        row
        == "| Simulator | 15 schedules; 1,000 faults | 0 | 2 min | 2026-01-01 | `abc`, `d and changes` | the same | the same |"
    )


def test_the_same_again_and_other_code_are_not_added_up() -> None:
    assert current([RUN, RUN])["simulator"] == [RUN]
    again = replace(RUN, more={"part": 2})
    assert current([RUN, again])["simulator"] == [RUN, again]
    newer = replace(RUN, code="new")
    assert current([RUN, newer])["simulator"] == [newer]


def test_what_other_code_has_gone_through_is_shown_beside_it_with_its_violations() -> None:
    newer = replace(RUN, code="new", commit="def")
    (row,) = table([RUN, replace(RUN, seed=10, violations=1), RUN, newer]).splitlines()[2:]
    assert row.startswith("| Simulator | 10 schedules; 0 faults | 0 |"), row
    assert row.endswith("| `def` | 30 schedules; 0 faults | 1 |"), row


def test_a_run_is_recorded_with_what_it_ran_on(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    options = ["--executions", "300", "--target", "keys", "--seed", "5"]
    assert record("fuzz", MODULES["fuzz"], options, ledger=file) == 0
    (run,) = read_ledger(file)
    assert (run.tool, run.seed, run.violations, run.code) == ("fuzz", 5, 0, tree().code)
    assert run.counts["executions"] >= 300
    assert run.command == "python -m tests.lab.fuzzing --executions 300 --target keys --seed 5"
    assert run.versions["python"]
    assert json.loads(file.read_text())["machine"] == run.machine


def test_a_tool_that_reports_nothing_is_not_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ledger.jsonl"
    assert record("fuzz", "tests.reliability", ["nonsense"], ledger=file) == 2
    assert not file.exists()
    assert "nothing is recorded" in capfd.readouterr().err
    assert main(["run", "what"]) == 2
