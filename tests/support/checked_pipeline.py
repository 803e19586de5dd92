"""A pipeline in memory whose invariants are checked after every write.

What the store must hold is computed here from the plans and the log alone, without the package's marks, lanes and
positions: see `CheckedPipeline.check_invariants`. The numbers in assertions are those of the invariants in the design.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from google.protobuf.wrappers_pb2 import StringValue

from services._proto.fastening_pb2 import Fastening
from sqe_chain import ReplayFilter, read
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.message import Envelope
from sqe_chain.envelope.partitioner import cell_of
from sqe_chain.errors import EnvelopeError
from sqe_chain.flow import Flow
from sqe_chain.ports import Commit, Header, Message, TopicPartition
from sqe_chain.protocol.plan import Plan
from sqe_chain.protocol.settings import Settings
from sqe_chain.testing import Crash, Rehearsal
from tests.support.fault_points import FaultPointLog, FaultPoints, FaultPointStore
from tests.support.typed_results import payloads_of
from tests.support.unit_id_flows import ROBOTS, failures_in, republisher_flow, unit_id

Coordinates = tuple[str, int, int]


@dataclass
class ExpectedStates:
    """What the states of all stages must be after one plan."""

    stages: dict[str, dict[bytes, str]]
    folded: set[str] = field(default_factory=set)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    marks: dict[object, tuple[int, ...]] = field(default_factory=dict)


class CheckedPipeline:
    """Raw -> republisher -> mid -> a flow whose states list unit ids; every invariant is checked after every write.

    Args:
        flow: from `unit_id_flow`.
        seed: of the random input.
        max_rows: rows that one write of the store takes.
        settings: of the service.
        mid: partitions of the topic between the two services.
    """

    def __init__(
        self,
        flow: Flow,
        *,
        seed: int = 0,
        max_rows: int = 5_000,
        settings: Settings | None = None,
        mid: int = 3,
    ) -> None:
        self.random = random.Random(seed)
        self.name = f"checked-{id(self)}"
        MemoryLog(self.name).clear()
        self.points = FaultPoints()
        self.standard = Rehearsal(
            republisher_flow(partitions=mid), partitions={"raw": 2}, log=MemoryLog(self.name)
        )
        log, store = FaultPointLog(self.name), FaultPointStore(self.name, max_rows=max_rows)
        store.restore_all()
        self.log, self.store = MemoryLog(self.name), MemoryStore(self.name)
        self.service = Rehearsal(flow, partitions={"mid": mid}, log=log, store=store, settings=settings)
        log.points = store.points = self.service.script = self.points
        self.points.after_write = self.check_invariants
        self.flow = flow
        self.buckets = flow.compile().stages[0].buckets
        self.reports = 0
        self.checks = 0
        self.reset_observations()

    def reset_observations(self) -> None:
        """Forget what was observed so far: needed after a store was rolled back."""
        self.plans: dict[int, Plan] = {}
        self.sealed: dict[int, bytes] = {}
        self.expected: dict[int, ExpectedStates] = {}
        self.headers_seen: dict[tuple[str, int], Header] = {}
        self.epoch = 0
        self.published: dict[object, object] = {}
        self.next_offsets: Counter[tuple[str, int]] = Counter()
        self.replay_filters: dict[str, ReplayFilter] = {}
        self.received: dict[str, set[str]] = {}

    # ------------------------------------------------------------------ input and runs

    def feed(self, count: int, poison: float = 0.0) -> None:
        for _ in range(count):
            self.reports += 1
            bad = self.random.randrange(1, 5) if self.random.random() < poison else 0
            fastening = Fastening(
                report=self.reports,
                fastened=self.random.randrange(3),
                torque_mnm=self.random.randrange(ROBOTS),
                failed=bad,
            )
            self.standard.feed("raw", fastening, partition=self.random.randrange(2))

    def republish(self, crash_at_write: int | None = None) -> None:
        """Republish new input; optionally crash at a write first, so that output is repeated."""
        if crash_at_write is not None:
            self.standard.crash_at_write(crash_at_write, "after")
            self.standard.run_until_crash()
            self.standard.script.writes.clear()
        self.standard.run_until_caught_up()

    def run_until_caught_up(self) -> None:
        """Run until caught up; restart after each crash, inject no new faults."""
        for _ in range(200):
            try:
                if not self.service.batch():
                    return
            except Crash:
                self.service.service = None
        raise AssertionError("not caught up after 200 batches")

    def commits(self) -> dict[TopicPartition, Commit]:
        """The group's commits, read directly from the broker."""
        partitions = self.log.describe(["mid"])["mid"].partitions
        return self.log.committed(self.flow.name, [("mid", partition) for partition in range(partitions)])

    # ------------------------------------------------------------------ checks

    def check_invariants(self) -> None:
        """Check invariants 2 to 9 of the design on the present contents of store and log."""
        self.checks += 1
        home = self.store.copy_home(self.flow.name)
        if home.home is None or home.home.number < 0:
            return
        assert home.home.epoch >= self.epoch, "3: epochs never go back"
        self.epoch = home.home.epoch
        self._check_plans(home.plans, home.home.number, home.home.plan_id)
        self._check_outputs()
        headers = {
            (stage.name, part): self.store.copy_part(self.flow.name, stage.name, part)
            for stage in self.flow.compile().stages
            for part in self.flow.compile().cells[stage.index]
        }
        assert all(not copy.header or copy.header.number in self.expected for copy in headers.values()), (
            "4: sealed first"
        )
        reached = min((copy.header.number if copy.header else 0 for copy in headers.values()), default=0)
        for (stage, part), copy in headers.items():
            if copy.header is not None:
                self._check_part(stage, part, copy.header, copy.states)
        self._check_write_order({place: copy.header for place, copy in headers.items()})
        for place, commit in self.commits().items():
            assert commit.offset <= self.expected[reached].ends[place], "5: the commit comes last"

    def _check_plans(self, plans: dict[int, bytes], number: int, plan_id: str) -> None:
        """Plans are sealed once, and each begins where the previous one ended."""
        assert number >= max(self.plans, default=0), "3: plans never go back"
        for known in sorted(set(plans) - set(self.plans)):
            plan = Plan.from_bytes(plans[known])
            assert plan == plan.with_id(), "a plan's id is its content's"
            before = self.plans.get(known - 1)
            if before is not None:
                assert plan.previous_id == before.plan_id, "plans form a chain"
                starts = {one.tp: one.start for one in plan.ranges}
                assert all(starts[one.tp] == one.stop for one in before.ranges), "ranges follow each other"
                self._check_marks(before, plan)
            self.plans[known] = plan
            self.expected[known] = self._expected_after(plan, self.expected.get(known - 1))
        for known, data in plans.items():
            if self.sealed.get(known) != data:  # the same bytes are the same plan
                assert Plan.from_bytes(data) == self.plans[known], "4: a sealed plan never changes"
                self.sealed[known] = data
        assert self.plans[number].plan_id == plan_id, "the home record names its plan"

    def _check_marks(self, before: Plan, plan: Plan) -> None:
        for name, marks in before.marks.items():
            for lane, mark in marks:
                assert plan.marks[name][lane].position >= mark.position, "3: marks never go back"

    def _expected_after(self, plan: Plan, before: ExpectedStates | None) -> ExpectedStates:
        """The expected states after a plan: every new input of its ranges except for its exclusions."""
        expected = ExpectedStates({stage.name: {} for stage in self.flow.compile().stages})
        if before is not None:
            expected.stages |= {name: dict(found) for name, found in before.stages.items()}
            expected.folded, expected.marks = set(before.folded), dict(before.marks)
        left_out = [(one.topic, one.partition, one.offset) for one in plan.exclusions]
        assert len(left_out) == len(set(left_out)), f"9: left out twice: {left_out}"
        must_go = set()
        for planned in sorted(plan.ranges, key=lambda one: one.tp):
            expected.ends[planned.tp] = planned.stop
            for message in self.log.records(planned.topic):
                within = planned.start <= message.offset() < planned.stop
                if message.partition() == planned.partition and within:
                    place = (planned.topic, planned.partition, message.offset())
                    if not self._apply_input(expected, message, planned.topic_id, place):
                        must_go.add(place)
        assert set(left_out) == must_go, f"9: left out {left_out}, must be {must_go}"
        return expected

    def _apply_input(
        self, expected: ExpectedStates, message: Message, topic_id: str, place: Coordinates
    ) -> bool:
        """Apply one input; False when it must be excluded."""
        try:
            envelope = read(message.value(), strict=True)
        except EnvelopeError:
            return False
        lane, position = lane_and_position(envelope, topic_id, place)
        if position <= expected.marks.get(lane, ()):
            return True
        expected.marks[lane] = position
        units = payloads_of(Fastening, envelope)
        if any(unit.failed in failures_in(len(expected.stages)) for unit in units):
            return False
        for unit in units:
            expected.folded.add(unit_id(unit).strip())
            for name, key in (("first", unit.robot), ("second", unit.line)):
                if name in expected.stages:
                    states = expected.stages[name]
                    states[key.encode()] = states.get(key.encode(), "") + unit_id(unit)
        return True

    def _check_part(self, stage: str, part: int, header: Header, states: dict[bytes, bytes]) -> None:
        where = f"{stage}/{part} at {header}"
        before = self.headers_seen.get((stage, part))
        if before is not None:
            assert header.number >= before.number, f"3: {where}, was {before}"
            assert header.epoch >= before.epoch, f"6: {where}, was {before}"
            if header.number == before.number and before.cursor is not None:
                assert header.cursor is not None, where
                assert header.cursor >= before.cursor, where
        self.headers_seen[stage, part] = header
        assert header.number in self.plans, f"4: persisted before it was sealed: {where}"
        assert self.plans[header.number].plan_id == header.plan_id, f"another plan: {where}"
        at = self.expected[header.number].stages[stage]
        then = self.expected[header.number + 1].stages[stage] if header.begun_id else {}
        wanted = {
            key: (then if header.begun_id and key <= (header.cursor or b"") else at).get(key)
            for key in {*at, *then}
            if cell_of(key, self.flow.state_partitions, self.buckets) == part
        }
        found = {key: StringValue.FromString(data).value for key, data in states.items()}
        assert found == {key: value for key, value in wanted.items() if value is not None}, f"2: {where}"

    def _check_write_order(self, headers: dict[tuple[str, int], Header | None]) -> None:
        """Outputs are written before states, downstream states before upstream ones."""
        up = [header for (stage, _), header in headers.items() if header and stage == "first"]
        down = [header for (stage, _), header in headers.items() if header and stage == "second"]
        if up and down:
            most = max(header.number + bool(header.begun_id) for header in up)
            assert most <= min(header.number for header in down), "4: downstream states come first"
        proven = max((h.number + bool(h.begun_id) for h in (*up, *down)), default=0)
        missing = self.expected[proven].folded - self.received.get("first", set())
        assert not missing, f"4: states before the outputs that belong to them: {missing}"
        if down:
            missing = self.expected[proven].folded - self.received.get("second", set())
            assert not missing, f"4: states before the outputs of stage 2: {missing}"

    def _check_outputs(self) -> None:
        """Equal lane and position mean equal content, and a receiver with a replay filter never stops."""
        for topic in {node.topic for node in self.flow.compile().outputs}:
            info = self.log.describe([topic])[topic]
            accepts = self.replay_filters.setdefault(topic, ReplayFilter({topic: info.topic_id}))
            for message in self.log.records(topic):
                place = topic, message.partition()
                if message.offset() < self.next_offsets[place]:
                    continue
                self.next_offsets[place] = message.offset() + 1
                envelope = read(message.value(), strict=True)
                lane, position = lane_and_position(envelope, "", (topic, 0, 0))  # wherever it lies
                content = (
                    message.partition(),
                    envelope.payloads,
                    envelope.key,
                    envelope.type,
                    envelope.chain,
                    envelope.timestamp_ms,
                )
                assert self.published.setdefault((lane, position), content) == content, (
                    "7: repeated with other content"
                )
                fresh = accepts.accept(message)
                if fresh and topic == "units":
                    stage = "second" if envelope.chain.links[-1].output.endswith("second.units") else "first"
                    names = [unit_id(unit).strip() for unit in payloads_of(Fastening, envelope)]
                    received = self.received.setdefault(stage, set())
                    assert not received.intersection(names), "a receiver counts twice"
                    received.update(names)

    def check_at_rest(self) -> None:
        """Check invariants 1, 9 and 10, once everything has been processed."""
        self.check_invariants()
        last = max(self.plans)
        ends = self.expected[last].ends
        for partition in range(3):
            end = self.log.bounds([("mid", partition)])["mid", partition].stable_end
            assert ends["mid", partition] == end, "10: lag goes to zero"
        assert {place: commit.offset for place, commit in self.commits().items()} == ends, (
            "10: commits say so"
        )
        for stage in self.flow.compile().stages:
            for header in self.store.headers(
                self.flow.name, stage.name, self.flow.compile().cells[stage.index]
            ):
                assert header is not None
                assert (header.number, header.begun_id) == (last, ""), "10: nothing is left to finish"
        fed = set()
        excluded = {place for plan in self.plans.values() for place in excluded_inputs(plan)}
        for message in self.log.records("mid"):
            if (
                "mid",
                message.partition(),
                message.offset(),
            ) not in excluded and message.value() != b"rubbish":
                fed.update(unit_ids_in(message))
        deepest = len(self.flow.compile().stages)
        bad = {name for message in self.log.records("mid") for name in unprocessable_units(message, deepest)}
        assert self.expected[last].folded == fed - bad, "1: each unit once, none missing, none extra"
        self._check_dead_letters(excluded)

    def _check_dead_letters(self, excluded: set[Coordinates]) -> None:
        if self.flow.poison != "dead_letter":
            return
        found: dict[Coordinates, tuple[object, object]] = {}
        for message in self.log.records(self.flow.dead_letter_topic):
            headers = {name: value or b"" for name, value in message.headers() or []}
            place = (
                headers["sqe-topic"].decode(),
                int(headers["sqe-partition"]),
                int(headers["sqe-offset"]),
            )
            content = message.value(), message.key()
            assert found.setdefault(place, content) == content, "9: one input, one dead letter"
        assert set(found) == excluded, "9: dead letters are the excluded inputs"
        originals = {("mid", m.partition(), m.offset()): m for m in self.log.records("mid")}
        for place, (value, key) in found.items():
            assert (value, key) == (originals[place].value(), originals[place].key()), "9: bytes unchanged"


def excluded_inputs(plan: Plan) -> set[Coordinates]:
    return {(one.topic, one.partition, one.offset) for one in plan.exclusions}


def unit_ids_in(message: Message) -> set[str]:
    return {unit_id(unit).strip() for unit in payloads_of(Fastening, read(message.value()))}


def unprocessable_units(message: Message, stages: int) -> set[str]:
    """The units of an input that user code refuses."""
    try:
        units = payloads_of(Fastening, read(message.value()))
    except EnvelopeError:
        return set()
    return unit_ids_in(message) if any(unit.failed in failures_in(stages) for unit in units) else set()


def lane_and_position(
    envelope: Envelope, topic_id: str, place: Coordinates
) -> tuple[object, tuple[int, ...]]:
    """Lane and position, computed from the links alone."""
    links = envelope.chain.links
    lane = (
        *((x.topic, x.topic_id, x.partition, x.output, x.shard) for x in links),
        (place[0], topic_id, place[1]),
    )
    root = (links[0].leader_epoch, links[0].offset) if links else (0, place[2])
    return lane, (*root, *(x.ordinal for x in links))
