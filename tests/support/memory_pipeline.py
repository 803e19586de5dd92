"""A pipeline in memory for protocol tests: a republisher, totals with one or two stages, and the expected totals.

The messages are those of the example services. Expected totals are computed here from the input alone, without the
package's code.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from services._proto.fastening_pb2 import Fastening, LineDelta, LineTotal, RobotTotal
from services.fastening import add_delta, add_fastening
from sqe_chain import read
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.receiving import received
from tests.support.typed_results import payloads_of, states_as

ROBOTS = {f"robot-{number}": f"line-{number % 3}" for number in range(9)}


def split(fastening: Fastening) -> Iterator[Fastening]:
    """One input gives one to three fastenings, of one or two robots."""
    yield fastening
    names = sorted(ROBOTS)
    other = names[(names.index(fastening.robot) + 4) % len(names)]
    for extra in range(fastening.failed):
        robot = other if extra else fastening.robot
        yield Fastening(robot=robot, line=ROBOTS[robot], report=fastening.report, fastened=extra + 1)


def republisher_flow(name: str = "standard", partitions: int = 3) -> Flow:
    """A flow from raw to mid: flat-mapped, keyed by robot."""
    flow = Flow(name)
    flow.source("raw", Fastening).flat_map(split).to("mid", key=lambda f: f.robot, partitions=partitions)
    return flow


def totals_flow(
    stages: int = 2,
    state_partitions: int = 2,
    name: str = "totals",
    second_store: str | None = None,
    **options: object,
) -> Flow:
    """A flow from mid: totals per robot (and per line), with emissions and changes published."""
    flow = Flow(name, state_partitions=state_partitions, **options)  # type: ignore[arg-type]
    first = flow.source("mid", Fastening).aggregate(
        "per-robot", key=lambda f: f.robot, state=RobotTotal, fold=add_fastening
    )
    first.to("deltas", key=lambda d: d.line, partitions=2)
    if stages == 1:
        first.changes().to("robot.totals", partitions=2)
        return flow
    second = first.aggregate(
        "per-line", key=lambda d: d.line, state=LineTotal, fold=add_delta, store=second_store
    )
    second.changes().to("line.totals", partitions=1)
    return flow


@dataclass
class ExpectedTotals:
    """Totals by a plain loop over the input, each message counted once."""

    robots: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    lines: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def feed(self, fastening: Fastening) -> None:
        for one in split(fastening):
            for totals_of, key in ((self.robots, one.robot), (self.lines, one.line)):
                totals_of[key]["events"] += 1
                totals_of[key]["fastened"] += one.fastened


class TotalsPipeline:
    """raw -> republisher -> mid -> totals, in one broker in memory."""

    def __init__(self, flow: Flow, *, mid: int = 3, raw: int = 2, seed: int = 1, **options: object) -> None:
        self.random = random.Random(seed)
        self.log = MemoryLog(f"pipeline-{id(self)}")
        self.log.clear()
        self.standard = Rehearsal(republisher_flow(partitions=mid), partitions={"raw": raw}, log=self.log)
        self.totals = Rehearsal(flow, partitions={"mid": mid}, log=self.log, **options)  # type: ignore[arg-type]
        self.expected = ExpectedTotals()
        self.number = 0

    def feed(self, count: int) -> None:
        """Append random reports to raw."""
        for _ in range(count):
            self.number += 1
            robot = self.random.choice(sorted(ROBOTS))
            failed = self.random.randrange(3)
            fastening = Fastening(
                robot=robot,
                line=ROBOTS[robot],
                report=self.number,
                fastened=self.random.randrange(5),
                failed=failed,
            )
            self.standard.feed("raw", fastening, partition=self.random.randrange(2))
            self.expected.feed(fastening)

    def republish(self, times: int = 1) -> None:
        """Republish new input; `times - 1` runs crash before they commit, so output is repeated."""
        for _ in range(times - 1):
            self.standard.crash(step=7, when="before")
            self.standard.run_until_crash()
        self.standard.run_until_caught_up()

    def check(self) -> None:
        """Totals are exact, and so are those of a receiver of the outputs."""
        robots = states_as(RobotTotal, self.totals, "per-robot")
        found = {key.decode(): Counter(events=s.events, fastened=s.fastened) for key, s in robots.items()}
        assert found == {key: Counter(e) for key, e in self.expected.robots.items()}
        names = [stage.name for stage in self.totals.flow.stages]
        if "per-line" in names:
            lines = states_as(LineTotal, self.totals, "per-line")
            found = {key.decode(): Counter(events=s.events, fastened=s.fastened) for key, s in lines.items()}
            assert found == {key: Counter(e) for key, e in self.expected.lines.items()}
        self.check_receivers()

    def check_receivers(self) -> None:
        """A receiver of the deltas with a replay filter counts each event once."""
        counted: dict[str, Counter[str]] = defaultdict(Counter)
        topic_id = self.log.describe(["deltas"])["deltas"].topic_id
        for message in received("deltas", topic_id, self.log.records("deltas")):
            for delta in payloads_of(LineDelta, read(message.value())):
                counted[delta.line]["events"] += 1
                counted[delta.line]["fastened"] += delta.fastened
        assert counted == {key: Counter(e) for key, e in self.expected.lines.items()}


LAYOUTS = [
    pytest.param(stages, in_place, id=f"{stages}-stage-{'in-place' if in_place else 'shuffled'}")
    for stages in (1, 2)
    for in_place in (True, False)
]
CRASH_POINTS = [(step, when) for step in range(1, 8) for when in ("before", "after")]


def totals_pipeline(stages: int, in_place: bool, **options: object) -> TotalsPipeline:
    """A pipeline whose first stage runs without a shuffle or after one."""
    state_partitions = 3 if in_place else 2
    return TotalsPipeline(totals_flow(stages, state_partitions), mid=3, **options)  # type: ignore[arg-type]


def feed_with_replays(pipeline: TotalsPipeline) -> None:
    """Feed one batch and publish it twice."""
    pipeline.feed(12)
    pipeline.republish(2)
