"""Redo: what is done again is what was done."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

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
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a redo may end at other marks",
        ("protocol/verifying.py", "    if marks != plan.marks:\n", "    if plan.number < 0:\n"),
        tests=(
            "tests/protocol/test_redo_says_the_same.py::test_a_record_of_another_lane_that_is_gone_since_stops_the_redo",
        ),
        unsimulated="not simulated: logs are compacted in no schedule",
    ),
    mutant(
        "a redo goes by the present clock",
        ("protocol/cutting.py", "        clock_ms=plan.clock_ms,\n", "        clock_ms=1 << 45,\n"),
        tests=(
            "tests/protocol/test_redo_is_what_was_sealed.py::test_the_clock_of_a_redo_is_that_of_the_batch",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "timers do not fire in a redo",
        (
            "protocol/cutting.py",
            "tick_ms=plan.ticked_ms if plan.ticked_ms > before.ticked_ms else None",
            "tick_ms=None",
        ),
        tests=("tests/protocol/test_clock_timers.py::test_each_timer_fires_once",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "timers fire in the redo of a batch in which none did",
        (
            "protocol/cutting.py",
            "tick_ms=plan.ticked_ms if plan.ticked_ms > before.ticked_ms else None",
            "tick_ms=plan.clock_ms",
        ),
        tests=("tests/protocol/test_clock_timers.py::test_each_timer_fires_once",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "in a redo of several plans headers stay where they were",
        (
            "protocol/recovery.py",
            "            headers = {cell: h if h.number >= number else done for cell, h in headers.items()}\n",
            "",
        ),
        tests=("tests/protocol/test_rollbacks.py::test_states_that_went_back_are_redone_from_the_plan_log",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "what the next batch reads is not compared with the last one of the plan",
        ("protocol/recovery.py", "        verify_records(env, last, unfinished=needs_inputs)\n", ""),
        tests=("tests/protocol/test_inputs.py::test_a_log_that_was_truncated_and_written_anew_stops",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "code that has changed may finish a plan",
        ("protocol/recovery.py", "            check_same_code(env.flow, last)\n", "            pass\n"),
        tests=(
            "tests/protocol/test_changed_code.py::test_code_with_more_in_it_waits_for_what_the_code_before_has_begun",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a redo that fails where the batch did not fail is accepted",
        (
            "protocol/verifying.py",
            "    if report.failed or report.excluded:",
            "    if report.failed and report.excluded:",
        ),
        tests=(
            "tests/protocol/test_redo_is_what_was_sealed.py::test_what_fails_only_in_a_redo_stops_it_and_is_not_left_out",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "outputs that fail in a redo alone are accepted",
        (
            "protocol/verifying.py",
            "    if report.broken:\n        raise PlanMismatch(",
            "    if report.broken and report.failed:\n        raise PlanMismatch(",
        ),
        tests=(
            "tests/protocol/test_redo_says_the_same.py::test_steps_after_changes_that_fail_only_now_stop_the_redo",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a redo measures outputs by the present limits of their topics",
        (
            "protocol/processing.py",
            "                {} if batch.sealed else infos,\n",
            "                infos,\n",
        ),
        tests=(
            "tests/protocol/test_redo_says_the_same.py::test_a_limit_that_was_lowered_stops_the_redo_until_it_is_raised",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a redo begins with the marks at its own end",
        (
            "protocol/recovery.py",
            "            before = owned.must_fetch(number - 1)\n",
            "            before = plan\n",
        ),
        tests=(
            "tests/protocol/test_redo_says_the_same.py::test_a_limit_that_was_lowered_stops_the_redo_until_it_is_raised",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "the plans that a store has lost are redone from the last one on",
        (
            "protocol/recovery.py",
            "        for number in numbers:\n            plan",
            "        for number in reversed(numbers):\n            plan",
        ),
        tests=("tests/protocol/test_rollbacks.py::test_states_that_went_back_are_redone_from_the_plan_log",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a redo publishes again what one header proves to be published",
        (
            "protocol/recover.py",
            "    return Redo(plan, before, not reached,",
            "    return Redo(plan, before, True,",
        ),
        tests=("tests/protocol/test_recover.py::test_how_far_a_plan_has_come_says_what_is_still_to_do",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "what a part of a redo would emit counts once more",
        (
            "task/stage_part.py",
            "                task = replace(task, emit=None, drop=None, counts=Counter())\n",
            "                pass\n",
        ),
        tests=(
            "tests/protocol/test_filters_in_flows.py::test_steps_behind_a_filter_see_nothing_in_a_redo_that_they_did_not_see_before",
        ),
        unsimulated="not found by 500 schedules",
    ),
)
