"""Redo: what is done again is what was done."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a redo leaves out nothing",
        (
            "protocol/recovery.py",
            "            report = self.processor.attempt(batch, plan.exclusions)\n",
            "            report = self.processor.attempt(batch, ())\n",
        ),
        tests=("tests/protocol/test_poison.py::test_dead_letters_come_once_for_each_input_through_crashes",),
        schedules=1500,
    ),
    mutant(
        "it is not checked where a redo ends",
        ("protocol/recovery.py", "            check_redone(redo, report)\n", ""),
        tests=(
            "tests/protocol/test_redo_says_the_same.py::test_steps_after_changes_that_fail_only_now_stop_the_redo",
        ),
        unsimulated="not found by 100 schedules",
    ),
)
