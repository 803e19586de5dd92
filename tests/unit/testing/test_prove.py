"""Goal: every kind of function that is not deterministic is found and named, with the shortest schedule; exact flows pass.

Method: flows with one planted defect each. Bounded by schedules, never by time.
"""

from __future__ import annotations

import decimal
import importlib
import inspect
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sqe_chain import Flow
from sqe_chain.errors import ChainError, ConfigurationError, NotDeterministic, NotExact, PoisonError
from sqe_chain.flow import Context
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.stages import Record, RecordFunctions, RecordKind, RowTable, StageTraits, Verdict
from sqe_chain.task import level, poison, source_partition
from sqe_chain.testing import Feed, Finding, Schedule, prove, prove_schedule
from sqe_chain.testing.proving.drawing import draw_schedules, inject_each_fault
from sqe_chain.testing.proving.schedule import Point
from tests.support.broken_outputs import each_unit_is_taken_for_an_input_of_its_own

Event = dict[str, Any]

EVENTS: list[Event] = [{"robot": f"r{n % 3}", "n": n, "tags": ["a", "b", "c", f"t{n}"]} for n in range(8)]
seen: dict[str, int] = {}
numbers = count()
last_robot = ""


class Settings:
    """A class of the user with state of its own."""

    factor = 1


def robot_of(event: Event) -> str:
    return str(event["robot"])


def add(state: Event, event: Event) -> None:
    state["n"] = state.get("n", 0) + event["n"]


def flow_with(function: Callable[..., Any], *, step: str = "map", **settings: Any) -> Flow:
    flow = Flow("planted", state_partitions=2, **settings)
    stream = getattr(flow.source("in", dict), step)(function)
    stream.aggregate("sum", key=robot_of, state=dict, fold=add).changes().to("sums", partitions=1)
    return flow


def found_in(flow: Flow, inputs: Any = None, *, schedules: int = 40, **settings: Any) -> NotDeterministic:
    given = {"in": EVENTS} if inputs is None else inputs
    with pytest.raises(NotDeterministic) as raised:
        prove(flow, given, seconds=600, schedules=schedules, **{"other_processes": False, **settings})
    return raised.value


def only(error: NotDeterministic) -> Finding:
    (finding,) = error.findings
    assert isinstance(finding, Finding)
    assert finding.text in str(error)
    return finding


def line_of(function: Callable[..., Any], text: str) -> int:
    """The number of the line of a function that has a text."""
    lines, first = inspect.getsourcelines(function)
    (index,) = (number for number, line in enumerate(lines) if text in line)
    return first + index


def day(event: Event) -> Event:
    return {**event, "day": datetime.now(UTC).date().isoformat()}


def seconds(event: Event) -> Event:
    return {**event, "at": stamped()}


def stamped() -> int:
    return int(time.time())


def drawn(event: Event) -> Event:
    return {**event, "sample": random.random()}


def named(event: Event) -> Event:
    return {**event, "id": str(uuid.uuid4())}


def by_address(event: Event) -> Event:
    return {**event, "address": id(event)}


def counted(event: Event) -> Event:
    seen[event["robot"]] = seen.get(event["robot"], 0) + 1
    return {**event, "count": seen[event["robot"]]}


def numbered(event: Event) -> Event:
    return {**event, "number": next(numbers)}


def of_settings(event: Event) -> Event:
    Settings.factor += 1
    return {**event, "n": event["n"] * Settings.factor}


@dataclass
class Remembering:
    """A callable object with a memory."""

    last: int = 0

    def __call__(self, event: Event) -> Event:
        delta, self.last = event["n"] - self.last, event["n"]
        return {**event, "delta": delta}


def closing() -> Callable[[Event], Event]:
    total = 0

    def running(event: Event) -> Event:
        nonlocal total
        total += event["n"]
        return {**event, "total": total}

    return running


