"""The order of the steps: seal, publish, persist, commit."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "an idle service never commits again",
        (
            "protocol/applying.py",
            "if now or self.env.clock.now_ms() - self._committed_ms > COMMIT_AGAIN_MS:",
            "if now:",
        ),
        tests=(
            "tests/protocol/test_commits_again.py::test_an_idle_service_commits_again_but_not_each_time_that_it_looks",
        ),
        unsimulated="not found by 500 schedules",
    ),
    mutant(
        "a batch is committed before its states are persisted",
        (
            "protocol/applying.py",
            "        # The last stage first: events between stages exist only",
            "        with env.step(COMMIT):\n            self.commit(plan)\n        # The last stage first: events between stages exist only",
        ),
        (
            "protocol/applying.py",
            "                tell_replaced(env, plan, env.flow.levels[level - 1])\n        with env.step(COMMIT):\n            self.commit(plan)\n",
            "                tell_replaced(env, plan, env.flow.levels[level - 1])\n",
        ),
        tests=(
            "tests/protocol/test_order_of_steps.py::test_a_batch_is_sealed_published_persisted_from_the_last_stage_on_and_committed",
        ),
        schedules=100,
    ),
    mutant(
        "the first stage is persisted first",
        (
            "protocol/applying.py",
            "for level in range(min(top_level, len(env.flow.levels)), 0, -1):",
            "for level in range(1, min(top_level, len(env.flow.levels)) + 1):",
        ),
        tests=("tests/protocol/test_persist_order.py::test_the_last_stage_first_survives",),
        schedules=100,
    ),
    mutant(
        "states are persisted before outputs are published",
        (
            "protocol/applying.py",
            "        publish = publish and not plan.silent\n",
            "        publish = publish and not plan.silent\n        for level in range(min(top_level, len(env.flow.levels)), 0, -1):\n            with env.step(PERSIST):\n                rows = self._persist(plan, level, headers, report)\n                env.emit(Persisted(plan.number, level, rows))\n                if not plan.empty:\n                    tell_flushed(env, plan, env.flow.levels[level - 1])\n                tell_replaced(env, plan, env.flow.levels[level - 1])\n",
        ),
        (
            "protocol/applying.py",
            "        for level in range(min(top_level, len(env.flow.levels)), 0, -1):\n            with env.step(PERSIST):\n                rows = self._persist(plan, level, headers, report)\n                env.emit(Persisted(plan.number, level, rows))\n                if not plan.empty:\n                    tell_flushed(env, plan, env.flow.levels[level - 1])\n                tell_replaced(env, plan, env.flow.levels[level - 1])\n        with env.step(COMMIT)",
            "        with env.step(COMMIT)",
        ),
        tests=("tests/protocol/test_persist_order.py::test_the_last_stage_first_survives",),
        schedules=100,
    ),
    mutant(
        "a batch is published before it is sealed",
        (
            "protocol/aggregation.py",
            "        with env.step(SEAL):\n            owned.seal(plan)  # before",
            '        if report.outputs and not plan.silent:\n            env.retry.call("publish", env.engine.publish)\n        with env.step(SEAL):\n            owned.seal(plan)  # before',
        ),
        tests=("tests/protocol/test_interleaved.py::test_random_interleavings_of_three_live_runs",),
        schedules=200,
    ),
    mutant(
        "a batch is sealed before the commit of the one before is acknowledged",
        (
            "protocol/owned_flow.py",
            "        self.env.commits.settle()\n        self.plans.write(plan)\n",
            "        self.plans.write(plan)\n",
        ),
        tests=(
            "tests/protocol/test_order_of_steps.py::test_the_next_batch_is_sealed_when_the_commit_of_the_one_before_is_acknowledged",
        ),
        unsimulated="not simulated: a service with stages waits for each commit there",
    ),
    mutant(
        "outputs of silent batches are published",
        (
            "protocol/applying.py",
            "publish = publish and not plan.silent\n",
            "publish = publish or plan.silent\n",
        ),
        tests=("tests/protocol/test_rebuild.py::test_what_a_store_has_lost_is_folded_again",),
        schedules=600,
    ),
    mutant(
        "headers of state partitions that a batch did not touch stay behind",
        (
            "protocol/applying.py",
            "            if stage.index not in mine or (stage.index, part) in touched:\n                continue\n",
            "            if stage.index not in mine or touched:\n                continue\n",
        ),
        tests=(
            "tests/protocol/test_order_of_steps.py::test_after_a_batch_every_header_is_at_its_plan_whatever_it_touched",
        ),
        schedules=100,
    ),
    mutant(
        "a commit ends at the last record that was read, not at the end of the range",
        (
            "protocol/applying.py",
            "Commit(needed[planned.tp], self._metadata",
            "Commit(planned.last_offset + 1, self._metadata",
        ),
        tests=("tests/protocol/test_inputs.py::test_aborted_and_open_transactions_are_not_read",),
        schedules=100,
    ),
    mutant(
        "a batch whose states are persisted counts as open until the next one",
        (
            "protocol/owned_flow.py",
            "        if self.open_plan == number:  # the next one may be open already\n            self.open_plan = None\n",
            "        if self.open_plan != number:\n            self.open_plan = None\n",
        ),
        tests=(
            "tests/protocol/test_commits_in_background.py::test_a_plan_is_open_until_its_commit_is_acknowledged",
        ),
        unsimulated="not simulated: only the status with which a process ends depends on it",
    ),
    mutant(
        "states announced are published after the header of the plan",
        (
            "protocol/applying.py",
            "            for part in announcer.parts(plan) if publish else ():",
            "            for part in announcer.parts(plan) if publish and not plan.empty else ():",
        ),
        tests=(
            "tests/protocol/test_announcement.py::test_each_key_is_told_once_after_a_rebuild_with_other_results",
        ),
        unsimulated="not simulated: nothing is announced there",
    ),
)
