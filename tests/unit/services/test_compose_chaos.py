"""The faults of chaos in docker compose: all kinds, all pairs, the same from the same seed; and what a run must prove."""

from __future__ import annotations

from itertools import combinations

import pytest

from services.compose_chaos.docker import State
from services.compose_chaos.faults import ALL, SERVERS, SERVICES, ChaosFault, Kind, plan
from services.compose_chaos.story import ChaosOutcome, Struck
from services.compose_chaos.strikes import NoEvidence, _must_be_another

KILLED = (*SERVERS, *SERVICES)


def victims(faults: list[ChaosFault], kind: Kind) -> list[frozenset[str]]:
    return [frozenset(fault.victims) for fault in faults if fault.kind is kind]


@pytest.mark.parametrize("seed", range(5))
def test_29_faults_are_everything_that_can_happen(seed: int) -> None:
    faults = plan(seed, 29)

    singles = [frozenset([one]) for one in KILLED]
    pairs = [frozenset(pair) for pair in combinations(KILLED, 2)]
    assert sorted(map(sorted, victims(faults, Kind.KILL))) == sorted(map(sorted, singles + pairs))
    assert sorted(map(sorted, victims(faults, Kind.DISCONNECT))) == sorted(map(sorted, singles))
    assert victims(faults, Kind.TAKEOVER) == [frozenset(["totals"])]
    assert victims(faults, Kind.EVERYTHING) == [frozenset(ALL)]


def test_five_faults_are_of_all_kinds() -> None:
    assert {fault.kind for fault in plan(7, 5)} == set(Kind)


def test_a_seed_gives_the_same_faults() -> None:
    assert plan(3, 40) == plan(3, 50)[:40]
    assert plan(3, 40) != plan(4, 40)


def test_a_run_may_begin_with_any_of_them() -> None:
    """Runs of two, one after the other, are one long run."""
    assert [fault for first in range(1, 29, 2) for fault in plan(7, 2, first)] == plan(7, 28)


def test_a_fault_without_evidence_proves_nothing() -> None:
    fault = plan(7, 1)[0]
    outcome = ChaosOutcome([Struck(fault, "", 1.0), Struck(fault, "a pid", 1.0)], audit="…\nexact: 249 keys")
    assert outcome.last_line == "exact: 249 keys; 1 faults took hold"

    outcome.failures.append("no evidence")

    assert outcome.last_line == "not proved: exact: 249 keys; 1 faults took hold"
    assert ChaosOutcome().last_line == "not exact: the audit did not pass; 0 faults took hold"


def state(pid: int, started_at: str, exit_code: int = 0) -> State:
    return State(pid, started_at, running=pid > 0, exit_code=exit_code, health="")


def test_only_another_process_shows_that_one_was_killed() -> None:
    before, killed = state(7, "2026-01-01T00:00:00.1Z"), state(0, "2026-01-01T00:00:00.1Z", 137)

    assert _must_be_another("redis", before, killed, state(9, "2026-01-01T00:00:05.0Z")) == 9
    with pytest.raises(NoEvidence, match="still the process 7"):
        _must_be_another("redis", before, killed, before)
    with pytest.raises(NoEvidence, match="ended with 0, not with 137"):
        _must_be_another("redis", before, state(0, before.started_at, 0), state(9, "2026-01-01T00:00:05.0Z"))
