"""Flows whose states list the ids of the units folded into them, so that a lost or doubled unit cannot cancel out.

    raw -republisher-> mid -unit ids-> units, first.states, second.states

The field `failed` of a fastening chooses where user code refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.wrappers_pb2 import StringValue

from services._proto.fastening_pb2 import Fastening
from sqe_chain.flow import Flow

ROBOTS = 5
FAILS_BEFORE, FAILS_IN_FIRST, FAILS_IN_SECOND, FAILS_AFTER_SECOND = 1, 2, 3, 4


class Refused(Exception):
    """What user code raises on poison."""


def split(fastening: Fastening) -> Iterator[Fastening]:
    """One to three units of one or two robots; report and joint are the id of a unit."""
    for joint in range(1 + fastening.fastened % 3):
        robot = (fastening.torque_mnm + (joint // 2) * 2) % ROBOTS
        yield Fastening(
            robot=f"robot-{robot}",
            line=f"line-{robot % 2}",
            report=fastening.report,
            joint=str(joint),
            failed=fastening.failed if joint == 0 else 0,
        )


def refuse(kind: int, fastening: Fastening) -> None:
    if fastening.failed == kind:
        raise Refused(f"{kind} in {fastening.report}")


def unit_id(fastening: Fastening) -> str:
    return f"{fastening.report}.{fastening.joint} "


def refuse_before_stages(fastening: Fastening) -> Fastening:
    refuse(FAILS_BEFORE, fastening)
    return fastening


def append_in_first(ids: StringValue, fastening: Fastening) -> list[Fastening]:
    ids.value += unit_id(fastening)
    refuse(FAILS_IN_FIRST, fastening)
    return [fastening]


def append_in_second(ids: StringValue, fastening: Fastening) -> list[Fastening]:
    ids.value += unit_id(fastening)
    refuse(FAILS_IN_SECOND, fastening)
    return [fastening]


def refuse_after_second(fastening: Fastening) -> Fastening:
    refuse(FAILS_AFTER_SECOND, fastening)
    return fastening


def republisher_flow(name: str = "standard", partitions: int = 3) -> Flow:
    flow = Flow(name)
    flow.source("raw", Fastening).flat_map(split).to("mid", key=lambda f: f.robot, partitions=partitions)
    return flow


def unit_id_flow(
    stages: int = 2, state_partitions: int = 2, name: str = "unit-ids", buckets: int = 1, **options: object
) -> Flow:
    """Aggregate per robot, then per line; emissions and changes of both stages are published."""
    flow = Flow(name, state_partitions=state_partitions, **options)  # type: ignore[arg-type]
    source = flow.source("mid", Fastening).map(refuse_before_stages)
    first = source.aggregate(
        "first", key=lambda f: f.robot, state=StringValue, fold=append_in_first, buckets=buckets
    )
    first.to("units", key=lambda f: f.line, partitions=2)
    first.changes().to("first.states", partitions=2)
    if stages == 2:
        second = first.aggregate(
            "second", key=lambda f: f.line, state=StringValue, fold=append_in_second, buckets=buckets
        )
        second.map(refuse_after_second).to("units", name="second.units", key=lambda f: f.robot, partitions=2)
        second.changes().to("second.states", partitions=1)
    return flow


def failures_in(stages: int) -> set[int]:
    """The failures that a flow with this many stages can hit."""
    return {FAILS_BEFORE, FAILS_IN_FIRST} | ({FAILS_IN_SECOND, FAILS_AFTER_SECOND} if stages == 2 else set())
