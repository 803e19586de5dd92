"""What a proof has looked at, and the texts of what it has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from sqe_chain.testing.proving.schedule import STEPS, FedRecord, Schedule


@dataclass(frozen=True, slots=True)
class Proof:
    """What `prove` has run, and found nothing.

    Attributes:
        flow: name of the flow.
        seed: of the schedules that were drawn.
        schedules: runs with faults or replays.
        records: inputs in each of them, at most.
        calls: calls of the user's functions.
        functions: the user's functions that were watched.
        points: step of the protocol -> (points at which something happened, points that there are), alone.
        faults: what has happened -> how often.
        replays: schedules in which something was published again.
        several: schedules in which more than one thing happened.
        processes: other processes in which the functions gave the same.
        checked: invariant -> how often it was looked at.
        not_reached: what was not looked at, and why.
        seconds: how long it took.
    """

    flow: str
    seed: int
    schedules: int
    records: int
    calls: int
    functions: int
    points: Mapping[str, tuple[int, int]]
    faults: Mapping[str, int]
    replays: int
    several: int
    processes: int
    checked: Mapping[str, int]
    not_reached: Sequence[str]
    seconds: float

    def __str__(self) -> str:
        points = ", ".join(f"{step} {done} of {there}" for step, (done, there) in self.points.items())
        faults = ", ".join(f"{count} {what}" for what, count in self.faults.items()) or "none"
        lines = [
            f"Flow {self.flow!r} is exact in {self.schedules:,} schedules of {self.records:,} records (seed {self.seed}, {self.seconds:.1f} s).",
            f"  points    {points or 'none'}",
            f"  faults    {faults}; {self.several:,} schedules with several, {self.replays:,} with replays",
            f"  functions {self.functions} watched in {self.calls:,} calls, and in {self.processes} other processes",
            f"  checks    {sum(self.checked.values()):,} of {len(self.checked)} invariants",
        ]
        if self.not_reached:
            lines.append("  Not reached:")
            lines += [f"    {text}" for text in self.not_reached]
        return "\n".join(lines)


def describe_schedule(
    schedule: Schedule, records: Sequence[FedRecord], fired: Sequence[str], seed: int
) -> str:
    """A schedule for people: inputs, and what happens.

    Args:
        schedule: the schedule.
        records: all inputs.
        fired: what has happened, in words.
        seed: of the proof.
    """
    middle = (len(schedule.inputs) + 1) // 2
    lines = [f"The shortest schedule that shows it (seed {seed}):"]
    for index, number in enumerate(schedule.inputs):
        if index == middle:
            lines.append("  when these are processed:")
        lines.append(f"  {index + 1}. {records[number].feed}")
    if schedule.upstream:
        lines.append(f"  A service upstream republishes them, with chains in the {schedule.carrier}.")
    if sizes := _unusual(schedule, ("batch", "block", "rows")):
        lines.append(f"  Sizes, in records: {sizes}.")
    if not schedule.in_place:
        lines.append("  Stages run after a shuffle, and not in the tasks that read.")
    lines += [f"  - {text}" for text in fired] or ["  Nothing has to happen."]
    unusual = _unusual(schedule, [part.name for part in fields(Schedule)])
    lines.append(f"Again: prove_schedule(flow, inputs, Schedule({unusual}))")
    return "\n".join(lines)


def _unusual(schedule: Schedule, names: Sequence[str]) -> str:
    """Those fields of a schedule that are not as by default, as Python."""
    plain = Schedule(())
    given = [(name, getattr(schedule, name)) for name in names]
    return ", ".join(f"{name}={value!r}" for name, value in given if value != getattr(plain, name))


def by_step(points: Mapping[int, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Counts by the names of steps."""
    return {STEPS[step]: counts for step, counts in sorted(points.items())}
