"""What is read of Kafka, and flows that are folded again or moved."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.edits import argument, before, drop, replace
from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "records of open transactions are read",
        ("Partition.stable_end", replace("min([self.end, *self.uncommitted])", "self.end")),
        killed_by="protocol/plans/test_inputs::test_aborted_and_open_transactions_are_not_read",
    ),
    mutant(
        "one record lost to retention is no matter",
        ("check_bounds", replace("bound.begin > next_offset", "bound.begin > next_offset + 1")),
        killed_by="protocol/plans/test_inputs::test_retention_that_passed_the_position_stops",
    ),
    mutant(
        "the last record is compared by leader epoch and time alone",
        (
            "_check_last_record",
            replace(
                "known.last_crc >= 0 and record_crc(messages[0].key(), messages[0].value()) != known.last_crc",
                "known.last_crc < -1",
            ),
        ),
        killed_by="protocol/plans/test_inputs::test_a_record_replaced_in_the_same_leader_epoch_stops",
    ),
    mutant(
        "ranges are read without comparing leader epochs",
        ("processing:portions_of", replace("known[tp].last_epoch", "0")),
        killed_by="protocol/plans/test_inputs::test_a_log_that_was_truncated_and_written_again_stops",
        schedules=200,
    ),
    mutant(
        "what was read while a topic was created again counts",
        (
            "Processor._check_topics",
            drop("same_inputs.check_same_id(...)"),
        ),
        killed_by="protocol/plans/test_inputs::test_an_input_created_again_while_a_batch_reads_it_stops_before_the_seal",
    ),
    mutant(
        "a rebuild takes a batch for published that nothing proves",
        ("find_progress", replace("not _is_begun(env, last)", "last is None")),
        killed_by="test_progress::test_of_a_batch_that_is_sealed_and_nothing_more_nothing_is_certain",
    ),
    mutant(
        "a rebuild with other state partitions publishes on other lanes what receivers may have",
        (
            "Rebuild._lanes",
            drop("check_may_move(flow, layout, progress.number, progress.still_to_publish)"),
        ),
        killed_by="test_lanes_moved::test_a_batch_published_in_part_is_finished_before_a_rebuild_changes_what_it_gives",
    ),
    mutant(
        "a rewind publishes again what came on other lanes",
        ("Rebuild._lanes", replace("lanes.since if self.republish and flow.outputs else None", "None")),
        killed_by="test_lanes_moved::test_after_outputs_have_moved_nothing_older_is_published_again",
    ),
    mutant(
        "a rewind publishes again what late records may have moved",
        ("late_after", replace("not any(end.late for end in report.ends)", "True")),
        killed_by="test_rewound_event_time::test_worlds_in_which_they_once_did",
    ),
    mutant(
        "inputs count as read again as soon as one partition is",
        (
            "Lanes.taken_by",
            replace(
                "all(...)", "any(stops.get(tp, 0) >= offset for tp, offset in (self.since or {}).items())"
            ),
        ),
        killed_by="test_partitions_read_again::test_what_was_taken_before_is_known_when_all_partitions_are_read_again",
    ),
    mutant(
        "a rebuild ends its silence as soon as one partition is read again",
        (
            "silent_limits",
            replace("limits != offsets", "all(limits[tp] != offset for tp, offset in offsets.items())"),
        ),
        killed_by="test_partitions_read_again::test_a_rebuild_is_silent_until_all_partitions_are_read_again",
    ),
    mutant(
        "an unfinished batch is repeated as soon as one partition is read again",
        (
            "_is_next",
            replace("all(...)", "any(offsets[planned.tp] >= planned.start for planned in rest.ranges)"),
        ),
        killed_by="test_partitions_read_again::test_an_unfinished_batch_is_next_when_all_partitions_are_read_again",
    ),
    mutant(
        "a rewind publishes again what had been taken before late records",
        ("Lanes.taken_by", replace("self.frontier if read else None", "None")),
        killed_by="test_rewound_event_time::test_worlds_in_which_they_once_did",
    ),
    mutant(
        "a rebuild takes at once what receivers have and it has not published again",
        ("Rebuilding.ahead", replace("self.reached or self.heard", "self.heard or self.reached")),
        killed_by="test_rewound_event_time::test_worlds_in_which_they_once_did",
    ),
    mutant(
        "a rebuild does not ask Kafka's commits whether a batch was published",
        ("progress:_is_published", replace("last.plan_id in committed", "False")),
        killed_by="test_progress::test_a_commit_of_it_proves_that_it_was_published",
    ),
    mutant(
        "a topic that is created again while a rebuild begins is folded in place of the one that was counted",
        ("Rebuild._last_plan", drop("self._check_recreated(recreated_since(plan, infos))")),
        killed_by="test_recreated_raw_input::test_a_topic_created_again_while_it_is_folded_again_changes_nothing",
        schedules=6000,
    ),
    mutant(
        "a state partition that has begun a plan goes back when it is deleted",
        ("Attempts._clear_cell", argument("number", "max(tombstone.number, header.number)")),
        killed_by="test_rebuild::test_a_state_partition_that_has_begun_a_plan_does_not_go_back_when_it_is_deleted",
    ),
    mutant(
        "an overtaken rebuild deletes on in the name of the newer one",
        ("Attempts._clear_cell", drop("check_claim(self.env, self.mine)")),
        killed_by="test_rebuild::test_an_overtaken_rebuild_does_not_take_the_newer_ones_epoch_to_delete_what_that_one_is_deleting",
    ),
    mutant(
        "a second rewind forgets what receivers have had before the first",
        (
            "Rebuild._spec",
            replace(
                "{tp: max(offset, received.get(tp, 0)) for tp, offset in published.items()}",
                "dict(published)",
            ),
        ),
        killed_by="test_rebuild::test_a_flow_that_is_rewound_twice_remembers_all_that_receivers_have",
    ),
    mutant(
        "the states that a rebuild made are deleted with the old ones",
        ("Rebuild._clean_up", replace("self._delete(attempts, {name})", "self._delete(attempts, set())")),
        killed_by="test_rebuild::test_what_a_store_has_lost_is_folded_again",
        schedules=200,
    ),
    mutant(
        "a rebuild may end before everything is folded",
        ("Rebuild._fold", before("if self.stopped():", "if service.lag() < 1 << 1:\n    break")),
        killed_by="test_rebuild::test_what_a_store_has_lost_is_folded_again",
        schedules=200,
    ),
    mutant(
        "an export of an unfinished plan is made",
        (
            "moving:_lines",
            replace("(plan.number, plan.plan_id, '')", "(plan.number, plan.plan_id, at and at[2])"),
        ),
        killed_by="test_moving::test_a_state_partition_that_has_begun_a_plan_is_not_exported",
    ),
    mutant(
        "an import makes the plan known before the states are there",
        (
            "moving:import_states",
            before(
                "for stage in ...:",
                "home, _ = (home, env.home.set_home(env.flow.name, home, replace(home, number=plan.number, plan_id=plan.plan_id), plan.to_bytes()))",
            ),
        ),
        killed_by="test_crash_sweep::test_killed_after_each_write",
        schedules=200,
    ),
    mutant(
        "an old export is imported over later commits",
        ("moving:import_states", drop("check_commits(env.flow, plan, commits)")),
        killed_by="test_moving::test_an_export_that_is_old_is_refused",
    ),
)
