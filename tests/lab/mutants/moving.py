"""Rebuilding, exporting and importing."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "the states that a rebuild made are deleted with the old ones",
        (
            "operations/rebuild.py",
            "        deleted = self._delete(attempts, {name})\n",
            "        deleted = self._delete(attempts, set())\n",
        ),
        tests=("tests/protocol/test_rebuild.py::test_what_a_store_has_lost_is_folded_again",),
        schedules=200,
    ),
    mutant(
        "readers are led to new states after the old ones are gone",
        (
            "operations/rebuild.py",
            "            write_locations(env, locations_of(env.flow, plan.layout, mine.epoch, plan.number))\n            self._clean_up(Attempts(env, mine), progress, second.flow.name, plan)\n",
            "            self._clean_up(Attempts(env, mine), progress, second.flow.name, plan)\n            write_locations(env, locations_of(env.flow, plan.layout, mine.epoch, plan.number))\n",
        ),
        tests=(
            "tests/protocol/test_locations.py::test_a_reader_finds_old_states_or_new_ones_after_each_write_of_a_rebuild",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a rebuild may end before everything is folded",
        (
            "operations/rebuild.py",
            "            while service.batch().worked:\n                if self.stopped():",
            "            while service.batch().worked:\n                if service.lag() < 1 << 1:\n                    break\n                if self.stopped():",
        ),
        tests=("tests/protocol/test_rebuild.py::test_what_a_store_has_lost_is_folded_again",),
        schedules=200,
    ),
    mutant(
        "a batch that was published in part is cut by the clock of now",
        (
            "protocol/next_batch.py",
            "            found = replace(part, clock_ms=part.due.clock_ms)\n",
            "            found = part\n",
        ),
        tests=("tests/protocol/test_rebuild_published_in_part.py::test_its_clock_is_the_one_of_then",),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "a batch that was published in part takes in what failed in it",
        (
            "protocol/cutting.py",
            "        return () if self.due is None else self.due.exclusions\n",
            "        return ()\n",
        ),
        tests=(
            "tests/protocol/test_rebuild_published_in_part.py::test_inputs_that_were_left_out_of_it_stay_out_whatever_the_code_says_by_now",
        ),
        unsimulated="not asked: a test of the module alone shows it in seconds",
    ),
    mutant(
        "an export of an unfinished plan is made",
        (
            "operations/moving.py",
            '            if at != (plan.number, plan.plan_id, ""):',
            "            if at != (plan.number, plan.plan_id, at and at[2]):",
        ),
        tests=(
            "tests/protocol/test_moving.py::test_a_state_partition_that_has_begun_a_plan_is_not_exported",
        ),
        unsimulated="not simulated: nothing is exported or imported there",
    ),
    mutant(
        "an export takes states at a plan of another number",
        (
            "operations/moving.py",
            '            if at != (plan.number, plan.plan_id, ""):',
            "            if at is None:",
        ),
        tests=("tests/protocol/test_moving.py::test_an_unfinished_plan_is_not_exported",),
        unsimulated="not simulated: nothing is exported or imported there",
    ),
    mutant(
        "an export goes on when another run writes",
        (
            "operations/moving.py",
            "            if store.headers(stored.flow, stage.name, [cell]) != [header]:",
            "            if store.headers(stored.flow, stage.name, [cell]) == [None]:",
        ),
        tests=("tests/protocol/test_moving.py::test_an_export_during_which_a_run_writes_stops",),
        unsimulated="not simulated: nothing is exported or imported there",
    ),
    mutant(
        "an import keeps what an interrupted one has left",
        (
            "operations/moving.py",
            "    left: list[Change] = [(key, None) for key, _ in store.scan(flow, stage.name, cell)]\n",
            "    left: list[Change] = []\n",
        ),
        tests=(
            "tests/protocol/test_moving.py::test_states_that_an_interrupted_import_has_left_and_the_export_does_not_have_are_removed",
        ),
        unsimulated="not simulated: nothing is exported or imported there",
    ),
    mutant(
        "an import makes the plan known before the states are there",
        (
            "operations/moving.py",
            "        after = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)\n",
            "        after = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)\n        home, _ = home, env.home.set_home(env.flow.name, home, replace(home, number=plan.number, plan_id=plan.plan_id), plan.to_bytes())\n",
        ),
        tests=("tests/protocol/test_moving.py::test_an_import_that_crashes_is_never_used_and_done_again",),
        schedules=200,
    ),
    mutant(
        "an import does not look whether the export is complete",
        (
            "operations/moving.py",
            '    if end != {"lines": count - 1, "digest": digest.hexdigest()}:',
            '    if end.get("digest") != digest.hexdigest() and "lines" not in end:',
        ),
        tests=("tests/protocol/test_moving.py::test_rubbish_of_an_interrupted_import_is_removed",),
        unsimulated="not simulated: nothing is exported or imported there",
    ),
    mutant(
        "an import into a store that knows the flow is done",
        ("operations/moving.py", "        if home.number >= 0:\n", "        if home.number > plan.number:\n"),
        tests=("tests/protocol/test_moving.py::test_a_store_that_knows_the_flow_is_not_filled",),
        unsimulated="not simulated: nothing is exported or imported there",
    ),
    mutant(
        "an old export is imported over later commits",
        ("operations/moving.py", "    check_commits(env.flow, plan, commits)\n", ""),
        tests=("tests/protocol/test_moving.py::test_an_export_that_is_old_is_refused",),
        unsimulated="not simulated: nothing is exported or imported there",
    ),
    mutant(
        "an import that another one has overtaken clears what that one has filled",
        ("operations/moving.py", "    check_claim(env, mine)  # else", "    pass  # else"),
        tests=(
            "tests/protocol/test_moving.py::test_an_import_that_another_one_overtakes_anywhere_deletes_nothing",
        ),
        unsimulated="not simulated: one import runs at a time there",
    ),
    mutant(
        "a forgetting that another one has overtaken deletes states of the flow that has begun anew",
        (
            "operations/forget.py",
            "            self._check_claim()\n            for part",
            "            for part",
        ),
        tests=(
            "tests/protocol/test_forgetting.py::test_a_forgetting_that_another_one_overtakes_leaves_the_flow_that_began_anew",
        ),
        unsimulated="not simulated: no flow is forgotten there",
    ),
    mutant(
        "an export is imported over a flow that has read nothing yet",
        (
            "operations/moving.py",
            "        if home.number >= 0:\n",
            "        if home.number > 0:\n",
        ),
        tests=(
            "tests/protocol/test_moving.py::test_a_store_that_knows_a_flow_which_has_read_nothing_yet_is_not_filled_either",
        ),
        unsimulated="not simulated: no flow is exported or imported there",
    ),
)
