"""Many schedules, one after the other, and what is told of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqe_chain.testing.simulator.drawing import drawn
from sqe_chain.testing.simulator.invariants import INVARIANTS, Violation
from sqe_chain.testing.simulator.run import Simulation
from sqe_chain.testing.simulator.schedule import as_test
from sqe_chain.testing.simulator.shrink import shrunk


@dataclass(slots=True)
class Campaign:
    """Schedules of these seeds.

    Args:
        seeds: of the schedules.

    Attributes:
        done: schedules executed.
        fired: fault -> how often it happened.
        checked: invariant -> how often it was looked at.
        violations: seed -> what was found.
    """

    seeds: Sequence[int]
    done: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    violations: dict[int, Violation] = field(default_factory=dict)

    def run(self) -> Iterator[int]:
        """Execute one schedule after the other; gives each seed when it is done."""
        for seed in self.seeds:
            simulation = Simulation(drawn(seed))
            try:
                simulation.run()
            except Violation as violation:
                self.violations[seed] = violation
            self.done += 1
            self.fired += simulation.fired
            self.checked += simulation.invariants.checked
            yield seed

    def report(self, seconds: float | None = None, *, shrink: bool = True) -> str:
        """Counts, and the first violation as a test.

        Args:
            seconds: how long it took.
            shrink: make that test small, which takes some seconds.
        """
        pace = f" in {seconds:.1f} s: {self.done / seconds:.0f} a second" if seconds else ""
        faults = sum(self.fired.values())
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