@pytest.mark.parametrize(
    ("function", "reason", "line", "says"),
    [
        pytest.param(day, "clock", "datetime.now", "datetime.now()", id="a date"),
        pytest.param(seconds, "clock", "time.time", "time.time()", id="a clock in a function that it calls"),
        pytest.param(drawn, "random", "random.random", "Random.random()", id="random"),
        pytest.param(named, "random", "uuid4", "posix.urandom()", id="uuid"),
        pytest.param(by_address, "identity", "id(", "id()", id="id"),
        pytest.param(counted, "state of its own", "def ", "seen has changed", id="global"),
        pytest.param(numbered, "state of its own", "def ", "numbers has changed", id="counter"),
        pytest.param(of_settings, "state of its own", "def ", "Settings has changed", id="class"),
        pytest.param(closing(), "state of its own", "def ", "total has changed", id="closure"),
    ],
)
def test_a_function_is_named_with_line_and_reason(function: Any, reason: str, line: str, says: str) -> None:
    error = found_in(flow_with(function))
    found = only(error)
    assert (found.function, found.reason) == (function.__qualname__, reason)
    place = stamped if function is seconds else function
    assert found.where.endswith(f"test_prove.py:{line_of(place, line)}"), found.where
    assert says in found.text
    assert f"{function.__qualname__} (" in str(error)
    assert "declared at " in found.declared
    assert isinstance(error.schedule, Schedule)
    assert len(error.schedule.inputs) == 1
    assert error.schedule == error.schedule.undisturbed, "no fault is needed to see it"
    assert "1. in <- {'robot':" in str(error)
    assert "Nothing has to happen." in str(error)


def test_an_object_with_a_memory() -> None:
    found = only(found_in(flow_with(Remembering())))
    assert (found.function, found.reason) == ("Remembering", "state of its own")
    assert "self of Remembering" in found.text


@pytest.mark.parametrize("step", ["filter", "key_by", "flat_map"])
def test_every_step_is_watched(step: str) -> None:
    def odd(event: Event) -> Any:
        drawn = random.getrandbits(60)
        return {
            "filter": drawn % 2 == 0,
            "key_by": str(drawn),
            "flat_map": [{**event} for _ in range(drawn % 7)],
        }[step]

    found = only(found_in(flow_with(odd, step=step)))
    assert found.reason == "random"
    assert found.declared.startswith(step)


def test_folds_keys_decoders_and_times_are_watched() -> None:
    def fold(state: Event, event: Event) -> Iterator[Event]:
        state["at"] = time.time_ns()
        yield event

    def decoded(data: bytes) -> Event:
        return {"robot": str(random.random()), "n": len(data)}

    flow = Flow("roles", state_partitions=1)
    stream = flow.source("in", decoded, raw=True, timestamp=lambda _: int(time.time() * 1_000))
    stream.aggregate("sum", key=lambda event: f"{random.random()}", state=dict, fold=fold)
    error = found_in(flow, {"in": [b"1", b"22"]})
    assert [
        finding.declared.partition(",")[0] for finding in error.findings if isinstance(finding, Finding)
    ] == [
        "decoder of source 'in'",
        "timestamp of source 'in'",
        "key of aggregate 'sum'",
        "fold of aggregate 'sum'",
    ]


def test_an_argument_that_others_see_must_not_be_changed() -> None:
    def cleaned(event: Event) -> Event:
        event["n"] = 0
        return event

    def robot_of_cleaned(event: Event) -> str:
        return robot_of(cleaned(event))

    flow = Flow("branches", state_partitions=1)
    stream = flow.source("in", dict)
    stream.map(cleaned).to("cleaned", key=robot_of, partitions=1)  # it has a value of its own
    stream.to("raw", key=robot_of_cleaned, partitions=1)
    found = only(found_in(flow))
    assert found.reason == "changed argument"
    assert "Before the call: {'n': 1, 'robot': 'r1'" in found.text
    assert "After it:        {'n': 0, 'robot': 'r1'" in found.text
    assert (
        prove(flow_with(cleaned), {"in": EVENTS}, seconds=600, schedules=5, other_processes=False).schedules
        == 5
    )


