"""Goal: trace and why-not answer what the topics and the declaration show, whatever part of the flow they skip to be quick.

Method: drawn histories of numbers that are all different, behind a republisher that repeats itself. A naive reader goes through the
records: the first one with a number in its partition counts, the others repeat it. It applies the functions, and adds up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.explain.fate import find_fate
from sqe_chain.ext.explain.recording import Place
from sqe_chain.ext.explain.trace import Trace, read_states, trace
from sqe_chain.flow import Flow, Stream
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of

Check = Callable[[Int64Value], Int64Value]
TWICE = 1_000_001
"""Added to the second value that comes of an input."""


def small(value: Int64Value) -> str:
    return f"k{value.value % 5}"


def other(value: Int64Value) -> str:
    return f"o{value.value // 5 % 3}"


def large(value: Int64Value) -> str:
    return f"g{value.value % 2}"


def add(total: Int64Value, value: Int64Value) -> None:
    total.value += value.value


def add_and_pass(total: Int64Value, value: Int64Value) -> Iterator[Int64Value]:
    total.value += value.value
    yield value


def twice(value: Int64Value) -> Iterator[Int64Value]:
    yield value
    if value.value % 3 == 0:
        yield Int64Value(value=value.value + TWICE)


def is_wanted(value: Int64Value) -> bool:
    return value.value % 11 != 0


def one_stage(stream: Stream[Int64Value]) -> None:
    stream.aggregate("a", key=small, state=Int64Value, fold=add)


def another_key(stream: Stream[Int64Value]) -> None:
    stream.aggregate("a", key=other, state=Int64Value, fold=add)


def fanned(stream: Stream[Int64Value]) -> None:
    stream.flat_map(twice).aggregate("a", key=small, state=Int64Value, fold=add)


def failing_under_another_key(stream: Stream[Int64Value], check: Check) -> None:
    """An input that fails counts under none of its keys."""

    def checked(total: Int64Value, value: Int64Value) -> None:
        total.value += check(value).value

    stream.flat_map(twice).aggregate("a", key=small, state=Int64Value, fold=checked)


def in_two_stages(stream: Stream[Int64Value]) -> None:
    stage = stream.aggregate("a", key=small, state=Int64Value, fold=add_and_pass)
    stage.aggregate("b", key=large, state=Int64Value, fold=add).changes().to("sums", partitions=1)


def beside(stream: Stream[Int64Value]) -> None:
    stream.aggregate("a", key=small, state=Int64Value, fold=add).changes().to("sums", partitions=1)
    stream.filter(is_wanted).aggregate("b", key=other, state=Int64Value, fold=add)
    stream.to("copies", key=small, partitions=2)


def keyed_before(stream: Stream[Int64Value]) -> None:
    stream.key_by(other).aggregate("a", state=Int64Value, fold=add)


@dataclass(frozen=True)
class Shape:
    """A flow, and what reaches its stages: stage -> key function, values of an input.

    `fails_late`: where an input gives two values, only the second one fails.
    """

    declare: Callable[[Stream[Int64Value], Check], None]
    stages: dict[str, tuple[Callable[[Int64Value], str], Callable[[int], list[int]]]]
    fails_late: bool = False


def alone(value: int) -> list[int]:
    return [value]


def checked(declare: Callable[[Stream[Int64Value]], None]) -> Callable[[Stream[Int64Value], Check], None]:
    return lambda stream, check: declare(stream.map(check))


def fan(value: int) -> list[int]:
    return [value] + [value + TWICE] * (value % 3 == 0)


SHAPES = {
    "one stage": Shape(checked(one_stage), {"a": (small, alone)}),
    "another key": Shape(checked(another_key), {"a": (other, alone)}),
    "fanned": Shape(checked(fanned), {"a": (small, fan)}),
    "failing under another key": Shape(failing_under_another_key, {"a": (small, fan)}, fails_late=True),
    "two stages": Shape(checked(in_two_stages), {"a": (small, alone), "b": (large, alone)}),
    "beside": Shape(
        checked(beside), {"a": (small, alone), "b": (other, lambda value: [value] * (value % 11 != 0))}
    ),
    "keyed before": Shape(checked(keyed_before), {"a": (other, alone)}),
}


@dataclass
class History:
    """A flow with two sources that has run: one behind a republisher, one of raw records."""

    shape: Shape
    random: Random
    poison: str
    broken: set[int] = field(default_factory=set)
    released: bool = False

    def __post_init__(self) -> None:
        random, partitions = self.random, self.random.choice([1, 2, 3])
        up = Flow("up")
        up.source("raw", Int64Value).to("numbers", key=small, partitions=partitions)
        self.upstream = Rehearsal(up, partitions={"raw": 2})
        flow = Flow("down", state_partitions=random.choice([partitions, 2]), poison=self.poison)  # type: ignore[arg-type]
        numbers = flow.source("numbers", Int64Value)
        more = flow.source("more", Int64Value, raw=True)
        self.shape.declare(numbers.merge(more), self._check)
        settings = Settings(max_records=random.choice([3, 400]), max_excluded_share=1.0)
        self.service = Rehearsal(
            flow, log=self.upstream.log, partitions={"more": partitions}, settings=settings
        )
        self._live(partitions)

    def _check(self, value: Int64Value) -> Int64Value:
        number = value.value % TWICE
        first = not (self.shape.fails_late and number % 3 == 0)
        if number in self.broken and (first or value.value > number):
            raise ValueError(value.value)
        return value

    def _live(self, partitions: int) -> None:
        random = self.random
        if self.poison != "stop":
            self.broken = {number for number in range(60) if random.random() < 0.1}
        fed, by_key = [0, 0], random.random() < 0.5
        for number in range(60):
            if random.random() < 0.7:
                half = number % 2
                self.upstream.feed("raw", Int64Value(value=number), partition=half, timestamp_ms=number)
                fed[half] += 1
            else:
                key = small(Int64Value(value=number)).encode()
                partition = partition_of(key, partitions) if by_key else random.randrange(partitions)
                self.service.feed("more", Int64Value(value=number), partition=partition, timestamp_ms=number)
            step = random.random()
            if step < 0.1:
                self.upstream.run_until_caught_up()
            elif step < 0.15:
                self.upstream.run_until_caught_up()
                self.upstream.rewind({("raw", half): random.randint(0, fed[half]) for half in (0, 1)})
            elif step < 0.25:
                self.service.run_until_caught_up()
            elif step < 0.3:
                self.service.service = None  # another run
        self.upstream.run_until_caught_up()
        self.service.run_until_caught_up()
        if self.poison == "dead_letter" and random.random() < 0.5:
            self.broken, self.released = set(), True
            FailedInPlans(environment_of(self.service)).release()

    def read(self) -> dict[Place, int]:
        """All records of the inputs, in the order of each partition, and their numbers."""
        numbers = [envelope.payload_as(Int64Value).value for envelope in self.service.published("numbers")]
        more = [
            Int64Value.FromString(message.value() or b"").value
            for message in self.service.log.records("more")
        ]
        records = [*self.service.log.records("more"), *self.service.log.records("numbers")]
        places = [
            (message.topic() or "", message.partition() or 0, message.offset() or 0) for message in records
        ]
        return dict(zip(places, [*more, *numbers], strict=True))


@dataclass
class Naive:
    """What the records give, by a reader that knows nothing of the package."""

    originals: dict[Place, int] = field(default_factory=dict)
    repeats: dict[Place, Place] = field(default_factory=dict)

    def __init__(self, records: dict[Place, int]) -> None:
        self.originals, self.repeats = {}, {}
        first = dict[tuple[str, int, int], Place]()
        for place, number in records.items():
            known = first.setdefault((place[0], place[1], number), place)
            if known == place:
                self.originals[place] = number
            else:
                self.repeats[place] = known


def check_trace(result: Trace, key: str, units: list[tuple[Place, int]], naive: Naive) -> None:
    assert result.equal is True, key
    listed = [(unit.place, unit.state) for unit in result.contributions]
    assert sorted(place for place, _ in listed) == sorted(place for place, _ in units), key
    for partition in {place[:2] for place, _ in listed}:
        offsets = [place[2] for place, _ in listed if place[:2] == partition]
        assert offsets == sorted(offsets), "each partition in its order"
    total, values = 0, defaultdict[Place, list[int]](list)
    for place, value in units:
        values[place].append(value)
    for place, state in listed:
        total += values[place].pop(0)
        assert int(str(state)) == total, (key, place)
    (stored,) = result.stored.states
    assert isinstance(stored.state, Int64Value)
    assert stored.state.value == total
    mine = {place for place, _ in units}
    expected = {(again, first) for again, first in naive.repeats.items() if first in mine}
    assert {(replay.place, replay.original) for replay in result.replays} == expected


@pytest.mark.parametrize("poison", ["stop", "skip", "dead_letter"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_each_key_has_the_records_that_a_naive_reader_finds(shape: str, poison: str, seed: int) -> None:
    history = History(SHAPES[shape], Random(f"{shape} {poison} {seed}"), poison)
    naive, env = Naive(history.read()), environment_of(history.service)
    counted = {place: number for place, number in naive.originals.items() if number not in history.broken}
    for stage in env.flow.stages:
        key_of, values_of = history.shape.stages[stage.name]
        units = defaultdict[str, list[tuple[Place, int]]](list)
        for place, number in counted.items():
            for value in values_of(number):
                units[key_of(Int64Value(value=value))].append((place, value))
        plan = read_states(env.ports.stores, env.flow.name, stage, [b"nobody"]).plan
        if plan.placed and stage.name == "a":
            assert all(
                place[1] == partition_of(key.encode(), env.flow.state_partitions)
                for key, own in units.items()
                for place, _ in own
            )
        for key, own in units.items():
            check_trace(trace(env, stage, [key.encode()]), key, own, naive)
        absent = trace(env, stage, [b"nobody"])
        assert (absent.equal, absent.contributions, absent.replays) == (True, (), ())


@pytest.mark.parametrize("poison", ["stop", "skip", "dead_letter"])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_record_has_the_fate_that_a_naive_reader_finds(shape: str, poison: str) -> None:
    history = History(SHAPES[shape], Random(f"{shape} {poison}"), poison)
    naive, env = Naive(history.read()), environment_of(history.service)
    records = history.read()
    for place in Random(shape).sample(sorted(records), 4):
        fate, number = find_fate(env, place), records[place]
        reached = [
            (name, key_of(Int64Value(value=value)).encode())
            for name, (key_of, values_of) in history.shape.stages.items()
            for value in values_of(number)
        ]
        if number in history.broken:
            assert fate.verdict in ("skipped", "replay")
        elif place in naive.repeats:
            assert (fate.verdict, fate.original) == ("replay", naive.repeats[place]), fate
        elif fate.contributions:
            assert fate.verdict == "counted" or (poison == "skip" and fate.verdict == "not known"), fate
            assert sorted((unit.stage, unit.key) for unit in fate.contributions) == sorted(reached)
        else:
            assert history.released, fate


def test_an_accusation_waits_for_what_the_rest_of_the_flow_does() -> None:
    """A flow that skipped what an output could not take, and stops now: its trace ends with that error, and accuses no state."""
    flow = Flow("skips", state_partitions=1, poison="skip")
    numbers = flow.source("more", Int64Value, raw=True)
    numbers.aggregate("a", key=small, state=Int64Value, fold=add)
    numbers.map(refuse_seven).to("out", key=small, partitions=1)
    service = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))
    for number in (5, 10, 7, 2):
        service.feed("more", Int64Value(value=number))
    service.run_until_caught_up()
    service.service = None
    stops = Flow("skips", state_partitions=1)
    numbers = stops.source("more", Int64Value, raw=True)
    numbers.aggregate("a", key=small, state=Int64Value, fold=add)
    numbers.map(refuse_seven).to("out", key=small, partitions=1)
    service.flow = stops
    env = environment_of(service)
    assert trace(env, env.flow.stages[0], [b"k0"]).equal
    with pytest.raises((ConfigurationError, Exception), match="seven"):
        trace(env, env.flow.stages[0], [b"k2"])


def refuse_seven(value: Int64Value) -> Int64Value:
    if value.value == 7:
        raise ValueError("no seven")
    return value
