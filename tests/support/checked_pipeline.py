"""A plant whose states are ledgers: each lists the units folded into it, so nothing can cancel out.

What must stand in the store is computed here from the plans and the log alone, without the package's
marks, lanes and positions: see `Ledger.look`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.wrappers_pb2 import StringValue

from services._proto.fastening_pb2 import Fastening
from sqe_chain import ReplayFilter, read
from sqe_chain.envelope.message import Envelope
from sqe_chain.errors import EnvelopeError
from sqe_chain.flow import Flow
from sqe_chain.logs.memory import MemoryLog
from sqe_chain.partitioner import cell_of
from sqe_chain.ports import Commit, Header, Message, TopicPartition
from sqe_chain.protocol.plan import Plan
from sqe_chain.protocol.surroundings import Settings
from sqe_chain.stores.memory import MemoryStore
from sqe_chain.testing import Crash, Rehearsal
from tests.support.fault_points import PointedLog, PointedStore, Points
from tests.support.typed_results import payloads_of

ROBOTS = 5
FAILS_BEFORE, FAILS_IN_FIRST, FAILS_IN_SECOND, FAILS_BEHIND_SECOND = 1, 2, 3, 4
Inputs = tuple[str, int, int]


class Refused(Exception):
    """What a user's function raises."""


def split(fastening: Fastening) -> Iterator[Fastening]:
    """One to three units of one or two robots; each has a name of its own: report and joint."""
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


def entry(fastening: Fastening) -> str:
    return f"{fastening.report}.{fastening.joint} "


def checked(fastening: Fastening) -> Fastening:
    refuse(FAILS_BEFORE, fastening)
    return fastening


def note_first(ledger: StringValue, fastening: Fastening) -> list[Fastening]:
    ledger.value += entry(fastening)
    refuse(FAILS_IN_FIRST, fastening)
    return [fastening]


def note_second(ledger: StringValue, fastening: Fastening) -> list[Fastening]:
    ledger.value += entry(fastening)
    refuse(FAILS_IN_SECOND, fastening)
    return [fastening]


def passed(fastening: Fastening) -> Fastening:
    refuse(FAILS_BEHIND_SECOND, fastening)
    return fastening


def republisher(name: str = "standard", partitions: int = 3) -> Flow:
    flow = Flow(name)
    flow.source("raw", Fastening).flat_map(split).to("mid", key=lambda f: f.robot, partitions=partitions)
    return flow


def ledgers(
    stages: int = 2, state_partitions: int = 2, name: str = "ledgers", buckets: int = 1, **options: object
) -> Flow:
    """Per robot, and per line behind it; emissions and changes of both are published."""
    flow = Flow(name, state_partitions=state_partitions, **options)  # type: ignore[arg-type]
    source = flow.source("mid", Fastening).map(checked)
    first = source.aggregate(
        "first", key=lambda f: f.robot, state=StringValue, fold=note_first, buckets=buckets
    )
    first.to("notes", key=lambda f: f.line, partitions=2)
    first.changes().to("first.ledgers", partitions=2)
    if stages == 2:
        second = first.aggregate(
            "second", key=lambda f: f.line, state=StringValue, fold=note_second, buckets=buckets
        )
        second.map(passed).to("notes", name="second.notes", key=lambda f: f.robot, partitions=2)
        second.changes().to("second.ledgers", partitions=1)
    return flow


@dataclass
class Books:
    """What all ledgers say after one plan."""

    stages: dict[str, dict[bytes, str]]
    folded: set[str] = field(default_factory=set)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    marks: dict[object, tuple[int, ...]] = field(default_factory=dict)


