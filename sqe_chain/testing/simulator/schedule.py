"""Schedules: a world, and what happens in it, as plain data that is drawn from a seed, shrunk, and printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqe_chain.testing.simulator.world import World

Step = list[Any]
"""The name of a step and its arguments: `Simulation` has one method for each name."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens.

    Attributes:
        world: what exists.
        steps: one after the other.
    """

    world: World
    steps: tuple[Step, ...]

    def to_json(self) -> str:
        """As text; see `from_json`."""
        return json.dumps({"world": changed(self.world), "steps": self.steps})

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """The schedule that `to_json` wrote."""
        raw = json.loads(text)
        return cls(World(**raw["world"]), tuple(raw["steps"]))


def faults_in(fired: Mapping[str, int]) -> int:
    """How many of these are faults, and not what a service did about them."""
    return sum(count for name, count in fired.items() if name != "ended" and not name.endswith("handled"))


def changed(world: World) -> dict[str, Any]:
    """What is not as by default in a world."""
    return {
        field.name: value for field in fields(World) if (value := asdict(world)[field.name]) != field.default
    }


def as_test(schedule: Schedule, text: str, name: str) -> str:
    """A schedule as a test: what a failing one is printed as.

    Args:
        schedule: the schedule.
        text: what was found.
        name: of the test.
    """
    world = ", ".join(f"{key}={value!r}" for key, value in changed(schedule.world).items())
    steps = "".join(f"        {list(step)!r},\n" for step in schedule.steps)
    return (
        "from sqe_chain.testing.simulator import World, replay\n\n\n"
        f"def test_{name}() -> None:\n"
        f'    """{text.splitlines()[0][:90]}"""\n'
        f"    world = World({world})\n"
        f"    steps = [\n{steps}    ]\n"
        "    replay(world, steps)\n"
    )
