"""Two services on one plant: how many screws has each robot, and each production line, fastened?

    sqe-chain run services.fastening:standard --kafka HOST:PORT --store redis://HOST:PORT
    sqe-chain run services.fastening:totals --kafka HOST:PORT --store redis://HOST:PORT

`standard` republishes the reports of gateways as one message for each robot. `totals` counts, and is exact
although `standard` publishes many messages twice when it is restarted: see `services.demo`.
"""

from __future__ import annotations

from collections.abc import Iterator

from services._proto.fastening_pb2 import (
    Fastening,
    LineDelta,
    LineTotal,
    RawReport,
    RobotTotal,
)
from sqe_chain.flow import Flow


def to_fastenings(report: RawReport) -> Iterator[Fastening]:
    """One fastening for each joint of each robot in the report.

    Those of one robot have one key, hence travel in one envelope: all of them are counted, or none.
    """
    for robot in report.robots:
        for joint in robot.joints:
            yield Fastening(
                robot=robot.robot,
                line=robot.line,
                joint=joint.joint,
                report=report.number,
                fastened=joint.fastened,
                failed=joint.failed,
                torque_mnm=joint.torque_mnm,
            )


def robot_of(fastening: Fastening) -> str:
    """Key of the topic `robot.fastenings` and of stage `per-robot`."""
    return fastening.robot


def line_of(delta: LineDelta) -> str:
    """Key of stage `per-line`. It differs from that of `per-robot`, so records are shuffled."""
    return delta.line


def add_fastening(total: RobotTotal, fastening: Fastening) -> list[LineDelta]:
    """Count one fastening for its robot, and emit the change for the line."""
    first = total.events == 0
    if first:
        total.robot = fastening.robot
        total.line = fastening.line
    total.events += 1
    total.fastened += fastening.fastened
    total.failed += fastening.failed
    total.torque_mnm += fastening.torque_mnm
    if fastening.report < total.last_report:
        total.out_of_order += 1
    else:
        total.last_report = fastening.report
    delta = LineDelta(
        line=fastening.line,
        robots=1 if first else 0,
        fastened=fastening.fastened,
        failed=fastening.failed,
        torque_mnm=fastening.torque_mnm,
    )
    return [delta]


def add_delta(total: LineTotal, delta: LineDelta) -> None:
    """Count one fastening for its line."""
    total.line = delta.line
    total.robots += delta.robots
    total.events += 1
    total.fastened += delta.fastened
    total.failed += delta.failed
    total.torque_mnm += delta.torque_mnm


standard = Flow("fastening-standard")
(
    standard.source("robot.raw", RawReport)
    .flat_map(to_fastenings)
    .to("robot.fastenings", key=robot_of, partitions=4)
)


def totals_flow(robots: str | None) -> Flow:
    """Totals of each robot and each line.

    Args:
        robots: name of the store for the many states of stage 1; None: all in one store.
    """
    # As many state partitions as the input has partitions: stage 1 needs no shuffle.
    flow = Flow("fastening-totals", state_partitions=4)
    (
        flow.source("robot.fastenings", Fastening)
        .aggregate("per-robot", key=robot_of, state=RobotTotal, fold=add_fastening, store=robots)
        .aggregate("per-line", key=line_of, state=LineTotal, fold=add_delta)
        .changes()
        .to("line.totals", partitions=1)
    )
    return flow


totals = totals_flow(None)
totals_in_two_stores = totals_flow("large")
