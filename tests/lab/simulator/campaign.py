"""Execute many schedules, and report on them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Final

from sqe_chain.testing.invariants import INVARIANTS, Violation
from tests.lab.simulator.coverage import EXPECTED, WHOLE, missing
from tests.lab.simulator.run import Simulation
from tests.lab.simulator.schedule import as_test, count_faults
from tests.lab.simulator.schedule_generator import drawn
from tests.lab.simulator.shrink import shrink_schedule

_CHUNK: Final = 10
"""Schedules that a process takes at a time."""
_COLLECT_ALL_EVERY: Final = 500
"""Schedules between two collections that also look at what older schedules have left."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one schedule.

    Attributes:
        seed: of the schedule.
        fired: fault -> how often it happened.
        checked: invariant -> how often it was checked.
        reached: feature, fact, step or fault -> how often it was reached; see `coverage`.
        violation: the first one; None when there was none.
    """

    seed: int
    fired: Counter[str]
    checked: Counter[str]
    reached: Counter[str]
    violation: Violation | None


def run_seed(seed: int) -> Outcome:
    """Execute the schedule of a seed."""
    simulation, found = Simulation(drawn(seed)), None
    try:
        simulation.run()
    except Violation as violation:
        found = violation
    reached = simulation.reached + Counter({f"fault: {name}": n for name, n in simulation.fired.items()})
    return Outcome(seed, simulation.fired, simulation.invariants.checked, reached, found)


def _run_and_collect(seed: int) -> Outcome:
    """Execute the schedule of a seed, and free what it has made while that is still in the processor's caches."""
    outcome = run_seed(seed)
    gc.collect(2 if seed % _COLLECT_ALL_EVERY == 0 else 0)
    return outcome


def _stop_collecting() -> None:
    """Collect cycles between schedules only: reference counts free nearly everything that one makes."""
    gc.collect()
    gc.freeze()
    gc.disable()


@dataclass(slots=True)
class Campaign:
    """Executes the schedules of these seeds.

    Args:
        seeds: of the schedules.
        jobs: number of processes.

    Attributes:
        done: schedules executed.
        fired: fault -> how often it happened.
        checked: invariant -> how often it was checked.
        reached: feature, fact, step or fault -> how often it was reached; see `coverage`.
        violations: seed -> its first violation.
    """

    seeds: Sequence[int]
    jobs: int = 1
    done: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    violations: dict[int, Violation] = field(default_factory=dict)

    def run(self) -> Iterator[int]:
        """Execute the schedules; yields each seed when it is done, in order, whatever the number of processes."""
        with self._outcomes() as outcomes:
            for outcome in outcomes:
                if outcome.violation is not None:
                    self.violations[outcome.seed] = outcome.violation
                self.done += 1
                self.fired += outcome.fired
                self.checked += outcome.checked
                self.reached += outcome.reached
                yield outcome.seed

    @contextmanager
    def _outcomes(self) -> Iterator[Iterator[Outcome]]:
        if self.jobs == 1:
            _stop_collecting()
            try:
                yield map(_run_and_collect, self.seeds)
            finally:
                gc.enable()
            return
        with get_context("spawn").Pool(self.jobs, _stop_collecting) as pool:
            yield pool.imap(_run_and_collect, self.seeds, _CHUNK)

    def figures(self, seconds: float) -> dict[str, object]:
        """The figures of the campaign, as JSON: counts by name, and what was never reached.

        Args:
            seconds: how long it took.
        """
        counts = {"schedules": self.done, "faults": count_faults(self.fired)}
        return {
            "tool": "simulator",
            "counts": counts
            | {f"checked: {name}": count for name, count in sorted(self.checked.items())}
            | {name: self.reached[name] for name in EXPECTED},
            "never reached": ", ".join(missing(self.reached)),
            "violations": len(self.violations),
            "seed": self.seeds[0] if self.seeds else 0,
            "seconds": round(seconds, 1),
        }

    def coverage(self) -> str:
        """What was reached how often, what was never reached in the end."""
        lines = [f"  {self.reached[name]:9,}  {name}" for name in EXPECTED if self.reached[name]]
        never = [f"never reached: {name}" for name in missing(self.reached)]
        return "\n".join(["reached", *lines, *never, ""])

    @property
    def incomplete(self) -> bool:
        """Whether something was never reached, after enough schedules to reach it."""
        return self.done >= WHOLE and bool(missing(self.reached))

    def report(self, seconds: float | None = None, *, shrink: bool = True) -> str:
        """Report counts, and the first violation as a test.

        Args:
            seconds: how long the campaign took.
            shrink: whether to shrink that test, which takes some seconds.
        """
        pace = f" in {seconds:.1f} s: {self.done / seconds:.0f} a second" if seconds else ""
        faults = count_faults(self.fired)
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
        small = shrink_schedule(drawn(seed), violation) if shrink else drawn(seed)
        lines += ["", as_test(small, str(violation), f"seed_{seed}")]
        return "\n".join(lines)
