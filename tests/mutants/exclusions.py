"""Inputs that are left out, dead letters, and the brake."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "what was left out before the first stage goes into no plan",
        (
            "protocol/processing.py",
            "        exclusions = (*suspects.known.values(), *report.excluded)\n",
            "        exclusions = (*suspects.known.values(),)\n",
        ),
        tests=("tests/protocol/test_poison.py::test_an_input_that_fails_anywhere_is_left_out_of_everything",),
        schedules=100,
    ),
    mutant(
        "an attempt is the last one though a suspect was let go",
        (
            "protocol/processing.py",
            "        return not fresh and not innocent\n",
            "        return not fresh\n",
        ),
        tests=("tests/protocol/test_blame.py::test_a_bad_input_takes_no_good_one_with_it",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "an input that was left out does not move its mark",
        (
            "segment/deciding.py",
            "        head = None\n        if node.raw or (value",
            "        head = None\n        if offset in self._skipped and not self._trial and not node.raw:\n            records.failures[number] = self._skipped[offset]\n            return 0\n        if node.raw or (value",
        ),
        tests=("tests/protocol/test_poison.py::test_dead_letters_come_once_for_each_input_through_crashes",),
        schedules=1500,
    ),
    mutant(
        "the brake forgets what earlier batches left out",
        (
            "segment/brake.py",
            "        excluded, inputs = self.excluded + len(exclusions), self.inputs + inputs\n",
            "        excluded = len(exclusions)\n",
        ),
        tests=("tests/protocol/test_brake.py::test_small_batches_are_no_way_around_it",),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "the brake holds when either limit is exceeded",
        (
            "segment/brake.py",
            "excluded <= self.count or excluded <= self.share * inputs",
            "excluded <= self.count and excluded <= self.share * inputs",
        ),
        tests=("tests/protocol/test_brake.py::test_small_batches_are_no_way_around_it",),
        unsimulated="not simulated: limits are not reached there",
    ),
)
