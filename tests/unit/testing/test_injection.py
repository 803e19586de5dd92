"""A defect put into a copy of the package is found there; the package itself stays as it is."""

from __future__ import annotations

import re
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.lab.mutants.injection import PACKAGE, Finding, time_to_detect
from tests.lab.mutants.mutant import Replacement

FIRST_STAGE_FIRST = Replacement(
    "protocol/applying.py",
    "range(min(top_level, len(env.flow.levels)), 0, -1)",
    "range(1, min(top_level, len(env.flow.levels)) + 1)",
)


def test_a_defect_is_found_in_a_copy() -> None:
    before = (PACKAGE / FIRST_STAGE_FIRST.file).read_text()
    finding = time_to_detect((FIRST_STAGE_FIRST,), seconds=60)
    assert finding.killed_by is not None, finding.output
    assert "downstream states before upstream ones" in finding.output
    assert (PACKAGE / FIRST_STAGE_FIRST.file).read_text() == before


def test_several_processes_tell_the_same() -> None:
    """The first violation by seed, and the counts of all schedules up to it."""
    alone, together = (time_to_detect((FIRST_STAGE_FIRST,), seconds=300, jobs=jobs) for jobs in (1, 2))
    assert alone.killed_by is not None, alone.output
    told = [re.sub(r" in [\d.]+ s: \d+ a second", "", one.output) for one in (alone, together)]
    assert told[0] == told[1]


def test_a_defect_as_the_diff_of_its_fix(tmp_path: Path) -> None:
    one = FIRST_STAGE_FIRST
    name, fixed = f"sqe_chain/{one.file}", (PACKAGE / one.file).read_text()
    broken = fixed.replace(one.new, one.old)
    lines = unified_diff(
        broken.splitlines(keepends=True), fixed.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    patch = tmp_path / "fix.patch"
    patch.write_text("".join(lines))
    finding = time_to_detect(patch, seconds=60)
    assert isinstance(finding, Finding)
    assert finding.killed_by is not None, finding.output


def test_a_text_that_is_not_there_is_said() -> None:
    with pytest.raises(AssertionError, match="stands there 0 times"):
        time_to_detect((Replacement("chain.py", "no such line", ""),))