class Ledger:
    """Raw -> republisher -> mid -> ledgers, with every invariant looked at after every write.

    Args:
        flow: from `ledgers`.
        seed: of what is fed.
        store: options of the store.
        settings: how the service runs.
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
        self.name = f"ledger-{id(self)}"
        MemoryLog(self.name).clear()
        self.points = Points()
        self.standard = Rehearsal(
            republisher(partitions=mid), partitions={"raw": 2}, log=MemoryLog(self.name)
        )
        log, store = PointedLog(self.name), PointedStore(self.name, max_rows=max_rows)
        store.restore_all()
        self.log, self.store = MemoryLog(self.name), MemoryStore(self.name)
        self.service = Rehearsal(flow, partitions={"mid": mid}, log=log, store=store, settings=settings)
        log.points = store.points = self.service.script = self.points
        self.points.look = self.look
        self.flow = flow
        self.buckets = flow.stages()[0].buckets
        self.reports = 0
        self.looks = 0
        self.forget()

    def forget(self) -> None:
        """Begin to look anew: after a store was put back in time."""
        self.plans: dict[int, Plan] = {}
        self.books: dict[int, Books] = {}
        self.seen: dict[tuple[str, int], Header] = {}
        self.epoch = 0
        self.said: dict[object, object] = {}
        self.scanned: Counter[tuple[str, int]] = Counter()
        self.accepts: dict[str, ReplayFilter] = {}
        self.received: dict[str, set[str]] = {}

    # ------------------------------------------------------------------ what happens

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

    def feed_rubbish(self) -> None:
        self.log.append("mid", self.random.randrange(3), b"rubbish", key=b"robot-1", headers=[("h", b"1")])

    def republish(self, dies_at_write: int | None = None) -> None:
        """Republish what is new; first die at a write, so that it comes again."""
        if dies_at_write is not None:
            self.standard.crash_at_write(dies_at_write, "after")
            self.standard.run_until_crash()
            self.standard.script.writes.clear()
        self.standard.run_until_caught_up()

    def run(self) -> None:
        """Until caught up, started again after each crash, without new faults."""
        for _ in range(200):
            try:
                if not self.service.batch():
                    return
            except Crash:
                self.service.service = None
        raise AssertionError("not caught up after 200 batches")

    def commits(self) -> dict[TopicPartition, Commit]:
        """The group's commits, asked beside the service."""
        partitions = self.log.describe(["mid"])["mid"].partitions
        return self.log.committed(self.flow.name, [("mid", partition) for partition in range(partitions)])

    # ------------------------------------------------------------------ what must hold

    def look(self) -> None:
        """Invariants 2 to 9 of the design, on what stands now."""
        self.looks += 1
        home = self.store.copy_home(self.flow.name)
        if home.home is None or home.home.number < 0:
            return
        assert home.home.epoch >= self.epoch, "3: epochs never go back"
        self.epoch = home.home.epoch
        self._learn(home.plans, home.home.number, home.home.plan_id)
        self._look_at_outputs()
        headers = {
            (stage.name, part): self.store.copy_part(self.flow.name, stage.name, part)
            for stage in self.flow.stages()
            for part in self.flow.cells(stage)
        }
        assert all(not copy.header or copy.header.number in self.books for copy in headers.values()), (
            "4: sealed first"
        )
        reached = min((copy.header.number if copy.header else 0 for copy in headers.values()), default=0)
        for (stage, part), copy in headers.items():
            if copy.header is not None:
                self._look_at_part(stage, part, copy.header, copy.states)
        self._look_at_order({place: copy.header for place, copy in headers.items()})
        for place, commit in self.commits().items():
            assert commit.offset <= self.books[reached].ends[place], "5: the commit comes last"

    def _learn(self, plans: dict[int, bytes], number: int, plan_id: str) -> None:
        """Plans are sealed once, each from where the one before ended."""
        assert number >= max(self.plans, default=0), "3: plans never go back"
        for known in sorted(set(plans) - set(self.plans)):
            plan = Plan.from_bytes(plans[known])
            assert plan == plan.identified(), "a plan's id is its content's"
            before = self.plans.get(known - 1)
            if before is not None:
                assert plan.previous_id == before.plan_id, "plans form a chain"
                starts = {one.place: one.start for one in plan.ranges}
                assert all(starts[one.place] == one.stop for one in before.ranges), "ranges follow each other"
                self._look_at_marks(before, plan)
            self.plans[known] = plan
            self.books[known] = self._close(plan, self.books.get(known - 1))
        for known, data in plans.items():
            assert Plan.from_bytes(data) == self.plans[known], "4: a sealed plan never changes"
        assert self.plans[number].plan_id == plan_id, "the home record names its plan"

    def _look_at_marks(self, before: Plan, plan: Plan) -> None:
        for name, marks in before.marks.items():
            after = {lane["lane"]: lane["position"] for lane in plan.marks[name]["lanes"]}
            for lane in marks["lanes"]:
                assert after[lane["lane"]] >= lane["position"], "3: marks never go back"

    def _close(self, plan: Plan, before: Books | None) -> Books:
        """The books after a plan: every new input of its ranges, but for what it leaves out."""
        books = Books({stage.name: {} for stage in self.flow.stages()})
        if before is not None:
            books.stages |= {name: dict(found) for name, found in before.stages.items()}
            books.folded, books.marks = set(before.folded), dict(before.marks)
        left_out = [(one.topic, one.partition, one.offset) for one in plan.exclusions]
        assert len(left_out) == len(set(left_out)), f"9: left out twice: {left_out}"
        must_go = set()
        for planned in sorted(plan.ranges, key=lambda one: one.place):
            books.ends[planned.place] = planned.stop
            for message in self.log.records(planned.topic):
                within = planned.start <= message.offset() < planned.stop
                if message.partition() == planned.partition and within:
                    place = (planned.topic, planned.partition, message.offset())
                    if not self._enter(books, message, planned.topic_id, place):
                        must_go.add(place)
        assert set(left_out) == must_go, f"9: left out {left_out}, must be {must_go}"
        return books

    def _enter(self, books: Books, message: Message, topic_id: str, place: Inputs) -> bool:
        """Enter one input; False when it must be left out."""
        try:
            envelope = read(message.value(), strict=True)
        except EnvelopeError:
            return False
        lane, position = way(envelope, topic_id, place)
        if position <= books.marks.get(lane, ()):
            return True
        books.marks[lane] = position
        units = payloads_of(Fastening, envelope)
        if any(unit.failed in kinds(len(books.stages)) for unit in units):
            return False
        for unit in units:
            books.folded.add(entry(unit).strip())
            for name, key in (("first", unit.robot), ("second", unit.line)):
                if name in books.stages:
                    said = books.stages[name]
                    said[key.encode()] = said.get(key.encode(), "") + entry(unit)
        return True

    def _look_at_part(self, stage: str, part: int, header: Header, states: dict[bytes, bytes]) -> None:
        where = f"{stage}/{part} at {header}"
        before = self.seen.get((stage, part))
        if before is not None:
            assert header.number >= before.number, f"3: {where}, was {before}"
            assert header.epoch >= before.epoch, f"6: {where}, was {before}"
            if header.number == before.number and before.cursor is not None:
                assert header.cursor is not None, where
                assert header.cursor >= before.cursor, where
        self.seen[stage, part] = header
        assert header.number in self.plans, f"4: persisted before it was sealed: {where}"
        assert self.plans[header.number].plan_id == header.plan_id, f"another plan: {where}"
        at = self.books[header.number].stages[stage]
        then = self.books[header.number + 1].stages[stage] if header.begun_id else {}
        wanted = {
            key: (then if header.begun_id and key <= (header.cursor or b"") else at).get(key)
            for key in {*at, *then}
            if cell_of(key, self.flow.state_partitions, self.buckets) == part
        }
        found = {key: StringValue.FromString(data).value for key, data in states.items()}
        assert found == {key: value for key, value in wanted.items() if value is not None}, f"2: {where}"

    def _look_at_order(self, headers: dict[tuple[str, int], Header | None]) -> None:
        """Outputs before states, downstream states before upstream ones."""
        up = [header for (stage, _), header in headers.items() if header and stage == "first"]
        down = [header for (stage, _), header in headers.items() if header and stage == "second"]
        if up and down:
            most = max(header.number + bool(header.begun_id) for header in up)
            assert most <= min(header.number for header in down), "4: downstream states come first"
        proven = max((h.number + bool(h.begun_id) for h in (*up, *down)), default=0)
        missing = self.books[proven].folded - self.received.get("first", set())
        assert not missing, f"4: states before the outputs that belong to them: {missing}"
        if down:
            missing = self.books[proven].folded - self.received.get("second", set())
            assert not missing, f"4: states before the outputs of stage 2: {missing}"

    def _look_at_outputs(self) -> None:
        """The same lane and position always says the same; receivers stop for nothing."""
        for topic in {node.topics[0] for node in self.flow.outputs()}:
            info = self.log.describe([topic])[topic]
            accepts = self.accepts.setdefault(topic, ReplayFilter({topic: info.topic_id}))
            for message in self.log.records(topic):
                place = topic, message.partition()
                if message.offset() < self.scanned[place]:
                    continue
                self.scanned[place] = message.offset() + 1
                envelope = read(message.value(), strict=True)
                lane, position = way(envelope, "", (topic, message.partition(), 0))
                content = (
                    envelope.payloads,
                    envelope.key,
                    envelope.type,
                    envelope.chain,
                    envelope.timestamp_ms,
                )
                assert self.said.setdefault((lane, position), content) == content, "7: redone, said otherwise"
                fresh = accepts.accept(message)
                if fresh and topic == "notes":
                    stage = "second" if envelope.chain.links[-1].output.endswith("second.notes") else "first"
                    names = [entry(unit).strip() for unit in payloads_of(Fastening, envelope)]
                    received = self.received.setdefault(stage, set())
                    assert not received.intersection(names), "a receiver counts twice"
                    received.update(names)

    def check(self) -> None:
        """Invariants 1, 9 and 10, at rest."""
        self.look()
        last = max(self.plans)
        ends = self.books[last].ends
        for partition in range(3):
            stands = self.log.bounds([("mid", partition)])["mid", partition].stable_end
            assert ends["mid", partition] == stands, "10: lag goes to zero"
        assert {place: commit.offset for place, commit in self.commits().items()} == ends, "10: and is told"
        for stage in self.flow.stages():
            for header in self.store.headers(self.flow.name, stage.name, self.flow.cells(stage)):
                assert header is not None
                assert (header.number, header.begun_id) == (last, ""), "10: nothing is left to finish"
        fed = set()
        excluded = {place for plan in self.plans.values() for place in coordinates(plan)}
        for message in self.log.records("mid"):
            if (
                "mid",
                message.partition(),
                message.offset(),
            ) not in excluded and message.value() != b"rubbish":
                fed.update(names_of(message))
        deepest = len(self.flow.stages())
        bad = {name for message in self.log.records("mid") for name in spoiled(message, deepest)}
        assert self.books[last].folded == fed - bad, "1: each unit once, none missing, none extra"
        self._check_dead_letters(excluded)

    def _check_dead_letters(self, excluded: set[Inputs]) -> None:
        if self.flow.poison != "dead_letter":
            return
        found: dict[Inputs, tuple[object, object]] = {}
        for message in self.log.records(self.flow.dead_letter_topic):
            said = {name: value or b"" for name, value in message.headers() or []}
            place = (said["sqe-topic"].decode(), int(said["sqe-partition"]), int(said["sqe-offset"]))
            content = message.value(), message.key()
            assert found.setdefault(place, content) == content, "9: one input, one dead letter"
        assert set(found) == excluded, "9: dead letters are the excluded inputs"
        originals = {("mid", m.partition(), m.offset()): m for m in self.log.records("mid")}
        for place, (value, key) in found.items():
            assert (value, key) == (originals[place].value(), originals[place].key()), "9: bytes unchanged"


