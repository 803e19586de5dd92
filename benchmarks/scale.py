"""`make bench-scale`: what the driver does for each batch, from few partitions to a thousand, and what that means for a cluster.

`benchmarks.driving` measures; here is how that grows, and a model of a cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.chart import Line, chart
from benchmarks.driving import BATCHES, LANES, SIZES, STEPS, TITLES, Figures, World, measure
from benchmarks.machine import facts
from sqe_chain.engines.task import collect_rarely


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost by the number of partitions: a constant, and parts that grow with it and with its square.

    Attributes:
        constant: whatever the number.
        each: for each partition.
        squared: for the square of the partitions.
    """

    constant: float
    each: float
    squared: float

    @classmethod
    def of(cls, points: Sequence[tuple[int, float]]) -> Fit:
        """The fit with the smallest relative errors; no part is negative."""
        terms = np.array([[1.0, n, n * n] for n, _ in points])
        costs = np.array([cost for _, cost in points])
        best, error = np.zeros(3), np.inf
        for kept in product((False, True), repeat=3):
            chosen = [number for number, keep in enumerate(kept) if keep]
            if not chosen:
                continue
            weighted = terms[:, chosen] / costs[:, None]
            found, *_ = np.linalg.lstsq(weighted, np.ones(len(costs)), rcond=None)
            missed = float(((weighted @ found - 1) ** 2).sum())
            if (found >= 0).all() and missed < error:
                best, error = np.zeros(3), missed
                best[chosen] = found
        return cls(*map(float, best))

    def at(self, partitions: int) -> float:
        """The cost with this number of partitions."""
        return self.constant + self.each * partitions + self.squared * partitions**2

    @property
    def growth(self) -> str:
        """The fit in words."""
        parts = [(self.constant, ""), (self.each, " n"), (self.squared, " n²")]
        return " + ".join(f"{value:,.4g}{what}" for value, what in parts if value) or "0"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is assumed of a cluster.

    Attributes:
        record_us: processor time of a record in its task.
        start_ms: what Spark's driver takes to start a task and to end it.
        round_trip_ms: to the store.
        visits: round trips of a task: it reads states, checks headers, writes.
    """

    record_us: float = 3.0
    start_ms: float = 0.5
    round_trip_ms: float = 1.0
    visits: int = 3

    def batch(self, one: Figures, cores: int, records: int) -> Batch:
        """What a batch takes, by its parts, in seconds."""
        tasks = min(one.partitions, one.tasks)
        waves = -(-tasks // cores)
        calls = sum(one.calls.values())
        return Batch(
            cores,
            records,
            driver_s=one.driver_us / 1e6,
            starts_s=tasks * self.start_ms / 1e3,
            calls_s=calls * self.round_trip_ms / 1e3,
            tasks_s=records * self.record_us / 1e6 / min(cores, tasks)
            + waves * self.visits * self.round_trip_ms / 1e3,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch on a cluster, by the model.

    Attributes:
        cores: of the cluster.
        records: of the batch.
        driver_s: the driver's processor time.
        starts_s: until all tasks are started.
        calls_s: of the driver, one after the other.
        tasks_s: from the first task to the last.
    """

    cores: int
    records: int
    driver_s: float
    starts_s: float
    calls_s: float
    tasks_s: float

    @property
    def seconds(self) -> float:
        """All of it; tasks run while others are started."""
        return self.driver_s + self.calls_s + max(self.starts_s, self.tasks_s)

    def cells(self) -> list[str]:
        """Its row."""
        parts = (self.driver_s, self.calls_s, self.starts_s, self.tasks_s, self.seconds)
        rate = self.records / self.seconds / 1e3
        return [f"{self.cores}", f"{self.records:,}", *(f"{part:.3f}" for part in parts), f"{rate:,.0f}"]


