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
    mutant(
        "a record that is skipped when its time has come has to be in Kafka still",
        (
            "protocol/planning.py",
            ' and one.policy == "dead_letter"]',
            "]",
        ),
        tests=("tests/protocol/test_held.py::test_one_that_is_skipped_need_not_be_in_kafka_any_more",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "the brake counts replays as inputs",
        (
            "protocol/processing.py",
            "read = sum(end.records - end.replays for end in report.ends)",
            "read = sum(end.records for end in report.ends)",
        ),
        tests=("tests/protocol/test_brake.py::test_replays_do_not_hide_how_much_of_what_is_new_fails",),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "a batch that leaves out as many inputs as a plan lists is made smaller",
        (
            "protocol/processing.py",
            "if len(exclusions) > max(MAX_EXCLUSIONS, len(batch.ranges)):",
            "if len(exclusions) >= max(MAX_EXCLUSIONS, len(batch.ranges)):",
        ),
        tests=(
            "tests/protocol/test_blame.py::test_a_batch_that_leaves_out_as_many_as_a_plan_lists_is_not_made_smaller",
        ),
        unsimulated="not simulated: limits are not reached there",
    ),
)