def test_a_filter_must_not_change_what_it_passes_on() -> None:
    def odd(event: Event) -> bool:
        event["seen"] = True
        return True

    assert only(found_in(flow_with(odd, step="filter"))).reason == "changed argument"


def test_a_function_that_another_one_disturbs() -> None:
    """Called twice in a row it gives the same; what it reads is changed by another function, or by other records."""
    world = {"factor": 1}

    def disturb(event: Event) -> Event:
        world["factor"] = 1 + event["n"] % 5
        return event

    def depends(event: Event) -> Event:
        return {"robot": event["robot"], "n": 7 * world["factor"]}

    flow = Flow("disturbed", state_partitions=1)
    flow.source("in", dict).map(lambda event: {"robot": event["robot"], "n": 1}).map(depends).aggregate(
        "sum", key=robot_of, state=dict, fold=add
    )
    flow.source("other", dict).map(disturb).to("out", key=robot_of, partitions=1)
    error = found_in(flow, {"in": EVENTS, "other": EVENTS})
    found = only(error)
    assert (found.function.rpartition(".")[2], found.reason) == ("depends", "state of its own")
    assert "world has changed" in found.text
    assert "in another run" in found.text


def tagged(event: Event) -> Event:
    return {**event, "tags": ",".join(set(event["tags"]))}


def hashed(event: Event) -> Event:
    return {**event, "hash": hash(event["robot"])}


def test_the_order_of_a_set_and_hashes_show_in_other_processes() -> None:
    flow = flow_with(tagged)
    flow.source("other", dict).map(hashed).to("hashed", key=robot_of, partitions=1)
    error = found_in(flow, {"in": EVENTS, "other": EVENTS}, other_processes=True)
    assert [
        (finding.function, finding.reason) for finding in error.findings if isinstance(finding, Finding)
    ] in (
        [("tagged", "order")],
        [("hashed", "identity")],
    ), "the shortest schedule has one record, which reaches one of them"
    assert isinstance(error.schedule, Schedule)
    assert len(error.schedule.inputs) == 1
    assert "called with the same in two processes" in str(error)


def test_a_flow_that_cannot_be_sent_is_reported() -> None:
    lock = threading.Lock()
    flow = flow_with(lambda event: {**event, "locked": lock.locked()})
    proof = prove(flow, {"in": EVENTS}, seconds=600, schedules=3)
    assert proof.processes == 0
    assert any(
        text.startswith("other processes: flow 'planted' cannot be sent") for text in proof.not_reached
    )


def test_rows_of_a_batch_must_not_depend_on_each_other() -> None:
    class Row(msgspec.Struct):
        robot: str
        n: float

    def share(batch: Any) -> Any:
        return batch.set_column(1, "n", pc.divide(batch["n"], pc.sum(batch["n"])))

    def halved(batch: Any) -> Any:
        return batch.set_column(1, "n", pc.divide(batch["n"], pa.scalar(2.0)))

    def flow_of(function: Any) -> Flow:
        flow = Flow("columns", state_partitions=1)
        flow.source("in", Row).map_batches(function, Row).to("out", key=lambda row: row.robot, partitions=1)
        return flow

    rows = {"in": [Row(f"r{n}", n + 1.0) for n in range(6)]}
    found = only(found_in(flow_of(share), rows))
    assert (found.function.rpartition(".")[2], found.reason) == ("share", "other rows")
    assert prove(flow_of(halved), rows, seconds=600, schedules=5, other_processes=False).schedules == 5


class Forgetful:
    """A kind of stage that keeps in memory what belongs into rows."""

    memory: dict[bytes, int] = {}  # noqa: RUF012 - that is the defect

    def __init__(self, table: RowTable) -> None:
        self._table = table

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        return {record.key or b"" for record in records}

    def accept(self, record: Record) -> Verdict:
        key = record.key or b""
        self.memory[key] = self.memory.get(key, 0) + 1
        self._table.put(key, self.memory[key].to_bytes(8, "big"))
        return Verdict(forward=True)

    def finish(self, now_ms: int) -> None:
        pass


