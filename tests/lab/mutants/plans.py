"""What a plan says, and which plans are kept."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "one plan fewer is kept than is asked for",
        (
            "protocol/plan_log.py",
            "plan.number - env.settings.keep_plans + 1)",
            "plan.number - env.settings.keep_plans + 2)",
        ),
        tests=("tests/protocol/test_interleaved.py::test_random_interleavings_of_three_live_runs",),
        schedules=100,
    ),
    mutant(
        "a plan does not name the last records that it has read",
        (
            "protocol/planning.py",
            "    ranges = tuple(_with_witness(planned, ends.get(planned.tp)) for planned in part.ranges)\n",
            "    ranges = part.ranges\n",
        ),
        tests=("tests/protocol/test_inputs.py::test_a_log_that_was_truncated_and_written_anew_stops",),
        schedules=200,
    ),
    mutant(
        "a range without a record forgets the last record before it",
        (
            "protocol/planning.py",
            "    if end is None or end.last_offset < 0:\n        return planned\n",
            "    if end is None or end.last_offset < 0:\n        return replace(planned, last_offset=-1, last_crc=-1)\n",
        ),
        tests=("tests/protocol/test_plans_after_plans.py::test_an_idle_partition_keeps_its_last_record",),
        unsimulated="not simulated: no log is cut off and written again there",
    ),
    mutant(
        "a plan drops the marks of partitions of which it has read nothing",
        (
            "protocol/planning.py",
            "    return before.marks | {mark_name(end.topic, end.partition): end.marks for end in report.ends}",
            "    return {mark_name(end.topic, end.partition): end.marks for end in report.ends}",
        ),
        tests=(
            "tests/protocol/test_inputs.py::test_topics_that_grow_while_a_republisher_is_dead_before_its_commit",
        ),
        schedules=200,
    ),
    mutant(
        "a plan names only what failed before the first stage",
        (
            "protocol/planning.py",
            "        exclusions=exclusions,\n        times",
            "        exclusions=tuple(report.excluded),\n        times",
        ),
        tests=("tests/protocol/test_poison.py::test_an_input_that_fails_anywhere_is_left_out_of_everything",),
        schedules=100,
    ),
    mutant(
        "a commit of another plan with the number of the last one is accepted",
        (
            "protocol/planning.py",
            "        if number > last.number or other:",
            "        if number > last.number:",
        ),
        tests=(
            "tests/protocol/test_rollbacks.py::test_another_plan_of_the_number_that_kafka_has_committed_stops",
        ),
        unsimulated="not simulated: no store goes back to another history there",
    ),
    mutant(
        "a plan does not go on with the time of the timers before",
        (
            "protocol/planning.py",
            "        ticked_ms=last.ticked_ms if part.tick_ms is None else part.tick_ms,\n",
            "        ticked_ms=part.tick_ms or 0,\n",
        ),
        tests=(
            "tests/protocol/test_plans_after_plans.py::test_a_silent_batch_keeps_what_comes_after_the_silence",
        ),
        unsimulated="not simulated: no timers go by the batch's clock there",
    ),
    mutant(
        "outputs that are not declared any more are forgotten",
        (
            "protocol/planning.py",
            "        known.outputs | {node.name: (node.topic, node.partitions) for node in flow.outputs},",
            "        {node.name: (node.topic, node.partitions) for node in flow.outputs},",
        ),
        tests=(
            "tests/protocol/test_plans_after_plans.py::test_outputs_stay_known_when_they_are_not_declared_any_more",
        ),
        unsimulated="not simulated: outputs stay declared there",
    ),
    mutant(
        "the digest of a plan leaves out the plan before",
        (
            "protocol/plan.py",
            'members = self._members(marks) | {"plan_id": \'""\'}',
            'members = self._members(marks) | {"plan_id": \'""\', "previous_id": \'""\'}',
        ),
        tests=("tests/protocol/test_plan_json.py::test_a_plan_is_stored_under_the_names_that_it_always_had",),
        unsimulated="not simulated: no store holds plans of two histories there",
    ),
    mutant(
        "a plan that another run sealed in between counts as a store that went back",
        (
            "protocol/plan_log.py",
            "(stored.epoch, stored.run_id) != mine and stored.epoch >= before.epoch",
            "(stored.epoch, stored.run_id) != mine and stored.epoch > before.epoch + 1",
        ),
        tests=("tests/protocol/test_interleaved.py::test_random_interleavings_of_three_live_runs",),
        schedules=200,
    ),
    mutant(
        "one plan more is kept than is asked for",
        (
            "protocol/plan_log.py",
            "plan.number - env.settings.keep_plans + 1)",
            "plan.number - env.settings.keep_plans)",
        ),
        tests=("tests/protocol/test_rollbacks.py::test_as_many_plans_are_kept_as_were_asked_for",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
)
