"""What a start finds and redoes, and what is skipped."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.edits import argument, before, drop, replace
from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a start does not commit what the run before has persisted",
        ("Recovery.run", drop("owned.commit(last)")),
        killed_by="test_commits_again::test_a_start_commits_what_the_run_before_has_persisted",
    ),
    mutant(
        "a header that has begun another plan proves that this one was published",
        ("redo_of", replace("header.begun_id == plan.plan_id", "header.begun_id != ''")),
        killed_by="test_recover::test_a_header_that_has_begun_another_plan_proves_nothing",
    ),
    mutant(
        "a downstream header that has begun a plan counts as at it",
        (
            "_check_order",
            replace(
                "(header.number for header in downstream)",
                "(header.number + (1 if header.begun_id else 0) for header in downstream)",
            ),
        ),
        killed_by="test_recover::test_no_upstream_header_is_beyond_a_downstream_one",
    ),
    mutant(
        "headers of upstream and downstream stages are not compared",
        ("to_redo", drop("_check_order(headers, level_of)")),
        killed_by="test_recover::test_no_upstream_header_is_beyond_a_downstream_one",
        schedules=500,
    ),
    mutant(
        "a header may have begun a plan that was never sealed",
        ("_check_known", replace("begun.plan_id != header.begun_id", "False")),
        killed_by="test_recover::test_a_single_header_of_no_plan_or_of_another_history_stops",
    ),
    mutant(
        "a begun plan is published again",
        ("redo_of", replace("header.number == before.number and header.begun_id == plan.plan_id", "False")),
        killed_by="test_recover::test_how_far_a_plan_has_come_decides_what_is_still_to_do",
    ),
    mutant(
        "a redo publishes nothing",
        ("redo_of", replace("not reached", "False")),
        killed_by="test_recover::test_how_far_a_plan_has_come_decides_what_is_still_to_do",
        schedules=100,
    ),
    mutant(
        "a redo runs only the first unfinished level",
        (
            "redo_of",
            replace(
                "max(unfinished) if reached and unfinished else 1 << 30",
                "min(unfinished) if unfinished else 1 << 30",
            ),
        ),
        killed_by="test_recover::test_how_far_a_plan_has_come_decides_what_is_still_to_do",
        schedules=200,
    ),
    mutant(
        "of an unfinished plan the key at the cursor is folded again",
        ("CellStates.settled", replace("key <= self.cursor", "key < self.cursor")),
        killed_by="test_states::test_a_key_is_settled_up_to_the_cursor_and_with_it",
        schedules=200,
    ),
    mutant(
        "the cursor of a begun plan is not read",
        ("CellStates._begin", replace("stored.cursor if stored.begun_id else None", "None")),
        killed_by="test_states::test_a_key_is_settled_up_to_the_cursor_and_with_it",
        schedules=200,
    ),
    mutant(
        "a header that moves while states are read is no matter",
        ("CellStates.rows", replace("stored != self._first", "stored.number < self._first.number")),
        killed_by="test_states::test_a_header_that_moves_between_two_reads_is_noticed",
    ),
    mutant(
        "a chunk notes its first key as the cursor",
        ("persist", argument("cursor", "chunk[0][0]")),
        killed_by="test_states::test_only_the_last_chunk_moves_the_header_to_the_plan",
        schedules=200,
    ),
    mutant(
        "a chunk that is not the last moves the header to the plan",
        (
            "persist",
            replace(
                "last if size == len(remaining) else replace(before, begun_id=plan_id, cursor=chunk[-1][0])",
                "last",
            ),
        ),
        killed_by="test_states::test_only_the_last_chunk_moves_the_header_to_the_plan",
        schedules=200,
    ),
    mutant(
        "a whole state partition counts as done when one of its buckets is",
        (
            "PartitionStates.done",
            replace(
                "all((cell.done for cell in self._cells.values()))",
                "any((cell.done for cell in self._cells.values()))",
            ),
        ),
        killed_by="test_states::test_a_state_partition_is_done_when_all_of_its_buckets_are",
        schedules=1200,
    ),
    mutant(
        "a redo leaves out nothing",
        ("Recovery._redo", replace("plan.exclusions", "()")),
        killed_by="test_poison::test_dead_letter_records_come_once_for_each_input_through_crashes",
        schedules=1500,
    ),
    mutant(
        "it is not checked where a redo ends",
        ("Recovery._redo", drop("check_redone(redo, report)")),
        killed_by="test_redo_publishes_the_same::test_steps_after_changes_that_fail_only_now_stop_the_redo",
    ),
    mutant(
        "a redo may end at other marks",
        (
            "check_redone",
            replace("[mark_name(*tp) for tp, mark in plan.marks.items() if marks.get(tp) != mark]", "[]"),
        ),
        killed_by="test_redo_publishes_the_same::test_a_record_of_another_lane_that_is_gone_since_stops_the_redo",
    ),
    mutant(
        "a redo goes by the present clock",
        ("decide_again", replace("plan.clock_ms", "1 << 45")),
        killed_by="test_redo_is_what_was_sealed::test_the_clock_of_a_redo_is_that_of_the_batch",
    ),
    mutant(
        "timers do not fire in a redo",
        ("ticks_again", replace("ticked_ms > timers.ticked_ms", "False")),
        killed_by="test_clock_timers::test_each_timer_fires_once",
    ),
    mutant(
        "in a redo of several plans headers stay where they were",
        (
            "Recovery.run",
            drop("headers = {cell: h if h.number >= number else done for cell, h in headers.items()}"),
        ),
        killed_by="test_rollbacks::test_states_that_went_back_are_redone_from_the_plan_log",
    ),
    mutant(
        "what the next batch reads is not compared with the last one of the plan",
        ("Recovery.run", drop("verify_records(env, last, unfinished=needs_inputs)")),
        killed_by="protocol/plans/test_inputs::test_a_log_that_was_truncated_and_written_again_stops",
    ),
    mutant(
        "code that has changed may finish a plan",
        ("Recovery.run", drop("check_same_code(env.flow, last.layout, last.number)")),
        killed_by="test_changed_code::test_code_with_more_in_it_waits_for_what_the_code_before_has_begun",
    ),
    mutant(
        "a redo that fails where the batch did not fail is accepted",
        ("check_redone", replace("report.failed or report.excluded", "report.failed and report.excluded")),
        killed_by="test_redo_is_what_was_sealed::test_what_fails_only_in_a_redo_stops_it_and_is_not_skipped",
    ),
    mutant(
        "a redo begins with the marks at its own end",
        ("Recovery.run", replace("owned.must_fetch(number - 1)", "plan")),
        killed_by="test_redo_publishes_the_same::test_a_limit_that_was_lowered_stops_the_redo_until_it_is_raised",
    ),
    mutant(
        "the plans that a store has lost are redone from the last one on",
        ("Recovery.run", replace("for number in numbers:", "for number in reversed(numbers):")),
        killed_by="test_rollbacks::test_states_that_went_back_are_redone_from_the_plan_log",
    ),
    mutant(
        "what was left out before the first stage goes into no plan",
        (
            "Processor.run",
            replace("(*candidates.known.values(), *report.excluded)", "(*candidates.known.values(),)"),
        ),
        killed_by="test_poison::test_an_input_that_fails_anywhere_is_skipped_everywhere",
        schedules=100,
    ),
    mutant(
        "an attempt is the last one though a candidate was cleared",
        ("Candidates.judge", replace("not cleared", "True")),
        killed_by="test_blame::test_a_bad_input_takes_no_good_one_with_it",
    ),
    mutant(
        "an input that was left out does not move its mark",
        (
            "Deciding._decide_closely",
            before(
                "if node.raw or (value is None and (not chained) and (node.nulls == 'decode')):",
                "if offset in self._skipped and (not self._trial) and (not node.raw):\n    records.failures[number] = self._skipped[offset]\n    return 0",
            ),
        ),
        killed_by="test_poison::test_dead_letter_records_come_once_for_each_input_through_crashes",
        schedules=1500,
    ),
    mutant(
        "the limit on skipped records forgets earlier batches",
        (
            "SkipLimit.check",
            replace(
                "skipped, inputs = (self.excluded + len(exclusions), self.inputs + inputs)",
                "skipped = len(exclusions)",
            ),
        ),
        killed_by="test_skip_limit::test_small_batches_are_no_way_around_it",
    ),
    mutant(
        "a dead letter may be too large by what its batch adds",
        ("SourcePartition._leave_out", replace("limit - RECORD_OVERHEAD", "limit")),
        killed_by="test_outputs_refused::test_a_dead_letter_record_has_room_for_the_header_of_its_batch",
    ),
    mutant(
        "an output moves behind a first stage while some of it is to be published again",
        ("check_first_stage", replace("until > offset", "False")),
        killed_by="test_group_commits::test_an_output_comes_after_its_first_stage_when_nothing_is_to_be_published_again",
    ),
    mutant(
        "a rebuild counts again what a flow had read before its first stage",
        ("birth_plan", replace("Begun.of(plan).marks.get(tp, marks)", "marks")),
        killed_by="test_group_commits::test_what_it_had_read_before_its_first_stage_is_not_counted_when_it_comes_again",
    ),
    mutant(
        "a flow may lose its last stage",
        ("check_no_plans", replace("'plan' in meta", "False")),
        killed_by="test_group_commits::test_a_flow_does_not_lose_its_last_stage",
    ),
    mutant(
        "a run without stages looks where it goes on without being the one member of its group",
        ("Republisher._enter", replace("self._membership.committed", "self.env.ports.log.committed")),
        (
            "Republisher._commit",
            replace(
                "self._membership.commit",
                "lambda commits: self._membership._log._store(self.env.flow.declared_name, commits)",
            ),
        ),
        killed_by="test_group_commits::test_a_run_whose_place_a_newer_one_has_taken_commits_nothing_and_ends",
    ),
)
