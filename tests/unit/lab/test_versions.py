"""The page claims of a version what was noted when it was tried, and no more."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.mutants.ledger import page_with
from tests.versions import DEMO, PAGE, TABLES, UNIT, Note, came_of, notes, run, table

NOTE = Note("pythons", "3.12.1", UNIT, "9 passed, 1 skipped", "abc", "2026-01-01")


def test_the_page_has_the_tables_of_the_notes() -> None:
    page = PAGE.read_text()
    assert page_with(page, {name: table(name, notes()) for name in TABLES}) == page, (
        "run python -m tests.versions report"
    )


def test_the_newest_of_each_part_counts_and_what_was_not_run_is_named() -> None:
    older = replace(NOTE, version="3.9.2")
    noted = [
        replace(NOTE, came="FAILED (1)", commit="old"),
        NOTE,
        older,
        replace(older, part=DEMO, commit="b"),
    ]
    assert table("pythons", noted).splitlines()[2:] == [
        "| 3.9.2 | 9 passed, 1 skipped | not run | not run | 9 passed, 1 skipped | `abc`, 2026-01-01; `b`, 2026-01-01 |",
        "| 3.12.1 | 9 passed, 1 skipped | not run | not run | not run | `abc`, 2026-01-01 |",
    ]


@pytest.mark.parametrize(
    ("line", "came"),
    [
        ("8764 passed, 12 skipped, 3 deselected, 5 warnings in 312.45s (0:05:12)", "8764 passed, 12 skipped"),
        ("1 failed, 82 passed, 2 errors in 3.4s", "1 failed, 82 passed, 2 errors"),
        ("===== 82 passed in 3.4s =====", "82 passed"),
        ("exact: 249 keys, 0 missing", "exact: 249 keys, 0 missing"),
        ("Python 3.12.1: sqe-chain[json] runs it", "sqe-chain[json] runs it"),
    ],
)
def test_what_a_program_writes_last_counts(line: str, came: str) -> None:
    assert came_of(line) == came


@pytest.mark.parametrize(("status", "came"), [(0, "1 passed"), (3, "FAILED (3)")])
def test_a_part_is_noted_whether_it_passes_or_not(
    status: int, came: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUITE", raising=False)  # `make` sets it
    file = tmp_path / "notes.jsonl"
    program = [sys.executable, "-c", f"print('dots'); print('1 passed in 2.0s'); raise SystemExit({status})"]
    assert run("pythons", "3.12.1", UNIT, program, file=file) == status
    assert [(one.version, one.part, one.came) for one in notes(file)] == [("3.12.1", UNIT, came)]
    assert "dots" in capfd.readouterr().out
