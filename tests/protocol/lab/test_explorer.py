"""Goal: every interleaving of a few runs, crashes and lost replies leaves the books right, and a planted bug is a short path.

Method: `tests.lab.explorer` goes through all states of a configuration. Without its shortcuts it finds the same durable
states. With bugs in the protocol, it prints a path that breaks an invariant again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sqe_chain.plans.plan import Plan
from sqe_chain.protocol import finish, redo
from sqe_chain.protocol.finish import OwnedFlow
from sqe_chain.task.states import CellStates
from tests.lab.explorer.configurations import CONFIGURATIONS, Configuration
from tests.lab.explorer.coverage import Coverage, unexpected
from tests.lab.explorer.exploring import Exploration, follow
from tests.lab.explorer.states import FREE, Processes, States

TINY = replace(CONFIGURATIONS["small"], words="a1", whole_reads=True)
ALONE = replace(CONFIGURATIONS["service-alone"], words="a1 b2", crashes=1, silences=1)


def explored(configuration: Configuration, directory: Path, *, merges: bool = True) -> Exploration:
    exploration = Exploration(configuration, directory, merges=merges)
    for _ in exploration.run():
        pass
    return exploration


def durable_states(states: States) -> set[frozenset[object]]:
    """All durable states, whatever numbers they have."""
    durable = states.durable
    names = {place: variable for variable, place in durable.variables.items()}
    return {
        frozenset(
            (names[durable.contents[number][0]], repr(durable.contents[number][1]))
            for number in state
            if number
        )
        for state in durable.states
    }


@pytest.mark.few(1, of="long explorations")
@pytest.mark.parametrize(
    "configuration",
    [replace(TINY, crashes=0, silences=0), replace(ALONE, stages=1, words="a1")],
    ids=["takeover", "alone"],
)
def test_without_the_shortcuts_the_same_durable_states_are_found(
    configuration: Configuration, tmp_path: Path
) -> None:
    short = explored(configuration, tmp_path / "short")
    long = explored(configuration, tmp_path / "long", merges=False)
    assert (short.violation, long.violation) == (None, None)
    assert short.whole
    assert long.whole
    assert durable_states(short.states) == durable_states(long.states)
    assert short.found < long.found


@pytest.mark.few(1, of="long explorations")
def test_an_exploration_that_was_interrupted_goes_on_and_finds_as_many(tmp_path: Path) -> None:
    whole = explored(TINY, tmp_path / "whole")
    exploration = Exploration(TINY, tmp_path / "parts")
    while not exploration.whole:
        exploration = Exploration(TINY, tmp_path / "parts")
        for _ in exploration.run(most=exploration.found + 2_000):
            assert exploration.violation is None
    assert exploration.layers == whole.layers
    assert exploration.steps == whole.steps


def test_another_configuration_is_not_mixed_in(tmp_path: Path) -> None:
    for _ in Exploration(TINY, tmp_path).run(most=100):
        pass
    with pytest.raises(ValueError, match="give another directory"):
        Exploration(replace(TINY, crashes=0), tmp_path)


# ---------------------------------------------------------------------- planted bugs


def persist_the_first_stage_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(finish, "range", lambda start, stop, _: range(stop + 1, start + 1), raising=False)


def commit_before_states_are_written(patch: pytest.MonkeyPatch) -> None:
    persist = OwnedFlow._persist

    def commits(self: OwnedFlow, plan: Plan, *args: Any) -> int:
        self.commit(plan)
        return persist(self, plan, *args)

    patch.setattr(OwnedFlow, "_persist", commits)


def publish_nothing_again(patch: pytest.MonkeyPatch) -> None:
    redo_of = redo.redo_of
    patch.setattr(redo, "redo_of", lambda *args: replace(redo_of(*args), publish=False))


def publish_after_states_are_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tests.lab.explorer.replay.InProcessEngine.publish", lambda self: None, raising=True)


def fold_the_key_at_the_cursor_again(patch: pytest.MonkeyPatch) -> None:
    def settled(self: CellStates, key: bytes) -> bool:
        return self.done or (self.cursor is not None and key < self.cursor)

    patch.setattr(CellStates, "settled", settled)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    persist_the_first_stage_first: "order",
    commit_before_states_are_written: "commit",
    publish_nothing_again: "order",
    publish_after_states_are_written: "order",
    fold_the_key_at_the_cursor_again: "prefix",
}


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as found:
        yield found


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_a_short_path_which_can_be_taken_again(
    bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    bug(patch)
    found = explored(ALONE, tmp_path)
    assert found.violation is not None
    assert found.violation.name == BUGS[bug]
    path = " ".join(name for name, _ in found.path)
    again = follow(ALONE, path, lambda name, text: None)
    assert again is not None
    assert str(again) == str(found.violation)
    patch.undo()
    with_it_fixed = follow(ALONE, path, lambda name, text: None)
    assert with_it_fixed is None


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_number_of_a_state_encodes_all_of_its_processes(name: str) -> None:
    one = CONFIGURATIONS[name]
    numbered = States(one)
    lefts = itertools.product(
        range(one.crashes + 1),
        range(one.silences + 1),
        range(one.takeovers + 1),
        range(one.commands + 1),
        (False, True),
    )
    for left in lefts:
        for nodes in itertools.product((FREE, 0, 1, 100_000), repeat=one.alive):
            processes = Processes(nodes, *left)
            assert numbered.processes(numbered._id(processes)) == processes


def test_a_configuration_with_too_many_histories_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.lab.explorer.states.BITS", 12)
    with pytest.raises(OverflowError, match="too large: its states do not fit"):
        explored(TINY, tmp_path)


def test_an_error_for_a_path_that_does_not_fit_names_what_would() -> None:
    with pytest.raises(ValueError, match=r"there are a!.* a "):
        follow(ALONE, "+a:service b", lambda name, text: None)


# ---------------------------------------------------------------------- faults that were reached


@pytest.mark.few(1, of="long explorations")
@pytest.mark.parametrize("name", ["service-alone", "rebuild-alone", "move-alone"])
def test_every_fault_at_every_call_of_every_step_is_reached(name: str) -> None:
    coverage = Coverage(replace(CONFIGURATIONS[name], stages=1), 1)
    coverage.run()
    assert unexpected(coverage) == []


def test_every_pair_of_faults_follows_one_another_somewhere() -> None:
    coverage = Coverage(replace(ALONE, stages=1, words="a1"), 2)
    coverage.run()
    assert unexpected(coverage) == []
    after_a_crash = {fault for fault in coverage.pairs if fault[3].startswith("killed")}
    everything = {fault for fault in coverage.reached if fault[1] == "claim"}
    for first in after_a_crash:
        assert everything <= coverage.pairs[first], first