def measured(worlds: Sequence[World], sizes: Sequence[int], batches: int) -> list[Figures]:
    """All figures; worlds with a square of lanes have smaller sizes."""
    lanes = [size for size in LANES if size <= max(sizes)]
    collect_rarely()
    return [
        measure(world, size, batches)
        for world in worlds
        for size in (lanes if world is World.LANES else sizes)
    ]


COSTS: Final[Mapping[str, Callable[[Figures], float]]] = {
    "driver, ms": lambda one: one.driver_us / 1e3,
    "plan, kB": lambda one: one.plan_bytes / 1e3,
    "commit, kB": lambda one: one.commit_bytes / 1e3,
    "tasks, kB": lambda one: one.task_bytes / 1e3,
    "calls": lambda one: float(sum(one.calls.values())),
}


def by_world(found: Sequence[Figures]) -> dict[World, list[Figures]]:
    """Figures by what they are of."""
    return {
        world: [one for one in found if one.world is world]
        for world in dict.fromkeys(one.world for one in found)
    }


def fit_of(own: Sequence[Figures], what: str) -> Fit:
    """How a cost of one world grows."""
    return Fit.of([(one.partitions, COSTS[what](one)) for one in own])


def show(out: Console, found: Sequence[Figures]) -> None:
    """Print a table for each world, how its costs grow, and what the model makes of them."""
    for world, own in by_world(found).items():
        table = Table("partitions", *STEPS, *COSTS, "longest", title=TITLES[world])
        for one in own:
            steps = [f"{one.steps_us[step] / 1e3:.2f}" for step in STEPS]
            costs = [f"{cost(one):,.1f}" for cost in COSTS.values()]
            table.add_row(f"{one.partitions:,}", *steps, *costs, f"{one.longest_metadata:,}")
        out.print(table)
        for what, cost in COSTS.items():
            if what != "calls" and all(map(cost, own)):
                fit = fit_of(own, what)
                out.print(
                    f"{what}: {fit.growth}; at 1,000 {fit.at(1_000):,.4g}; at 4,000 {fit.at(4_000):,.4g}"
                )
    largest = max(
        (one for one in found if one.world is World.FOLD), key=lambda one: one.partitions, default=None
    )
    if largest is not None:
        names = ("cores", "records", "driver, s", "calls, s", "starts, s", "tasks, s", "batch, s", "k/s")
        table = Table(
            *names, title=f"a batch of {largest.partitions:,} partitions, by the model: {Cluster()}"
        )
        for cores, records in product((2, 10, 100), (400_000, 4_000_000, 40_000_000)):
            table.add_row(*Cluster().batch(largest, cores, records).cells())
        out.print(table)


def picture(found: Sequence[Figures]) -> str:
    """The driver's time of a batch by the number of partitions, as SVG; dashed where it was not measured."""
    lines = []
    for world, own in by_world(found).items():
        fit, last = fit_of(own, "driver, ms"), own[-1].partitions
        points = [(float(one.partitions), one.driver_us / 1e3) for one in own]
        beyond = [(float(size), fit.at(size)) for size in (256, 1_000, 4_000) if size > last]
        lines.append(Line(f"{world}", [*points, *beyond], len(points)))
    return chart("The driver's processor time for one batch", "partitions", "milliseconds", lines)


def main(
    sizes: Annotated[str, typer.Option(help="Numbers of partitions.")] = ",".join(map(str, SIZES)),
    worlds: Annotated[str, typer.Option(help="What to measure.")] = ",".join(World),
    batches: Annotated[int, typer.Option(help="Batches of each; the best counts.")] = BATCHES,
    file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    svg: Annotated[Path | None, typer.Option("--chart", help="Write the chart there.")] = None,
) -> None:
    """Measure, without servers."""
    out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 180)
    for name, fact in facts().items():
        out.print(f"{name}: {fact}")
    found = measured([World(name) for name in worlds.split(",")], sorted(map(int, sizes.split(","))), batches)
    show(out, found)
    if file is not None:
        file.write_text(json.dumps([asdict(one) for one in found], indent=1), encoding="utf-8")
    if svg is not None:
        svg.write_text(picture(found), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
