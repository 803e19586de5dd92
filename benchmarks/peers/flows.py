"""Our side: the workloads as flows, one function each, with the name of the flow and its topics as arguments."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.flows import PARTITIONS
from sqe_chain.flow import Flow, count, sum_
from sqe_chain.stages import Tumbling

WINDOW_MS = 10_000
INTERVAL_MS = 10_000
"""Of the filter: a record may be sent again so much later."""


class Fastening(msgspec.Struct):
    """A record of the input."""

    robot: str
    line: str
    joint: str
    report: int
    fastened: int
    failed: int


class Screws(msgspec.Struct):
    """One of the two values of a record."""

    robot: str
    joint: str
    report: int
    screws: int


class Total(msgspec.Struct):
    """The sums of a robot, or of a line."""

    events: int = 0
    fastened: int = 0
    failed: int = 0


class Count(msgspec.Struct):
    """How many records a window of a robot has."""

    events: int = 0


class Delta(msgspec.Struct):
    """What one record adds to its line."""

    line: str
    fastened: int
    failed: int


def both(fastening: Fastening) -> Iterator[Screws]:
    """Two values with two keys: what was fastened, and what failed."""
    robot, joint, report = fastening.robot, fastening.joint, fastening.report
    yield Screws(robot, joint, report, fastening.fastened)
    yield Screws(robot + "!", joint, report, fastening.failed)


def both_by_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same for many records at once: the two rows of a record come one behind the other."""
    rows = np.arange(batch.num_rows)
    twice, pairs = np.repeat(rows, 2), np.column_stack((rows, rows + batch.num_rows)).ravel()
    robots = batch["robot"]
    keys = pa.concat_arrays([robots, pc.binary_join_element_wise(robots, "!", "")])
    screws = pa.concat_arrays([batch["fastened"], batch["failed"]])
    return pa.record_batch(
        {
            "robot": keys.take(pairs),
            "joint": batch["joint"].take(twice),
            "report": batch["report"].take(twice),
            "screws": screws.take(pairs),
            "row": twice,
        }
    )


def add(total: Total, fastening: Fastening) -> None:
    """Add a record to its robot."""
    total.events += 1
    total.fastened += fastening.fastened
    total.failed += fastening.failed


def add_and_emit(total: Total, fastening: Fastening) -> tuple[Delta]:
    """Add a record to its robot, and emit what it adds to the line."""
    add(total, fastening)
    return (Delta(fastening.line, fastening.fastened, fastening.failed),)


def add_delta(total: Total, delta: Delta) -> None:
    """Add the values of one record to a line."""
    total.events += 1
    total.fastened += delta.fastened
    total.failed += delta.failed


def add_screws(total: Total, screws: Screws) -> None:
    """Add what the first service of the chain published."""
    total.events += 1
    total.fastened += screws.screws


def count_one(found: Count, _: Fastening) -> None:
    """Count a record of a window."""
    found.events += 1


def report_of(fastening: Fastening) -> str:
    """The id of a report, of its robot's."""
    return str(fastening.report)


def robot_of(value: Fastening | Screws) -> str:
    """The key of records and outputs."""
    return value.robot


def line_of(delta: Delta) -> str:
    """The key of the second stage."""
    return delta.line


def flat_map(name: str, source: str, target: str, *, raw: bool, transactional: bool = False) -> Flow:
    """W1: two outputs with two keys for each record."""
    flow = Flow(name, transactional=transactional)
    stream = flow.source(source, Fastening, raw=raw)
    stream.flat_map(both).to(target, key=robot_of, partitions=PARTITIONS)
    return flow


def batches(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """W1 by a function over columns."""
    flow = Flow(name)
    stream = flow.source(source, Fastening, raw=raw)
    columns = ["robot", "joint", "report", "fastened", "failed"]
    by_columns = stream.map_batches(both_by_columns, Screws, columns=columns, index="row")
    by_columns.to(target, key=robot_of, partitions=PARTITIONS)
    return flow


def fold(name: str, source: str, target: str, *, raw: bool, transactional: bool = False) -> Flow:
    """W2: sums of each robot, and their changes."""
    flow = Flow(name, state_partitions=PARTITIONS, transactional=transactional)
    stream = flow.source(source, Fastening, raw=raw)
    totals = stream.aggregate("per-robot", key=robot_of, state=Total, fold=add)
    totals.changes().to(target, partitions=PARTITIONS)
    return flow


def flat_map_in_transactions(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """W1 for readers that know no positions."""
    return flat_map(name, source, target, raw=raw, transactional=True)


def fold_in_transactions(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """W2 for readers that know no positions."""
    return fold(name, source, target, raw=raw, transactional=True)


def two_stages(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """W3: sums of each robot, one value for its line of each record, shuffled, sums of each line and their changes."""
    flow = Flow(name, state_partitions=PARTITIONS)
    stream = flow.source(source, Fastening, raw=raw)
    robots = stream.aggregate("per-robot", key=robot_of, state=Total, fold=add_and_emit)
    lines = robots.aggregate("per-line", key=line_of, state=Total, fold=add_delta)
    lines.changes().to(target, partitions=PARTITIONS)
    return flow


def declared_fold(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """W2 without a fold of one's own."""
    flow = Flow(name, state_partitions=PARTITIONS)
    stream = flow.source(source, Fastening, raw=raw)
    totals = stream.aggregate(
        "per-robot", key="robot", events=count(), fastened=sum_("fastened"), failed=sum_("failed")
    )
    totals.changes().to(target, partitions=PARTITIONS)
    return flow


def windows(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """W4: how many records each robot has in each window of event time."""
    flow = Flow(name, state_partitions=PARTITIONS)
    stream = flow.source(source, Fastening, raw=raw)
    found = stream.windowed("per-robot", Tumbling(WINDOW_MS), key=robot_of, state=Count, fold=count_one)
    found.to(target, partitions=PARTITIONS)
    return flow


def declared_windows(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """W4 without a fold of one's own."""
    flow = Flow(name, state_partitions=PARTITIONS)
    stream = flow.source(source, Fastening, raw=raw)
    found = stream.windowed("per-robot", Tumbling(WINDOW_MS), key="robot", events=count())
    found.to(target, partitions=PARTITIONS)
    return flow


def fold_screws(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """The second service of W5: sums of what the first one, W1, publishes, and their changes."""
    flow = Flow(name, state_partitions=PARTITIONS)
    stream = flow.source(source, Screws, raw=raw)
    totals = stream.aggregate("per-robot", key=robot_of, state=Total, fold=add_screws)
    totals.changes().to(target, partitions=PARTITIONS)
    return flow


def once(name: str, source: str, target: str, *, raw: bool) -> Flow:
    """W6: each report of a robot once."""
    flow = Flow(name, state_partitions=PARTITIONS)
    stream = flow.source(source, Fastening, raw=raw).key_by(robot_of)
    stream.deduplicate_by_key_value("once", report_of, INTERVAL_MS).to(
        target, key=robot_of, partitions=PARTITIONS
    )
    return flow
