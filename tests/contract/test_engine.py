"""Two engines, one result: what a flow publishes and stores does not depend on the engine that runs its tasks.

Every flow here runs twice on the same real input, once by each engine, under names of its own. Then all
that it published (payloads, chains, positions, witnesses) and stored is compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from pyspark.sql import DataFrame, SparkSession

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.engines.spark import SparkEngine, Tuning
from sqe_chain.envelope.message import is_enveloped, read, wrap
from sqe_chain.errors import ConfigurationError, PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.context import Context
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.topology import PoisonPolicy
from sqe_chain.logs.kafka import KafkaLog
from sqe_chain.partitioner import partition_of
from sqe_chain.ports import Output, Range, StateStore
from sqe_chain.protocol.aggregation import Aggregation
from sqe_chain.protocol.environment import Environment, Ports
from sqe_chain.protocol.events import Event
from sqe_chain.protocol.interfaces import Engine
from sqe_chain.protocol.republish import Republisher
from sqe_chain.protocol.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.stores import open_store
from sqe_chain.testing.clock import SteppingClock

Declare = Callable[["Names"], Flow]
Made = Callable[[Flow, KafkaLog, Mapping[str, StateStore]], Engine]

INPUT_PARTITIONS = 3


@dataclass(frozen=True)
class Names:
    """The names that differ between the two runs of a flow; and the inputs, which are the same."""

    flow: str
    inputs: tuple[str, str]

    @property
    def outputs(self) -> tuple[str, str]:
        return f"{self.flow}.a", f"{self.flow}.b"


# --- the flows -----------------------------------------------------------------------------------


def add(total: Int64Value, value: Int64Value) -> None:
    total.value += value.value


def add_and_tell(total: Int64Value, value: Int64Value) -> list[Int64Value]:
    total.value += value.value
    return [Int64Value(value=total.value), Int64Value(value=-value.value)]


def add_with_care(total: Int64Value, value: Int64Value, context: Context) -> list[StringValue]:
    if value.value % 29 == 28:
        context.delete_state()
        return []
    total.value += value.value
    link = context.chain.root
    return [
        StringValue(value=f"{context.topic}[{context.partition}]@{context.offset} {context.key!r} {link}")
    ]


def last_digit(value: Int64Value) -> str:
    return str(value.value % 10)


def sign(value: Int64Value) -> str:
    return "-" if value.value < 0 else "+"


def thrice(value: Int64Value) -> Iterator[Int64Value]:
    for factor in (1, 2, 3):
        yield Int64Value(value=value.value * factor)


def refuse_13(value: Int64Value) -> Int64Value:
    if value.value % 50 == 13:
        raise ValueError("thirteen")
    return value


def add_but_17(total: Int64Value, value: Int64Value) -> list[Int64Value]:
    total.value += value.value
    if value.value % 50 == 17:
        raise ValueError("seventeen")
    return [Int64Value(value=total.value)]


def one_stage(names: Names, parts: int) -> Flow:
    flow = Flow(names.flow, state_partitions=parts)
    stage = flow.source(names.inputs, Int64Value).aggregate("sums", state=Int64Value, fold=add_and_tell)
    stage.to(names.outputs[0], partitions=2)
    stage.changes().to(names.outputs[1], partitions=1)
    return flow


def in_place(names: Names) -> Flow:
    return one_stage(names, INPUT_PARTITIONS)


def shuffled(names: Names) -> Flow:
    return one_stage(names, 5)


def two_stages(names: Names, parts: int = 4) -> Flow:
    flow = Flow(names.flow, state_partitions=parts)
    source = flow.source(names.inputs, Int64Value)
    numbers = source.flat_map(thrice).merge(source.filter(lambda value: value.value % 2 == 0))
    first = numbers.aggregate("digits", key=last_digit, state=Int64Value, fold=add_and_tell)
    second = first.aggregate("signs", key=sign, state=Int64Value, fold=add_and_tell)
    second.to(names.outputs[0], partitions=2, key=last_digit)
    second.changes().to(names.outputs[1], partitions=1)
    return flow


def two_stages_in_place(names: Names) -> Flow:
    flow = Flow(names.flow, state_partitions=INPUT_PARTITIONS)
    first = flow.source(names.inputs, Int64Value).aggregate("sums", state=Int64Value, fold=add_and_tell)
    second = first.aggregate("signs", key=sign, state=Int64Value, fold=add_and_tell)
    second.to(names.outputs[0], partitions=2)
    return flow


def contexts(names: Names) -> Flow:
    flow = Flow(names.flow, state_partitions=2)
    stage = flow.source(names.inputs, Int64Value).aggregate(
        "digits", key=last_digit, state=Int64Value, fold=add_with_care
    )
    stage.to(names.outputs[0], partitions=2)
    stage.changes().to(names.outputs[1], partitions=2)
    return flow


def poisoned(names: Names, policy: PoisonPolicy) -> Flow:
    flow = Flow(names.flow, state_partitions=4, poison=policy, dead_letter_topic=names.outputs[1])
    first = flow.source(names.inputs, Int64Value).map(refuse_13)
    stage = first.aggregate("digits", key=last_digit, state=Int64Value, fold=add_but_17)
    stage.aggregate("signs", key=sign, state=Int64Value, fold=add).changes().to(
        names.outputs[0], partitions=1
    )
    return flow


def dead_letters(names: Names) -> Flow:
    return poisoned(names, "dead_letter")


def skipping(names: Names) -> Flow:
    return poisoned(names, "skip")


def pair(left: Int64Value, right: Int64Value | None) -> Int64Value:
    return Int64Value(value=1_000 * left.value + (0 if right is None else right.value))


def by_event_time(names: Names) -> Flow:
    """Windows and joins; what waits for a partition that is behind is stored."""
    flow = Flow(names.flow, state_partitions=3)
    numbers = flow.source(names.inputs, Int64Value).key_by(last_digit)
    windows = numbers.windowed("tens", Tumbling(10), state=Int64Value, fold=add)
    windows.to(names.outputs[0], partitions=2)
    small = numbers.filter(lambda value: value.value % 20 < 10)
    joined = numbers.join_table("table", small, pair, how="left")
    joined.aggregate("sums", key=last_digit, state=Int64Value, fold=add_and_tell).to(
        names.outputs[1], partitions=2
    )
    near = numbers.join_stream("near", small, pair, before_ms=10, after_ms=30)
    near.aggregate("pairs", key=last_digit, state=Int64Value, fold=add)
    return flow


def stateless(names: Names) -> Flow:
    flow = Flow(names.flow, poison="dead_letter", dead_letter_topic=names.outputs[1])
    flow.source(names.inputs, Int64Value).map(refuse_13).flat_map(thrice).to(
        names.outputs[0], partitions=4, key=last_digit
    )
    return flow


FLOWS: list[Declare] = [
    in_place,
    shuffled,
    two_stages,
    two_stages_in_place,
    contexts,
    dead_letters,
    skipping,
    stateless,
    by_event_time,
]


# --- the engines ---------------------------------------------------------------------------------


def in_process(flow: Flow, log: KafkaLog, stores: Mapping[str, StateStore]) -> Engine:
    def store_of(stage: StageNode) -> StateStore:
        return stores[stage.store or ""]

    return InProcessEngine(flow, log, store_of)


@pytest.fixture(params=["small", "large"])
def on_spark(request: pytest.FixtureRequest, spark: SparkSession) -> Made:
    """Spark engines for which every batch is small; is large and cached; or is large although it looked small."""
    tuning = {
        "small": Tuning(),
        "large": Tuning(inline_bytes=0, records_per_task=1, small_records=0),
        "swollen": Tuning(small_bytes=1),
    }[request.param]
    return lambda flow, log, stores: SparkEngine(flow, log, stores, spark, tuning=tuning)


class Silent:
    """An observer that records all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def step(self, number: int, when: str) -> None:
        pass

    def event(self, event: Event) -> None:
        self.events.append(event)