class ForgetfulKind(RecordKind[Forgetful]):
    """Its declaration."""

    name = "forgetful"

    def stage(self, table: RowTable, functions: RecordFunctions, clock_ms: int | None) -> Forgetful:
        return Forgetful(table)


def test_what_no_function_shows_is_not_exact() -> None:
    """The defect is in a kind of stage: there is a difference, but no function to blame."""
    flow = Flow("forgetful", state_partitions=1)
    flow.source("in", dict).key_by(robot_of).stage("numbered", ForgetfulKind()).to("out", partitions=1)
    with pytest.raises(NotExact, match=r"stage 'numbered'") as raised:
        prove(flow, {"in": EVENTS}, seconds=600, schedules=40, other_processes=False)
    assert not isinstance(raised.value, NotDeterministic)
    assert isinstance(raised.value, AssertionError)
    assert isinstance(raised.value.schedule, Schedule)
    assert len(raised.value.schedule.inputs) == 1


class TimedForgetfulKind(ForgetfulKind):
    """The same where the contents of single plans are not compared."""

    name = "timed-forgetful"
    traits = StageTraits(order="times", sides=("dropped",))


def test_results_are_compared_in_the_end() -> None:
    flow = Flow("forgetful", state_partitions=1)
    flow.source("in", dict).key_by(robot_of).stage("numbered", TimedForgetfulKind()).to("out", partitions=1)
    with pytest.raises(NotExact, match=r"states of stage 'numbered', key 'r\d': undisturbed"):
        prove(flow, {"in": EVENTS}, seconds=600, schedules=40, other_processes=False)


def test_a_fold_that_depends_on_where_batches_end() -> None:
    """A stored state has its keys in order; within a batch they are in the order in which they came."""

    def first(state: Event, event: Event) -> Iterator[Event]:
        state[event["name"]] = True
        yield {"first": next(iter(state))}

    flow = Flow("firsts", state_partitions=1)
    stage = flow.source("in", dict).aggregate("firsts", key=lambda _: "all", state=dict, fold=first)
    stage.to("out", partitions=1)
    with pytest.raises(NotExact, match="output 'out' on topic 'out'") as raised:
        prove(flow, {"in": [{"name": name} for name in "zyxabc"]}, other_processes=False)
    schedule = raised.value.schedule
    assert isinstance(schedule, Schedule)
    assert (schedule.batch, schedule.faults) == (1, ())
    with pytest.raises(NotExact, match="output 'out' on topic 'out'"):
        prove_schedule(flow, {"in": [{"name": name} for name in "zyxabc"]}, schedule)


def test_the_function_is_blamed_rather_than_what_comes_of_it() -> None:
    calls = count()

    def fragile(event: Event) -> Event:
        if next(calls) % 3 == 0:
            raise ValueError("every third time")
        return event

    found = only(found_in(flow_with(fragile)))
    assert found.reason == "state of its own"
    assert "calls has changed" in found.text


def test_a_defect_that_only_a_redo_shows_has_one_fault_and_one_input() -> None:
    """What a stateless service made of its clock is published again with another content."""

    def stamp(event: Event, context: Context) -> Event:
        return {**event, "at": context.now_ms}

    flow = Flow("stamps")
    flow.source("in", dict, raw=True).map(stamp).to("out", key=robot_of, partitions=1)
    with pytest.raises(NotExact, match="redo: a lane and position names one content") as raised:
        prove(flow, {"in": EVENTS}, seconds=600, schedules=40, other_processes=False)
    schedule = raised.value.schedule
    assert isinstance(schedule, Schedule)
    assert len(schedule.inputs) == 1
    assert len(schedule.faults) + len(schedule.rewinds) == 1
    assert f"prove_schedule(flow, inputs, Schedule(inputs={schedule.inputs}, " in str(raised.value)
    with pytest.raises(NotExact, match="redo"):
        prove_schedule(flow, {"in": EVENTS}, schedule)
    prove_schedule(flow, {"in": EVENTS}, schedule.undisturbed)
    with pytest.raises(ConfigurationError, match="numbers of the 8 records"):
        prove_schedule(flow, {"in": EVENTS}, Schedule(inputs=(8,)))


