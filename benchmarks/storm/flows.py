"""Our side: totals of each robot, and the republisher as a flow of its own."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sqe_chain.flow import Flow

PARTITIONS = 4


class Item(msgspec.Struct):
    """A fact."""

    robot: str
    amount: int


class Report(msgspec.Struct):
    """A report of a gateway."""

    report: int
    items: list[Item]


class Total(msgspec.Struct):
    """What is counted of a robot."""

    robot: str = ""
    events: int = 0
    sum: int = 0


def robot_of(item: Item) -> str:
    """Key of a fact and of its total."""
    return item.robot


def add(total: Total, item: Item) -> None:
    """Count a fact."""
    total.robot = item.robot
    total.events += 1
    total.sum += item.amount


def items_of(report: Report) -> Iterator[Item]:
    """The facts of a report."""
    yield from report.items


def totals(name: str, source: str, target: str) -> Flow:
    """The consumer: totals, and their changes for readers outside."""
    flow = Flow(name, state_partitions=PARTITIONS)
    stage = flow.source(source, Item).aggregate("per-robot", key=robot_of, state=Total, fold=add)
    stage.changes().to(target, partitions=PARTITIONS, carrier="headers")
    return flow


def republisher(name: str, source: str, target: str) -> Flow:
    """The republisher; its values are plain, as those of the other one."""
    flow = Flow(name)
    reports = flow.source(source, Report, raw=True)
    reports.flat_map(items_of).to(target, key=robot_of, partitions=PARTITIONS, carrier="headers")
    return flow