class Run:
    """One flow on one engine, with its own store."""

    def __init__(self, flow: Flow, log: KafkaLog, store: StateStore, made: Made) -> None:
        self.flow, self.log, self.store = flow, log, store
        self.observer = Silent()
        stores = {"": store}
        self.engine = made(flow, log, stores)
        env = Environment(
            flow,
            Ports(log, stores),
            self.engine,
            self.observer,
            SteppingClock(),
            lambda: uuid.uuid4().hex,
            Settings(allow_weak_durability=True),
        )
        self.service = Aggregation(env) if flow.stages() else Republisher(env)
        for node in flow.outputs():
            log.create_topic(node.topic, node.partitions)
        if flow.dead_letters:
            log.create_topic(flow.dead_letter_topic, 1)
        self.service.start()

    def until_caught_up(self, *, at_end: bool = False) -> None:
        while self.service.batch(at_end=at_end).worked:
            pass

    def states(self) -> dict[tuple[str, int], dict[bytes, bytes]]:
        return {
            (stage.name, part): dict(self.store.scan(self.flow.name, stage.name, part))
            for stage in self.flow.stages()
            for part in range(self.flow.state_partitions)
        }

    def published(self) -> list[tuple[object, ...]]:
        """All records of all output topics in a fixed order, reduced to what must be equal for both engines."""
        topics = [node.topic for node in self.flow.outputs()]
        if self.flow.dead_letters:
            topics.append(self.flow.dead_letter_topic)
        found = [
            (topic.removeprefix(self.flow.name), partition, *self._essence(message))
            for topic in topics
            for partition, message in everything(self.log, topic)
        ]
        return sorted(found, key=repr)

    def _essence(self, message: Any) -> tuple[object, ...]:
        value = message.value()
        headers = [pair for pair in message.headers() or [] if pair[0] != "sqe-flow"]
        if not is_enveloped(value) or any(name == "sqe-error" for name, _ in headers):
            return message.key(), value, headers
        envelope = read(value, strict=True)
        links = [
            replace(link, output=link.output.replace(self.flow.name, "")) for link in envelope.chain.links
        ]
        return (
            message.key(),
            message.timestamp(),
            headers,
            envelope.type,
            envelope.payloads,
            envelope.position,
            envelope.previous,
            links,
        )


