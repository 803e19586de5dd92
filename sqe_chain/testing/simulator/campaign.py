"""Many schedules, and what is told of them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from typing import Final

from sqe_chain.testing.simulator.drawing import drawn
from sqe_chain.testing.simulator.invariants import INVARIANTS, Violation
from sqe_chain.testing.simulator.run import Simulation
from sqe_chain.testing.simulator.schedule import as_test, faults_in
from sqe_chain.testing.simulator.shrink import shrunk

_AT_ONCE: Final = 10
"""Schedules that a process gets at a time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one schedule.

    Attributes:
        seed: of the schedule.
        fired: fault -> how often it happened.
        checked: invariant -> how often it was looked at.
        violation: what was found; None when nothing.
    """

    seed: int
    fired: Counter[str]
    checked: Counter[str]
    violation: Violation | None


def outcome_of(seed: int) -> Outcome:
    """Execute the schedule of a seed."""
    _collect_rarely()
    simulation, found = Simulation(drawn(seed)), None
    try:
        simulation.run()
    except Violation as violation:
        found = violation
    return Outcome(seed, simulation.fired, simulation.invariants.checked, found)


@cache
def _collect_rarely() -> None:
    """What was imported stays, and nearly all that a schedule makes goes by itself: looking for cycles took a fifth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@dataclass(slots=True)
class Campaign:
    """Schedules of these seeds.

    Args:
        seeds: of the schedules.
        jobs: processes that execute them.

    Attributes:
        done: schedules executed.
        fired: fault -> how often it happened.
        checked: invariant -> how often it was looked at.
        violations: seed -> what was found.
    """

    seeds: Sequence[int]
    jobs: int = 1
    done: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    violations: dict[int, Violation] = field(default_factory=dict)

    def run(self) -> Iterator[int]:
        """Execute schedules; gives each seed when it is done, in their order, however many processes there are."""
        with self._outcomes() as outcomes:
            for outcome in outcomes:
                if outcome.violation is not None:
                    self.violations[outcome.seed] = outcome.violation
                self.done += 1
                self.fired += outcome.fired
                self.checked += outcome.checked
                yield outcome.seed

    @contextmanager
    def _outcomes(self) -> Iterator[Iterator[Outcome]]:
        if self.jobs == 1:
            yield map(outcome_of, self.seeds)
            return
        with get_context("spawn").Pool(self.jobs) as pool:
            yield pool.imap(outcome_of, self.seeds, _AT_ONCE)

    def report(self, seconds: float | None = None, *, shrink: bool = True) -> str:
        """Counts, and the first violation as a test.

        Args:
            seconds: how long it took.
            shrink: make that test small, which takes some seconds.
        """
        pace = f" in {seconds:.1f} s: {self.done / seconds:.0f} a second" if seconds else ""
        faults = faults_in(self.fired)
        lines = [
            f"{self.done:,} schedules{pace}; {faults:,} faults, {faults / max(self.done, 1):.1f} in each"
        ]
        lines += [f"  {count:9,}  {name}" for name, count in self.fired.most_common()]
        lines.append("invariants")
        lines += [f"  {self.checked[name]:9,}  {name}: {text}" for name, text in INVARIANTS.items()]
        if not self.violations:
            return "\n".join([*lines, "no violation", ""])
        seed, violation = next(iter(self.violations.items()))
        lines.append(f"{len(self.violations)} violations; seed {seed}: {violation}")
        small = shrunk(drawn(seed), violation.name) if shrink else drawn(seed)
        lines += ["", as_test(small, str(violation), f"seed_{seed}")]
        return "\n".join(lines)