def kinds(stages: int) -> set[int]:
    """What fails somewhere in a flow of so many stages."""
    return {FAILS_BEFORE, FAILS_IN_FIRST} | ({FAILS_IN_SECOND, FAILS_BEHIND_SECOND} if stages == 2 else set())


def coordinates(plan: Plan) -> set[Inputs]:
    return {(one.topic, one.partition, one.offset) for one in plan.exclusions}


def names_of(message: Message) -> set[str]:
    return {entry(unit).strip() for unit in payloads_of(Fastening, read(message.value()))}


def spoiled(message: Message, stages: int) -> set[str]:
    """The units of an input that cannot be processed."""
    try:
        units = payloads_of(Fastening, read(message.value()))
    except EnvelopeError:
        return set()
    return names_of(message) if any(unit.failed in kinds(stages) for unit in units) else set()


def way(envelope: Envelope, topic_id: str, place: Inputs) -> tuple[object, tuple[int, ...]]:
    """Lane and position from the links alone."""
    links = envelope.chain.links
    lane = (
        *((x.topic, x.topic_id, x.partition, x.output, x.shard) for x in links),
        (place[0], topic_id, place[1]),
    )
    root = (links[0].leader_epoch, links[0].offset) if links else (0, place[2])
    return lane, (*root, *(x.ordinal for x in links))
