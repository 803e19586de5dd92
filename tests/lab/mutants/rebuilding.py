"""Folding again, resuming, switching over, moving; where readers find states."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "a rebuild takes a batch for published that nothing proves",
        (
            "operations/progress.py",
            "    if not proven and not _is_begun(env, last):\n",
            "    if not proven and last is None:\n",
        ),
        tests=(
            "tests/protocol/test_progress.py::test_of_a_batch_that_is_sealed_and_nothing_more_nothing_is_certain",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a rebuild takes a silent plan for one that may be unpublished",
        (
            "operations/progress.py",
            "        last.silent or known > last.number or",
            "        known > last.number or",
        ),
        tests=("tests/protocol/test_progress.py::test_a_batch_that_is_not_published_at_all_needs_no_proof",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a rebuild does not ask Kafka's commits whether a batch was published",
        (
            "operations/progress.py",
            'last.silent or known > last.number or last.plan_id in {meta.get("id") for _, meta in ours.values()}',
            "last.silent or known > last.number",
        ),
        tests=("tests/protocol/test_progress.py::test_a_commit_of_it_proves_that_it_was_published",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a rebuild does not believe a commit of a later plan",
        (
            "operations/progress.py",
            "        last.silent or known > last.number or last",
            "        last.silent or last",
        ),
        tests=(
            "tests/protocol/test_progress.py::test_a_commit_of_a_later_plan_proves_that_it_was_published_and_more",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a rebuild does not believe headers that have begun a plan",
        (
            "operations/progress.py",
            "plan.plan_id in {header.plan_id, header.begun_id}",
            "plan.plan_id == header.plan_id",
        ),
        tests=(
            "tests/protocol/test_progress.py::test_a_single_header_that_has_begun_or_reached_it_proves_that_it_was_published",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a rebuild that finds what another one has changed meanwhile says that the store has lost it",
        ("operations/rebuild.py", "            check_not_superseded(env, self.claimed, error)\n", ""),
        tests=(
            "tests/protocol/test_rebuild.py::test_a_rebuild_that_another_run_overtakes_anywhere_changes_nothing",
        ),
        schedules=3000,
    ),
    mutant(
        "a topic that is created again while a rebuild begins is folded in place of the one that was counted",
        ("operations/rebuild.py", "        self._check_recreated(recreated_since(plan, infos))\n", ""),
        tests=(
            "tests/protocol/test_recreated_raw_input.py::test_a_topic_created_again_while_it_is_folded_again_changes_nothing",
        ),
        schedules=6000,
    ),
    mutant(
        "after the loss of a store, a topic that was created again is folded in place of the one that was counted",
        (
            "operations/progress.py",
            "recreated=frozenset(topic for topic, _ in known_by.keys() - ours.keys()),",
            "recreated=frozenset(),",
        ),
        tests=(
            "tests/protocol/test_recreated_raw_input.py::test_of_a_lost_store_the_commits_tell_that_a_topic_was_created_again",
        ),
        unsimulated="not simulated: no store is lost after a topic was created again",
    ),
    mutant(
        "a rewound flow forgets what it has not read again of a topic that was created again",
        (
            "protocol/entering.py",
            "if last.unfinished or one not in gone or one in behind]",
            "if last.unfinished or one not in gone]",
        ),
        tests=(
            "tests/protocol/test_recreated_raw_input.py::test_a_topic_created_again_before_a_rewound_flow_has_read_it_again_stops_it",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "offsets that receivers have are kept for a topic that was created again",
        (
            "protocol/planning.py",
            "        published_until=_without(last.published_until, others),\n",
            "        published_until=last.published_until,\n",
        ),
        tests=(
            "tests/protocol/test_recreated_raw_input.py::test_what_was_known_of_the_partitions_of_the_old_topic_holds_for_none_of_the_new_one",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "event time of a topic that was created again goes on where a rebuild had been",
        (
            "protocol/planning.py",
            "replace(last.reached, times=_without(last.reached.times, others)),",
            "replace(last.reached, times=last.reached.times),",
        ),
        tests=(
            "tests/protocol/test_recreated_raw_input.py::test_what_was_known_of_the_partitions_of_the_old_topic_holds_for_none_of_the_new_one",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a rebuild blames a record where its topic was created again meanwhile",
        ("operations/rebuild.py", "            self._check_recreated(self._recreated(infos), error)\n", ""),
        tests=(
            "tests/protocol/test_recreated_raw_input.py::test_what_fails_because_a_topic_was_created_again_while_it_is_folded_is_named_so",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a state partition that has begun a plan goes back when it is deleted",
        (
            "operations/attempts.py",
            "number=max(tombstone.number, header.number + bool(header.begun_id)),",
            "number=max(tombstone.number, header.number),",
        ),
        tests=(
            "tests/protocol/test_rebuild.py::test_a_state_partition_that_has_begun_a_plan_does_not_go_back_when_it_is_deleted",
        ),
        unsimulated="rare: seed 1080155 shows it",
    ),
    mutant(
        "an older run that stamps its states ends the rebuild that is about to delete them",
        (
            "operations/attempts.py",
            "                    return stored\n",
            "                    pass\n",
        ),
        tests=(
            "tests/protocol/test_rebuild.py::test_a_run_of_before_that_stamps_its_states_during_a_rebuild_does_not_end_it",
        ),
        unsimulated="not simulated: no older run goes on while a rebuild deletes; the explorer's configuration `rebuild` has it",
    ),
    mutant(
        "an overtaken rebuild deletes on in the name of the newer one",
        (
            "operations/attempts.py",
            "            check_claim(self.env, self.mine)\n",
            "",
        ),
        tests=(
            "tests/protocol/test_rebuild.py::test_an_overtaken_rebuild_does_not_take_the_newer_ones_epoch_to_delete_what_that_one_is_deleting",
        ),
        unsimulated="not simulated: no two rebuilds delete at once; the explorer's configuration `rebuild` has it",
    ),
    mutant(
        "a batch that is repeated after a rebuild asks what its topics take",
        (
            "protocol/processing.py",
            "sealed=part.due is not None,",
            "sealed=False,",
        ),
        tests=(
            "tests/protocol/test_redo_says_the_same.py::test_a_limit_that_was_lowered_leaves_nothing_out_of_a_batch_repeated_after_a_rebuild",
        ),
        unsimulated="not simulated: limits are not reached there",
    ),
    mutant(
        "partitions that have entered since are read before the batch that has to be repeated",
        (
            "protocol/cutting.py",
            "limit_bounds(bounds, offsets | begins)",
            "limit_bounds(bounds, begins)",
        ),
        tests=(
            "tests/protocol/test_plans_after_plans.py::test_a_partition_that_has_entered_since_waits_until_that_batch_is_done",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a rewind to before the beginning of a flow is refused",
        (
            "operations/rebuild.py",
            "until[tp] = max(offset, progress.starts.get(tp, 0))",
            "until[tp] = offset",
        ),
        tests=(
            "tests/protocol/test_rebuild.py::test_a_rewind_to_before_its_beginning_goes_to_its_beginning",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a second rewind forgets what receivers have had before the first",
        (
            "operations/rebuild.py",
            "heard = {name: max(offset, heard.get(name, 0)) for name, offset in published.items()}",
            "heard = dict(published)",
        ),
        tests=(
            "tests/protocol/test_rebuild.py::test_a_flow_that_is_rewound_twice_remembers_all_that_receivers_have",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "an attempt that has folded more than is asked for is resumed",
        (
            "operations/rebuild.py",
            "if planned.stop > spec.until.get(tp, 0):",
            "if False:",
        ),
        tests=(
            "tests/protocol/test_rebuild.py::test_an_attempt_that_has_folded_more_than_is_asked_for_is_not_resumed",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "of a stage in buckets only the first cells prove that a batch was published",
        (
            "operations/progress.py",
            "cells = range(plan.layout.state_partitions * stored.buckets)",
            "cells = range(plan.layout.state_partitions)",
        ),
        tests=("tests/protocol/test_progress.py::test_the_header_of_any_bucket_proves_it",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a second rebuild takes the flow to be as far in event time as the first one has come",
        (
            "operations/progress.py",
            "reached = base.reached or (Reached(base.times, base.frontier, base.ticked_ms) if base.times else None)",
            "reached = Reached(base.times, base.frontier, base.ticked_ms) if base.times else None",
        ),
        tests=(
            "tests/protocol/test_progress.py::test_how_far_event_time_had_come_once_is_known_after_a_second_rebuild",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a rebuild misses what came before the flow began in the middle",
        (
            "protocol/entering.py",
            "(spec.starts.get(tp, 0), tp in spec.starts)",
            "(spec.starts.get(tp, 0), False)",
        ),
        tests=(
            "tests/protocol/test_rebuild.py::test_what_came_before_the_beginning_of_a_flow_is_not_missed_when_it_is_folded_again",
        ),
        unsimulated="not simulated: no flow begins in the middle there",
    ),
)
