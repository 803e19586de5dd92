"""The flows' own functions: what one report becomes, and what one fastening adds."""

from __future__ import annotations

from services._proto.fastening_pb2 import Fastening, LineTotal, RobotTotal
from services.expected import expected
from services.fastening import (
    add_delta,
    add_fastening,
    line_of,
    robot_of,
    standard,
    to_fastenings,
    totals,
)
from services.reports import reports


def test_the_flows_are_complete_and_have_the_partitions_of_the_story() -> None:
    first, second = standard.compile(), totals.compile()

    assert [(node.topic, node.partitions) for node in first.outputs] == [("robot.fastenings", 4)]
    assert [(node.topic, node.partitions) for node in second.outputs] == [("line.totals", 1)]
    assert [[node.name for node in level] for level in second.levels] == [["per-robot"], ["per-line"]]


def test_folding_every_fastening_once_gives_what_follows_from_the_seed() -> None:
    robots: dict[str, RobotTotal] = {}
    lines: dict[str, LineTotal] = {}
    for report in reports(7, 2000):
        for fastening in to_fastenings(report):
            for delta in add_fastening(robots.setdefault(robot_of(fastening), RobotTotal()), fastening):
                add_delta(lines.setdefault(line_of(delta), LineTotal()), delta)

    truth = expected(reports(7, 2000))
    for key, robot in robots.items():
        held = truth.robots[key]
        assert robot == RobotTotal(
            robot=key,
            line=held.line,
            events=held.events,
            fastened=held.fastened,
            failed=held.failed,
            torque_mnm=held.torque_mnm,
            last_report=held.last_report,
        )
    for key, line in lines.items():
        held = truth.lines[key]
        assert line == LineTotal(
            line=key,
            robots=held.robots,
            events=held.events,
            fastened=held.fastened,
            failed=held.failed,
            torque_mnm=held.torque_mnm,
        )
    assert robots.keys() == truth.robots.keys()
    assert lines.keys() == truth.lines.keys()


def test_an_older_report_after_a_newer_one_is_noted() -> None:
    total = RobotTotal()
    for number in (5, 5, 7, 6):
        add_fastening(total, Fastening(robot="robot-1", line="line-1", report=number, fastened=1))

    assert (total.events, total.last_report, total.out_of_order) == (4, 7, 1)