def test_outputs_of_one_input_at_one_position_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are equal, and without a single fault: readers take the first alone."""
    flow = Flow("lines", state_partitions=1)
    table = flow.source("names", dict, raw=True).key_by(robot_of)
    lines = flow.source("in", dict, raw=True).flat_map(lambda event: [event, {**event}]).key_by(robot_of)
    lines.join_table("named", table, lambda event, _: event, how="left").to("out", partitions=1)
    inputs = {"in": EVENTS, "names": EVENTS[:1]}
    prove(flow, inputs, seconds=600, schedules=1, other_processes=False)
    each_unit_is_taken_for_an_input_of_its_own(monkeypatch)
    with pytest.raises(NotExact, match=r"redo: a lane and position .*twice in a batch"):
        prove(flow, inputs, seconds=600, schedules=1, other_processes=False)


@pytest.mark.parametrize("policy", ["stop", "skip", "dead_letter"])
def test_a_function_that_cannot_reach_what_it_needs_is_waited_for(
    policy: PoisonPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an outage were poison, `prove` would find it, and name what has happened."""
    flow = Flow("reaching", state_partitions=2, poison=policy)
    mapped = flow.source("in", dict, raw=True).map(dict)
    mapped.aggregate("totals", key=robot_of, state=dict, fold=add).changes().map(dict).to("out", partitions=1)
    inputs = {"in": EVENTS}
    for number in range(0, 40, 3):
        prove_schedule(flow, inputs, Schedule(tuple(range(len(EVENTS))), unreachable=(number,)))
    for module in (poison, level, source_partition):
        monkeypatch.setattr(module, "raise_outage", lambda *_: None)
    with pytest.raises(NotExact, match=r"key robot_of cannot reach .*Unavailable"):
        prove_schedule(flow, inputs, Schedule(tuple(range(len(EVENTS))), unreachable=tuple(range(1, 60))))


def test_a_service_upstream_crashes_and_waits_but_is_not_taken_over() -> None:
    """Nobody takes over from it, and two runs that republish in turns are another proof."""
    points = [Point(0, "before", "a write", write=True, step=5, service="upstream")]
    found = list(inject_each_fault(Schedule((0,), upstream=True), points, writes=True))
    assert [one.faults[0].what for one in found] == ["crash", "no answer"]
    assert {one.faults[0].service for one in found} == {"upstream"}


def test_the_same_seed_draws_the_same_schedules() -> None:
    def schedules(seed: int) -> list[Schedule]:
        drawn = Schedule((0, 1, 2)), random.Random(seed), 90
        found = draw_schedules(*drawn, upstream=20, rewinds=False, functions=30)
        return list(islice(found, 200))

    assert schedules(1) == schedules(1) != schedules(2)
    every = schedules(3)
    assert {one.carrier for one in every} == {"value", "headers"}
    assert {len(one.faults) for one in every} >= {1, 2, 3, 4}
    assert {fault.what for one in every for fault in one.faults} == {"crash", "no answer", "takeover"}
    assert all(one.upstream for one in every if one.rewinds)
    assert {len(one.unreachable) for one in every} == {0, 1, 5, 50}


def test_the_same_seed_proves_the_same() -> None:
    def report() -> str:
        proof = prove(flow_with(dict), {"in": EVENTS[:1]}, seconds=600, schedules=20, other_processes=False)
        return str(proof).partition("s).")[2]

    assert report() == report()


