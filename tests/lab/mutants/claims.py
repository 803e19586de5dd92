"""Who owns a flow: claims, stamps, heartbeats, standbys."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "headers are not stamped",
        (
            "protocol/claim.py",
            "            wanted = replace(header, epoch=mine.epoch, run_id=mine.run_id) if header else first\n",
            "            wanted = header or first\n",
        ),
        tests=("tests/protocol/test_persist_order.py::test_the_last_stage_first_survives",),
        schedules=200,
    ),
    mutant(
        "a run with the same epoch and another name counts as the owner",
        (
            "task/states.py",
            "header.epoch > claim.epoch or (header.epoch == claim.epoch and header.run_id != claim.run_id)",
            "header.epoch > claim.epoch",
        ),
        tests=("tests/unit/segment/test_states.py::test_what_another_run_has_stamped_is_not_read",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "an older stamp than this run's is accepted",
        ("task/states.py", "    if header.epoch < claim.epoch:\n", "    if header.epoch < 0:\n"),
        tests=("tests/unit/segment/test_states.py::test_what_the_plan_before_has_not_left_is_not_read",),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "epochs in the group's commits do not count for a new claim",
        (
            "protocol/claim.py",
            '        epochs += [int(str(parse_metadata(commit).get("epoch", 0))) for commit in commits.values()]\n',
            "",
        ),
        tests=(
            "tests/protocol/test_claims.py::test_a_new_epoch_is_beyond_all_that_was_ever_stamped_anywhere",
        ),
        unsimulated="not simulated: run names tell runs of one epoch apart there",
    ),
    mutant(
        "epochs in headers do not count for a new claim",
        (
            "protocol/claim.py",
            "        epochs += [header.epoch for header in _headers(env, _stored_in(env, home)).values() if header]\n",
            "",
        ),
        tests=(
            "tests/protocol/test_claims.py::test_a_new_epoch_is_beyond_all_that_was_ever_stamped_anywhere",
        ),
        unsimulated="not simulated: run names tell runs of one epoch apart there",
    ),
    mutant(
        "epochs in locations do not count for a new claim",
        ("protocol/claim.py", "        epochs += location_epochs(env)\n", ""),
        tests=(
            "tests/protocol/test_locations.py::test_a_store_that_lost_its_homes_still_knows_which_epochs_were_given_out",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a heartbeat that moves is no sign of life",
        (
            "protocol/claim.py",
            "        if (now, beat) != (home, last_beat):  # it lives",
            "        if now != home:  # it lives",
        ),
        tests=(
            "tests/protocol/test_standby.py::test_a_standby_waits_while_the_heartbeat_moves_and_takes_over_when_it_stands_still",
        ),
        schedules=200,
    ),
    mutant(
        "a standby waits six seconds in all, however alive the other run is",
        (
            "protocol/claim.py",
            "            home, last_beat, waited = now, beat, 0\n",
            "            home, last_beat = now, beat\n",
        ),
        tests=(
            "tests/protocol/test_standby.py::test_a_standby_waits_while_the_heartbeat_moves_and_takes_over_when_it_stands_still",
        ),
        schedules=200,
    ),
    mutant(
        "a standby claims with the home record that it saw first",
        (
            "protocol/claim.py",
            "            home, last_beat, waited = now, beat, 0\n",
            "            last_beat, waited = beat, 0\n",
        ),
        tests=(
            "tests/protocol/test_standby.py::test_a_standby_waits_while_the_heartbeat_moves_and_takes_over_when_it_stands_still",
        ),
        schedules=200,
    ),
    mutant(
        "a run that ends gives back whoever's claim there is",
        (
            "protocol/claim.py",
            "    if home is not None and (home.epoch, home.run_id) == (mine.epoch, mine.run_id):",
            "    if home is not None:",
        ),
        tests=("tests/protocol/test_claims.py::test_a_run_that_was_taken_over_gives_nothing_back",),
        unsimulated="not simulated: no run waits there for a claim to be given back",
    ),
    mutant(
        "a run that ends forgets the plan with the claim",
        (
            "protocol/claim.py",
            'replace(home, run_id="", owner=""))',
            'replace(home, run_id="", owner="", number=-1, plan_id=""))',
        ),
        tests=(
            "tests/protocol/test_standby.py::test_a_standby_takes_over_at_once_when_the_claim_is_given_back",
        ),
        schedules=100,
    ),
    mutant(
        "of two runs with one epoch both stamp headers",
        (
            "protocol/claim.py",
            "            if header is not None and header.epoch >= mine.epoch and header.run_id != mine.run_id:",
            "            if header is not None and header.epoch > mine.epoch:",
        ),
        tests=(
            "tests/protocol/test_claims.py::test_a_header_of_another_run_with_the_same_epoch_is_not_stamped",
        ),
        unsimulated="not simulated: no epoch is given out twice there",
    ),
    mutant(
        "a header that an old stage has lost is created again",
        (
            "protocol/claim.py",
            "            if header is None and birth != last.number:",
            "            if header is None and birth > last.number:",
        ),
        tests=("tests/protocol/test_rollbacks.py::test_a_lost_state_partition_stops",),
        unsimulated="not simulated: state partitions go back there, and are never gone",
    ),
    mutant(
        "a header that is created with the last plan is at it already",
        (
            "protocol/claim.py",
            "(last.number - 1, last.previous_id) if last.previous_id else (last.number, last.plan_id)",
            "(last.number, last.plan_id)",
        ),
        tests=("tests/protocol/test_layout.py::test_a_change_enters_whatever_crashes_meanwhile",),
        unsimulated="not simulated: no stage enters there later",
    ),
    mutant(
        "the home record is read before the commits",
        (
            "protocol/claim.py",
            "        commits = read_commits()\n        home, _ = env.home.home(name)\n",
            "        home, _ = env.home.home(name)\n        commits = read_commits()\n",
        ),
        tests=("tests/protocol/test_claims.py::test_commits_are_read_before_the_home_record",),
        unsimulated="not simulated: no run is born there while another one claims",
    ),
    mutant(
        "the owner is not asked whether it is dead",
        (
            "protocol/claim.py",
            '        if now is None or now.run_id == "" or env.is_dead(now.owner):',
            '        if now is None or now.run_id == "":',
        ),
        tests=(
            "tests/protocol/test_standby.py::test_a_standby_takes_over_when_it_learns_that_the_owner_is_dead",
        ),
        unsimulated="not simulated: every run takes over at once there",
    ),
    mutant(
        "a heartbeat beats for a run that has lost the claim",
        (
            "protocol/aggregation.py",
            "        return mine is None or self.env.ports.home.beat(self.env.flow.name, mine.epoch, mine.run_id)",
            "        return mine is None or self.env.ports.home.beat(self.env.flow.name, mine.epoch, mine.run_id) or True",
        ),
        tests=(
            "tests/protocol/test_standby.py::test_a_standby_waits_while_the_heartbeat_moves_and_takes_over_when_it_stands_still",
        ),
        unsimulated="not simulated: runs do not beat there",
    ),
    mutant(
        "epochs of headers count under the flow's own name only",
        (
            "protocol/claim.py",
            "_headers(env, _stored_in(env, home)).values()",
            "_headers(env, {}).values()",
        ),
        tests=(
            "tests/protocol/test_claims.py::test_epochs_of_headers_count_where_a_rebuild_has_left_them_too",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a run that was given the same epoch once more counts as a store that went back",
        (
            "protocol/plan_log.py",
            "!= mine and stored.epoch >= before.epoch:",
            "!= mine and stored.epoch > before.epoch:",
        ),
        tests=(
            "tests/protocol/test_claims.py::test_a_run_that_has_another_ones_epoch_seals_nothing_and_says_that_it_was_superseded",
        ),
        unsimulated="not simulated: no home store gives out an epoch twice there",
    ),
    mutant(
        "a claim is given back while a commit is under way",
        (
            "protocol/aggregation.py",
            "        self.env.commits.leave()\n        if self.claimed",
            "        if self.claimed",
        ),
        tests=(
            "tests/protocol/test_commits_in_background.py::test_a_run_that_ends_gives_its_claim_back_when_its_commit_is_acknowledged",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
)
