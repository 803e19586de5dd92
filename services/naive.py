"""What a plain consumer of `robot.fastenings` counts if it looks only at payloads: too much.

    python -m services.naive --kafka HOST:PORT --seed 7 --messages 300000

It loses nothing and commits correctly. But what a killed republisher published again has new offsets, and the
consumer cannot recognise it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from services._proto.fastening_pb2 import Fastening
from services.entry import add_truth, parser_of, with_exit_status
from services.expected import Expected, expected
from services.reports import reports
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.envelope.message import read
from sqe_chain.ports import Log, Range

TOPIC = "robot.fastenings"


@dataclass(frozen=True, slots=True)
class Naive:
    """The result of the plain consumer.

    Attributes:
        too_many: fastenings counted in excess of those reported, over all robots.
        wrong_robots: robots whose number is wrong.
        worst: the robot with the largest error.
        worst_by: that error, in fastenings.
    """

    messages: int
    events: int
    too_many: int
    wrong_robots: int
    robots: int
    worst: str
    worst_by: int


def values(log: Log, topic: str) -> Iterable[bytes]:
    """All values that a topic holds now, partition by partition."""
    info = log.describe([topic])[topic]
    for (_, partition), bounds in log.bounds([(topic, number) for number in range(info.partitions)]).items():
        part = Range(topic, info.topic_id, partition, bounds.begin, bounds.stable_end)
        for block in log.read(part):
            yield from (value for message in block if (value := message.value()) is not None)


def count(messages: Iterable[bytes], truth: Expected) -> Naive:
    """Count every payload of every message, and compare with the truth."""
    read_messages = 0
    counted: Counter[str] = Counter()
    for value in messages:
        read_messages += 1
        for fastening in read(value).payloads_as(Fastening):
            if fastening is not None:
                counted[fastening.robot] += 1
    off = {robot: counted[robot] - total.events for robot, total in truth.robots.items()}
    worst = max(off, key=lambda robot: abs(off[robot]), default="")
    return Naive(
        messages=read_messages,
        events=counted.total(),
        too_many=counted.total() - truth.events,
        wrong_robots=sum(difference != 0 for difference in off.values()),
        robots=len(truth.robots),
        worst=worst,
        worst_by=off.get(worst, 0),
    )


def table(naive: Naive, truth: Expected) -> Table:
    """The result for people."""
    result = Table(title="the same messages, counted by a plain consumer without positions")
    for column in ("messages", "events", "reported", "too many", "wrong robots", "worst"):
        result.add_column(column, justify="right")
    result.add_row(
        f"{naive.messages:,}",
        f"{naive.events:,}",
        f"{truth.events:,}",
        f"{naive.too_many:+,} ({naive.too_many / max(1, truth.events):+.1%})",
        f"{naive.wrong_robots:,} of {naive.robots:,}",
        f"{naive.worst} {naive.worst_by:+,}",
    )
    return result


@with_exit_status
def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = parser_of("services.naive", __doc__)
    parser.add_argument("--kafka", required=True, help="HOST:PORT of a broker")
    add_truth(parser)
    options = parser.parse_args(arguments)
    truth = expected(reports(options.seed, options.messages))
    naive = count(values(KafkaLog(options.kafka), TOPIC), truth)
    Console().print(table(naive, truth))
    return 0


if __name__ == "__main__":
    sys.exit(main())
