"""The computations, the same for our services and the plain loops: same functions, same payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from services._proto.fastening_pb2 import Fastening, LineDelta, LineTotal, RobotTotal
from services.fastening import add_fastening, line_of, robot_of
from sqe_chain.flow import Flow, Stream, count, sum_
from sqe_chain.stages import Tumbling

PARTITIONS = 4
"""Of every topic; also the number of state partitions, so that the first stage runs without a shuffle."""

LINES = 20


def both_robots(fastening: Fastening) -> Iterator[Fastening]:
    """Two values of two keys for one: what was fastened, and what failed."""
    robot, number = fastening.robot, fastening.report
    joint = fastening.joint
    yield Fastening(robot=robot, joint=joint, report=number, fastened=fastening.fastened)
    yield Fastening(robot=robot + "!", joint=joint, report=number, failed=fastening.failed)


def add(total: LineTotal, fastening: Fastening) -> None:
    """Two sums for one robot."""
    total.events += 1
    total.fastened += fastening.fastened


def republisher(name: str, source: str, target: str) -> Flow:
    """One envelope in, two out, for two keys."""
    flow = Flow(name)
    flow.source(source, Fastening).flat_map(both_robots).to(target, key=robot_of, partitions=PARTITIONS)
    return flow


def aggregation(name: str, source: str) -> Flow:
    """Sums by robot."""
    flow = Flow(name, state_partitions=PARTITIONS)
    flow.source(source, Fastening).aggregate("per-robot", key=robot_of, state=LineTotal, fold=add)
    return flow


def traced(name: str, source: str, *, traces: bool) -> Flow:
    """The same sums, published; with the traces of their records, or without."""
    flow = Flow(name, state_partitions=PARTITIONS, traces=traces)
    flow.source(source, Fastening).aggregate(
        "per-robot", key=robot_of, state=LineTotal, fold=add
    ).changes().to(f"{name}.sums", partitions=PARTITIONS)
    return flow


def declared(name: str, source: str) -> Flow:
    """The same sums, declared."""
    flow = Flow(name, state_partitions=PARTITIONS)
    flow.source(source, Fastening).aggregate(
        "per-robot", key="robot", events=count(), fastened=sum_("fastened")
    )
    return flow


def declared_windows(name: str, source: str) -> Flow:
    """Sums by robot and minute, declared."""
    flow = Flow(name, state_partitions=PARTITIONS)
    flow.source(source, Fastening).windowed(
        "per-minute",
        Tumbling(60_000),
        key="robot",
        events=count(),
        fastened=sum_("fastened"),
        retention_ms=3_600_000,
    )
    return flow


def windows(name: str, source: str) -> Flow:
    """Sums by robot and minute."""
    flow = Flow(name, state_partitions=PARTITIONS)
    flow.source(source, Fastening).windowed(
        "per-minute",
        Tumbling(60_000),
        key=robot_of,
        state=LineTotal,
        fold=add,
        retention_ms=3_600_000,
    )
    return flow


ALERT_EACH = 100
"""One result of this number is published: what publishing costs is measured elsewhere."""


def alert(fastening: Fastening, known: Fastening | None) -> Fastening | None:
    """What a join gives for one message of a hundred."""
    if fastening.report % ALERT_EACH:
        return None
    return Fastening(robot=fastening.robot, report=fastening.report, failed=known.failed if known else 0)


def joined(name: str, source: str, table: str, target: str) -> Flow:
    """Messages with a table's values for their robots."""
    flow = Flow(name, state_partitions=PARTITIONS)
    said = flow.source(table, Fastening).key_by(robot_of)
    (
        flow.source(source, Fastening)
        .key_by(robot_of)
        .join_table("robots", said, alert, how="left")
        .to(target, key=robot_of, partitions=PARTITIONS)
    )
    return flow


def two_stages(name: str, source: str, target: str) -> Flow:
    """Sums by robot, the changes for its line, sums by line after a shuffle, and their changes."""
    flow = Flow(name, state_partitions=PARTITIONS)
    (
        flow.source(source, Fastening)
        .aggregate("per-robot", key=robot_of, state=RobotTotal, fold=add_fastening)
        .aggregate("per-line", key=line_of, state=LineTotal, fold=add_delta)
        .changes()
        .to(target, partitions=PARTITIONS)
    )
    return flow


def report_of(fastening: Fastening) -> str:
    """The id by which duplicates of a report are recognised."""
    return str(fastening.report)


def number_of(fastening: Fastening) -> int:
    """The sequence number of a report, ascending for each robot."""
    return fastening.report


def pass_on(total: LineTotal, fastening: Fastening) -> Iterator[Fastening]:
    """What any stage does: a state for each key, and what it emits."""
    total.events += 1
    yield fastening


FILTERS: dict[str, Callable[[Stream[Fastening]], Stream[Fastening]]] = {
    "another stage": lambda said: said.aggregate("filter", state=LineTotal, fold=pass_on),
    "drop_stale by key": lambda said: said.drop_stale("filter", sequence=number_of, scope="key"),
    "drop_replays by key": lambda said: said.drop_replays("filter", by="key"),
    "deduplicate key and id, 10 s": lambda said: said.deduplicate_by_key_value("filter", report_of, 10_000),
    "distinct by key, 1 ms": lambda said: said.distinct("filter", Tumbling(1)),
}
"""The cost of a filter that drops nothing: every message is new. Event time advances by 1 ms per message."""


def filtered(name: str, source: str, kind: str) -> Flow:
    """Sums by robot, after a filter."""
    flow = Flow(name, state_partitions=PARTITIONS)
    FILTERS[kind](flow.source(source, Fastening).key_by(robot_of)).aggregate(
        "per-robot", key=robot_of, state=LineTotal, fold=add
    )
    return flow


def add_delta(total: LineTotal, delta: LineDelta) -> None:
    """Count one fastening for its line."""
    total.events += 1
    total.fastened += delta.fastened
