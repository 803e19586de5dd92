"""The flows that chaos tests run as processes: raw -> mid -> totals per robot and per line.

    {prefix}.raw -standard-> {prefix}.mid -totals-> {prefix}.deltas, {prefix}.lines
    {prefix}.raw -early-> {prefix}.pre -relay-> {prefix}.mid

Also the flows of the example services, under their own names.

Environment variables configure them: CHAOS_PREFIX (of all names), CHAOS_OPTIONS (JSON: flow -> options of `Flow`),
CHAOS_SIGNAL (see `signal_at_event`), CHAOS_CLOCK (see `other_clock`). With CHAOS_TABLES, a name, states are shown in the tables NAME_robots and NAME_lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from services import fastening as examples
from services._proto.fastening_pb2 import Fastening, LineDelta, LineTotal, RobotTotal
from services.fastening import add_delta, add_fastening
from sqe_chain.flow import Flow

REFUSED_IN_FIRST, REFUSED_IN_SECOND, REFUSED_BEFORE = 1001, 1002, 1003
ROBOTS, LINES = 4, 3


class RefusedError(Exception):
    """What user code raises on poison."""


def split(fastening: Fastening) -> Iterator[Fastening]:
    """The fastening, and for each failed screw one more, of another robot of the same gateway."""
    yield fastening
    gateway, number = fastening.robot.rsplit("-", 1)
    for extra in range(1, 1 + (fastening.failed if fastening.failed < REFUSED_IN_FIRST else 0)):
        robot = (int(number) + extra) % ROBOTS
        yield Fastening(
            robot=f"{gateway}-{robot}",
            line=f"line-{robot % LINES}",
            report=fastening.report,
            fastened=extra,
            torque_mnm=fastening.torque_mnm // (extra + 1),
        )


def refuse_poison(fastening: Fastening) -> Fastening:
    if fastening.failed == REFUSED_BEFORE:
        raise RefusedError(f"before the first stage: report {fastening.report}")
    return fastening


def fold_fastening_or_refuse(total: RobotTotal, fastening: Fastening) -> list[LineDelta]:
    emitted = add_fastening(total, fastening)
    if fastening.failed == REFUSED_IN_FIRST:
        raise RefusedError(f"in the first stage: report {fastening.report}")
    return emitted


def fold_delta_or_refuse(total: LineTotal, delta: LineDelta) -> None:
    add_delta(total, delta)
    if delta.failed == REFUSED_IN_SECOND:
        raise RefusedError("in the second stage")


def robot_of(fastening: Fastening) -> str:
    return fastening.robot


def line_of(delta: LineDelta) -> str:
    return delta.line


def _flow(name: str, **options: object) -> Flow:
    options |= json.loads(os.environ.get("CHAOS_OPTIONS", "{}")).get(name, {})
    return Flow(f"{_PREFIX}-{name}", **options)  # type: ignore[arg-type]


def _table(of: str) -> str | None:
    name = os.environ.get("CHAOS_TABLES")
    return f"{name}_{of}" if name else None


_PREFIX = os.environ.get("CHAOS_PREFIX", "chaos")

standard = _flow("standard")
(
    standard.source(f"{_PREFIX}.raw", Fastening)
    .flat_map(split)
    .to(f"{_PREFIX}.mid", key=robot_of, partitions=3)
)

early = _flow("early")
early.source(f"{_PREFIX}.raw", Fastening).flat_map(split).to(f"{_PREFIX}.pre", key=robot_of, partitions=2)

relay = _flow("relay")
relay.source(f"{_PREFIX}.pre", Fastening).to(f"{_PREFIX}.mid", key=robot_of, partitions=3)

totals = _flow("totals", state_partitions=3)
_robots = (
    totals.source(f"{_PREFIX}.mid", Fastening)
    .map(refuse_poison)
    .aggregate(
        "per-robot", key=robot_of, state=RobotTotal, fold=fold_fastening_or_refuse, view=_table("robots")
    )
)
_robots.to(f"{_PREFIX}.deltas", key=line_of, partitions=2)
(
    _robots.aggregate(
        "per-line", key=line_of, state=LineTotal, fold=fold_delta_or_refuse, view=_table("lines")
    )
    .changes()
    .to(f"{_PREFIX}.lines", partitions=1)
)

fastening_standard, fastening_totals = examples.standard, examples.totals

if "CHAOS_CLOCK" in os.environ:
    from tests.support.other_clock import install

    install(os.environ["CHAOS_CLOCK"])
if "CHAOS_SIGNAL" in os.environ:
    from tests.support.signal_at_event import install_signal

    install_signal(os.environ["CHAOS_SIGNAL"])