def everything(log: KafkaLog, topic: str) -> Iterator[tuple[int, Any]]:
    about = log.describe([topic])[topic]
    places = [(topic, partition) for partition in range(about.partitions)]
    for (_, partition), bounds in log.bounds(places).items():
        for block in log.read(Range(topic, about.topic_id, partition, bounds.begin, bounds.stable_end)):
            for message in block:
                yield partition, message


def in_order(log: KafkaLog, topic: str) -> Iterable[tuple[object, bytes]]:
    for partition, message in everything(log, topic):
        envelope = read(message.value())
        yield (partition, envelope.lane), envelope.position


@pytest.fixture
def log(kafka: str) -> Iterator[KafkaLog]:
    found = KafkaLog(kafka)
    yield found
    found.close()


@pytest.fixture
def inputs(log: KafkaLog) -> tuple[str, str]:
    prefix = f"in-{uuid.uuid4().hex[:8]}"
    topics = f"{prefix}.one", f"{prefix}.two"
    for topic in topics:
        log.create_topic(topic, INPUT_PARTITIONS)
    return topics


def feed(log: KafkaLog, inputs: tuple[str, str], first: int, count: int) -> None:
    """Numbered messages in each topic, in the partition of their key; one record is not an envelope."""
    writer = log.writer()
    outputs: list[Output] = []
    for number in range(first, first + count):
        key = b"k%d" % (number % 7)
        value = (
            b"junk"
            if number % 100 == 50
            else wrap(Int64Value(value=number), key=key, timestamp_ms=1 + number)
        )
        partition = partition_of(key, INPUT_PARTITIONS)
        outputs.append(
            (inputs[number % 5 == 0], partition, key, value, [("n", b"%d" % number)], 1_000 + number)
        )
    writer.write(outputs)
    writer.flush()
    writer.close()


def without_junk(log: KafkaLog, inputs: tuple[str, str]) -> None:
    for first in (0, 51):
        feed(log, inputs, first, 49)


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[[str], StateStore]:
    """A SQLite file for each run; workers on the same machine can open it."""
    return lambda name: open_store(f"sqlite://{tmp_path}/{name}.db")


# --- the tests -----------------------------------------------------------------------------------


EVERY_WAY = [(way, declare) for declare in FLOWS for way in ("small", "large")]
SWOLLEN = [("swollen", declare) for declare in (two_stages, two_stages_in_place)]


