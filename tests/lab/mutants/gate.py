"""The order of event time: how far a batch takes inputs, what waits, and what is known of it."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

WORLDS: Final = "tests/protocol/test_event_time_worlds.py::test_small_worlds_give_what_their_facts_give"
NAIVE: Final = "tests/protocol/test_event_time_order.py::test_live_is_a_naive_fold"
MODULE: Final = "not asked: a test of the module alone shows it in seconds"

MUTANTS: Final = (
    mutant(
        "what a writer states elsewhere is believed of a partition that is not read to its end",
        (
            "protocol/event_times.py",
            "            if tp in caught_up:\n                found.hear",
            "            if True:\n                found.hear",
        ),
        tests=(WORLDS,),
        unsimulated=MODULE,
    ),
    mutant(
        "a writer is idle though its republishers are behind",
        ("protocol/idle.py", "return bool(commits) and any(", "return False and any("),
        tests=(WORLDS,),
        unsimulated=MODULE,
    ),
    mutant(
        "a silent writer is taken to be as far as all others are now",
        ("protocol/idle.py", "seen_by(seen, passed_ms - idle_ms)", "seen_by(seen, passed_ms)"),
        tests=(WORLDS,),
        unsimulated=MODULE,
    ),
    mutant(
        "a batch takes all that is at the frontier, of whatever partition",
        (
            "task/event_times.py",
            "return self.at_ms if (topic, partition) <= self[1:] else self.at_ms - 1",
            "return self.at_ms",
        ),
        tests=(WORLDS,),
        unsimulated=MODULE,
    ),
    mutant(
        "what comes on a lane after one that waits is taken before it",
        (
            "task/gate.py",
            "due = place_ms <= self._limit_ms and before_ms is None",
            "due = place_ms <= self._limit_ms",
        ),
        tests=("tests/unit/segment/test_gate.py::test_what_comes_after_one_that_waits_waits_with_it",),
        unsimulated=MODULE,
    ),
    mutant(
        "a group commits what waits",
        ("protocol/plan.py", "planned.tp: known[name].offset if (name", "planned.tp: planned.stop if (name"),
        tests=("tests/protocol/test_held.py::test_the_group_has_committed_no_more_than_what_was_taken",),
        unsimulated=MODULE,
    ),
    mutant(
        "a rebuild takes in silence what had not been taken",
        (
            "protocol/next_batch.py",
            "frontier = min(frontier, limit) if frontier and limit else last.frontier",
            "frontier = min(frontier, limit) if frontier and limit else frontier",
        ),
        tests=(NAIVE,),
        unsimulated=MODULE,
    ),
    mutant(
        "a plan does not say how far it took inputs",
        (
            "protocol/planning.py",
            "        frontier=part.frontier,\n        seen",
            "        frontier=last.frontier,\n        seen",
        ),
        tests=("tests/protocol/test_plans_after_plans.py::test_a_plan_keeps_what_its_redo_needs_to_know",),
        unsimulated=MODULE,
    ),
    mutant(
        "a late input waits for the frontier to move on",
        ("task/gate.py", "else self.before.at_ms - 1\n", "else self.before.at_ms\n"),
        tests=("tests/protocol/test_static_tables.py::test_what_was_said_last_holds_at_all_times",),
        unsimulated=MODULE,
    ),
    mutant(
        "a time from a clock that ran ahead moves event time at once",
        (
            "task/event_times.py",
            "                if count < guard.confirmations:\n                    continue\n",
            "",
        ),
        tests=(
            "tests/unit/segment/test_event_times.py::test_a_wrong_clock_moves_nothing_until_others_agree_or_the_clock_has_come_there",
        ),
        unsimulated=MODULE,
    ),
)
