"""Rebuilding, exporting and importing."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "the states that a rebuild made are deleted with the old ones",
        (
            "protocol/rebuild.py",
            "        deleted = self._delete(attempts, {name})\n",
            "        deleted = self._delete(attempts, set())\n",
        ),
        tests=("tests/protocol/test_rebuild.py::test_what_a_store_has_lost_is_folded_again",),
        unsimulated="not asked yet",
    ),
    mutant(
        "readers are led to new states after the old ones are gone",
        (
            "protocol/rebuild.py",
            "            write_locations(env, locations_of(env.flow, plan.layout, mine.epoch, plan.number))\n            self._clean_up(Attempts(env, mine), progress, second.flow.name, plan)\n",
            "            self._clean_up(Attempts(env, mine), progress, second.flow.name, plan)\n            write_locations(env, locations_of(env.flow, plan.layout, mine.epoch, plan.number))\n",
        ),
        tests=(
            "tests/protocol/test_locations.py::test_a_reader_finds_old_states_or_new_ones_after_each_write_of_a_rebuild",
        ),
        unsimulated="not asked yet",
    ),
    mutant(
        "a rebuild may end before everything is folded",
        (
            "protocol/rebuild.py",
            "            while service.batch().worked:\n                if self.stopped():",
            "            while service.batch().worked:\n                if service.lag() < 1 << 1:\n                    break\n                if self.stopped():",
        ),
        tests=("tests/protocol/test_rebuild.py::test_what_a_store_has_lost_is_folded_again",),
        unsimulated="not asked yet",
    ),
)