def test_a_proof_lists_what_it_has_not_reached() -> None:
    flow = Flow("unreached", state_partitions=1)
    stream = flow.source("in", dict, raw=True)
    stream.filter(lambda event: event["n"] > 100).map(day).aggregate(
        "sum", key=robot_of, state=dict, fold=add
    )
    proof = prove(flow, {"in": EVENTS}, seconds=600, schedules=2, other_processes=False)
    text = str(proof)
    assert f"day, declared at {__file__}" in text
    assert "no record has reached it" in text
    assert "replays of topic 'in': it is read raw" in text
    assert "step 5, publish: the flow does nothing there" in text
    assert "other processes: other_processes=False" in text
    assert "Flow 'unreached' is exact in 2 schedules of 8 records" in text


def test_time_bounds_it() -> None:
    proof = prove(flow_with(dict), {"in": EVENTS}, seconds=1e-9, other_processes=False)
    assert proof.schedules == 0
    assert any("points: no time" in text for text in proof.not_reached)


def test_feeds_are_those_of_a_rehearsal() -> None:
    flow = Flow("fed", state_partitions=1)
    flow.source("in", dict).aggregate("sum", state=dict, fold=add)
    feeds = [Feed("in", event, key=event["robot"], partition=1, timestamp_ms=5) for event in EVENTS]
    assert (
        prove(flow, feeds, partitions={"in": 2}, seconds=600, schedules=3, other_processes=False).schedules
        == 3
    )


@pytest.mark.parametrize(
    ("inputs", "settings", "error"),
    [
        ({"other": [{}]}, {}, "does not read topic 'other'. Expected one of: in"),
        ([{"robot": "r"}], {}, "a list of Feed"),
        ({"in": EVENTS}, {"seconds": 0}, "seconds=0"),
        ({"in": EVENTS}, {"schedules": 0}, "schedules=0"),
    ],
)
def test_wrong_arguments_are_refused(inputs: Any, settings: Any, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        prove(flow_with(dict), inputs, **settings)


def test_a_flow_that_stops_by_itself_is_no_finding() -> None:
    with pytest.raises(PoisonError, match="KeyError"):
        prove(flow_with(lambda event: event["missing"]), {"in": EVENTS}, seconds=600, schedules=3)


def test_errors_are_assertions_and_part_of_the_tree() -> None:
    assert issubclass(NotDeterministic, NotExact)
    assert issubclass(NotExact, AssertionError)
    assert issubclass(NotExact, ChainError)


def test_a_bar_is_shown_when_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    prove(flow_with(dict), {"in": EVENTS[:1]}, seconds=600, schedules=3, other_processes=False, progress=True)
    assert "prove planted" in capsys.readouterr().err
    prove(flow_with(dict), {"in": EVENTS[:1]}, seconds=600, schedules=3, other_processes=False)
    assert capsys.readouterr().err == ""


def test_a_global_that_the_program_has_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes import the module, and have what its text gives."""
    (tmp_path / "rates_of_prove.py").write_text(
        "RATE = 1\nNAME = 'a'\ndef rated(event): return {**event, 'n': event['n'] * RATE}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("rates_of_prove")
    monkeypatch.setitem(sys.modules, "rates_of_prove", sys.modules.pop("rates_of_prove"))
    module.RATE, module.NAME = 3, "b"
    flow = flow_with(module.rated)
    with pytest.raises(NotDeterministic) as caught:
        prove(flow, {"in": EVENTS[1:3]}, seconds=600, schedules=1)
    found = only(caught.value)
    assert (found.function, found.reason) == ("rated", "global")
    assert "RATE of module 'rates_of_prove' is 3 here and 1 there" in found.text
    assert "NAME" not in found.text


def third(event: Event) -> Event:
    third = str(decimal.Decimal(event["n"]) / 3)
    if event["n"] == 5:
        decimal.getcontext().prec = 50
    return {**event, "third": third}


def test_a_changed_context_of_decimals_is_named() -> None:
    with decimal.localcontext():
        found = only(found_in(flow_with(third)))
    assert found.reason == "state of its own"
    assert "decimal.getcontext() has changed" in found.text
