"""The order of steps, plans and claims: what happens when, and in whose name."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.edits import argument, before, drop, replace, swap
from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "an idle service never commits again",
        (
            "OwnedFlow.commit_again",
            replace("self.env.clock.now_ms() - self._committed_ms > COMMIT_AGAIN_MS", "False"),
        ),
        killed_by="test_commits_again::test_an_idle_service_commits_again_but_not_each_time_that_it_looks",
    ),
    mutant(
        "a batch is committed before its states are persisted",
        (
            "OwnedFlow.finish",
            swap("for level in ...:", "with env.step(COMMIT):"),
        ),
        killed_by="test_order_of_steps::test_a_batch_is_sealed_published_persisted_from_the_last_stage_on_and_committed",
        schedules=100,
    ),
    mutant(
        "the first stage is persisted first",
        (
            "OwnedFlow.finish",
            replace("range(...)", "reversed(...)"),
        ),
        killed_by="test_persist_order::test_the_last_stage_first_survives",
        schedules=100,
    ),
    mutant(
        "states are persisted before outputs are published",
        (
            "OwnedFlow.finish",
            swap("with env.step(PUBLISH):", "for level in ...:"),
        ),
        killed_by="test_persist_order::test_the_last_stage_first_survives",
        schedules=100,
    ),
    mutant(
        "a batch is published before it is sealed",
        (
            "StagedService._finish",
            before(
                "with env.step(SEAL):",
                "if report.outputs and (not processed.decision.silent):\n    env.retry.call('publish', env.engine.publish)",
            ),
        ),
        killed_by="test_order_of_steps::test_a_batch_is_sealed_published_persisted_from_the_last_stage_on_and_committed",
        schedules=200,
    ),
    mutant(
        "a batch is sealed before the commit of the one before is acknowledged",
        ("OwnedFlow.seal", drop("self.env.commits.settle()")),
        killed_by="test_order_of_steps::test_the_next_batch_is_sealed_when_the_commit_of_the_one_before_is_acknowledged",
    ),
    mutant(
        "outputs of silent batches are published",
        (
            "OwnedFlow.finish",
            replace("not (Rebuilding.name in plan.sections and Rebuilding.of(plan).silent)", "True"),
        ),
        killed_by="test_rebuild::test_what_a_store_has_lost_is_folded_again",
        schedules=600,
    ),
    mutant(
        "a commit ends at the last record that was read, not at the end of the range",
        ("commit_plan", replace("needed[planned.tp]", "planned.last_offset + 1")),
        killed_by="protocol/plans/test_inputs::test_aborted_and_open_transactions_are_not_read",
        schedules=100,
    ),
    mutant(
        "a batch whose states are persisted counts as open until the next one",
        ("OwnedFlow._no_longer_open", replace("self.open_plan == number", "self.open_plan != number")),
        killed_by="test_commits_in_background::test_a_plan_is_open_until_its_commit_is_acknowledged",
    ),
    mutant(
        "states announced are published after the header of the plan",
        (
            "OwnedFlow.finish",
            replace(
                "beside_outputs(env, self.claim, plan)",
                "() if plan.empty else beside_outputs(env, self.claim, plan)",
            ),
        ),
        killed_by="test_republish_states::test_each_key_is_published_once_after_a_rebuild_with_other_results",
    ),
    mutant(
        "one plan fewer is kept than is asked for",
        (
            "PlanLog.write",
            replace("plan.number - env.settings.keep_plans + 1", "plan.number - env.settings.keep_plans + 2"),
        ),
        killed_by="test_rollbacks::test_as_many_plans_are_kept_as_were_asked_for",
        schedules=100,
    ),
    mutant(
        "a plan does not name the last records that it has read",
        (
            "batch_plan",
            replace(
                "tuple([_with_witness(planned, ends.get(planned.tp)) for planned in decision.ranges])",
                "part.ranges",
            ),
        ),
        killed_by="protocol/plans/test_inputs::test_a_log_that_was_truncated_and_written_again_stops",
        schedules=200,
    ),
    mutant(
        "a range without a record forgets the last record before it",
        ("_with_witness", replace("return planned", "return replace(planned, last_offset=-1, last_crc=-1)")),
        killed_by="test_plans_after_plans::test_an_idle_partition_keeps_its_last_record",
    ),
    mutant(
        "a plan drops the marks of partitions that it has not read",
        (
            "marks_after",
            replace(
                "before.marks | {(end.topic, end.partition): end.marks for end in report.ends}",
                "{(end.topic, end.partition): end.marks for end in report.ends}",
            ),
        ),
        killed_by="protocol/plans/test_inputs::test_topics_that_grow_while_a_republisher_is_dead_before_its_commit",
        schedules=200,
    ),
    mutant(
        "a plan names only what failed before the first stage",
        ("batch_plan", argument("exclusions", "tuple(report.excluded)")),
        killed_by="test_poison::test_an_input_that_fails_anywhere_is_skipped_everywhere",
        schedules=100,
    ),
    mutant(
        "a commit of another plan with the number of the last one is accepted",
        ("check_commits", replace("number > last.number or other", "number > last.number")),
        killed_by="test_rollbacks::test_another_plan_of_the_number_that_kafka_has_committed_stops",
    ),
    mutant(
        "a plan does not go on with the time of the timers before",
        (
            "Timers.after",
            replace(
                "self.ticked_ms if ticks is None else ticks.tick_ms", "0 if ticks is None else ticks.tick_ms"
            ),
        ),
        killed_by="test_plans_after_plans::test_a_silent_batch_keeps_what_comes_after_the_silence",
    ),
    mutant(
        "the digest of a plan leaves out the plan before",
        (
            "Plan.with_id",
            replace("self._encode('', before)", "replace(self, previous_id='')._encode('', before)"),
        ),
        killed_by="test_plan_json::test_a_plan_is_stored_under_the_names_that_it_always_had",
    ),
    mutant(
        "a plan that another run sealed in between counts as a store that went back",
        ("PlanLog.write", replace("stored.epoch >= before.epoch", "stored.epoch > before.epoch + 1")),
        killed_by="test_claims::test_a_run_that_has_another_ones_epoch_seals_nothing_and_raises_superseded",
        schedules=200,
    ),
    mutant(
        "headers are not stamped",
        (
            "stamp",
            replace(
                "replace(header, epoch=mine.epoch, run_id=mine.run_id) if header else first",
                "header or first",
            ),
        ),
        killed_by="test_persist_order::test_the_last_stage_first_survives",
        schedules=200,
    ),
    mutant(
        "a run with the same epoch and another name counts as the owner",
        ("check_owner", replace("header.epoch == claim.epoch and header.run_id != claim.run_id", "False")),
        killed_by="test_states::test_what_another_run_has_stamped_is_not_read",
    ),
    mutant(
        "an older stamp than this run's is accepted",
        ("check_owner", replace("header.epoch < claim.epoch", "header.epoch < 0")),
        killed_by="test_states::test_what_the_plan_before_has_not_left_is_not_read",
    ),
    mutant(
        "epochs in the group's commits do not count for a new claim",
        (
            "claim",
            drop(
                "epochs += [int(str(parse_metadata(commit).get('epoch', 0))) for commit in commits.values()]"
            ),
        ),
        killed_by="test_claims::test_a_new_epoch_is_beyond_all_that_was_ever_stamped_anywhere",
    ),
    mutant(
        "epochs in headers do not count for a new claim",
        (
            "claim",
            drop(
                "epochs += [header.epoch for header in _headers(env, _stored_in(env, home)).values() if header]"
            ),
        ),
        killed_by="test_claims::test_a_new_epoch_is_beyond_all_that_was_ever_stamped_anywhere",
    ),
    mutant(
        "a standby waits six seconds in all, however alive the other run is",
        ("_stand_by", replace("home, last_beat, waited = (now, beat, 0)", "home, last_beat = (now, beat)")),
        killed_by="test_standby::test_a_standby_waits_while_the_heartbeat_moves_and_takes_over_when_it_stops",
        schedules=200,
    ),
    mutant(
        "a standby claims with the home record that it saw first",
        ("_stand_by", replace("home, last_beat, waited = (now, beat, 0)", "last_beat, waited = (beat, 0)")),
        killed_by="test_standby::test_a_standby_waits_while_the_heartbeat_moves_and_takes_over_when_it_stops",
        schedules=200,
    ),
    mutant(
        "a run that ends gives back whoever's claim there is",
        ("claim:release", replace("(home.epoch, home.run_id) == (mine.epoch, mine.run_id)", "True")),
        killed_by="test_claims::test_a_run_that_was_taken_over_gives_nothing_back",
    ),
    mutant(
        "a run that ends forgets the plan with the claim",
        (
            "claim:release",
            replace(
                "replace(home, run_id='', owner=owner)",
                "replace(home, run_id='', owner=owner, number=-1, plan_id='')",
            ),
        ),
        killed_by="test_standby::test_a_standby_takes_over_at_once_when_the_claim_is_given_back",
        schedules=100,
    ),
    mutant(
        "a rebuild that is killed lets runs start on what is half forgotten",
        ("claim:release", replace("home.owner if is_being_forgotten(home) else ''", "''")),
        killed_by="test_crash_sweep::test_killed_after_each_write",
        schedules=0,
    ),
    mutant(
        "a header that is created with the last plan is at it already",
        (
            "stamp",
            replace(
                "(last.number - 1, last.previous_id) if last.previous_id else (last.number, last.plan_id)",
                "(last.number, last.plan_id)",
            ),
        ),
        killed_by="test_crash_sweep::test_killed_after_each_write",
    ),
    mutant(
        "the home record is read before the commits",
        ("claim", swap("commits = read_commits()", "home, _ = env.home.home(name)")),
        killed_by="test_claims::test_commits_are_read_before_the_home_record",
    ),
    mutant(
        "a heartbeat beats for a run that has lost the claim",
        (
            "claim:beat",
            replace(
                "mine is None or env.ports.home.beat(env.flow.name, mine.epoch, mine.run_id)",
                "mine is None or env.ports.home.beat(env.flow.name, mine.epoch, mine.run_id) or True",
            ),
        ),
        killed_by="test_standby::test_a_standby_waits_while_the_heartbeat_moves_and_takes_over_when_it_stops",
    ),
    mutant(
        "a run that was given the same epoch once more counts as a store that went back",
        ("PlanLog.write", replace("stored.epoch >= before.epoch", "stored.epoch > before.epoch")),
        killed_by="test_claims::test_a_run_that_has_another_ones_epoch_seals_nothing_and_raises_superseded",
    ),
    mutant(
        "a claim is given back while a commit is under way",
        ("StagedService.leave", drop("self.env.commits.leave()")),
        killed_by="test_commits_in_background::test_a_run_that_ends_gives_its_claim_back_when_its_commit_is_acknowledged",
    ),
)