@pytest.mark.parametrize(
    ("on_spark", "declare"),
    [*EVERY_WAY, *SWOLLEN],
    indirect=["on_spark"],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_both_engines_publish_and_store_the_same(
    log: KafkaLog,
    inputs: tuple[str, str],
    make_store: Callable[[str], StateStore],
    on_spark: Made,
    declare: Declare,
) -> None:
    names = [Names(f"{who}-{uuid.uuid4().hex[:8]}", inputs) for who in ("a", "b")]
    decodable = declare in (dead_letters, skipping, stateless)
    feed(log, inputs, 0, 100) if decodable else without_junk(log, inputs)
    runs = [
        Run(declare(names[0]), log, make_store("a"), in_process),
        Run(declare(names[1]), log, make_store("b"), on_spark),
    ]
    for run in runs:
        run.until_caught_up()
    feed(log, inputs, 101, 49)
    for run in runs:
        run.until_caught_up()
        run.until_caught_up(at_end=True)

    reference, found = runs
    assert len(found.published()) > 0
    assert found.published() == reference.published()
    assert found.states() == reference.states()
    for node in found.flow.outputs():
        lanes: dict[object, bytes] = {}
        for lane, position in in_order(log, node.topic):
            assert lanes.get(lane, b"") < position, "a lane lost its order"
            lanes[lane] = position
        assert lanes, f"nothing was published to {node.topic}"
    assert [event for event in told(found) if event[0] != "notice"] == [
        event for event in told(reference) if event[0] != "notice"
    ]


def told(run: Run) -> list[tuple[object, ...]]:
    """The events that must be equal for both runs: counts, without random names and times."""
    alike = ("inputs", "outputs", "replays", "excluded", "rows", "level", "plan", "attempt")
    return [
        (event.name, *((field, value) for field, value in event.fields().items() if field in alike))
        for event in run.observer.events
    ]


@pytest.mark.parametrize("server", ["redis", "cassandra"])
def test_a_store_on_the_network_serves_driver_and_workers(
    request: pytest.FixtureRequest, log: KafkaLog, inputs: tuple[str, str], on_spark: Made, server: str
) -> None:
    store = open_store(request.getfixturevalue(f"{server}_url"))
    names = [Names(f"{who}-{uuid.uuid4().hex[:8]}", inputs) for who in ("a", "b")]
    runs = [Run(two_stages(names[0]), log, store, in_process)]
    runs.append(Run(two_stages(names[1]), log, store, on_spark))
    without_junk(log, inputs)
    for run in runs:
        run.until_caught_up()
    assert runs[1].published() == runs[0].published()
    assert runs[1].states() == runs[0].states()


def test_an_error_in_a_task_comes_back_by_its_own_name(
    log: KafkaLog, inputs: tuple[str, str], make_store: Callable[[str], StateStore], on_spark: Made
) -> None:
    """In the first level and after two shuffles; and cached results are released."""
    flow = poisoned(Names(f"a-{uuid.uuid4().hex[:8]}", inputs), "stop")
    run = Run(flow, log, make_store("a"), on_spark)
    feed(log, inputs, 17, 1)
    with pytest.raises(PoisonError, match="seventeen") as caught:
        run.service.batch()
    assert f"[{partition_of(b'k3', INPUT_PARTITIONS)}]@0" in str(caught.value)
    assert f"{__file__}:" in str(caught.value), "the line of the user's own code"
    assert "in add_but_17 (aggregate 'digits'" in str(caught.value)
    feed(log, inputs, 13, 1)
    with pytest.raises(PoisonError, match="thirteen"):
        run.service.batch()


def test_nothing_stays_cached_after_a_batch_or_an_error(
    log: KafkaLog, inputs: tuple[str, str], make_store: Callable[[str], StateStore], spark: SparkSession
) -> None:
    """While a batch runs, results are cached: otherwise this would prove nothing."""
    frames: list[DataFrame] = []

    class Watched(SparkEngine):
        def publish(self) -> None:
            frames.extend(self._frames.values())
            assert all(frame.storageLevel.useMemory for frame in frames)
            super().publish()

        def _spread(self, *arguments: Any) -> Any:
            try:
                return super()._spread(*arguments)
            finally:
                frames.extend(self._frames.values())

    def large(flow: Flow, log: KafkaLog, stores: Mapping[str, StateStore]) -> Engine:
        return Watched(flow, log, stores, spark, tuning=Tuning(inline_bytes=0, small_records=0))

    feed(log, inputs, 20, 10)
    Run(two_stages(Names(f"a-{uuid.uuid4().hex[:8]}", inputs)), log, make_store("a"), large).until_caught_up()
    poison = Run(poisoned(Names(f"b-{uuid.uuid4().hex[:8]}", inputs), "stop"), log, make_store("b"), large)
    feed(log, inputs, 17, 1)
    with pytest.raises(PoisonError, match="seventeen"):
        poison.service.batch()
    assert len(frames) >= 6
    assert not any(frame.storageLevel.useMemory for frame in frames)


def test_a_flow_that_cannot_be_sent_is_refused_before_anything_runs(
    log: KafkaLog, inputs: tuple[str, str], spark: SparkSession
) -> None:
    flow = Flow("unsendable")
    flow.source(inputs, Int64Value).map(lambda value: (spark.version, value)[1]).to("t", partitions=1)
    with pytest.raises(ConfigurationError, match="cannot be sent"):
        SparkEngine(flow, log, {}, spark)
