"""The flows of `chaos_flows` as real services on real servers, with the totals that they must end with.

`services.stored` reads the stored totals. It knows only the documented layout of the stores and nothing of the
package. Expected totals are added up here.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services._proto.fastening_pb2 import Fastening, LineDelta, LineTotal, RobotTotal
from services.stored import StoredRow, stored_states
from sqe_chain import read, wrap
from sqe_chain.adapters import open_store
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.plans.plan import Plan, PlannedRange
from sqe_chain.ports import Message, Range, StateStore, TopicPartition
from tests.support.chaos_flows import LINES, ROBOTS, split
from tests.support.receiving import received
from tests.support.service_processes import Deployment, ServiceProcess
from tests.support.typed_results import payloads_of
from tests.support.waiting import PATIENCE_S

STAGES = ("per-robot", "per-line")
TOPICS = {"raw": 2, "mid": 3, "deltas": 2, "lines": 1}

Totals = tuple[int, int, int]
"""Events, screws fastened, torque."""


@dataclass
class ExpectedTotals:
    """Totals of the input, each message counted once."""

    robots: dict[str, list[Fastening]] = field(default_factory=lambda: defaultdict(list))

    def per_robot(self) -> dict[str, Totals]:
        return {robot: _totals_of(events) for robot, events in self.robots.items()}

    def per_line(self) -> dict[str, Totals]:
        lines: dict[str, list[Fastening]] = defaultdict(list)
        for events in self.robots.values():
            for event in events:
                lines[event.line].append(event)
        return {line: _totals_of(events) for line, events in lines.items()}


def gateway_of(fastening: Fastening) -> int:
    return int(fastening.robot.split("-")[1])


def _totals_of(events: Iterable[Fastening]) -> Totals:
    known = list(events)
    return len(known), sum(e.fastened for e in known), sum(e.torque_mnm for e in known)


class TotalsDeployment(Deployment):
    """The flows of `chaos_flows`, deployed for one test, with checks of their stored states and outputs.

    Args:
        kafka: broker.
        store: URL of the store.
        directory: for logs.
        options: flow -> options of its `Flow`.
        topics: topic -> partitions; created here.
    """

    def __init__(
        self,
        kafka: str,
        store: str,
        directory: Path,
        *,
        options: dict[str, dict[str, object]] | None = None,
        topics: dict[str, int] | None = None,
    ) -> None:
        super().__init__(
            "tests.support.chaos_flows", kafka, store, directory, TOPICS if topics is None else topics
        )
        self.options: dict[str, dict[str, object]] = options or {}
        self.expected = ExpectedTotals()
        self._random = random.Random(7)  # the same events in every run of the tests
        self._reports = 0

    def run_until_killed(self, flow: str, *more: str, at: str, engine: str = "inprocess") -> ServiceProcess:
        """See `Deployment.run_until_killed`; then check what the killed process left behind."""
        run = super().run_until_killed(flow, *more, at=at, engine=engine)
        self.check_while_running()
        return run

    def republish_and_die(self, *, again: bool = False) -> None:
        """The republisher publishes and is killed before its commit, so it will publish the same again.

        Args:
            again: its last run died so, too: it publishes that batch again first, which is the same one, and then a new one.
        """
        run = self.run_until_killed("standard", at="published,published" if again else "published")
        assert run.all("published")[-1]["outputs"] > 0, run.text

    # ------------------------------------------------------------------ messages

    def fastening(self, gateway: int, failed: int = -1, robot: int = -1) -> Fastening:
        """Make the next report."""
        self._reports += 1
        robot = self._random.randrange(ROBOTS) if robot < 0 else robot
        return Fastening(
            robot=f"robot-{gateway}-{robot}",
            line=f"line-{robot % LINES}",
            report=self._reports,
            fastened=self._random.randrange(5),
            failed=self._random.randrange(3) if failed < 0 else failed,
            torque_mnm=self._random.getrandbits(32),
        )

    def feed(self, count: int = 40, gateways: Sequence[int] = (0, 1, 2, 3), partitions: int = 2) -> None:
        """Append random reports to raw."""
        fastenings = [self.fastening(self._random.choice(gateways)) for _ in range(count)]
        self.expect(one for fastening in fastenings for one in split(fastening))
        self.produce("raw", [(gateway_of(f) % partitions, self.wrap_fastening(f)) for f in fastenings])

    def expect(self, fastenings: Iterable[Fastening]) -> None:
        """Add these to the expected totals."""
        for fastening in fastenings:
            self.expected.robots[fastening.robot].append(fastening)

    def wait_until_caught_up(self, standard: ServiceProcess, totals: ServiceProcess) -> None:
        """Wait until both have processed all input."""
        self.wait_for_no_lag(standard, "standard", "raw")
        self.wait_for_no_lag(totals)

    def wrap_fastening(self, fastening: Fastening) -> bytes:
        return wrap(fastening, key=fastening.robot, timestamp_ms=fastening.report)

    def records(self, topic: str) -> list[Message]:
        """All committed records of a topic."""
        name = topic if topic.startswith(self.name) else self.topic(topic)
        info = self.log.describe([name])[name]
        places = [(name, partition) for partition in range(info.partitions)]
        return [
            message
            for (_, partition), bound in self.log.bounds(places).items()
            for block in self.log.read(Range(name, info.topic_id, partition, bound.begin, bound.stable_end))
            for message in block
        ]

    # ------------------------------------------------------------------ checks

    @staticmethod
    def _ends(store: StateStore, flow: str, number: int) -> dict[tuple[str, int], PlannedRange]:
        data = store.plan(flow, number)
        assert data is not None, f"plan {number} is not kept"
        return Plan.from_bytes(data).ends()

    def check_while_running(self, flow: str = "totals") -> None:
        """Check what holds at every moment.

        Commits are not beyond the last plan, and no stage is ahead of the next one downstream.
        """
        name, store = f"{self.name}-{flow}", open_store(self.store)
        before, _ = store.home(name)
        if before is None or before.number < 0:
            return
        commits = self.log.committed(name, self._ends(store, name, before.number))
        reached = []
        for stage in STAGES:  # upstream first: a live run continues during this check
            headers = store.headers(name, stage, range(3))
            reached.append([header.number for header in headers if header is not None])
        after, _ = store.home(name)
        assert after is not None
        ends = self._ends(store, name, after.number)
        for place, commit in commits.items():
            assert commit.offset <= ends[place].stop, f"{place} is committed beyond plan {after.number}"
        if all(reached):
            upstream, downstream = reached
            assert before.number - 1 <= min(downstream), reached
            assert max(upstream) <= min(downstream), reached
            assert max(downstream) <= after.number, reached

    def check(self, *, ordered: bool = True) -> None:
        """Check what holds once everything has been processed.

        Totals of both stages and those of receivers are exact; there is no lag; plans, headers and commits agree; nobody
        holds the claim.
        """
        self.check_totals(ordered=ordered)
        self.check_receivers()
        self.check_at_rest()

    def check_totals(self, *, ordered: bool = True) -> None:
        robots, lines = self.states("per-robot"), self.states("per-line")
        totals = {key: RobotTotal.FromString(value) for key, value in robots.items()}
        assert {
            k: (t.events, t.fastened, t.torque_mnm) for k, t in totals.items()
        } == self.expected.per_robot()
        if ordered:
            assert sum(total.out_of_order for total in totals.values()) == 0
        sums = {key: LineTotal.FromString(value) for key, value in lines.items()}
        assert {k: (t.events, t.fastened, t.torque_mnm) for k, t in sums.items()} == self.expected.per_line()
        assert sum(total.robots for total in sums.values()) == len(totals)

    def states(self, stage: str) -> dict[str, bytes]:
        """Key -> state; checks that each key is stored once, in the right state partition."""
        found: dict[str, bytes] = {}
        for row in self._rows(stage):
            assert row.key.decode() not in found, f"{row.key!r} is stored twice"
            assert row.part == partition_of(row.key, 3)
            found[row.key.decode()] = row.state
        return found

    def stored_contents(self) -> list[tuple[object, ...]]:
        """All states and headers in the store, to compare with a later moment."""
        store, name = open_store(self.store), f"{self.name}-totals"
        rows = [(s, r.part, r.key, r.state) for s in STAGES for r in self._rows(s)]
        headers = [(s, *store.headers(name, s, range(3))) for s in STAGES]
        return [store.home(name)[0], *headers, *sorted(rows)]  # type: ignore[list-item]

    def _rows(self, stage: str) -> Iterable[StoredRow]:
        return stored_states(self.store, f"{self.name}-totals", stage)

    def check_receivers(self) -> None:
        """A receiver that ignores replays gets each event of the first stage once."""
        name = self.topic("deltas")
        counted: dict[str, Totals] = {}
        for message in received(name, self.log.topic_ids([name])[name], self.records("deltas")):
            for delta in payloads_of(LineDelta, read(message.value() or b"")):
                events, fastened, torque = counted.get(delta.line, (0, 0, 0))
                counted[delta.line] = events + 1, fastened + delta.fastened, torque + delta.torque_mnm
        assert counted == self.expected.per_line()

    def check_at_rest(self, flows: Sequence[str] = ("totals",)) -> None:
        """Plans, headers and commits have reached the end of the log; nobody holds the claim."""
        self.check_while_running()
        name, store = f"{self.name}-totals", open_store(self.store)
        home, _ = store.home(name)
        assert home is not None
        assert home.run_id == ""
        for stage in STAGES:
            for header in store.headers(name, stage, range(3)):
                assert header is not None
                assert (header.number, header.plan_id, header.begun_id) == (home.number, home.plan_id, "")
        data = store.plan(name, home.number)
        assert data is not None
        ends = {place: planned.stop for place, planned in Plan.from_bytes(data).ends().items()}
        assert ends == {place: bound.stable_end for place, bound in self.log.bounds(ends).items()}
        for flow in flows:
            self.check_no_lag(flow, "mid")

    def wait_for_no_lag(self, run: ServiceProcess, flow: str = "totals", topic: str = "mid") -> None:
        """Wait until a run has committed all input."""
        done = wait_until(lambda: self.lags(flow, topic) == {} or run.status() is not None, PATIENCE_S)
        assert done, f"{self.lags(flow, topic)}\n{run.text}"
        self.check_no_lag(flow, topic)

    def check_no_lag(self, flow: str, topic: str) -> None:
        """The group's commits are at the end of all partitions."""
        assert self.lags(flow, topic) == {}

    def lags(self, flow: str, topic: str) -> dict[TopicPartition, tuple[int, int]]:
        """Partitions whose commit is not at the end: (committed offset, or -1 for none; end)."""
        info = self.log.describe([self.topic(topic)])[self.topic(topic)]
        places = [(info.name, partition) for partition in range(info.partitions)]
        ends = {place: bound.stable_end for place, bound in self.log.bounds(places).items()}
        commits = self.log.committed(f"{self.name}-{flow}", places)
        found = {place: commits[place].offset if place in commits else -1 for place in places}
        return {place: (found[place], end) for place, end in ends.items() if found[place] != end}
