"""Flows that are run by several engines, under names of their own, on the same real input; and what they give.

A test compares all that two runs published (payloads, chains, positions, previous positions) and stored. Workers import this module.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.codecs.protobuf import Protobuf
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.envelope.message import is_enveloped, read, wrap
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import Unavailable
from sqe_chain.flow import Flow, count, last, max_, mean, sum_
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.flow.context import Context
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans.environment import Engine, Environment, Ports
from sqe_chain.plans.events import Event
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Output, Range, StateStore
from sqe_chain.protocol.services import service_of
from sqe_chain.stages import Tumbling
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


def add_and_emit(total: Int64Value, value: Int64Value) -> list[Int64Value]:
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


class NoAnswer(Unavailable):
    """An outage under a name that the service does not know."""


def out_of_reach(total: Int64Value, value: Int64Value) -> None:
    if value.value == 17:
        raise NoAnswer("the registry does not answer")
    total.value += value.value


class Meeting(Protobuf[Int64Value]):
    """Notes what it has read, as codecs of a registry do."""

    wants_registry = True

    def __init__(self, python_type: type[Int64Value]) -> None:
        super().__init__(python_type)
        self._read, parse = dict[str, str](), self.decode

        def decode(data: bytes) -> Int64Value:
            value = parse(data)
            self._read[f"digit {value.value % 10}"] = ""
            return value

        vars(self).update(decode=decode)

    def met(self) -> Mapping[str, str]:
        return self._read


def meeting(names: Names) -> Flow:
    """A flow whose codec notes what it reads."""
    flow = Flow(names.flow, state_partitions=4)
    flow.source(names.inputs, Meeting(Int64Value)).aggregate(
        "digits", key=last_digit, state=Int64Value, fold=add_but_17
    )
    return flow


def asking(names: Names) -> Flow:
    """A flow whose function needs another service."""
    flow = Flow(names.flow, state_partitions=4, poison="skip")
    flow.source(names.inputs, Int64Value).aggregate(
        "digits", key=last_digit, state=Int64Value, fold=out_of_reach
    )
    return flow


def one_stage(names: Names, parts: int) -> Flow:
    flow = Flow(names.flow, state_partitions=parts)
    stage = flow.source(names.inputs, Int64Value).aggregate("sums", state=Int64Value, fold=add_and_emit)
    stage.to(names.outputs[0], partitions=2)
    stage.changes().to(names.outputs[1], partitions=1)
    return flow


def unshuffled(names: Names) -> Flow:
    return one_stage(names, INPUT_PARTITIONS)


def shuffled(names: Names) -> Flow:
    return one_stage(names, 5)


def two_stages(names: Names, parts: int = 4) -> Flow:
    flow = Flow(names.flow, state_partitions=parts)
    source = flow.source(names.inputs, Int64Value)
    numbers = source.flat_map(thrice).merge(source.filter(lambda value: value.value % 2 == 0))
    first = numbers.aggregate("digits", key=last_digit, state=Int64Value, fold=add_and_emit)
    second = first.aggregate("signs", key=sign, state=Int64Value, fold=add_and_emit)
    second.to(names.outputs[0], partitions=2, key=last_digit)
    second.changes().to(names.outputs[1], partitions=1)
    return flow


def two_stages_unshuffled(names: Names) -> Flow:
    flow = Flow(names.flow, state_partitions=INPUT_PARTITIONS)
    first = flow.source(names.inputs, Int64Value).aggregate("sums", state=Int64Value, fold=add_and_emit)
    second = first.aggregate("signs", key=sign, state=Int64Value, fold=add_and_emit)
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


def sending_poison_away(names: Names) -> Flow:
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
    joined.aggregate("sums", key=last_digit, state=Int64Value, fold=add_and_emit).to(
        names.outputs[1], partitions=2
    )
    near = numbers.join_stream("near", small, pair, before_ms=10, after_ms=30)
    near.aggregate("pairs", key=last_digit, state=Int64Value, fold=add)
    return flow


def declared(names: Names) -> Flow:
    """Declared aggregates, by key and by window, whose states and results go through shuffles and topics."""
    flow = Flow(names.flow, state_partitions=3)
    numbers = flow.source(names.inputs, Int64Value)
    totals = numbers.aggregate(
        "digits",
        key=last_digit,
        events=count(),
        total=sum_("value"),
        most=max_("value"),
        middle=mean("value"),
    )
    totals.changes().to(names.outputs[0], partitions=2)
    tens = numbers.windowed("tens", Tumbling(10), key=last_digit, total=sum_("value"), latest=last("value"))
    tens.aggregate("windows", key="key", windows=count(), total=sum_("state.total"))
    tens.to(names.outputs[1], partitions=2)
    return flow


def own_time(value: Int64Value) -> int:
    return value.value + 1


def exploded(names: Names) -> Flow:
    """Values of several times from each input: windows, sessions, filters and joins take each at its own."""
    flow = Flow(names.flow, state_partitions=3)
    numbers = flow.source(names.inputs, Int64Value).flat_map(thrice).key_by(last_digit)
    numbers.windowed("tens", Tumbling(10), state=Int64Value, fold=add, time=own_time).to(
        names.outputs[0], partitions=2, separate=True
    )
    numbers.windowed("declared", Tumbling(10), time=own_time, total=sum_("value")).aggregate(
        "windows", key="key", windows=count(), total=sum_("state.total")
    )
    once = numbers.deduplicate_by_key("once", 5, time=own_time)
    small = numbers.filter(lambda value: value.value % 20 < 10)
    near = numbers.join_stream(
        "near", small, pair, before_ms=10, after_ms=30, time=own_time, other_time=own_time
    )
    near.to(names.outputs[1], partitions=2, key=last_digit, separate=True)
    once.aggregate("firsts", state=Int64Value, fold=add)
    return flow


def stateless(names: Names) -> Flow:
    flow = Flow(names.flow, poison="dead_letter", dead_letter_topic=names.outputs[1])
    flow.source(names.inputs, Int64Value).map(refuse_13).flat_map(thrice).to(
        names.outputs[0], partitions=4, key=last_digit
    )
    return flow


def in_transactions(names: Names) -> Flow:
    """What engines hand over to the service, which publishes it: outputs of a reading task, and of a stage behind a shuffle."""
    flow = Flow(names.flow, state_partitions=3, transactional=True)
    numbers = flow.source(names.inputs, Int64Value).flat_map(thrice)
    numbers.to(names.outputs[0], partitions=4, key=last_digit)
    digits = numbers.key_by(last_digit).aggregate("digits", state=Int64Value, fold=add)
    digits.changes().to(names.outputs[1], partitions=2)
    return flow


FLOWS: list[Declare] = [
    unshuffled,
    shuffled,
    two_stages,
    two_stages_unshuffled,
    contexts,
    sending_poison_away,
    skipping,
    stateless,
    by_event_time,
    declared,
    exploded,
    in_transactions,
]


# --- what they give ----------------------------------------------------------------------


def in_process(flow: Flow, log: KafkaLog, stores: Mapping[str, StateStore]) -> Engine:
    def store_of(stage: StageNode) -> StateStore:
        return stores[stage.store or ""]

    return InProcessEngine(flow.compile(), log, store_of)


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
            flow.compile(),
            Ports(log, stores),
            self.engine,
            self.observer,
            SteppingClock(),
            lambda: uuid.uuid4().hex,
            Settings(allow_weak_durability=True),
        )
        self.service = service_of(env)
        for node in flow.compile().outputs:
            log.create_topic(node.topic, node.partitions)
        if flow.compile().dead_letters:
            log.create_topic(flow.dead_letter_topic, 1)
        if flow.compile().transactional:
            log.create_topic(flow.compile().marker_topic, 1, compacted=True)
        self.service.start()

    def until_caught_up(self, *, at_end: bool = False) -> None:
        while self.service.batch(at_end=at_end).worked:
            pass

    def states(self) -> dict[tuple[str, int], dict[bytes, bytes]]:
        return {
            (stage.name, part): dict(self.store.scan(self.flow.name, stage.name, part))
            for stage in self.flow.compile().stages
            for part in range(self.flow.state_partitions)
        }

    def published(self) -> list[tuple[object, ...]]:
        """All records of all output topics in a fixed order, reduced to what must be equal for both engines."""
        topics = [node.topic for node in self.flow.compile().outputs]
        if self.flow.compile().dead_letters:
            topics.append(self.flow.dead_letter_topic)
        found = [
            (topic.removeprefix(self.flow.name), partition, *self._essence(message))
            for topic in topics
            for partition, message in everything(self.log, topic)
        ]
        return sorted(found, key=repr)

    def _essence(self, message: Any) -> tuple[object, ...]:
        value = message.value()
        own = self.flow.name.encode()  # ways of inputs have it, too
        headers = [
            (name, content and content.replace(own, b""))
            for name, content in message.headers() or []
            if name != "sqe-flow"
        ]
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


def comparable_events(run: Run) -> list[tuple[object, ...]]:
    """The events that must be equal for both runs: counts, without random names and times."""
    alike = ("inputs", "outputs", "replays", "excluded", "rows", "level", "plan", "attempt")
    return [
        (event.name, *((field, value) for field, value in event.fields().items() if field in alike))
        for event in run.observer.events
    ]
