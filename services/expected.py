"""The totals of a plant's reports, computed only from the seed.

It uses no flow, no fold and no store, so a comparison with it compares two independent computations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services._proto.fastening_pb2 import RawReport, RobotReport

FIELDS = ("events", "fastened", "failed", "torque_mnm")


@dataclass(slots=True)
class Total:
    """The totals that one key should hold.

    Attributes:
        line: the robot's line, or the line itself.
        events: joints reported.
        torque_mnm: sum of all torques, in millinewton-metres. Torques differ between reports, so this sum is
            wrong when one event is lost and another one doubled, although the number of events is right.
        robots: for a line, the robots that reported.
    """

    line: str
    events: int = 0
    fastened: int = 0
    failed: int = 0
    torque_mnm: int = 0
    last_report: int = 0
    robots: int = 0


@dataclass(slots=True)
class Expected:
    """All totals.

    Attributes:
        messages: messages made from the reports, one for each report and robot.
        robots: totals of stage 1.
        lines: totals of stage 2.
    """

    reports: int = 0
    messages: int = 0
    robots: dict[str, Total] = field(default_factory=dict)
    lines: dict[str, Total] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """Joints reported by all robots."""
        return sum(total.events for total in self.robots.values())

    @property
    def keys(self) -> int:
        """Keys of both stages."""
        return len(self.robots) + len(self.lines)


def expected(reports: Iterable[RawReport]) -> Expected:
    """Compute the totals of reports."""
    result = Expected()
    for report in reports:
        result.reports += 1
        result.messages += len(report.robots)
        for robot in report.robots:
            _add(result.robots, robot, report.number)
    for total in result.robots.values():
        line = result.lines.setdefault(total.line, Total(line=total.line))
        line.robots += 1
        for name in FIELDS:
            setattr(line, name, getattr(line, name) + getattr(total, name))
    return result


def _add(robots: dict[str, Total], robot: RobotReport, number: int) -> None:
    total = robots.get(robot.robot)
    if total is None:
        total = robots[robot.robot] = Total(line=robot.line)
    total.last_report = number
    for joint in robot.joints:
        total.events += 1
        total.fastened += joint.fastened
        total.failed += joint.failed
        total.torque_mnm += joint.torque_mnm
