"""Schedules: a world and the steps in it, as plain data that can be generated from a seed, shrunk and printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tests.lab.reference.world import World

Step = list[Any]
"""The name of a step and its arguments: `Simulation` has one method for each name."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A world and the steps in it.

    Attributes:
        world: services and topics.
        steps: in order.
    """

    world: World
    steps: tuple[Step, ...]

    def to_json(self) -> str:
        """The schedule as JSON; see `from_json`."""
        return json.dumps({"world": non_defaults(self.world), "steps": self.steps})

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """The schedule that `to_json` wrote."""
        raw = json.loads(text)
        return cls(World(**raw["world"]), tuple(raw["steps"]))


def count_faults(fired: Mapping[str, int]) -> int:
    """How many of these are faults, rather than reactions of services."""
    return sum(count for name, count in fired.items() if name != "ended" and not name.endswith("handled"))


def non_defaults(world: World) -> dict[str, Any]:
    """The fields of a world that differ from their defaults."""
    return {
        field.name: value for field in fields(World) if (value := asdict(world)[field.name]) != field.default
    }


def as_test(schedule: Schedule, text: str, name: str) -> str:
    """A schedule as the source of a test.

    Args:
        schedule: the schedule.
        text: the violation.
        name: of the test.
    """
    world = ", ".join(f"{key}={value!r}" for key, value in non_defaults(schedule.world).items())
    steps = "".join(f"        {list(step)!r},\n" for step in schedule.steps)
    return (
        "from tests.lab.simulator import World, replay\n\n\n"
        f"def test_{name}() -> None:\n"
        f'    """{text.splitlines()[0][:90]}"""\n'
        f"    world = World({world})\n"
        f"    steps = [\n{steps}    ]\n"
        "    replay(world, steps)\n"
    )
