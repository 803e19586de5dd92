"""Redo: what is done again is what was done."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a redo leaves out nothing",
        (
            "protocol/aggregation.py",
            "            report = self._processor.attempt(batch, plan.exclusions)\n",
            "            report = self._processor.attempt(batch, ())\n",
        ),
        tests=("tests/protocol/test_poison.py::test_dead_letters_come_once_for_each_input_through_crashes",),
        schedules=100,
    ),
)
